package fusion_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/account"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/fusion"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/mcphttp"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/rpc"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/tool"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/sandboxtest"
)

type alice struct{}

func (alice) Authenticate(*http.Request) (string, error) {
	return "alice", nil
}

// served is a server over HTTP with the routes, whose sandboxes this process simulates.
type served struct {
	address  string
	machine  *sandboxtest.Machine
	sessions *session.Manager
	bytes    *account.Pool
	// most is how many bytes were charged when a request made one of its calls, at most.
	most atomic.Int64
}

func start(t *testing.T) *served {
	env := registry.Environment{Name: "bash", InterpreterType: "bash", Language: &registry.Language{Sessions: true}, SessionExec: "/session-run", Timeout: time.Minute, MaxTimeout: time.Hour, OutputBytes: 1 << 20}
	environments := registry.New(&registry.Set{Environments: map[string]registry.Environment{"bash": env}})
	log := slog.New(slog.DiscardHandler)
	s := &served{machine: &sandboxtest.Machine{}}
	spec := func(c call.Call) sandbox.Spec { return sandbox.Spec{Name: c.Env.Name, OutputBytes: c.Env.OutputBytes} }
	s.sessions = session.New(session.Options{Starter: s.machine, Spec: spec, OneShot: session.OneShot(s.machine, spec, nil), Limits: session.Limits{Idle: time.Hour, Lifetime: time.Hour, Max: 10}, Log: log})
	handler, stop := rpc.New(tool.New(tool.Options{Environments: environments, Executor: s.sessions, Sessions: s.sessions, Log: log}), "1", rpc.DefaultBounds(), log)
	book := account.NewBook(func(string) registry.Quota {
		return registry.Quota{Calls: 10, Sessions: 10, Streams: 1, MemoryMB: 1 << 20}
	}, 10, 1)
	s.bytes = book.Bytes
	server := mcphttp.New(handler, mcphttp.Options{Authenticator: alice{}, Book: book, Log: log, DrainTimeout: patience.Long, Observe: func(mcphttp.Request) {}, Others: func(all *http.ServeMux) {
		routes := http.NewServeMux()
		fusion.Routes(fusion.Options{Environments: environments, Authenticator: alice{}, Bytes: book.Bytes})(routes)
		routes.HandleFunc(mcphttp.Path, func(w http.ResponseWriter, r *http.Request) {
			s.most.Store(max(s.most.Load(), book.Bytes.Used()))
			all.ServeHTTP(w, r)
		})
		all.Handle("/run_code", routes)
		all.Handle("/run_jupyter", routes)
	}})
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	s.address = listener.Addr().String()
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		s.sessions.Close()
		s.machine.Close(0)
		server.Close(0)
		must.Do(t, <-ended)
		stop()
	})
	return s
}

// post sends a request to /run_code.
func (s *served) post(ctx context.Context, body string) (text []byte, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.address+"/run_code", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return io.ReadAll(response.Body)
}

// A request that has few bytes is charged for its goroutines and buffers, so that one principal
// cannot have all connections.
func TestRunCode_ChargesForWaitingRequests(t *testing.T) {
	s := start(t)
	conn := must.Get(net.Dial("tcp", s.address))(t)
	defer conn.Close()
	fmt.Fprint(conn, "POST /run_code HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n")
	used := func() string { return fmt.Sprintf("%d bytes are charged", s.bytes.Used()) }
	patience.Wait(t, patience.Long, used, func() bool { return s.bytes.Used() >= account.RequestBytes })
	conn.Close()
	patience.Wait(t, patience.Long, used, func() bool { return s.bytes.Used() == 0 })
}

// Files that are fetched are charged until they are sent, and bounded together, by whatever names
// they are asked for.
func TestRunCode_BoundsFetchedFiles(t *testing.T) {
	s := start(t)
	for names, want := range map[string]int{`"f"`: 1, `"f", "./f", "a/../f", "././f"`: 2} {
		s.most.Store(0)
		var answer struct {
			Status, Message string
			Files           map[string]string
		}
		text := must.Get(s.post(t.Context(), `{"code": "fill 5000000 >f", "language": "bash", "fetch_files": [`+names+`]}`))(t)
		must.Do(t, json.Unmarshal(text, &answer))
		isWhole := want == 1
		if len(answer.Files) != want || (answer.Status == "Success") != isWhole || strings.Contains(answer.Message, "more than 12582912 bytes") == isWhole {
			t.Errorf("%s: %d files, status %s, %s", names, len(answer.Files), answer.Status, answer.Message)
		}
		// The call that ends the session comes after them.
		if most := s.most.Load(); most < int64(want)*2*5_000_000 {
			t.Errorf("%s: %d bytes were charged", names, most)
		}
		patience.Until(t, "nothing is charged", func() bool { return s.bytes.Used() == 0 })
	}
}

// A session ends with its request, also if the client does not wait for that.
func TestRunCode_EndsTheSessionOfAClientThatHangsUp(t *testing.T) {
	s := start(t)
	ctx, hangUp := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := s.post(ctx, `{"code": "sleep 3000", "language": "bash", "run_timeout": 3600, "fetch_files": ["f"]}`)
		done <- err
	}()
	patience.Until(t, "the code runs", func() bool { return s.machine.Running() == 1 })
	hangUp()
	if err := <-done; err == nil {
		t.Error("the client has an answer")
	}
	patience.Wait(t, patience.Long, func() string { return fmt.Sprint("sessions ", s.sessions.List()) }, func() bool { return len(s.sessions.List()) == 0 })
}
