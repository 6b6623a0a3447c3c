// Package jailtest makes sandboxes for tests that have no built ones at hand: the
// project's own launcher, system call filter and agent, as Nix would put them
// together, with this machine's /usr and /nix/store in place of a closure.
//
// Where no sandbox starts, the test is skipped.
package jailtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail/seccomp"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// folder holds what the tests of one process share: the programs, built once,
// and the filter.
var folder = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "nix-sandbox-jailtest-")
	if err != nil {
		return "", err
	}
	if err := build(dir, "jail/cmd/nix-sandbox-jail", "agent/cmd/nix-sandbox-agent"); err != nil {
		return dir, err
	}
	filter, err := filter(seccomp.Compile)
	// Where root starts a sandbox, it is another user's.
	return dir, errors.Join(err, os.Chmod(dir, 0o755), os.WriteFile(filepath.Join(dir, "filter"), filter, 0o644))
})

// build compiles programs of this module into a folder.
func build(dir string, packages ...string) error {
	args := []string{"build", "-o", dir + "/"}
	for _, name := range packages {
		args = append(args, "github.com/nix-sandbox-mcp/nix-sandbox-mcp/"+name)
	}
	build := exec.Command("go", args...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", strings.Join(packages, " and "), err, out)
	}
	return nil
}

func filter(compile func(seccomp.Arch) ([]unix.SockFilter, error)) ([]byte, error) {
	name := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	for _, arch := range seccomp.Archs {
		if arch.Name == name {
			program, err := compile(arch)
			if err != nil {
				return nil, err
			}
			return seccomp.Encode(program)
		}
	}
	return nil, fmt.Errorf("there is no filter for %s", runtime.GOARCH)
}

// made says whether folder was asked for.
var made atomic.Bool

// Main runs a package's tests and removes what this package built for them; it is
// for TestMain. The result is the exit status.
func Main(m *testing.M) int {
	defer func() {
		if made.Load() {
			dir, _ := folder()
			os.RemoveAll(dir)
		}
	}()
	return m.Run()
}

func shared(t testing.TB) string {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skipf("the launcher and the agent cannot be built here: %v", err)
	}
	made.Store(true)
	dir := must.Get(folder())(t)
	return dir
}

// Agent returns the path of the agent, built from the sources.
func Agent(t testing.TB) string {
	t.Helper()
	return filepath.Join(shared(t), "nix-sandbox-agent")
}

// Launcher returns the path of the launcher, built from the sources.
func Launcher(t testing.TB) string {
	t.Helper()
	return filepath.Join(shared(t), "nix-sandbox-jail")
}

// Bubblewrap returns the path of the machine's bubblewrap, and skips the test where it
// starts no sandbox.
func Bubblewrap(t testing.TB) string {
	t.Helper()
	path, err := bubblewrap()
	if err != nil {
		t.Skipf("no sandbox starts here: %v", err)
	}
	return path
}

// Program is where a sandbox has the program of its first process.
const Program = "/program"

// Sandbox is what differs between the sandboxes of tests.
type Sandbox struct {
	Program string   // the first process' program on the host; empty is the agent
	Args    []string // the arguments of the first process
	Env     []string // variables of the sandbox, NAME=VALUE
	// Folders are folders of the host whose files the sandbox has: the n-th at
	// /folders/N, and an argument that is one of them becomes that path. It has
	// copies: where root starts a sandbox, it is another user's, who may not see a
	// folder of the test.
	Folders []string
	// Policy is the policy of the sandbox's network, as package policy reads it; empty
	// where there is no network.
	Policy string
	// WorkspaceMB and ShmMB are the sizes of /workspace and /tmp, and of /dev/shm,
	// in MiB; 0 is what sandboxes have by default.
	WorkspaceMB, ShmMB int
}

// bubblewrap returns the path of the machine's bwrap, or an error if it cannot
// start a sandbox here.
var bubblewrap = sync.OnceValues(func() (string, error) {
	path, err := exec.LookPath("bwrap")
	if err != nil {
		return "", fmt.Errorf("bubblewrap is not installed: %w", err)
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return "", err
	}
	return path, (&jail.Spec{Bubblewrap: path}).Check(context.Background())
})

