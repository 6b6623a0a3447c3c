// Package backends tests what is special to sandboxes that are virtual machines. What
// all sandboxes do is tested by the suites of the jails, with artifacts of this backend
// (docs/backends.md).
package backends

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/machines"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// machineTime is what a test waits for one machine, which is emulated and on a busy
// host.
const machineTime = machines.Limit

// longVariable has the tests run too that start several machines from nothing, or build.
const longVariable = "NIX_SANDBOX_TEST_LONG"

func isLong() bool { return os.Getenv(longVariable) != "" }

// long skips a test unless [longVariable] is set.
func long(t *testing.T) {
	t.Helper()
	if !isLong() {
		t.Skip(longVariable + " is not set: this test takes a minute where machines are emulated")
	}
}

// onEnd is called when all tests have run.
var onEnd = func() {}

func TestMain(m *testing.M) {
	// For the answers of servers whose machines are emulated.
	if os.Getenv(patience.Variable) == "" {
		_ = os.Setenv(patience.Variable, "30") // such a name and value cannot fail
	}
	// Not by patience.Main: an emulated machine takes a processor of its own.
	status := m.Run()
	onEnd()
	os.Exit(status)
}

// artifact returns a folder of a sandbox under test that is a virtual machine.
func artifact(t testing.TB, kind string) string {
	t.Helper()
	folder := undertest.ArtifactOfType(t, kind)
	text := must.Get(os.ReadFile(filepath.Join(folder, "metadata.json")))(t)
	if !bytes.Contains(text, []byte(`"backend":"vm"`)) {
		t.Skipf("%s is no virtual machine", folder)
	}
	return folder
}

// program is a program of a sandbox with some input.
func program(t testing.TB, folder, name, input string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), machineTime)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, filepath.Join(folder, "bin", name))
	cmd.Stdin = strings.NewReader(input)
	return cmd
}

func TestRun_CarriesStreamsAndStatus(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ kind, code string }{
		{"python", "import sys; print(6*7); print('wrong', file=sys.stderr); sys.exit(3)"},
		{"bash", "echo $((6*7)); echo wrong >&2; exit 3"},
		{"node", "console.log(6*7); console.error('wrong'); process.exit(3)"},
		{"command", "echo $((6*7)); echo wrong >&2; exit 3"},
	} {
		t.Run(test.kind, func(t *testing.T) {
			t.Parallel()
			if test.kind == "command" {
				long(t)
			}
			var stdout, stderr bytes.Buffer
			cmd := program(t, artifact(t, test.kind), "run", test.code)
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			err := cmd.Run()
			if status := cmd.ProcessState.ExitCode(); status != 3 || stdout.String() != "42\n" || stderr.String() != "wrong\n" {
				t.Errorf("%v, stdout %q, stderr %q, want status 3, 42 and wrong", err, &stdout, &stderr)
			}
		})
	}
}

// Output is carried whole, however it comes, and a program that closes its streams
// ends none of it.
func TestRun_CarriesLongOutput(t *testing.T) {
	t.Parallel()
	const size = 20 << 20
	cmd := program(t, artifact(t, "bash"), "run", fmt.Sprintf("head -c %d /dev/zero; exec >&-; exit 7", size))
	output, err := cmd.Output()
	if status := cmd.ProcessState.ExitCode(); status != 7 || len(output) != size {
		t.Errorf("%v, %d bytes, want status 7 and %d bytes", err, len(output), size)
	}
}

// What code sees of its machine is what code sees of a jail, under another kernel.
func TestMachine_ShowsAJail(t *testing.T) {
	t.Parallel()
	host := must.Get(exec.Command("uname", "-r").Output())(t)
	output := must.Get(program(t, artifact(t, "bash"), "run", `
		uname -r
		id -u
		nproc
		ls /sys 2>&1 | head -n 1
		ls /dev | grep -c vport
		grep CapEff /proc/self/status
		sed 1,2d /proc/net/dev | cut -d : -f 1
		cat /proc/cmdline
	`).Output())(t)
	release, rest, _ := strings.Cut(string(output), "\n")
	if release == strings.TrimSpace(string(host)) {
		t.Errorf("the kernel is %s, the host's", release)
	}
	want := "1000\n1\nls: cannot access '/sys': No such file or directory\n0\nCapEff:\t0000000000000000\n    lo\n"
	if rest != want {
		t.Errorf("the machine shows %q, want %q", rest, want)
	}
}

