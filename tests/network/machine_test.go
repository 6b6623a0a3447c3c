package network

import (
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/networld"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// fromMachine is what Python does in a virtual machine, as TestPrograms has it for jails. Each line prints what it got.
const fromMachine = `
import socket, urllib.request, threading
def attempt(name, f):
    try: print(name, f())
    except Exception as e: print(name, 'refused:', type(e).__name__)
def get(url): return urllib.request.urlopen(url, timeout=60).read().decode().strip()
attempt('http', lambda: get('http://files.example/small'))
attempt('another', lambda: get('http://a.host.example/small'))
def echo():
    with socket.create_connection(('raw.example', 7007)) as c:
        text = b'x' * 300000
        threading.Thread(target=lambda: (c.sendall(text), c.shutdown(socket.SHUT_WR))).start()
        got = b''.join(iter(lambda: c.recv(65536), b''))
        return len(got)
attempt('echo', echo)
attempt('a name that is not allowed', lambda: get('http://other.example/'))
attempt('another port', lambda: socket.create_connection(('files.example', 8080), 20) and 'open')
attempt('an address', lambda: get('http://93.184.216.34/small'))
def udp():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as c:
        c.settimeout(2)
        c.sendto(b'x', ('93.184.216.34', 443))
        return c.recv(10)
attempt('datagrams', udp)
print('interfaces', [line.split(':')[0].strip() for line in list(open('/proc/net/dev'))[2:]])
`

// A virtual machine reaches the hosts of its environment and no others, from a session that began cold or as a copy.
func TestMachine_ReachesItsHosts(t *testing.T) {
	w := begin(t, networld.Options{})
	if w == nil {
		return
	}
	check := func(got string) {
		t.Helper()
		for _, want := range []string{
			"http hello files.example\n", "another hello a.host.example\n", "echo 300000\n",
			"a name that is not allowed refused: ", "another port refused: ", "an address refused: ", "datagrams refused: ",
			"interfaces ['lo']\n",
		} {
			if !strings.Contains(got, want) {
				t.Errorf("no %q in:\n%s", want, got)
			}
		}
	}
	output, err := call{program: binRun(t, "world-machine"), code: fromMachine}.run(t.Context(), w)
	if err != nil && !strings.Contains(err.Error(), "other.example") {
		t.Errorf("bin/run: %v", err)
	}
	check(output)
	c := serve(t, w, "world-machine")
	for _, session := range []string{"cold", "copy", "cold"} {
		if strings.Contains(c.Log(), `"session":"copy"`) {
			patience.Until(t, "the first session is put to disk", func() bool { return strings.Contains(c.Log(), `"msg":"session suspended","session":"cold"`) })
		}
		answer := c.Run(mcptest.Arguments{Env: "world-machine", Session: session, Code: fromMachine})
		check(answer.Text())
		if !strings.Contains(answer.Text(), "other.example") {
			t.Errorf("the refusal is not in the answer:\n%s", answer.Text())
		}
	}
}
