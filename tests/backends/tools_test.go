package backends

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/creack/pty"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// tool is the program of the command line, for which there is bash's machine in the place
// of the server's own environment of that name.
func tool(t *testing.T, arguments ...string) *exec.Cmd {
	t.Helper()
	// The name of an environment is that of its artifact.
	var metadata struct{ Name string }
	folder := artifact(t, "bash")
	must.Do(t, json.Unmarshal(must.Get(os.ReadFile(filepath.Join(folder, "metadata.json")))(t), &metadata))
	sandboxes := t.TempDir()
	must.Do(t, os.Symlink(folder, filepath.Join(sandboxes, metadata.Name)))
	for i := range arguments {
		arguments[i] = strings.Replace(arguments[i], "MACHINE", metadata.Name, 1)
	}
	ctx, cancel := context.WithTimeout(context.Background(), machineTime)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, undertest.Server(t), arguments...)
	cmd.Env = []string{"HOME=" + t.TempDir(), "XDG_CACHE_HOME=" + shared(t), "NIX_SANDBOX_DIR=" + sandboxes, "NIX_SANDBOX_START_SECONDS=60", "PATH=" + os.Getenv("PATH"), "TERM=xterm"}
	return cmd
}

// The time limit is that of the code, and no start of a machine counts: this one takes
// longer where it is emulated.
func TestTools_RunCodeInAMachine(t *testing.T) {
	t.Parallel()
	folder := project(t)
	cmd := tool(t, "run", "MACHINE", "--timeout", "60", "--project", folder, "-c", "read line; echo got $line; cat /project/file; exit 7")
	cmd.Stdin = strings.NewReader("input\n")
	var log bytes.Buffer
	cmd.Stderr = &log
	output, err := cmd.Output()
	if status := cmd.ProcessState.ExitCode(); status != 7 || string(output) != "got input\ncontent\n" {
		t.Errorf("%v: status %d, output %q: %s", err, status, output, &log)
	}
}

func TestTools_OpenAShellInAMachine(t *testing.T) {
	t.Parallel()
	cmd := tool(t, "shell", "MACHINE")
	terminal := must.Get(pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: 80}))(t)
	defer terminal.Close()
	// A terminal takes input before anybody reads it.
	must.Get(io.WriteString(terminal, "echo $((6 * 7)) $(uname -n); exit 5\n"))(t)
	output, _ := io.ReadAll(terminal) // the error of a terminal that closes
	err := cmd.Wait()
	if status := cmd.ProcessState.ExitCode(); status != 5 || !strings.Contains(string(output), "42 ") {
		t.Errorf("%v: status %d, output %q", err, status, output)
	}
}

// What doctor asks of bin/check is what the launcher remembers, and a slow start is no
// fault.
func TestTools_DoctorStartsAMachine(t *testing.T) {
	t.Parallel()
	var report struct {
		Findings []struct {
			Name, Found, Fix string
			OK, Needed       bool
		}
	}
	output, _ := tool(t, "doctor", "--json").Output() // its status is that of all environments
	must.Do(t, json.Unmarshal(output, &report))
	found := map[string]bool{}
	for _, f := range report.Findings {
		found[f.Name] = true
		switch f.Name {
		case "KVM":
			if f.Needed || f.OK || !strings.Contains(f.Found, notTried) || !strings.Contains(f.Found, "emulated") || f.Fix == "" {
				t.Errorf("%+v", f)
			}
		case "sandbox machine-bash":
			if !f.OK {
				t.Errorf("%+v", f)
			}
		}
	}
	if !found["KVM"] || !found["sandbox machine-bash"] {
		t.Errorf("the findings are %+v", report.Findings)
	}
}

func TestTools_ShowTheWall(t *testing.T) {
	t.Parallel()
	var rows []struct{ Name, Backend string }
	must.Do(t, json.Unmarshal(must.Get(tool(t, "list", "--json").Output())(t), &rows))
	walls := map[string]string{}
	for _, row := range rows {
		walls[row.Name] = row.Backend
	}
	if walls["bash"] != "jail" || walls["machine-bash"] != "vm" {
		t.Errorf("the walls are %q", walls)
	}
}
