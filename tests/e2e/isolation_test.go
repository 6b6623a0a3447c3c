package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// probe runs Python that prints what it could reach; want is what it must
// print.
func probe(t *testing.T, c *mcptest.Client, code, want string) {
	t.Helper()
	answer := run(c, "python", code)
	if got := strings.TrimSpace(answer.Text()); got != want {
		t.Errorf("%s\nanswered %q, want %q", code, got, want)
	}
}

func TestNoNetwork(t *testing.T) {
	c := start(t)
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	dir := t.TempDir()
	file := must.Get(net.Listen("unix", filepath.Join(dir, "socket")))(t)
	defer file.Close()
	abstract := fmt.Sprintf("nix-sandbox-test-%d", os.Getpid())
	hidden := must.Get(net.Listen("unix", "@"+abstract))(t)
	defer hidden.Close()
	const try = `
import socket
def reach(family, address, kind=socket.SOCK_STREAM):
    s = socket.socket(family, kind)
    s.settimeout(3)
    try:
        s.connect(address)
        if kind == socket.SOCK_DGRAM:
            s.send(b'x')
        print('reached', address)
    except OSError as e:
        print('refused')
`
	for name, call := range map[string]string{
		"the internet":        "reach(socket.AF_INET, ('1.1.1.1', 443))",
		"a datagram":          "reach(socket.AF_INET, ('1.1.1.1', 53), socket.SOCK_DGRAM)",
		"the internet's IPv6": "reach(socket.AF_INET6, ('2606:4700:4700::1111', 443))",
		"the host's loopback": fmt.Sprintf("reach(socket.AF_INET, ('127.0.0.1', %d))", listener.Addr().(*net.TCPAddr).Port),
		"a Unix socket":       fmt.Sprintf("reach(socket.AF_UNIX, %q)", filepath.Join(dir, "socket")),
		"an abstract one":     fmt.Sprintf("reach(socket.AF_UNIX, '\\0%s')", abstract),
	} {
		t.Run(name, func(t *testing.T) { probe(t, c, try+call, "refused") })
	}
	probe(t, c, "import os; print(sorted(os.listdir('/sys/class/net')) if os.path.exists('/sys/class/net') else ['lo'])", "['lo']")
}

func TestNoHostFiles(t *testing.T) {
	c := start(t)
	secret := filepath.Join(t.TempDir(), "secret")
	must.Do(t, os.WriteFile(secret, []byte("secret"), 0o644))
	const exists = "import os; print(os.path.exists(%q))"
	for _, path := range []string{"/home", "/root", "/etc/shadow", "/etc/hostname", "/var", "/boot", "/run", secret, undertest.Server(t), "/sys", "/mnt"} {
		probe(t, c, fmt.Sprintf(exists, path), "False")
	}
	// The one user is the sandbox's own.
	host := must.Get(os.ReadFile("/etc/passwd"))(t)
	answer := run(c, "bash", "cat /etc/passwd; id -u; id -un")
	if lines := strings.Split(strings.TrimSpace(answer.Text()), "\n"); len(lines) > 6 || lines[len(lines)-2] != "1000" || strings.Contains(answer.Text(), strings.Split(string(host), "\n")[1]) {
		t.Errorf("users %+v", answer)
	}
	// Nothing can be written but where it is meant to be.
	for _, path := range []string{"/x", "/nix/x", "/nix/store/x", "/etc/x", "/bin/x", "/usr/x", "/proc/sys/kernel/hostname"} {
		probe(t, c, fmt.Sprintf("try:\n    open(%q, 'w'); print('written')\nexcept OSError: print('refused')", path), "refused")
	}
	for _, path := range []string{"/workspace/x", "/tmp/x"} {
		probe(t, c, fmt.Sprintf("open(%q, 'w').write('x'); print('written')", path), "written")
	}
}

// The processes that can be seen are the sandbox's own.
func TestNoHostProcesses(t *testing.T) {
	c := start(t)
	answer := run(c, "python", "import os; all = [open(f'/proc/{p}/cmdline').read() for p in os.listdir('/proc') if p.isdigit()]; print(len(all), all)")
	var count int
	fmt.Sscan(answer.Text(), &count)
	if answer.IsError || count < 1 || count > 5 || strings.Contains(answer.Text(), "--stdio") {
		t.Errorf("processes %+v", answer)
	}
	probe(t, c, "import os\ntry:\n    print(open('/proc/1/environ').read())\nexcept OSError: print('refused')", "refused")
}

