package network

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/networld"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// A sandbox with a network gets programs while it runs, and they reach the hosts of its policy alone.
func TestGrow_HasTheNetworkOfItsSandbox(t *testing.T) {
	w := begin(t, networld.Options{})
	if w == nil {
		return
	}
	python := filepath.Join(undertest.Artifact(t, "world-python"), "bin", "session-run")
	programs := regexp.MustCompile(`/nix/store/[0-9a-z]{32}-sandbox-environment/bin`).FindString(string(must.Get(os.ReadFile(python))(t)))
	if programs == "" {
		t.Fatal("the sandbox of Python has no PATH")
	}
	run := filepath.Join(undertest.Artifact(t, "world-bash"), "bin", "run")
	fetch := func(host string) string {
		return fmt.Sprintf("%s/python3 -c 'import urllib.request as u; print(u.urlopen(\"http://%s/small\").read().decode().strip())' 2>&1 | tail -1\n", programs, host)
	}
	cmd := exec.Command(run)
	cmd.Stdin = strings.NewReader("x=41\n" + fetch("files.example") + "echo begun\nuntil [ -e " + programs + " ]; do sleep .05; done\n" +
		fetch("files.example") + fetch("elsewhere.example") + "echo $x\n")
	cmd.Env = []string{}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	output := must.Get(cmd.StdoutPipe())(t)
	must.Do(t, w.Do(cmd.Start))
	lines := bufio.NewReader(output)
	var before, after bytes.Buffer
	for !strings.HasSuffix(before.String(), "begun\n") {
		line, err := lines.ReadString('\n')
		if before.WriteString(line); err != nil {
			t.Fatalf("%v: %s%s", err, &before, &errs)
		}
	}
	if !strings.Contains(before.String(), "No such file") {
		t.Errorf("the control: %s", &before)
	}
	grow := exec.Command(filepath.Join(filepath.Dir(python), "grow"))
	grow.Env = []string{fmt.Sprint("NIX_SANDBOX_INTO=", cmd.Process.Pid), "NIX_SANDBOX_BESIDE=" + run}
	if out, err := grow.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	must.Get(after.ReadFrom(lines))(t)
	_ = cmd.Wait() // its output says it
	words := strings.Fields(after.String())
	if text := after.String(); !strings.HasPrefix(text, "hello files.example\n") || strings.Contains(text, "hello elsewhere") || words[len(words)-1] != "41" {
		t.Errorf("after: %q\n%s", text, &errs)
	}
}
