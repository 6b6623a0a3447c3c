package jail_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/jailtest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

func TestMain(m *testing.M) { os.Exit(jailtest.Main(m)) }

// artifact returns the path of bin/run and what it describes, of a built sandbox
// whose interpreter is bash, and which has coreutils and findutils in it. Go's
// cache of test results sees no change of an artifact, so give go test -count=1.
func artifact(t testing.TB) (string, *jail.Spec) {
	t.Helper()
	run := filepath.Join(undertest.ArtifactOfType(t, "bash"), "bin", "run")
	spec := must.Get(jail.ReadSpec(run))(t)
	return run, spec
}

// result is what a run left.
type result struct {
	out, err string
	status   int
}

// runIn runs code in the sandbox; settings are variables of the caller.
func runIn(t testing.TB, code string, settings ...string) result {
	t.Helper()
	run, _ := artifact(t)
	return runProgram(t, exec.Command(run), code, settings...)
}

// runProgram gives code to a program that starts a sandbox.
func runProgram(t testing.TB, cmd *exec.Cmd, code string, settings ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience.Long)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	cmd.Env = append([]string{"SECRET=of the host"}, settings...)
	cmd.Stdin = strings.NewReader(code)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if ctx.Err() != nil {
		t.Fatalf("still running after %v; so far: %s%s", patience.Long, &out, &errs)
	}
	return result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// lines are those of the output of code that must succeed, sorted.
func lines(t testing.TB, code string, settings ...string) []string {
	t.Helper()
	got := runIn(t, code, settings...)
	if got.status != 0 {
		t.Fatalf("status %d: %s%s", got.status, got.out, got.err)
	}
	sorted := strings.Split(strings.TrimSuffix(got.out, "\n"), "\n")
	slices.Sort(sorted)
	return sorted
}

