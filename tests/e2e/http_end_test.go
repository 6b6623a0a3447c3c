package e2e

import (
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/httpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
)

// A server that is told to end answers what has begun, ends a subscription with its
// result, and leaves nothing. The second signal ends what still runs.
func TestHTTP_EndsInOrder(t *testing.T) {
	t.Parallel()
	for _, signals := range []int{1, 2} {
		s := startHTTP(t, []string{"alice"}, map[string]any{"lame_duck_seconds": 0}, nil)
		c := s.client("alice", mcptest.Stateless)
		message := must.Get(c.Message("sub", "subscriptions/listen", map[string]any{"notifications": map[string]any{"toolsListChanged": true}}))(t)
		stream := must.Get(c.Post(t.Context(), "subscriptions/listen", "", message))(t)
		defer stream.Body.Close()
		long := seconds()
		code := "sleep " + long
		answers := make(chan string, 1)
		go func() {
			answer, err := c.Run(t.Context(), mcptest.Arguments{Env: "bash", Session: "s", Code: code + "; echo end"})
			if err != nil {
				answers <- err.Error()
				return
			}
			answers <- answer.Text()
		}()
		var sleeping []int
		patience.Wait(t, patience.Long, func() string { return "the call does not run" }, func() bool {
			sleeping = procfs.WithCommand("sleep\x00" + long)
			return len(sleeping) == 1
		})
		children := procfs.Descendants(s.cmd.Process.Pid)
		must.Do(t, s.cmd.Process.Signal(syscall.SIGTERM))
		reply := must.Get(httpclient.Reply(stream, nil))(t)
		if string(reply.ID) != `"sub"` || len(reply.Result) == 0 {
			t.Errorf("the subscription ends with %s", reply.Line)
		}
		if signals == 2 {
			must.Do(t, s.cmd.Process.Signal(syscall.SIGTERM))
			began := time.Now()
			if got := <-answers; !strings.Contains(got, "server is ending") && !strings.Contains(got, "sandbox ended") {
				t.Errorf("the call that was cut short: %q", got)
			}
			must.Do(t, <-s.exited)
			expectWithin(t, 3*time.Second, "the server ends after the second signal", time.Since(began))
		} else {
			must.Do(t, syscall.Kill(sleeping[0], syscall.SIGKILL))
			if got := <-answers; !strings.Contains(got, "end\n") {
				t.Errorf("the call that ran: %q", got)
			}
			must.Do(t, <-s.exited)
		}
		patience.Gone(t, children...)
	}
}

// Behind a socket that stays open nobody is refused while one server follows another,
// and the next call of a session says why it is new.
func TestHTTP_HandsItsSocketOver(t *testing.T) {
	t.Parallel()
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t).(*net.TCPListener)
	socket := must.Get(listener.File())(t)
	url := "http://" + listener.Addr().String()
	listener.Close()
	defer socket.Close()
	notices := must.Get(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "notify"), Net: "unixgram"}))(t)
	defer notices.Close()
	state := t.TempDir()
	metadata := "NIX_SANDBOX_METADATA=" + mcptest.MetadataWith(t, environments(t), map[string]any{"serve": mcptest.Serve(map[string]any{"lame_duck_seconds": 1, "listen": "systemd"})})
	begin := func() (cmd *exec.Cmd, log *mcptest.Log) {
		log = &mcptest.Log{}
		cmd = command(t, metadata, "STATE_DIRECTORY="+state, "NOTIFY_SOCKET="+notices.LocalAddr().String(), "LISTEN_FDS=1")
		// systemd sets LISTEN_PID, which a parent cannot know before.
		cmd.Args = []string{"sh", "-c", `LISTEN_PID=$$ exec "$0" serve --log-format json`, cmd.Path}
		cmd.Path = must.Get(exec.LookPath("sh"))(t)
		cmd.ExtraFiles = []*os.File{socket}
		cmd.Stderr = log
		must.Do(t, cmd.Start())
		t.Cleanup(func() {
			cmd.Process.Kill()
			if t.Failed() {
				t.Logf("the server's log:\n%s", log)
			}
		})
		return cmd, log
	}
	noticed := func(want string) {
		t.Helper()
		must.Do(t, notices.SetReadDeadline(time.Now().Add(patience.Long)))
		text := make([]byte, 100)
		n := must.Get(notices.Read(text))(t)
		if got := string(text[:n]); got != want {
			t.Errorf("systemd is told %q, want %q", got, want)
		}
	}
	first, _ := begin()
	noticed("READY=1")
	c := &httpclient.Client{URL: url + "/mcp", Version: mcptest.Stateless, HTTP: &http.Client{Transport: &http.Transport{}}}
	expect(t, inHTTP(t, c, "s", "bash", "X=5; echo $X"), "5\n")

	ctx, stop := context.WithCancel(t.Context())
	var loops sync.WaitGroup
	var asked, refused atomic.Int64
	loops.Go(func() {
		for ctx.Err() == nil {
			r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/healthz", nil))(t)
			r.Close = true
			response, err := http.DefaultClient.Do(r)
			if err != nil {
				refused.Add(1)
				t.Error(err)
				return
			}
			response.Body.Close()
			asked.Add(1)
		}
	})
	must.Do(t, first.Process.Signal(syscall.SIGTERM))
	noticed("STOPPING=1")
	must.Do(t, first.Wait())
	second, _ := begin()
	noticed("READY=1")
	c.HTTP.CloseIdleConnections()
	answer := inHTTP(t, c, "s", "bash", "echo [$X]")
	if got, want := answer.Text(), "[]\n[new session: the earlier one ended when the server was started again]"; got != want {
		t.Errorf("the session after it: %q, want %q", got, want)
	}
	expect(t, inHTTP(t, c, "s", "bash", "echo again"), "again\n")
	before := asked.Load()
	patience.Wait(t, patience.Long, func() string { return "the second server does not answer" }, func() bool { return asked.Load() > before+100 })
	stop()
	loops.Wait()
	t.Logf("%d requests, %d refused", asked.Load(), refused.Load())
	must.Do(t, second.Process.Signal(syscall.SIGTERM))
	must.Do(t, second.Wait())
}