// The store holds the environment's closure, and nothing else of the host's.
func TestStoreIsTheClosure(t *testing.T) {
	c := start(t)
	for _, env := range []string{"python", "bash", "node"} {
		answer := run(c, env, map[string]string{
			"python": "import os; print('\\n'.join(sorted(os.listdir('/nix/store')))); print(os.environ['PATH'])",
			"bash":   "ls /nix/store; echo $PATH",
			"node":   "console.log(require('fs').readdirSync('/nix/store').join('\\n')); console.log(process.env.PATH)",
		}[env])
		lines := strings.Split(strings.TrimSpace(answer.Text()), "\n")
		seen, path := lines[:len(lines)-1], lines[len(lines)-1]
		path, _, _ = strings.Cut(path, ":")
		if answer.IsError || len(seen) == 0 {
			t.Errorf("%s: %+v", env, answer)
			continue
		}
		// What the tree was copied from, so what it may hold: the sandbox's
		// own references, as the store knows them.
		artifact := filepath.Dir(filepath.Dir(environments(t)[env]["session_exec"].(string)))
		query := exec.Command("nix-store", "--query", "--requisites", artifact)
		out, err := query.Output()
		if err != nil {
			t.Skipf("the store cannot be asked: %v", err)
		}
		known := map[string]bool{}
		for _, line := range strings.Fields(string(out)) {
			known[filepath.Base(line)] = true
		}
		for _, entry := range seen {
			// The closure may be known by its tree only, which holds copies.
			if !known[entry] && !inTree(out, entry) {
				t.Errorf("%s: %s is no part of the closure", env, entry)
			}
		}
		if strings.Contains(answer.Text(), filepath.Base(filepath.Dir(filepath.Dir(undertest.Server(t))))) {
			t.Errorf("%s: the server itself is visible", env)
		}
		if !strings.Contains(strings.Join(seen, "\n"), filepath.Base(filepath.Dir(path))) {
			t.Errorf("%s: PATH %s is no part of %v", env, path, seen)
		}
	}
}

// inTree says whether one of the paths holds a copy of a store's entry.
func inTree(paths []byte, entry string) bool {
	for _, path := range strings.Fields(string(paths)) {
		if _, err := os.Lstat(filepath.Join(path, "nix", "store", entry)); err == nil {
			return true
		}
	}
	return false
}

// PROJECT_DIR is at /project, readable and not writable; absent when unset.
func TestProject_IsReadableAndNotWritable(t *testing.T) {
	dir := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(dir, "file"), []byte("of the project\n"), 0o644))
	c := start(t, "PROJECT_DIR="+dir)
	expect(t, run(c, "bash", "cat /project/file"), "of the project\n")
	if answer := run(c, "bash", "echo x >/project/file; echo y >/project/new; rm -f /project/file; mv /project/file /project/other"); !answer.IsError {
		t.Errorf("write: %+v", answer)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("the project holds %v, %v", entries, err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(text) != "of the project\n" {
		t.Errorf("the file holds %q, %v", text, err)
	}

	c = start(t, "PROJECT_DIR="+dir, "PROJECT_MOUNT=/src/app")
	if answer := run(c, "bash", "cat /src/app/file; ls -d /project"); !strings.HasPrefix(answer.Text(), "of the project\n") || !answer.IsError {
		t.Errorf("elsewhere: %+v", answer)
	}
	if list := c.Request("tools/list", nil).Result; !strings.Contains(string(list), "the project is at /src/app") {
		t.Errorf("the description is %s", list)
	}

	c = start(t)
	if answer := run(c, "bash", "ls -d /project"); !answer.IsError {
		t.Errorf("unset: %+v", answer)
	}
	if list := c.Request("tools/list", nil).Result; strings.Contains(string(list), "project") {
		t.Errorf("the description is %s", list)
	}

	expectRefusal(t, command(t, "PROJECT_DIR="+filepath.Join(dir, "none")), "nix-sandbox-mcp: error: PROJECT_DIR is "+filepath.Join(dir, "none")+", which does not exist\n")
}

// Nothing of the server's own environment reaches the code.
func TestNoHostEnvironment(t *testing.T) {
	c := start(t, "SECRET_TOKEN=hunter2")
	for env, code := range map[string]string{"bash": "env; cat /proc/*/environ 2>/dev/null", "python": "import os; print(os.environ)", "node": "console.log(process.env)"} {
		if answer := run(c, env, code); strings.Contains(answer.Text(), "hunter2") || strings.Contains(answer.Text(), "NIX_SANDBOX") {
			t.Errorf("%s: %+v", env, answer)
		}
	}
}