func TestArtifactPassesOutputAndStatusThrough(t *testing.T) {
	want := result{"hello\n", "oops\n", 7}
	got := runIn(t, "echo hello; echo oops >&2; exit 7")
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestArtifactShowsItsClosureOnly(t *testing.T) {
	_, spec := artifact(t)
	tree := spec.Flags[slices.Index(spec.Flags, "--ro-bind")+1]
	entries := must.Get(os.ReadDir(filepath.Join(tree, "store")))(t)
	var want []string
	for _, entry := range entries {
		want = append(want, entry.Name())
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, lines(t, "ls -A /nix/store")); diff != "" {
		t.Errorf("/nix/store: %s", diff)
	}
	for _, name := range want {
		if strings.Contains(name, "nix-sandbox-jail") || strings.Contains(name, "-sandbox-bash") {
			t.Errorf("%s is in the sandbox", name)
		}
	}
}

func TestArtifactRoot(t *testing.T) {
	want := []string{"bin", "dev", "etc", "nix", "proc", "tmp", "usr", "workspace"}
	if diff := cmp.Diff(want, lines(t, "ls -A /")); diff != "" {
		t.Error(diff)
	}
}

func TestArtifactEnvironment(t *testing.T) {
	_, spec := artifact(t)
	want := []string{"PWD=/workspace"}
	for i, flag := range spec.Flags {
		if flag == "--setenv" {
			want = append(want, spec.Flags[i+1]+"="+spec.Flags[i+2])
		}
	}
	slices.Sort(want)
	// bash itself adds these two.
	got := slices.DeleteFunc(lines(t, "env"), func(line string) bool {
		return strings.HasPrefix(line, "SHLVL=") || strings.HasPrefix(line, "_=")
	})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestArtifactPrivileges(t *testing.T) {
	want := []string{
		"CapAmb:\t0000000000000000",
		"CapBnd:\t0000000000000000",
		"CapEff:\t0000000000000000",
		"CapInh:\t0000000000000000",
		"CapPrm:\t0000000000000000",
		"NoNewPrivs:\t1",
		"gid=1000(sandbox)",
		"groups=1000(sandbox)",
		"uid=1000(sandbox)",
	}
	got := lines(t, `grep -E '^(Cap|NoNewPrivs)' /proc/self/status; id | tr ' ' '\n'`)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// What the sandbox has of the host is the tree in the store, and that cannot
// be written; nor can what bubblewrap made around it.
func TestArtifactMounts(t *testing.T) {
	_, spec := artifact(t)
	tree := spec.Flags[slices.Index(spec.Flags, "--ro-bind")+1]
	seen := map[string]string{}
	for _, line := range lines(t, "cat /proc/self/mountinfo") {
		fields := strings.Fields(line)
		root, path, options := fields[3], fields[4], fields[5]
		seen[path] = options
		// The root is compared with that of the store's file system:
		// a shorter path where /nix is mounted, a longer one in a container.
		if path == "/nix" && !strings.HasSuffix(tree, root) && !strings.HasSuffix(root, tree) {
			t.Errorf("mount of %s at /nix, want %s", root, tree)
		}
	}
	for path, want := range map[string]string{
		"/": "ro,", "/nix": "ro,", "/dev": "ro,", "/proc": "ro,",
		"/workspace": "rw,", "/tmp": "rw,", "/dev/shm": "rw,",
	} {
		if !strings.HasPrefix(seen[path], want) || !strings.Contains(seen[path], "nosuid") {
			t.Errorf("%s is mounted %q, want %s and nosuid", path, seen[path], want)
		}
	}
}

func TestArtifactTmpfsAreSized(t *testing.T) {
	for _, line := range lines(t, "df -P -k /workspace /tmp /dev/shm | tail -n +2") {
		fields := strings.Fields(line)
		size, err := strconv.Atoi(fields[1])
		if err != nil || size <= 0 || size > 512<<10 {
			t.Errorf("size of %s is %s KiB, want 512 MiB at most", fields[5], fields[1])
		}
	}
}

// Nothing but the sandbox's own folders takes a file, and nothing
// in /proc may be opened for writing: where root started the jail, that would
// reach the whole machine.
func TestArtifactWritesNowhereElse(t *testing.T) {
	got := lines(t, `
		for path in / /nix /nix/store /etc/ /bin/ /usr/ /dev /dev/shm /proc /tmp /workspace; do
			if { : >"$path/written"; } 2>/dev/null; then echo "$path"; fi
		done`)
	if diff := cmp.Diff([]string{"/dev/shm", "/tmp", "/workspace"}, got); diff != "" {
		t.Errorf("folders that can be written: %s", diff)
	}
	open := runIn(t, `
		find /proc /sys -path '/proc/[0-9]*' -prune -o -type f -print 2>/dev/null | while read -r file; do
			if { : >>"$file"; } 2>/dev/null; then echo "$file"; fi
		done`)
	if open.out != "" {
		t.Errorf("files that can be written:\n%s", open.out)
	}
}

func TestArtifactHidesItsFirstProcess(t *testing.T) {
	got := runIn(t, `cat /proc/1/environ; readlink /proc/1/fd/*; ls -A /proc/1/cwd/; readlink /proc/1/exe; tr '\0' ' ' </proc/1/cmdline`)
	_, spec := artifact(t)
	if want := strings.Join(spec.Command, " ") + " "; got.out != want {
		t.Errorf("process 1 shows %q, want %q", got.out, want)
	}
}

func TestArtifactInheritsNoDescriptor(t *testing.T) {
	run, _ := artifact(t)
	file, err := os.Open("/etc/hostname")
	if err != nil {
		t.Skip(err)
	}
	defer file.Close()
	cmd := exec.Command(run)
	cmd.ExtraFiles = []*os.File{file, file, file, file, file}
	got := runProgram(t, cmd, "cd /proc/self/fd && for fd in *; do readlink $fd || true; done")
	if got.status != 0 || strings.Contains(got.out, "hostname") {
		t.Errorf("the host's descriptors in the sandbox: %+v", got)
	}
}

func TestArtifactSeesNoProcessOfTheHost(t *testing.T) {
	for _, line := range lines(t, `cd /proc; for p in [0-9]*; do echo $p; done`) {
		if pid, err := strconv.Atoi(line); err != nil || pid > 100 {
			t.Errorf("process %s", line)
		}
	}
}

func TestArtifactProject(t *testing.T) {
	project := t.TempDir()
	// Readable by all, as the folder of an ordinary checkout is.
	must.Do(t, os.Chmod(project, 0o755))
	must.Do(t, os.WriteFile(filepath.Join(project, "a file"), []byte("of the project\n"), 0o644))
	for _, test := range []struct{ setting, mount string }{
		{"A=1", "/project"},
		{"PROJECT_MOUNT=/src/deep/app", "/src/deep/app"},
	} {
		dir := "PROJECT_DIR=" + project
		got := lines(t, "cat '"+test.mount+"/a file'", dir, test.setting)
		if diff := cmp.Diff([]string{"of the project"}, got); diff != "" {
			t.Error(diff)
		}
		for _, attempt := range []string{
			"echo x > '" + test.mount + "/a file'", "touch " + test.mount + "/new",
			"rm '" + test.mount + "/a file'", "chmod 777 " + test.mount,
		} {
			if got := runIn(t, attempt, dir, test.setting); got.status == 0 {
				t.Errorf("%s succeeded", attempt)
			}
		}
	}
	if got := runIn(t, "ls /project"); got.status == 0 {
		t.Error("/project exists without PROJECT_DIR")
	}
}

// What code writes into a project that is laid over is gone with the sandbox;
// the mount is as closed as the read-only one, and has the workspace's size.
func TestArtifactLaysProjectOver(t *testing.T) {
	project := t.TempDir()
	must.Do(t, os.MkdirAll(filepath.Join(project, "folder", "inner"), 0o755))
	must.Do(t, os.WriteFile(filepath.Join(project, "file"), []byte("of the host\n"), 0o600))
	settings := []string{"PROJECT_DIR=" + project, "PROJECT_MOUNT=/src/app", "PROJECT_MODE=overlay"}
	got := lines(t, `cd /src/app
echo of the sandbox >> file && cat file
rm -r folder && mkdir folder && ls -A folder && mv folder moved && echo new > moved/new
echo $(ls)
mount=$(grep ' /src/app ' /proc/mounts); echo ${mount%%,relatime*}
[ "$(stat -f -c '%b %S' .)" = "$(stat -f -c '%b %S' /workspace)" ] && echo sized
touch /src/other 2>/dev/null || echo sealed`, settings...)
	want := []string{"file moved", "of the host", "of the sandbox", "overlay /src/app overlay rw,nosuid,nodev", "sealed", "sized"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got := lines(t, "cat /src/app/file; ls /src/app/folder", settings...); !slices.Equal(got, []string{"inner", "of the host"}) {
		t.Errorf("the next sandbox finds %q", got)
	}
	if text, err := os.ReadFile(filepath.Join(project, "file")); err != nil || string(text) != "of the host\n" {
		t.Errorf("the host has %q, error %v", text, err)
	}
}

// In a container processes have other numbers, and those that they have on the
// host may be nobody's.
func TestArtifactLaysProjectOverInAContainer(t *testing.T) {
	run, _ := artifact(t)
	unshare, err := exec.LookPath("unshare")
	if err != nil || os.Geteuid() != 0 {
		t.Skip("a namespace of processes takes root and the program unshare")
	}
	project := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(project, "file"), []byte("of the project\n"), 0o644))
	got := runProgram(t, exec.Command(unshare, "--pid", "--fork", "--kill-child", "--mount-proc", run),
		"cd /project; cat file; echo new >file; cat file", "PROJECT_DIR="+project, "PROJECT_MODE=overlay")
	if got != (result{out: "of the project\nnew\n"}) {
		t.Errorf("%+v", got)
	}
}

// Folders of the host are shown read-only, beside a project that is laid
// over too. A folder that is missing is an error before anything starts.
func TestArtifactShowsFolders(t *testing.T) {
	run, spec := artifact(t)
	data, project := t.TempDir(), t.TempDir()
	// Where root starts sandboxes, they are another user's.
	must.Do(t, errors.Join(os.Chmod(filepath.Dir(data), 0o755), os.Chmod(data, 0o755), os.WriteFile(filepath.Join(data, "file"), []byte("data\n"), 0o644)))
	text := must.Get(os.ReadFile(run))(t)
	first, _, _ := strings.Cut(string(text), "\n")
	with := func(from string) string {
		spec.Binds = []jail.Bind{{From: from, To: "/srv/data"}}
		encoded := must.Get(json.Marshal(spec))(t)
		name := writeFile(t, first+"\n"+string(encoded)+"\n")
		must.Do(t, os.Chmod(name, 0o700))
		return name
	}
	for _, mode := range []string{jail.ModeReadOnly, jail.ModeOverlay} {
		const code = "cat /srv/data/file; touch /srv/data/file 2>/dev/null || echo read-only; grep -c ' /srv/data .* ro,nosuid,nodev' /proc/mounts"
		got := runProgram(t, exec.Command(with(data)), code, "PROJECT_DIR="+project, "PROJECT_MODE="+mode)
		if got != (result{out: "data\nread-only\n1\n"}) {
			t.Errorf("%s: %+v", mode, got)
		}
	}
	got := runProgram(t, exec.Command(with(data+"/none")), "echo ran")
	if got.status != 125 || got.out != "" || !strings.Contains(got.err, data+"/none at /srv/data, which does not exist") {
		t.Errorf("%+v", got)
	}
}

func TestArtifactRefusesToStart(t *testing.T) {
	for _, settings := range [][]string{
		{"PROJECT_DIR=/does/not/exist"},
		{"PROJECT_DIR=/"},
		{"PROJECT_DIR=/tmp", "PROJECT_MOUNT=/nix"},
	} {
		got := runIn(t, "echo started", settings...)
		if got.status != 125 || got.out != "" ||
			!strings.HasPrefix(got.err, "nix-sandbox-jail: error: PROJECT_") ||
			!strings.Contains(got.err, "\nnix-sandbox-jail: hint: ") {
			t.Errorf("%v: %+v", settings, got)
		}
	}
}

// probe builds the probe into a folder that a sandbox may have as its project.
func probe(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("no Go is here to build the probe with")
	}
	project := t.TempDir()
	must.Do(t, os.Chmod(project, 0o755))
	build := exec.Command("go", "build", "-o", filepath.Join(project, "probe"), "./testdata/probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return project
}

// The kernel refuses what would lead out or up.
func TestArtifactKernelRefuses(t *testing.T) {
	artifact(t)
	want := []string{
		"chroot: operation not permitted",
		"mount: operation not permitted",
		"namespace mount: fork/exec /proc/self/exe: operation not permitted",
		"namespace net: fork/exec /proc/self/exe: operation not permitted",
		"namespace pid: fork/exec /proc/self/exe: operation not permitted",
		"namespace user: fork/exec /proc/self/exe: operation not permitted",
		"remount: operation not permitted",
		"sethostname: operation not permitted",
		// Root has no number in here.
		"setuid: invalid argument",
	}
	if diff := cmp.Diff(want, lines(t, "/project/probe", "PROJECT_DIR="+probe(t))); diff != "" {
		t.Error(diff)
	}
}

// A key in the keyring of the session that starts a sandbox stays out of it.
func TestArtifactLeavesKeys(t *testing.T) {
	artifact(t)
	// Keyrings are a thread's; this one ends with the test, for nobody
	// unlocks it.
	runtime.LockOSThread()
	if _, err := unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0); err != nil {
		t.Skipf("no keyring to be had here: %v", err)
	}
	if _, err := unix.AddKey("user", "of-the-host", []byte("secret"), unix.KEY_SPEC_SESSION_KEYRING); err != nil {
		t.Fatal(err)
	}
	project := probe(t)
	outside, err := exec.Command(filepath.Join(project, "probe"), "key").CombinedOutput()
	if want := "key of the host: <nil>\n"; err != nil || string(outside) != want {
		t.Fatalf("outside: %v: %s, want %s", err, outside, want)
	}
	// The filter has no keyctl; without it the keyring would be a new one.
	want := []string{"key of the host: operation not permitted"}
	if diff := cmp.Diff(want, lines(t, "/project/probe key", "PROJECT_DIR="+project)); diff != "" {
		t.Error(diff)
	}
}

func TestArtifactDiesWithBubblewrap(t *testing.T) {
	diesWith(t, nil)
}

// diesWith starts a sandbox by a program, kills the program, and waits for the end of
// the sandbox.
func diesWith(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	cmd, first := startForever(t, cmd)
	must.Do(t, cmd.Process.Kill())
	_ = cmd.Wait()
	patience.Gone(t, first)
}

// A sandbox in an outer namespace ends with the bubblewrap that made that.
func TestArtifactDiesWithItsOuterNamespace(t *testing.T) {
	run, _ := artifact(t)
	cmd := exec.Command(run)
	cmd.Env = []string{"PROJECT_DIR=" + t.TempDir(), "PROJECT_MODE=overlay"}
	diesWith(t, cmd)
}

func TestArtifactDiesWithItsStarter(t *testing.T) {
	run, _ := artifact(t)
	// The shell is the parent of bubblewrap, and dies without a word to it.
	diesWith(t, exec.Command("/bin/sh", "-c", "exec 3<&0; "+run+" <&3 & wait"))
}

// Whenever the starter of a sandbox is killed, nothing of it stays: not even
// bubblewrap's child, which waits for bubblewrap without an end while it
// starts. A start takes some 20 ms.
func TestArtifactDiesAtAnyMoment(t *testing.T) {
	const tries = 100
	run, _ := artifact(t)
	for name, test := range map[string]struct {
		run      string
		settings []string
	}{
		"alone":                 {run, nil},
		"in an outer namespace": {run, []string{"PROJECT_DIR=" + t.TempDir(), "PROJECT_MODE=overlay"}},
		"with a network":        {jailtest.Sandbox{Policy: networkPolicy, Program: "/usr/bin/bash"}.Write(t), nil},
	} {
		t.Run(name, func(t *testing.T) {
			groups := map[int]bool{}
			for try := range tries {
				starter := exec.Command("/bin/sh", "-c", "exec 3<&0; "+test.run+" <&3 & wait")
				starter.Env = test.settings
				starter.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
				input := must.Get(starter.StdinPipe())(t)
				must.Do(t, starter.Start())
				groups[starter.Process.Pid] = true
				time.Sleep(time.Duration(try) * 30 * time.Millisecond / tries)
				_ = starter.Process.Kill()
				input.Close()
				_ = starter.Wait()
			}
			// What starts while the processes are listed is not in the list:
			// it counts when they are gone for a while.
			since := time.Now()
			var left []procfs.Process
			t.Cleanup(func() {
				for _, p := range left {
					_ = unix.Kill(p.PID, unix.SIGKILL)
				}
			})
			patience.Wait(t, patience.Long, func() string {
				return fmt.Sprintf("of %d that were killed, there are left: %+v", tries, left)
			}, func() bool {
				if left = living(groups); len(left) > 0 {
					since = time.Now()
				}
				return time.Since(since) > 200*time.Millisecond
			})
		})
	}
}

// living returns the processes of these groups that have not ended.
func living(groups map[int]bool) []procfs.Process {
	return slices.DeleteFunc(procfs.All(), func(p procfs.Process) bool { return !groups[p.Group] || p.State == "Z" })
}

// startForever starts a sandbox that only a signal ends, and returns with it
// the process id, on the host, of its first process.
func startForever(t *testing.T, cmd *exec.Cmd) (*exec.Cmd, int) {
	t.Helper()
	run, spec := artifact(t)
	if cmd == nil {
		cmd = exec.Command(run)
	}
	code := must.Get(os.Open(writeFile(t, "trap '' TERM INT HUP\necho started\nset -m; sleep 1000 & sleep 1000\n")))(t)
	defer code.Close()
	// The parent must stay: the kernel's signal comes when its thread ends.
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = code, in, os.Stderr
	err = cmd.Start()
	in.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	must.Do(t, out.SetReadDeadline(time.Now().Add(patience.Long)))
	if n, err := out.Read(make([]byte, 64)); err != nil || n == 0 {
		t.Fatalf("the sandbox says nothing: %v", err)
	}
	for _, pid := range procfs.Descendants(cmd.Process.Pid) {
		if p, err := procfs.Read(pid); err == nil && strings.HasPrefix(p.Command(), spec.Command[0]+" ") {
			return cmd, pid
		}
	}
	t.Fatal("the sandbox has no first process")
	return nil, 0
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "code")
	must.Do(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

// The sandboxes that other tests make of this machine's programs are closed in
// the same way: they differ in what they show and in their variables.
func TestArtifactIsolatesLikeTheFixture(t *testing.T) {
	_, built := artifact(t)
	fixture := must.Get(jail.ReadSpec(jailtest.Sandbox{}.Write(t)))(t)
	isolation := func(spec *jail.Spec) []string {
		var flags []string
		for i := 0; i < len(spec.Flags); i++ {
			switch spec.Flags[i] {
			case "--setenv", "--ro-bind", "--ro-bind-try", "--symlink":
				i += 2
			default:
				flags = append(flags, spec.Flags[i])
			}
		}
		return append(flags, spec.Seal...)
	}
	if diff := cmp.Diff(isolation(built), isolation(fixture)); diff != "" {
		t.Error(diff)
	}
}

// The time from nothing to the end of an empty script, jail and all.
func BenchmarkArtifact(b *testing.B) {
	run, _ := artifact(b)
	for b.Loop() {
		if out, err := exec.Command(run).CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
	}
}

// To the host the sandboxes of root belong to users of their own, one each;
// those of others to their starter.
func TestArtifactUser(t *testing.T) {
	first, one := startForever(t, nil)
	second, two := startForever(t, nil)
	defer func() { _, _ = first.Process.Kill(), second.Process.Kill() }()
	// Every thread has it as its only user, and has its group; so has bubblewrap.
	owner := func(pids ...int) (uid int) {
		for _, pid := range pids {
			threads := must.Get(filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/status"))(t)
			if len(threads) == 0 {
				t.Fatalf("process %d has no threads", pid)
			}
			for _, name := range threads {
				text := string(must.Get(os.ReadFile(name))(t))
				_, users, _ := strings.Cut(text, "\nUid:\t")
				_, groups, _ := strings.Cut(text, "\nGid:\t")
				user, group := slices.Compact(strings.Fields(users)[:4]), slices.Compact(strings.Fields(groups)[:4])
				if len(user) != 1 || len(group) != 1 || os.Geteuid() == 0 && user[0] != group[0] {
					t.Errorf("%s: the users are %q and the groups %q", name, user, group)
				}
				uid = must.Get(strconv.Atoi(user[0]))(t)
			}
		}
		return uid
	}
	a, b := owner(first.Process.Pid, one), owner(second.Process.Pid, two)
	if root := os.Geteuid() == 0; root && (a == 0 || b == 0 || a == b) || !root && (a != os.Geteuid() || a != b) {
		t.Errorf("the sandboxes' users are %d and %d, of one that user %d started", a, b, os.Geteuid())
	}
}

// What only root may read, root's sandboxes read as the project and not
// elsewhere.
func TestArtifactRootsProject(t *testing.T) {
	artifact(t)
	if os.Geteuid() != 0 {
		t.Skip("it takes root")
	}
	project := t.TempDir()
	must.Do(t, errors.Join(os.Chmod(project, 0o700), os.WriteFile(filepath.Join(project, "file"), []byte("of the project\n"), 0o600)))
	got := runIn(t, "cat /project/file; echo x >>/project/file", "PROJECT_DIR="+project)
	if got.out != "of the project\n" || got.status == 0 {
		t.Errorf("%+v, want that it is read and not written", got)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), project) {
		t.Errorf("the project is mounted on the host: %v", err)
	}
}

// A user who may replace a part of the project's path cannot have root show what
// only root may read; root's own path to it is the control.
func TestArtifactLendsRightsToOwnersAlone(t *testing.T) {
	artifact(t)
	if os.Geteuid() != 0 {
		t.Skip("it takes root")
	}
	private, theirs := t.TempDir(), t.TempDir()
	link := filepath.Join(theirs, "project")
	must.Do(t, errors.Join(os.Chmod(private, 0o700), os.WriteFile(filepath.Join(private, "file"), []byte("private\n"), 0o600),
		os.Symlink(private, link), os.Chown(theirs, 4001, 4001)))
	if got := runIn(t, "cat /project/file", "PROJECT_DIR="+private); got.out != "private\n" {
		t.Errorf("the control: %+v", got)
	}
	if got := runIn(t, "cat /project/file", "PROJECT_DIR="+link); got.status == 0 || strings.Contains(got.out, "private") {
		t.Errorf("%+v, want that it is refused", got)
	}
}

// Groups that root is in besides its own open files of the host, and have no
// name inside by which anybody would see it.
func TestArtifactLeavesRootsGroups(t *testing.T) {
	run, _ := artifact(t)
	if os.Geteuid() != 0 {
		t.Skip("it takes root")
	}
	groups := func(program, code string) string {
		cmd := exec.Command(program)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Groups: []uint32{6, 27}}}
		return strings.Join(strings.Fields(runProgram(t, cmd, code).out), " ")
	}
	const show = "grep ^Groups: /proc/self/status"
	if got := groups("/bin/sh", show); got != "Groups: 6 27" {
		t.Fatalf("outside: %q", got)
	}
	if got := groups(run, show); got != "Groups:" {
		t.Errorf("%q, want none", got)
	}
}

// What the caller blocks and ignores stays with the caller.
func TestArtifactInheritsNoSignals(t *testing.T) {
	run, _ := artifact(t)
	// The mask is a thread's; this one ends with the test, for nobody unlocks
	// it.
	runtime.LockOSThread()
	must.Do(t, unix.PthreadSigmask(unix.SIG_BLOCK, &unix.Sigset_t{Val: [16]uint64{1 << (unix.SIGUSR1 - 1)}}, nil))
	if out, err := exec.Command("grep", "^SigBlk", "/proc/self/status").CombinedOutput(); err != nil || string(out) != "SigBlk:\t0000000000000200\n" {
		t.Fatalf("outside: %v: %s", err, out)
	}
	got := runProgram(t, exec.Command("sh", "-c", "trap '' USR1 USR2 HUP; exec "+run), "grep -E '^Sig(Ign|Blk)' /proc/1/status")
	if want := (result{out: "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n"}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
