package jail_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// grown is a sandbox whose bash waits until a file of the store is there.
type grown struct {
	t        testing.TB
	user     *syscall.Credential
	programs []string // whose environments it has
	cmd      *exec.Cmd
	out      bytes.Buffer
	gone     chan error
}

// startGrown starts the bash of a sandbox that prints what it knows when there is a file of the store.
func startGrown(t testing.TB, user *syscall.Credential, file string, settings ...string) *grown {
	t.Helper()
	run, _ := artifact(t)
	g := &grown{t: t, user: user, programs: []string{run}, cmd: exec.Command(run), gone: make(chan error, 1)}
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: user}
	g.cmd.Env = settings
	g.cmd.Stdin = strings.NewReader("v=kept; exec 9</etc/passwd; sleep 3600 & touch begun; echo begun\nuntil [ -e " + file + " ]; do sleep .01; done\n" +
		"echo $v; kill -0 $! && echo job; read -r <&9 && echo file; touch /nix/store/x 2>&1 | grep -o Read-only; unshare -U true 2>&1 | grep -q 'No space\\|not permitted' && echo confined; " +
		"ls /nix/store | wc -l; grep -o ' /nix ro,nosuid,nodev' /proc/self/mountinfo | wc -l; kill $!")
	output := must.Get(g.cmd.StdoutPipe())(t)
	g.cmd.Stderr = os.Stderr
	must.Do(t, g.cmd.Start())
	t.Cleanup(func() { g.cmd.Process.Kill(); <-g.gone })
	first := make([]byte, len("begun\n"))
	must.Get(output.Read(first))(t)
	go func() {
		_, _ = g.out.ReadFrom(output)
		g.gone <- g.cmd.Wait()
	}()
	return g
}

// grow adds the environment of a program, and returns the variables that are printed, or the problem.
func (g *grown) grow(program string, into int) (variables map[string]string, problem string) {
	g.t.Helper()
	cmd := exec.Command(filepath.Join(filepath.Dir(program), "grow"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: g.user}
	cmd.Env = []string{"NIX_SANDBOX_INTO=" + strconv.Itoa(into), "NIX_SANDBOX_BESIDE=" + strings.Join(g.programs, ":")}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, errs.String()
	}
	must.Do(g.t, json.Unmarshal(out, &variables))
	g.programs = append(g.programs, program)
	return variables, ""
}

// want waits for the end, and fails the test unless it printed this last.
func (g *grown) want(entries, mounts int) {
	g.t.Helper()
	err := <-g.gone
	g.gone <- nil
	want := fmt.Sprintf("kept\njob\nfile\nRead-only\nconfined\n%d\n%d\n", entries, mounts)
	if got := g.out.String(); err != nil || got != want {
		g.t.Errorf("%v: %q, want %q", err, got, want)
	}
}

// entries are the names in the stores of programs, each once.
func entries(t testing.TB, programs ...string) int {
	t.Helper()
	names := map[string]bool{}
	for _, program := range programs {
		spec := must.Get(jail.ReadSpec(program))(t)
		for i, flag := range spec.Flags {
			if flag == "--ro-bind" && spec.Flags[i+2] == "/nix" {
				for _, entry := range must.Get(os.ReadDir(spec.Flags[i+1] + "/store"))(t) {
					names[entry.Name()] = true
				}
			}
		}
	}
	return len(names)
}

// A sandbox that runs gets the store of another environment, whoever starts it and whatever else it has;
// what runs in it goes on.
func TestGrow_AddsAStore(t *testing.T) {
	program := filepath.Join(undertest.ArtifactOfType(t, "python"), "bin", "session-run")
	run, _ := artifact(t)
	users := map[string]*syscall.Credential{"this user": nil}
	if os.Geteuid() == 0 {
		users["an ordinary user"] = &syscall.Credential{Uid: 12345, Gid: 12345}
	}
	project := t.TempDir()
	must.Do(t, os.Chmod(project, 0o755))
	must.Do(t, os.Chmod(filepath.Dir(project), 0o755))
	for name, user := range users {
		for kind, settings := range map[string][]string{
			"plain":   nil,
			"project": {"PROJECT_DIR=" + project},
			"overlay": {"PROJECT_DIR=" + project, "PROJECT_MODE=overlay"},
		} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				path := grownPath(t, program)
				g := startGrown(t, user, path+"/python3", settings...)
				variables, problem := g.grow(program, g.cmd.Process.Pid)
				if problem != "" {
					t.Fatal(problem)
				}
				if variables["PATH"] != path || variables["HOME"] != "/workspace" {
					t.Errorf("variables %v", variables)
				}
				g.want(entries(t, run, program), 2)
			})
		}
	}
}

