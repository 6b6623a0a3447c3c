package network

import (
	"strings"
	"sync"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/networld"
)

// reach tries to fetch pages of hosts, by name and by the addresses that sandboxes have
// for names, until it is ended or has made so many rounds, and prints what it reached.
const reach = `
import socket, time
reached = set()
def get(host, name):
    try:
        with socket.create_connection((host, 80), timeout=3) as c:
            c.sendall(f"GET /small HTTP/1.0\r\nHost: {name}\r\n\r\n".encode())
            text = c.makefile("rb").read()
            if b" 200 " in text.split(b"\r\n")[0]:
                reached.add(name)
    except OSError:
        pass
names = ["files.example", "a.host.example", "evil.example", "a.other.example", "other.example", "x.attacker.test"]
for _ in range(10):
    for name in names:
        get(name, name)
        for last in range(1, 5):
            get(f"198.18.0.{last}", name)
print("reached", *sorted(reached))
`

// Two sandboxes with different policies reach their own hosts at the same time, and nothing
// of each other's.
func TestPolicies_HoldForTheirOwnSandbox(t *testing.T) {
	w := begin(t, networld.Options{})
	if w == nil {
		return
	}
	programs := map[string]string{
		binRun(t, "world-python"): "reached a.host.example files.example",
		binRun(t, "world-other"):  "reached a.other.example evil.example",
		binRun(t, "world-none"):   "reached",
	}
	var wait sync.WaitGroup
	for program, want := range programs {
		for range 2 {
			wait.Go(func() {
				output, err := call{program: program, code: reach}.run(t.Context(), w)
				if err != nil || strings.TrimSpace(output) != want {
					t.Errorf("%s: %v, %q; want %q", program, err, output, want)
				}
			})
		}
	}
	wait.Wait()
	for _, found := range w.Violations() {
		// What the other policy allows is not the world's own policy.
		if !strings.Contains(found, "evil.example") && !strings.Contains(found, "a.other.example") {
			t.Error(found)
		}
	}
}