// waiting starts a machine whose code waits for the end of its input, which the
// returned pipe ends, and returns QEMU's process id too.
func waiting(t *testing.T) (cmd *exec.Cmd, input io.Closer, qemu int) {
	t.Helper()
	cmd = program(t, artifact(t, "bash"), "session-run", "")
	cmd.Stdin = nil
	pipe := must.Get(cmd.StdinPipe())(t)
	must.Do(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	patience.Wait(t, machineTime, func() string { return "QEMU did not start" }, func() bool {
		for _, pid := range procfs.Descendants(cmd.Process.Pid) {
			if p, err := procfs.Read(pid); err == nil && strings.HasPrefix(p.Name(), "qemu-system") {
				qemu = pid
			}
		}
		return qemu != 0
	})
	return cmd, pipe, qemu
}

// QEMU is in a jail of its own: it has no capability and no network, its system calls
// are filtered twice, and where root starts it, it is nobody else's user.
func TestMachine_ConfinesQEMU(t *testing.T) {
	t.Parallel()
	_, _, qemu := waiting(t)
	var status string
	// Its own filter comes when it has started.
	patience.Until(t, "two filters", func() bool {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", qemu))
		status = string(text)
		return strings.Contains(status, "\nSeccomp_filters:\t2\n")
	})
	for _, want := range []string{"\nCapEff:\t0000000000000000\n", "\nNoNewPrivs:\t1\n", "\nSeccomp:\t2\n"} {
		if !strings.Contains(status, want) {
			t.Errorf("QEMU's status lacks %q", want)
		}
	}
	if os.Geteuid() == 0 && strings.Contains(status, "\nUid:\t0\t") {
		t.Error("QEMU runs as root")
	}
	for _, namespace := range []string{"net", "pid", "mnt", "ipc", "user"} {
		own := must.Get(os.Readlink("/proc/self/ns/" + namespace))(t)
		if its := must.Get(os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", qemu, namespace)))(t); its == own {
			t.Errorf("QEMU's namespace %s is the host's", namespace)
		}
	}
	mounts := string(must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/mounts", qemu)))(t))
	for line := range strings.Lines(mounts) {
		fields := strings.Fields(line)
		if !strings.HasPrefix(fields[3], "ro") && !strings.HasPrefix(fields[1], "/dev/") {
			t.Errorf("QEMU's mount %s can be written to: %s", fields[1], fields[3])
		}
	}
}

// Without a session the end of code that crosses a limit is the end of the program, and
// code that keeps to it runs: the control.
func TestRun_SaysWhichLimitWasCrossed(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, kind, code, says string
		status                 int
	}{
		{"files", "bash", "head -c 200M /dev/zero > /tmp/a; head -c 200M /dev/zero > /dev/shm/b; head -c 200M /dev/zero > /workspace/c; exit 4", "memory", 137},
		{"some files", "bash", "head -c 50M /dev/zero > /tmp/a; head -c 50M /dev/zero > /workspace/c; exit 3", "", 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var stderr bytes.Buffer
			cmd := program(t, artifact(t, test.kind), "run", test.code)
			cmd.Stderr = &stderr
			err := cmd.Run()
			if status := cmd.ProcessState.ExitCode(); status != test.status || !strings.Contains(stderr.String(), test.says) || (test.says == "") != (stderr.Len() == 0) {
				t.Errorf("%v, stderr %q, want status %d and %q", err, &stderr, test.status, test.says)
			}
		})
	}
}

// However the launcher ends, QEMU ends with it.
func TestMachine_EndsWithItsLauncher(t *testing.T) {
	t.Parallel()
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			cmd, _, qemu := waiting(t)
			must.Do(t, cmd.Process.Signal(signal))
			_ = cmd.Wait()
			patience.Gone(t, qemu)
		})
	}
}

func TestCheck_SaysWhetherKVMWorks(t *testing.T) {
	t.Parallel()
	var check struct {
		Findings []struct {
			Name, Found, Fix string
			OK, Needed       bool
		}
	}
	must.Do(t, json.Unmarshal(must.Get(program(t, artifact(t, "bash"), "check", "").Output())(t), &check))
	for _, f := range check.Findings {
		if f.Name != "KVM" {
			continue
		}
		if f.Needed || f.Found == "" || f.OK != (f.Fix == "") {
			t.Errorf("the finding is %+v", f)
		}
		return
	}
	t.Errorf("the findings are %+v, without KVM", check.Findings)
}

// kvmFinding is what bin/check says of KVM, in a mount namespace where /dev has what a
// command of the shell puts into $dev, and no KVM otherwise.
func kvmFinding(t *testing.T, cache, prepare string) (found, fix string) {
	t.Helper()
	var check struct {
		Findings []struct{ Name, Found, Fix string }
	}
	output := must.Get(inDev(t, cache, prepare, "check", "").Output())(t)
	must.Do(t, json.Unmarshal(output, &check))
	for _, f := range check.Findings {
		if f.Name == "KVM" {
			return f.Found, f.Fix
		}
	}
	t.Fatalf("the findings have none of KVM: %s", output)
	return "", ""
}

// inDev is a program of bash's machine with that /dev. Its descriptor 3 is for reports.
func inDev(t *testing.T, cache, prepare, name, input string) *exec.Cmd {
	t.Helper()
	cmd := program(t, artifact(t, "bash"), name, input)
	const dev = `dev=$(mktemp -d) && mount -t tmpfs none $dev && cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty $dev &&
		mkdir $dev/shm $dev/pts && ln -s /proc/self/fd $dev/fd && mount --bind /dev/pts $dev/pts && `
	cmd.Args = []string{"unshare", "--mount", "sh", "-c", dev + prepare + ` && mount --move $dev /dev && exec "$0"`, cmd.Path}
	cmd.Path = must.Get(exec.LookPath("unshare"))(t)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "XDG_CACHE_HOME=" + cache, "TMPDIR=" + t.TempDir()}
	return cmd
}

