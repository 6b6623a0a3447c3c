// Package selftest tests that the test machine is what tests/vm/run promises in
// each of its modes, on which the other suites depend. It runs only in the machine.
//
// NIX_SANDBOX_TEST_MACHINE holds the mode.
package selftest

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/vm/guest"
)

const cgroups = "/sys/fs/cgroup"

// in skips the test where it does not run in a test machine.
func in(t *testing.T) {
	t.Helper()
	if os.Getenv("NIX_SANDBOX_TEST_MACHINE") == "" {
		t.Skip("this is not a test machine: see tests/vm/README.md")
	}
}

// jail is a command that runs code in the artifact, in a cgroup where one is
// given.
func jail(t *testing.T, group, code string) *exec.Cmd {
	t.Helper()
	artifact := undertest.ArtifactOfType(t, "bash")
	ctx, cancel := context.WithTimeout(context.Background(), patience.Long)
	t.Cleanup(cancel)
	command := exec.CommandContext(ctx, filepath.Join(artifact, "bin/run"))
	command.Stdin = strings.NewReader(code)
	command.WaitDelay = time.Second
	if group != "" {
		folder := must.Get(os.Open(group))(t)
		t.Cleanup(func() { folder.Close() })
		command.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(folder.Fd())}
	}
	return command
}

// newGroup makes a cgroup beside the one that the tests run in.
func newGroup(t *testing.T, limits map[string]string) string {
	t.Helper()
	group := filepath.Join(filepath.Dir(ownGroup(t)), strings.ReplaceAll(t.Name(), "/", "-"))
	must.Do(t, os.Mkdir(group, 0o755))
	t.Cleanup(func() {
		if err := os.WriteFile(group+"/cgroup.kill", []byte("1"), 0); err != nil {
			t.Error(err)
		}
		patience.Until(t, "the group is empty", func() bool {
			return strings.Contains(read(t, group+"/cgroup.events"), "populated 0")
		})
		if err := os.Remove(group); err != nil {
			t.Error(err)
		}
	})
	for name, value := range limits {
		must.Do(t, os.WriteFile(filepath.Join(group, name), []byte(value), 0))
	}
	return group
}

func ownGroup(t *testing.T) string {
	t.Helper()
	return cgroups + strings.TrimPrefix(strings.TrimSpace(read(t, "/proc/self/cgroup")), "0::")
}

func read(t *testing.T, path string) string {
	t.Helper()
	text := must.Get(os.ReadFile(path))(t)
	return string(text)
}

// event reads a count from a file like memory.events.
func event(t *testing.T, path, name string) int {
	t.Helper()
	for line := range strings.Lines(read(t, path)) {
		if key, value, _ := strings.Cut(strings.TrimSpace(line), " "); key == name {
			n, err := strconv.Atoi(value)
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			return n
		}
	}
	t.Fatalf("%s has no line %s", path, name)
	return 0
}

func TestUserIsOrdinary(t *testing.T) {
	in(t)
	if uid, gid := os.Getuid(), os.Getgid(); uid != guest.ID || gid != guest.ID {
		t.Errorf("uid %d and gid %d, want %d", uid, gid, guest.ID)
	}
	for line := range strings.Lines(read(t, "/proc/self/status")) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
		switch name {
		case "CapInh", "CapPrm", "CapEff", "CapAmb":
			if strings.Trim(value, "0") != "" {
				t.Errorf("%s is %s, want none", name, value)
			}
		}
	}
	if _, err := os.ReadFile("/etc/shadow"); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("reading /etc/shadow: %v, want that it is forbidden", err)
	}
	if err := os.WriteFile("/nix/store/planted", nil, 0o644); !errors.Is(err, syscall.EROFS) && !errors.Is(err, fs.ErrPermission) {
		t.Errorf("writing to the store: %v, want that it is forbidden", err)
	}
}

// inNamespace runs this program, told to run no test, in a new user namespace.
func inNamespace() error {
	command := exec.Command("/proc/self/exe", "-test.run=^$")
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
	return command.Run()
}

func TestUserNamespaces(t *testing.T) {
	in(t)
	if err := inNamespace(); err != nil {
		t.Error(err)
	}
}

