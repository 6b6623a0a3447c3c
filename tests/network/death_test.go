package network

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/networld"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/seed"
)

// traffic uses the network until that fails, at most for two seconds. Then it tries what
// must never work, and prints how it ended.
const traffic = `
import os, socket, time
os.environ["RES_OPTIONS"] = "timeout:1 attempts:1"
def get(host, name="files.example", port=80):
    with socket.create_connection((host, port), timeout=1) as c:
        c.sendall(f"GET /small HTTP/1.0\r\nHost: {name}\r\n\r\n".encode())
        text = c.makefile("rb").read()
        if b"hello " + name.encode() not in text:
            raise OSError(f"another answer: {text[:60]}")
end, pages, failure = time.monotonic() + 2, 0, "none"
while time.monotonic() < end and failure == "none":
    try:
        get(f"{pages % 50}.host.example", f"{pages % 50}.host.example")
        pages += 1
        time.sleep(0.03)
    except OSError as error:
        failure = str(error)
for host in ("10.0.0.5", "127.0.0.1", "93.184.216.34", "evil.example", "private.led.example"):
    try:
        get(host, "x.attacker.test")
    except OSError:
        pass
print("pages", pages, "failure", failure)
`

// page fetches one page and prints it.
const page = `
import urllib.request
print(urllib.request.urlopen("http://files.example/small", timeout=5).read().decode())
`

// A fault is what happens to a proxy.
type fault struct {
	name string
	do   func(pid int) error
	// ends says that the proxy ends by it, and closes that the sandbox reaches nothing
	// afterwards.
	ends, closes bool
}

var faults = []fault{
	{"killed", func(pid int) error { return unix.Kill(pid, unix.SIGKILL) }, true, true},
	{"aborted", func(pid int) error { return unix.Kill(pid, unix.SIGSEGV) }, true, true},
	{"stopped", func(pid int) error { return unix.Kill(pid, unix.SIGSTOP) }, false, true},
	{"out of memory", func(pid int) error { return limit(pid, unix.RLIMIT_AS, 1<<20) }, false, false},
	{"out of descriptors", func(pid int) error { return limit(pid, unix.RLIMIT_NOFILE, 1) }, false, false},
}

// limit sets a limit of a process, as its user: root of a container may not.
func limit(pid, resource int, value uint64) error {
	var stat unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d", pid), &stat); err != nil {
		return err
	}
	return networld.Unprivileged(func() error {
		if os.Geteuid() == 0 {
			// Not those of package syscall, which change all threads.
			user, group := uintptr(stat.Uid), uintptr(stat.Gid)
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, group, group, group); errno != 0 {
				return errno
			}
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, user, user, user); errno != 0 {
				return errno
			}
		}
		return unix.Prlimit(pid, resource, &unix.Rlimit{Cur: value, Max: value}, nil)
	})
}

// rounds returns how many times a test is to repeat what it does: few times, unless
// NIX_SANDBOX_TEST_SOAK gives another number.
func rounds(t *testing.T, few int) int {
	t.Helper()
	text := os.Getenv("NIX_SANDBOX_TEST_SOAK")
	if text == "" {
		return few
	}
	return must.Get(strconv.Atoi(text))(t)
}

// Whatever happens to a sandbox's proxy at any moment: the sandbox reaches nothing that it
// may not, other sandboxes and the server go on, and the answer says what happened.
func TestProxy_FailsClosedAtAnyMoment(t *testing.T) {
	w := begin(t, networld.Options{Lifetime: 40 * time.Minute})
	if w == nil {
		return
	}
	random := seed.New(t)
	client := serve(t, w, "world-python")
	fetch := func() {
		t.Helper()
		if text := client.Run(mcptest.Arguments{Code: page, Env: "world-python", Session: "other"}).Text(); !strings.Contains(text, "hello files.example") {
			t.Errorf("the other sandbox reaches nothing: %s", text)
		}
	}
	fetch()
	counts := map[string]int{}
	for round := range rounds(t, len(faults)) {
		fault := faults[round%len(faults)]
		session := fmt.Sprintf("s%d", round)
		accepted, others := w.Load().Accepted, proxies(client.PID())
		id := client.SendRun(mcptest.Arguments{Code: traffic, Env: "world-python", Session: session})
		patience.Until(t, "the code uses the network", func() bool { return w.Load().Accepted > accepted })
		own := slices.DeleteFunc(proxies(client.PID()), func(pid int) bool { return slices.Contains(others, pid) })
		if len(own) != 1 {
			t.Fatalf("the sandbox has proxies %v, want one", own)
		}
		time.Sleep(time.Duration(random.Int64N(int64(time.Second))))
		must.Do(t, fault.do(own[0]))
		text := client.AwaitRun(id).Text()
		counts[fault.name]++
		_, failure, _ := strings.Cut(text, "failure ")
		failed := !strings.HasPrefix(failure, "none")
		if fault.closes && !failed {
			t.Errorf("%s: the sandbox goes on: %s", fault.name, text)
		}
		if said := strings.Contains(text, "the proxy of this sandbox ended"); fault.ends && !said {
			t.Errorf("%s: the answer does not say so: %s", fault.name, text)
		}
		if round < len(faults) {
			t.Logf("%s: %s", fault.name, text)
		}
		fetch()
		if fault.closes {
			// A stopped proxy neither answers nor ends.
			if text := client.Run(mcptest.Arguments{Code: traffic, Env: "world-python", Session: session}).Text(); !strings.Contains(text, "pages 0 ") {
				t.Errorf("%s: the sandbox reaches something: %s", fault.name, text)
			}
		}
		if found := w.Violations(); len(found) > 0 {
			t.Fatalf("%s: %q", fault.name, found)
		}
	}
	t.Log(counts)
	all := procfs.Descendants(client.PID())
	client.CloseInput()
	client.Wait(time.Minute)
	patience.Gone(t, all...)
}
