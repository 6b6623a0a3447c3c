package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/httpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
)

// raw opens a connection and sends a call of revision 2026-07-28 on it, whose answer
// nobody reads.
func (s *httpServer) raw(name, code string) *net.TCPConn {
	s.t.Helper()
	c := &httpclient.Client{URL: s.url + "/mcp", Version: mcptest.Stateless}
	message := must.Get(c.Message(1, "tools/call", map[string]any{"name": "run", "arguments": mcptest.Arguments{Env: "bash", Code: code}}))(s.t)
	conn := must.Get(net.Dial("tcp", strings.TrimPrefix(s.url, "http://")))(s.t).(*net.TCPConn)
	s.t.Cleanup(func() { conn.Close() })
	must.Do(s.t, conn.SetReadBuffer(4<<10))
	fmt.Fprintf(conn, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nMcp-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: run\r\nContent-Length: %d\r\n\r\n%s", s.tokens[name], len(message), message)
	return conn
}

// memory is how many megabytes the server has resident.
func (s *httpServer) memory() int64 {
	s.t.Helper()
	size := must.Get(procfs.Memory(s.cmd.Process.Pid))(s.t)
	return size >> 20
}

// Clients that do not read cost what is bounded, and nobody else's calls.
func TestHTTP_ClientsThatDoNotRead(t *testing.T) {
	t.Parallel()
	const readers = 200
	s := startHTTP(t, []string{"alice", "bob"}, map[string]any{
		"lame_duck_seconds": 0,
		"quotas":            map[string]any{"default": map[string]any{"calls": readers, "sessions": 8, "streams": 64, "memory_mb": 1 << 20}},
	}, map[string]any{"output_kb": 16 << 10, "prewarm": 0})
	bob := s.client("bob", mcptest.Stateless)
	expect(t, inHTTP(t, bob, "s", "bash", "echo bob"), "bob\n")
	before := s.memory()
	for range readers {
		s.raw("alice", `head -c 12000000 /dev/zero | tr '\0' x`)
	}
	answered := func() int { return strings.Count(s.log.String(), `"principal":"alice"`) }
	var slowest time.Duration
	patience.Wait(t, 5*patience.Long, func() string { return fmt.Sprintf("%d calls are answered", answered()) }, func() bool {
		began := time.Now()
		expect(t, inHTTP(t, bob, "s", "bash", "echo bob"), "bob\n")
		slowest = max(slowest, time.Since(began))
		return answered() >= readers
	})
	peak := must.Get(procfs.PeakMemory(s.cmd.Process.Pid))(t) >> 20
	patience.Wait(t, patience.Long, func() string { return fmt.Sprintf("%d MB are resident, %d before", s.memory(), before) }, func() bool { return s.memory() < before+32 })
	t.Logf("%d MB before, %d at most, %d after; another's slowest call %v", before, peak, s.memory(), slowest)
	if peak > 160 {
		t.Errorf("%d MB were resident", peak)
	}
}

// Clients that go without a word leave nothing behind.
func TestHTTP_ClientsThatGo(t *testing.T) {
	t.Parallel()
	s := startHTTP(t, []string{"alice"}, map[string]any{
		"lame_duck_seconds": 0,
		"quotas":            map[string]any{"default": map[string]any{"calls": 200, "sessions": 8, "streams": 64, "memory_mb": 1 << 20}},
	}, map[string]any{"prewarm": 0})
	pid := s.cmd.Process.Pid
	children, descriptors := len(procfs.Descendants(pid)), must.Get(procfs.Descriptors(pid))(t)
	long := seconds()
	var conns []*net.TCPConn
	for range 200 {
		conns = append(conns, s.raw("alice", "sleep "+long))
	}
	patience.Wait(t, patience.Long, func() string { return "no call runs" }, func() bool { return len(procfs.WithCommand("sleep\x00"+long)) > 2 })
	for _, conn := range conns {
		must.Do(t, conn.SetLinger(0)) // a reset
		conn.Close()
	}
	patience.Wait(t, patience.Long, func() string {
		return fmt.Sprintf("%d processes and not %d, %d descriptors and not %d", len(procfs.Descendants(pid)), children, must.Get(procfs.Descriptors(pid))(t), descriptors)
	}, func() bool {
		return len(procfs.Descendants(pid)) <= children && must.Get(procfs.Descriptors(pid))(t) <= descriptors+2
	})
}

// What clients begin and never end is bounded, and so is what they send.
func TestHTTP_BoundsWhatClientsSend(t *testing.T) {
	t.Parallel()
	s := startHTTP(t, []string{"alice"}, map[string]any{"lame_duck_seconds": 0}, map[string]any{"prewarm": 0})
	c := s.client("alice", mcptest.Newest)
	before := s.memory()
	for range 5000 {
		must.Do(t, c.Initialize(t.Context()))
	}
	after := s.memory()
	t.Logf("5000 HTTP sessions: %d MB before, %d after", before, after)
	if after > before+10 {
		t.Errorf("%d MB are resident after 5000 HTTP sessions, %d before", after, before)
	}

	large := must.Get(json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": map[string]any{"x": strings.Repeat("x", 15<<20)}}))(t)
	post := func(body []byte) int {
		r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/mcp", bytes.NewReader(body)))(t)
		r.Header = http.Header{"Authorization": {"Bearer " + s.tokens["alice"]}, "Content-Type": {"application/json"}, "Mcp-Session-Id": {c.Session()}}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			return 0 // it was refused while it was sent
		}
		defer response.Body.Close()
		return response.StatusCode
	}
	var posts sync.WaitGroup
	var good, refused atomic.Int64
	for range 64 {
		posts.Go(func() {
			switch status := post(large); status {
			case http.StatusOK:
				good.Add(1)
			case http.StatusServiceUnavailable, 0:
				refused.Add(1)
			default:
				t.Errorf("status %d", status)
			}
		})
	}
	posts.Wait()
	peak := must.Get(procfs.PeakMemory(s.cmd.Process.Pid))(t) >> 20
	t.Logf("64 messages of 15 MiB: %d answered, %d refused, %d MB at most", good.Load(), refused.Load(), peak)
	if good.Load() == 0 || peak > 400 {
		t.Errorf("%d were answered, %d MB were resident", good.Load(), peak)
	}
	if got := post(bytes.Repeat([]byte(" "), 17<<20)); got != http.StatusRequestEntityTooLarge && got != 0 {
		t.Errorf("17 MiB: status %d", got)
	}

	// A head that does not come is not waited for.
	conn := must.Get(net.Dial("tcp", strings.TrimPrefix(s.url, "http://")))(t)
	defer conn.Close()
	fmt.Fprint(conn, "POST /mcp HTTP/1.1\r\nHost:")
	must.Do(t, conn.SetReadDeadline(time.Now().Add(patience.Long)))
	if _, err := conn.Read(make([]byte, 1<<10)); os.IsTimeout(err) {
		t.Error("a head that does not come is waited for")
	}
}