// Where KVM is missing, or is there and does not work, a machine is emulated, and the advice
// is another. It is tried once until the computer restarts, and once more where it stops
// working.
func TestKVM_IsTriedOnce(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root mounts another /dev")
	}
	cache := t.TempDir()
	const none, broken = "true", "touch $dev/kvm"
	first, fix := kvmFinding(t, cache, broken)
	if !strings.HasPrefix(first, "a machine with KVM does not come up: ") || !strings.Contains(first, "emulated") || !strings.Contains(fix, "firmware") {
		t.Errorf("where it does not work: %s; %s", first, fix)
	}
	if again, _ := kvmFinding(t, cache, none); again != first {
		t.Errorf("it is tried again: %s", again)
	}
	missing, fix := kvmFinding(t, t.TempDir(), none)
	if !strings.HasPrefix(missing, "/dev/kvm cannot be opened: no such file or directory") || !strings.Contains(fix, "kernel module") {
		t.Errorf("where it is missing: %s; %s", missing, fix)
	}
	if !isLong() {
		return
	}
	for name, remembered := range map[string]string{"it was never tried": "", "it has worked": "works"} {
		cache := t.TempDir()
		file := filepath.Join(cache, "nix-sandbox-mcp/vm/kvm")
		if remembered != "" {
			fillCache(t, cache)
			must.Write(t, file, strings.Replace(string(must.Get(os.ReadFile(file))(t)), notTried, remembered, 1), 0o600)
		}
		cmd := inDev(t, cache, broken, "run", "echo $((6 * 7))")
		reports, theirs, err := os.Pipe()
		must.Do(t, err)
		cmd.ExtraFiles, cmd.Env = []*os.File{theirs}, append(cmd.Env, "NIX_SANDBOX_REPORTS=3")
		output, err := cmd.Output()
		theirs.Close()
		said := string(must.Get(io.ReadAll(reports))(t))
		reports.Close()
		if err != nil || string(output) != "42\n" || !strings.Contains(said, `"isolation":"emulated"`) {
			t.Errorf("%s: %v: it prints %q, and reports %s", name, err, output, said)
		}
		if text := string(must.Get(os.ReadFile(file))(t)); !strings.Contains(text, "a machine with KVM does not come up") {
			t.Errorf("%s: then it remembers %q", name, text)
		}
	}
}

// variant is a sandbox like one under test, but that in its descriptions a text that
// each of them has once is another one.
func variant(t *testing.T, folder, from, to string) string {
	t.Helper()
	changed := filepath.Join(t.TempDir(), "machine")
	must.Write(t, filepath.Join(changed, "metadata.json"), string(must.Get(os.ReadFile(filepath.Join(folder, "metadata.json")))(t)), 0o644)
	for _, entry := range must.Get(os.ReadDir(filepath.Join(folder, "bin")))(t) {
		text := string(must.Get(os.ReadFile(filepath.Join(folder, "bin", entry.Name())))(t))
		if strings.Count(text, from) != 1 {
			t.Fatalf("%s has %q %d times", entry.Name(), from, strings.Count(text, from))
		}
		must.Write(t, filepath.Join(changed, "bin", entry.Name()), strings.Replace(text, from, to, 1), 0o755)
	}
	return changed
}

// A machine has as many processors as its description says, and code runs on each of them.
// That they do the work of two takes KVM to be seen.
func TestMachine_HasItsProcessors(t *testing.T) {
	t.Parallel()
	long(t)
	folder := variant(t, artifact(t, "bash"), `"-smp","1"`, `"-smp","2"`)
	output := string(must.Get(program(t, folder, "run", "nproc; for n in 0 1; do taskset -c $n nproc; done").Output())(t))
	if output != "2\n1\n1\n" {
		t.Errorf("code sees %q, want two processors, and one on each of them", output)
	}
}

// A server without virtual machines has nothing of them in its closure, and one with
// them has: the control.
func TestClosure_OfJailsHasNoQEMU(t *testing.T) {
	t.Parallel()
	closure := func(path string) string {
		return string(must.Get(exec.Command("nix-store", "--query", "--requisites", path).Output())(t))
	}
	parts := []string{"-qemu", "-linux-6", "-nix-sandbox-vm"}
	server, machine := closure(undertest.Server(t)), closure(artifact(t, "bash"))
	for _, part := range parts {
		if strings.Contains(server, part) {
			t.Errorf("the server's closure has a path with %s", part)
		}
	}
	if !strings.Contains(machine, parts[0]) || !strings.Contains(machine, parts[2]) {
		t.Errorf("the closure of a virtual machine has no QEMU: %s", machine)
	}
}