// grownPath is the PATH of an environment.
func grownPath(t testing.TB, program string) string {
	t.Helper()
	spec := must.Get(jail.ReadSpec(program))(t)
	for i, flag := range spec.Flags {
		if flag == "--setenv" && spec.Flags[i+1] == "PATH" {
			return spec.Flags[i+2]
		}
	}
	t.Fatalf("%s sets no PATH", program)
	return ""
}

// A sandbox grows many times, keeps what it had, and gets each store once.
func TestGrow_ManyTimes(t *testing.T) {
	run := filepath.Join(undertest.ArtifactOfType(t, "python"), "bin", "session-run")
	spec := must.Get(jail.ReadSpec(run))(t)
	store := t.TempDir()
	text := must.Get(os.ReadFile(run))(t)
	var tree string
	for i, flag := range spec.Flags {
		if flag == "--ro-bind" && spec.Flags[i+2] == "/nix" {
			tree = spec.Flags[i+1]
		}
	}
	const times = 30
	g := startGrown(t, nil, "/nix/store/last")
	for n := range times {
		folder := filepath.Join(store, fmt.Sprint(n), "nix")
		must.Do(t, os.MkdirAll(folder+"/store", 0o755))
		name := fmt.Sprint("entry-", n)
		if n == times-1 {
			name = "last"
		}
		must.Do(t, os.WriteFile(folder+"/store/"+name, nil, 0o644))
		program := filepath.Join(store, fmt.Sprint(n), "session-run")
		for _, file := range []string{program, filepath.Join(filepath.Dir(program), "grow")} {
			must.Do(t, os.WriteFile(file, bytes.ReplaceAll(text, []byte(tree), []byte(folder)), 0o755))
		}
		if _, problem := g.grow(program, g.cmd.Process.Pid); problem != "" {
			t.Fatalf("time %d: %s", n, problem)
		}
		if n == times/2 { // the same once more
			if _, problem := g.grow(program, g.cmd.Process.Pid); problem != "" {
				t.Fatal(problem)
			}
		}
	}
	bash, _ := artifact(t)
	g.want(entries(t, bash)+times, 1+times)
}

// What is no running sandbox does not grow, and is told.
func TestGrow_Refuses(t *testing.T) {
	program := filepath.Join(undertest.ArtifactOfType(t, "python"), "bin", "session-run")
	run, _ := artifact(t)
	g := &grown{t: t, programs: []string{run}}
	ended := exec.Command("true")
	must.Do(t, ended.Run())
	other := exec.Command("sleep", "60")
	must.Do(t, other.Start())
	defer func() { other.Process.Kill(); other.Wait() }()
	for name, pid := range map[string]int{"a process that has ended": ended.Process.Pid, "another process": other.Process.Pid, "none": 0} {
		if _, problem := g.grow(program, pid); !strings.Contains(problem, "the first process of the sandbox is gone") && !strings.Contains(problem, "want the number of a process") {
			t.Errorf("%s: %q", name, problem)
		}
	}
	// While it ends.
	for range 20 {
		g := startGrown(t, nil, "/nix/store/none")
		go g.cmd.Process.Kill()
		_, _ = g.grow(program, g.cmd.Process.Pid)
		patience.Until(t, "the end of the sandbox", func() bool { return len(g.gone) > 0 })
	}
	if _, err := os.Stat("/nix/store/none"); err == nil {
		t.Error("the host has grown")
	}
	mounts := must.Get(os.ReadFile("/proc/self/mountinfo"))(t)
	if strings.Contains(string(mounts), " /nix ro") {
		t.Errorf("the host has a mount: %s", mounts)
	}
}