func TestJail_RunsCode(t *testing.T) {
	in(t)
	command := jail(t, "", "echo hello; id -u; ls /nix/store | wc -l >&2; exit 3")
	var errs bytes.Buffer
	command.Stderr = &errs
	output, err := command.Output()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Errorf("%v, want exit status 3; it said: %s", err, &errs)
	}
	if want := "hello\n1000\n"; string(output) != want {
		t.Errorf("it printed %q, want %q", output, want)
	}
}

func TestNoUserns(t *testing.T) {
	in(t)
	if err := inNamespace(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a new user namespace: %v, want that there is no room for one", err)
	}
	output, err := jail(t, "", "echo hello").CombinedOutput()
	if err == nil || strings.Contains(string(output), "hello\n") {
		t.Fatalf("the jail ran although no user namespace is allowed: %s", output)
	}
	for _, want := range []string{"user.max_user_namespaces is 0", "hint: "} {
		if !strings.Contains(string(output), want) {
			t.Errorf("it says %q, want %q in it", output, want)
		}
	}
}

func TestMemoryLimitWithDelegate(t *testing.T) {
	in(t)
	// tail keeps 64 MB in memory.
	const hog = `set -o pipefail; head -c 64M /dev/zero | tail -c 64M | wc -c`
	t.Run("control", func(t *testing.T) {
		group := newGroup(t, map[string]string{"memory.max": "512M"})
		output, err := jail(t, group, hog).CombinedOutput()
		if err != nil || string(output) != "67108864\n" {
			t.Errorf("in 512 MB: %v: %s", err, output)
		}
	})
	t.Run("limit", func(t *testing.T) {
		group := newGroup(t, map[string]string{"memory.max": "32M", "memory.oom.group": "1"})
		output, err := jail(t, group, hog).CombinedOutput()
		if err == nil {
			t.Errorf("it ended well in 32 MB: %s", output)
		}
		if kills := event(t, group+"/memory.events", "oom_kill"); kills == 0 {
			t.Errorf("the kernel killed nothing: %v: %s", err, output)
		}
	})
}

func TestProcessLimitWithDelegate(t *testing.T) {
	in(t)
	// bash tries again for a while when it cannot fork: the kernel's count of
	// refusals tells earlier.
	const bomb = `for i in {1..60}; do sleep 1000 & done; echo started; wait`
	const limit = 40
	t.Run("control", func(t *testing.T) {
		group := newGroup(t, nil)
		command := jail(t, group, bomb)
		must.Do(t, command.Start())
		patience.Until(t, "60 processes run", func() bool { return strings.Count(read(t, group+"/cgroup.procs"), "\n") > 60 })
		command.Cancel()
		command.Wait()
	})
	t.Run("limit", func(t *testing.T) {
		group := newGroup(t, map[string]string{"pids.max": strconv.Itoa(limit)})
		command := jail(t, group, bomb)
		must.Do(t, command.Start())
		patience.Until(t, "a fork was refused", func() bool { return event(t, group+"/pids.events", "max") > 0 })
		current, err := strconv.Atoi(strings.TrimSpace(read(t, group+"/pids.current")))
		if err != nil || current > limit {
			t.Errorf("%d processes, want at most %d (%v)", current, limit, err)
		}
		command.Cancel()
		command.Wait()
	})
}

func TestKillWithDelegate(t *testing.T) {
	in(t)
	group := newGroup(t, nil)
	command := jail(t, group, "echo started; exec sleep 1000")
	output := must.Get(command.StdoutPipe())(t)
	must.Do(t, command.Start())
	if _, err := output.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	must.Do(t, os.WriteFile(group+"/cgroup.kill", []byte("1"), 0))
	var exit *exec.ExitError
	if err := command.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("%v, want that it was killed", err)
	}
}

func TestNoDelegate(t *testing.T) {
	in(t)
	err := filepath.WalkDir(cgroups, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			path = filepath.Join(path, "planted")
			if err = os.Mkdir(path, 0o755); err == nil {
				os.Remove(path)
			}
		} else {
			var file *os.File
			if file, err = os.OpenFile(path, os.O_WRONLY, 0); err == nil {
				file.Close()
			}
		}
		if err == nil {
			t.Errorf("%s can be written", path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