// Write writes the description of a sandbox into a folder of the test and returns
// its path: a program like an artifact's bin/run.
func (s Sandbox) Write(t testing.TB) string {
	t.Helper()
	bubblewrap := Bubblewrap(t)
	dir := t.TempDir()
	program := s.Program
	if program == "" {
		program = Agent(t)
	}
	var binds []jail.Bind
	args := slices.Clone(s.Args)
	for i, folder := range s.Folders {
		copied := filepath.Join(dir, fmt.Sprint(i))
		must.Do(t, os.CopyFS(copied, os.DirFS(folder)))
		binds = append(binds, jail.Bind{From: copied, To: fmt.Sprintf("/folders/%d", i)})
		for n := range args {
			if args[n] == folder {
				args[n] = binds[i].To
			}
		}
	}
	flags := s.flags(program)
	var network *jail.Network
	if s.Policy != "" {
		network = s.network(t, dir)
		flags = slices.DeleteFunc(flags, func(flag string) bool { return flag == "--unshare-net" })
		for name, text := range map[string]string{"resolv.conf": "nameserver 127.0.0.1\n", "nsswitch.conf": "hosts: files dns\n"} {
			must.Write(t, filepath.Join(dir, name), text, 0o644)
			flags = append(flags, "--ro-bind", filepath.Join(dir, name), "/etc/"+name)
		}
	}
	text, err := json.Marshal(jail.Spec{
		Schema:       jail.Schema,
		Network:      network,
		Bubblewrap:   bubblewrap,
		Seccomp:      filepath.Join(shared(t), "filter"),
		Flags:        flags,
		Seal:         []string{"--remount-ro", "/"},
		ProjectMount: "/project",
		InboxMount:   "/inbox",
		Reserved:     []string{"/bin", "/dev", "/etc", "/inbox", "/lib", "/lib64", "/nix", "/proc", "/program", "/tmp", "/usr", "/workspace"},
		Binds:        binds,
		NoOverlay:    "sandboxes of tests have none",
		Workspace:    s.workspace(t, dir, program),
		Command:      append([]string{Program}, args...),
	})
	path := filepath.Join(dir, "run")
	line := "#!" + Launcher(t) + "\n"
	must.Do(t, errors.Join(err, os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755)))
	must.Write(t, path, line+string(text), 0o755)
	must.Write(t, filepath.Join(dir, jail.WorkspaceName), line+string(text), 0o755)
	return path
}

// NetworkProxy is the process name of the proxy of a sandbox's network.
const NetworkProxy = "nix-sandbox-net"

// network returns what the launcher needs for a network with a policy, as
// nix/backends/jail.nix generates it, with the proxy built from the sources.
func (s Sandbox) network(t testing.TB, dir string) *jail.Network {
	t.Helper()
	var policy struct{ Ports []int }
	must.Do(t, json.Unmarshal([]byte(s.Policy), &policy))
	proxy := must.Get(proxyFiles())(t)
	must.Write(t, filepath.Join(dir, "policy"), s.Policy, 0o644)
	text := must.Get(json.Marshal(jail.Spec{
		Schema:     jail.Schema,
		Bubblewrap: Bubblewrap(t),
		Seccomp:    filepath.Join(shared(t), "proxy-filter"),
		Flags: []string{
			"--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup", "--disable-userns",
			"--cap-drop", "ALL", "--uid", "1000", "--gid", "1000", "--hostname", "sandbox", "--die-with-parent", "--as-pid-1", "--clearenv",
			"--ro-bind-try", "/etc/hosts", "/etc/hosts", "--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf",
		},
		Binds:        []jail.Bind{{From: proxy, To: "/" + NetworkProxy}, {From: filepath.Join(dir, "policy"), To: "/policy.json"}},
		Seal:         []string{"--remount-ro", "/"},
		ProjectMount: "/project",
		Reserved:     []string{"/etc"},
		NoOverlay:    "it is the proxy of a network",
		OOMScore:     900,
		Command:      []string{"/" + NetworkProxy, "--policy", "/policy.json"},
	}))(t)
	must.Write(t, filepath.Join(dir, "proxy"), "#!"+Launcher(t)+"\n"+string(text), 0o755)
	return &jail.Network{Proxy: filepath.Join(dir, "proxy"), Ports: policy.Ports}
}

// proxyFiles builds the proxy and its filter, once for all tests of a process, and
// returns the program's path.
var proxyFiles = sync.OnceValues(func() (string, error) {
	dir, err := folder()
	if err != nil {
		return "", err
	}
	filter, err := filter(seccomp.CompileProxy)
	return filepath.Join(dir, NetworkProxy), errors.Join(err, os.WriteFile(filepath.Join(dir, "proxy-filter"), filter, 0o644),
		build(dir, "network/cmd/"+NetworkProxy))
})

