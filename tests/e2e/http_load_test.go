package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/httpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
)

// request is a call of revision 2026-07-28 as it is sent.
func (s *httpServer) request(name, code string) []byte {
	s.t.Helper()
	c := &httpclient.Client{URL: s.url + "/mcp", Version: mcptest.Stateless}
	message := must.Get(c.Message(1, "tools/call", map[string]any{"name": "run", "arguments": mcptest.Arguments{Env: "bash", Code: code}}))(s.t)
	return fmt.Appendf(nil, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nMcp-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: run\r\nContent-Length: %d\r\n\r\n%s", s.tokens[name], len(message), message)
}

// raw opens a connection and sends a call on it, whose answer nobody reads.
func (s *httpServer) raw(name, code string) {
	s.t.Helper()
	conn := must.Get(net.Dial("tcp", strings.TrimPrefix(s.url, "http://")))(s.t).(*net.TCPConn)
	s.t.Cleanup(func() { conn.Close() })
	must.Do(s.t, conn.SetReadBuffer(4<<10))
	must.Get(conn.Write(s.request(name, code)))(s.t)
}

// asClients is the variable that makes the test binary a program of [clientsThatGo]
// clients of the server at this address: each sends what the program's input has.
const asClients = "NIX_SANDBOX_TEST_CLIENTS_OF"

const clientsThatGo = 200

func runClients(address string) error {
	request, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	conns := make([]net.Conn, clientsThatGo)
	for i := range conns {
		if conns[i], err = net.Dial("tcp", address); err != nil {
			return err
		}
		if _, err := conns[i].Write(request); err != nil {
			return err
		}
	}
	fmt.Println("sent")
	err = unix.Pause() // until it is killed
	runtime.KeepAlive(conns)
	return err
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
	readers := sized(60, 200)
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
	ended := time.Now()
	peak := must.Get(procfs.PeakMemory(s.cmd.Process.Pid))(t) >> 20
	patience.Wait(t, patience.Long, func() string { return fmt.Sprintf("%d MB are resident, %d before", s.memory(), before) }, func() bool { return s.memory() < before+32 })
	expectWithin(t, time.Second, "another's slowest call", slowest)
	expectWithin(t, 15*time.Second, "the memory is back while the clients are there", time.Since(ended))
	t.Logf("%d MB before, %d at most, %d after", before, peak, s.memory())
	if peak > 160 {
		t.Errorf("%d MB were resident", peak)
	}
}

// Clients that are killed leave nothing behind: no process, descriptor or goroutine.
func TestHTTP_ClientsThatGo(t *testing.T) {
	t.Parallel()
	s := startHTTP(t, []string{"alice"}, map[string]any{
		"lame_duck_seconds": 0, "metrics_listen": "127.0.0.1:0",
		"quotas": map[string]any{"default": map[string]any{"calls": clientsThatGo, "sessions": 8, "streams": 64, "memory_mb": 1 << 20}},
	}, map[string]any{"prewarm": 0})
	expect(t, inHTTP(t, s.client("alice", mcptest.Stateless), "", "bash", "echo 1"), "1\n")
	goroutines := func() int { return int(s.metric("nix_sandbox_goroutines")) }
	pid := s.cmd.Process.Pid
	// Neither the metrics nor the call above are what is counted.
	const others = clientsThatGo / 20
	children, descriptors, base := len(procfs.Descendants(pid)), must.Get(procfs.Descriptors(pid))(t)+others, goroutines()+others
	long := seconds()
	clients := exec.Command(must.Get(os.Executable())(t))
	clients.Env = append(os.Environ(), asClients+"="+strings.TrimPrefix(s.url, "http://"))
	clients.Stdin = bytes.NewReader(s.request("alice", "sleep "+long))
	clients.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	output := must.Get(clients.StdoutPipe())(t)
	must.Do(t, clients.Start())
	t.Cleanup(func() { clients.Process.Kill() })
	if line, err := bufio.NewReader(output).ReadString('\n'); err != nil || line != "sent\n" {
		t.Fatalf("the clients print %q, %v", line, err)
	}
	patience.Wait(t, patience.Long, func() string { return "the calls do not come" }, func() bool {
		return len(procfs.WithCommand("sleep\x00"+long)) > 2 && must.Get(procfs.Descriptors(pid))(t) > descriptors+clientsThatGo/2 && goroutines() > base+clientsThatGo/2
	})
	must.Do(t, clients.Process.Kill())
	_ = clients.Wait() // it was killed
	killed := time.Now()
	patience.Wait(t, patience.Long, func() string {
		return fmt.Sprintf("%d processes and not %d, %d descriptors and not %d, %d goroutines and not %d", len(procfs.Descendants(pid)), children,
			must.Get(procfs.Descriptors(pid))(t), descriptors, goroutines(), base)
	}, func() bool {
		return len(procfs.Descendants(pid)) <= children && must.Get(procfs.Descriptors(pid))(t) <= descriptors && goroutines() <= base
	})
	expectWithin(t, 5*time.Second, fmt.Sprintf("what %d clients had that were killed is gone", clientsThatGo), time.Since(killed))
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
	// The server says that it reads the body before the client sends it, so that a refusal
	// which comes before that is read.
	asks := &http.Client{Transport: &http.Transport{ExpectContinueTimeout: patience.Long}}
	defer asks.CloseIdleConnections()
	post := func(body []byte) (int, string) {
		r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/mcp", bytes.NewReader(body)))(t)
		r.Header = http.Header{"Authorization": {"Bearer " + s.tokens["alice"]}, "Content-Type": {"application/json"}, "Mcp-Session-Id": {c.Session()}, "Expect": {"100-continue"}}
		response, err := asks.Do(r)
		if err != nil {
			return 0, err.Error()
		}
		defer response.Body.Close()
		text, _ := io.ReadAll(response.Body) // the connection may end after the refusal
		return response.StatusCode, string(text)
	}
	var posts sync.WaitGroup
	var good, refused, cut atomic.Int64
	for range 64 {
		posts.Go(func() {
			switch status, text := post(large); {
			case status == http.StatusOK:
				good.Add(1)
			case status == http.StatusServiceUnavailable && strings.Contains(text, "the server is busy with other messages of more than 65536 bytes: send the message again later"):
				refused.Add(1)
			case status == 0:
				cut.Add(1) // it was refused while it was sent
			default:
				t.Errorf("status %d: %.200s", status, text)
			}
		})
	}
	posts.Wait()
	peak := must.Get(procfs.PeakMemory(s.cmd.Process.Pid))(t) >> 20
	t.Logf("64 messages of 15 MiB: %d answered, %d refused in words, %d cut, %d MB at most", good.Load(), refused.Load(), cut.Load(), peak)
	if good.Load() == 0 || peak > 400 {
		t.Errorf("%d were answered, %d MB were resident", good.Load(), peak)
	}
	if status, text := post(bytes.Repeat([]byte(" "), 17<<20)); status != http.StatusRequestEntityTooLarge || !strings.Contains(text, "the message is longer than 16777216 bytes") {
		t.Errorf("17 MiB: status %d, %.200s", status, text)
	}

	// A head that does not come is not waited for.
	conn := must.Get(net.Dial("tcp", strings.TrimPrefix(s.url, "http://")))(t)
	defer conn.Close()
	began := time.Now()
	fmt.Fprint(conn, "POST /mcp HTTP/1.1\r\nHost:")
	must.Do(t, conn.SetReadDeadline(time.Now().Add(patience.Long)))
	if _, err := conn.Read(make([]byte, 1<<10)); os.IsTimeout(err) {
		t.Error("a head that does not come is waited for")
	}
	took := time.Since(began)
	if took < 10*time.Second {
		t.Errorf("a head may come for %v, want 10 s", took)
	}
	expectWithin(t, 12*time.Second, "the connection of a head that does not come is closed", took)
}