// workspace is how sandboxes have one workspace; their outer namespaces have this
// machine's folders where those of artifacts have the store.
func (s Sandbox) workspace(t testing.TB, dir, program string) *jail.Workspace {
	t.Helper()
	host := []string{"--ro-bind", shared(t), shared(t), "--dir", "/tmp"}
	for _, folder := range []string{"/bin", "/etc", "/lib", "/lib64", "/nix/store", "/usr"} {
		host = append(host, "--ro-bind-try", folder, folder)
	}
	outer := []string{"--dev-bind", "/dev", "/dev", "--proc", "/proc"}
	if s.Policy != "" {
		outer = append(outer, "--unshare-net", "--cap-add", "CAP_NET_ADMIN", "--cap-add", "CAP_NET_BIND_SERVICE",
			"--ro-bind", program, program, "--ro-bind", dir, dir)
	}
	own := []string{
		"--unshare-user", "--unshare-pid", "--cap-drop", "ALL", "--uid", "1000", "--gid", "1000",
		"--die-with-parent", "--as-pid-1",
	}
	capable := []string{"--cap-add", "CAP_SYS_ADMIN"}
	return &jail.Workspace{
		Mount: "/workspace", At: "/shared", HostDir: "/host",
		Flags: slices.Concat(own, host, outer),
		Join:  append(capable, "--dir", "/shared"),
		// Sandboxes of tests have no overlay.
		Layer: []string{"--dir", "/layer"}, Project: "/project",
		Holder: slices.Concat(own, capable, host, []string{"--perms", "0755", "--size", size(s.WorkspaceMB, 256), "--tmpfs", "/workspace"}),
	}
}

// size is a number of MiB in bytes, and a standard where it is 0.
func size(mb, standard int) string {
	if mb == 0 {
		mb = standard
	}
	return fmt.Sprint(mb << 20)
}

// flags are those that nix/backends/jail.nix generates, with folders of the host
// where that has a closure. TestArtifactIsolatesLikeTheFixture of package jail
// compares the two.
func (s Sandbox) flags(program string) []string {
	flags := []string{
		"--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup",
		"--disable-userns", "--cap-drop", "ALL", "--uid", "1000", "--gid", "1000", "--hostname", "sandbox",
		"--unshare-net", "--new-session", "--die-with-parent", "--as-pid-1",
		"--clearenv",
	}
	for _, variable := range append([]string{
		"HOME=/workspace", "LANG=C.UTF-8", "PATH=" + strings.Join(path(), ":"), "TMPDIR=/workspace", "USER=sandbox",
	}, s.Env...) {
		name, value, _ := strings.Cut(variable, "=")
		flags = append(flags, "--setenv", name, value)
	}
	shm, workspace := size(s.ShmMB, 64), size(s.WorkspaceMB, 256)
	flags = append(flags, "--ro-bind", "/usr", "/usr", "--ro-bind", program, Program)
	for _, folder := range []string{"/nix/store", "/etc/alternatives"} {
		flags = append(flags, "--ro-bind-try", folder, folder)
	}
	for _, folder := range []string{"bin", "lib", "lib64"} {
		flags = append(flags, "--symlink", "usr/"+folder, "/"+folder)
	}
	return append(flags,
		"--proc", "/proc", "--remount-ro", "/proc",
		"--dev", "/dev", "--perms", "1777", "--size", shm, "--tmpfs", "/dev/shm", "--remount-ro", "/dev",
		"--perms", "1777", "--size", workspace, "--tmpfs", "/tmp",
		"--perms", "0755", "--size", workspace, "--tmpfs", "/workspace",
		"--chdir", "/workspace")
}

// path is PATH in the sandboxes: the folders of this process' PATH that sandboxes
// have, too.
func path() []string {
	var folders []string
	for _, folder := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/local/bin", "/usr/bin") {
		folder, err := filepath.EvalSymlinks(folder)
		if err == nil && (strings.HasPrefix(folder, "/nix/store/") || strings.HasPrefix(folder, "/usr/")) {
			folders = append(folders, folder)
		}
	}
	return folders
}

// Has reports whether sandboxes find a program on their PATH.
func Has(program string) bool {
	for _, folder := range path() {
		if info, err := os.Stat(filepath.Join(folder, program)); err == nil && info.Mode()&0o111 != 0 {
			return true
		}
	}
	return false
}
