package visit

import (
	"context"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/sandboxtest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// box is a sandbox that can be visited, whose files change when a test says so.
type box struct {
	sandbox.Sandbox
	mu      sync.Mutex
	looked  bool
	changed []string
}

func (b *box) change(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changed = append(b.changed, name)
}

func (b *box) Look(context.Context) (paths []string, count int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.Done():
		return nil, 0, &sandbox.DeadError{Reason: "it ended"}
	default:
	}
	if b.looked {
		paths = b.changed
	}
	b.looked, b.changed = true, nil
	return paths, len(paths), nil
}

func (b *box) Examine(context.Context) ([]uint16, int64, error) { return nil, 0, nil }

// Open returns a program that writes what it reads, until that ends.
func (b *box) Open(context.Context, frame.Request, sandbox.Ask) (sandbox.Stream, error) {
	out, in := io.Pipe()
	return echo{out, in}, nil
}

type echo struct {
	*io.PipeReader
	in *io.PipeWriter
}

func (e echo) Write(data []byte) (int, error) { return e.in.Write(data) }

func (e echo) Next(p []byte) (int, string, error) {
	n, err := e.Read(p)
	return n, frame.Stderr, err
}

func (e echo) Signal(int) error { return e.in.Close() }

func (e echo) CloseWrite() error { return e.in.Close() }

func (e echo) Resize(frame.Terminal) error { return nil }

func (e echo) ExitCode() int { return 7 }

func (e echo) Close() error {
	e.in.Close()
	return e.PipeReader.Close()
}

// world is a manager of sessions, and the sandbox that it started last.
type world struct {
	*session.Manager
	t      *testing.T
	visits *Visits
	last   *box
}

func (w *world) Start(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	one, err := (&sandboxtest.Machine{}).Start(ctx, spec)
	if err != nil {
		return nil, err
	}
	w.last = &box{Sandbox: one}
	return w.last, nil
}

func begin(t *testing.T) *world {
	w := &world{t: t, visits: New(Options{Environments: environments.Now})}
	spec := func(c call.Call) sandbox.Spec { return sandbox.Spec{Name: c.Env.Name, OutputBytes: 1 << 20} }
	w.Manager = session.New(session.Options{
		Starter: w, Spec: spec, Limits: session.Limits{Idle: time.Hour, Lifetime: time.Hour, Max: 10},
		Parts: []session.Part{w.visits}, Log: slog.New(slog.DiscardHandler),
	})
	w.visits.SetSessions(w.Manager)
	t.Cleanup(w.Close)
	return w
}

// run runs a call, and returns the files of which it is told.
func (w *world) run(code string) []string {
	w.t.Helper()
	env := registry.Environment{Name: "bash", Timeout: time.Minute}
	result, err := w.Answer(w.t.Context(), call.Call{Env: env, Session: "s", Code: code})
	if err != nil && code != "crash" {
		w.t.Fatal(err)
	}
	if note := call.Find[call.Visited](result.Notes); note != nil {
		return note.Files
	}
	return nil
}

func (w *world) enter() (leave func()) {
	leave, ok := w.visits.enter(w.t.Context(), call.Key{ID: "s"}, w.last)
	if !ok {
		w.t.Fatal("nobody may enter")
	}
	return leave
}

func (w *world) expect(what string, got []string, want ...string) {
	w.t.Helper()
	if !slices.Equal(got, want) {
		w.t.Errorf("%s: told of %q, want %q", what, got, want)
	}
}

func TestVisits_TellWhatTheUserChanged(t *testing.T) {
	w := begin(t)
	w.run(":")
	leave := w.enter()
	w.last.change("/workspace/a")
	w.expect("a visit", w.run(":"), "/workspace/a")
	w.expect("nothing else", w.run(":"))
	w.last.change("/workspace/b")
	leave()
	w.last.change("/workspace/c") // by processes that the model left
	w.expect("after the visit", w.run(":"), "/workspace/b")
	if leave = w.enter(); len(w.visits.each) != 1 {
		t.Errorf("%d sessions are known", len(w.visits.each))
	}
	leave()
}

// A session that begins anew has none of the files that the user changed in the earlier one.
func TestVisits_ForgetASessionWithItsFiles(t *testing.T) {
	w := begin(t)
	w.run(":")
	leave := w.enter()
	w.last.change("/workspace/a")
	leave()
	first := w.last
	first.Kill()
	w.expect("the next session", w.run(":"))
	if w.last == first {
		t.Fatal("the sandbox did not end")
	}
	w.last.Kill()
	patience.Until(t, "nothing is remembered", func() bool {
		w.visits.mu.Lock()
		defer w.visits.mu.Unlock()
		return len(w.visits.each) == 0
	})
}

// A visit goes on in the sandbox that replaces another one.
func TestVisits_GoOnInANewSandbox(t *testing.T) {
	w := begin(t)
	w.run(":")
	leave := w.enter()
	w.run("crash")
	w.run(":")
	w.last.change("/workspace/a")
	w.expect("the new sandbox", w.run(":"), "/workspace/a")
	w.last.change("/workspace/b")
	leave()
	w.expect("the end of the visit", w.run(":"), "/workspace/b")
}

// dial asks a server of the desk about the session.
func (w *world) dial(verb string, args any) *desk.Client {
	w.t.Helper()
	folder := filepath.Join(w.t.TempDir(), "run")
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan struct{})
	go func() {
		defer close(served)
		desk.Serve(ctx, []string{folder}, nil, w.visits.Verbs(), slog.New(slog.DiscardHandler))
	}()
	w.t.Cleanup(func() {
		cancel()
		<-served
	})
	for end := time.Now().Add(patience.Long); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if found := desk.Find([]string{folder}); len(found) == 1 {
			c := must.Get(found[0].Dial(ctx, verb, args))(w.t)
			w.t.Cleanup(func() { c.Close() })
			return c
		}
	}
	w.t.Fatal("the server is not found")
	return nil
}

// A server that a command started ends some time after its last session, and not before.
func TestLinger_EndsTheServer(t *testing.T) {
	w := begin(t)
	must.Do(t, w.dial("linger", nil).Read(new(struct{})))
	w.run("x=1")
	ends := func(after ...time.Duration) (stopped bool) {
		ticks := make(chan time.Time, len(after))
		for _, d := range after {
			ticks <- time.Now().Add(d)
		}
		close(ticks)
		w.visits.end(ticks, func() { stopped = true })
		return stopped
	}
	if ends(2*lingerTime, 4*lingerTime) {
		t.Error("it ended while a session was live")
	}
	w.Manager.Close()
	if ends(lingerTime / 2) {
		t.Error("it ended too early")
	}
	if !ends(lingerTime/2, 2*lingerTime) {
		t.Error("it did not end")
	}
}

// environments has one that a session can begin in.
var environments = registry.New(&registry.Set{Environments: map[string]registry.Environment{
	"bash": {Name: "bash", InterpreterType: "bash", Timeout: time.Minute, Language: &registry.Language{Sessions: true}},
	"once": {Name: "once", InterpreterType: "command", Timeout: time.Minute},
}})

// commands runs commands of an agent's shell: the first one begins the session.
func (w *world) commands() {
	for _, test := range []struct {
		place Place
		want  string
	}{
		{Place{Session: "new"}, ""},
		{Place{Session: "new"}, ""},
		{Place{Session: "new", Env: "none"}, `there is no environment "none"`},
		{Place{Session: "new", Env: "once"}, `the environment "once" keeps no sessions`},
	} {
		c := w.dial("open", OpenArgs{Place: test.place, Program: &frame.Program{}, Text: "cat"})
		var out Output
		if err := c.Read(&out); test.want != "" {
			if err == nil || !strings.Contains(err.Error(), test.want) {
				w.t.Errorf("%+v: %v, want %s", test.place, err, test.want)
			}
			continue
		} else if err != nil || out.Env != "bash" {
			w.t.Errorf("%+v: %+v, %v", test.place, out, err)
			continue
		}
		must.Do(w.t, c.Write(Input{Bytes: []byte("hello")}))
		text := ""
		for !out.Taken {
			out = Output{}
			must.Do(w.t, c.Read(&out))
			text += string(out.Bytes)
		}
		must.Do(w.t, c.Write(Input{Signal: 15}))
		for out.ExitCode == nil {
			out = Output{}
			must.Do(w.t, c.Read(&out))
			text += string(out.Bytes)
		}
		if text != "hello" || *out.ExitCode != 7 {
			w.t.Errorf("%q, status %d", text, *out.ExitCode)
		}
	}
	if n := len(w.List()); n != 2 {
		w.t.Errorf("%d sessions", n)
	}
	var p Project
	must.Do(w.t, w.dial("project", ProjectArgs{Session: "new"}).Read(&p))
	if !p.Live {
		w.t.Errorf("%+v", p)
	}
}

// A visitor's code runs in the session, a shell passes bytes both ways, and a port is reached.
func TestVerbs_ReachTheSession(t *testing.T) {
	w := begin(t)
	w.run("x=1")
	place := Place{Session: "s"}
	shell := w.dial("open", OpenArgs{Place: place, Terminal: &frame.Terminal{}})
	var out Output
	if err := shell.Read(&out); err != nil || out.Env != "bash" {
		t.Errorf("%+v, %v", out, err)
	}
	must.Do(t, shell.Write(Input{Bytes: []byte("hello")}))
	var taken bool
	for range 2 { // in any order
		out = Output{}
		must.Do(t, shell.Read(&out))
		if out.Taken {
			taken = true
		} else if string(out.Bytes) != "hello" || !out.Stderr {
			t.Errorf("%+v", out)
		}
	}
	if !taken {
		t.Error("the input is not taken")
	}
	w.commands()
	w.visits.Forward = true
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	at := must.Get(w.visits.Listen(ctx, ForwardArgs{Place: place, Port: 80}, func(err error) { t.Error(err) }))(t)
	conn := must.Get(net.Dial("tcp", at.Address))(t)
	defer conn.Close()
	must.Get(conn.Write([]byte("hello")))(t)
	must.Do(t, conn.(*net.TCPConn).CloseWrite())
	if got, err := io.ReadAll(conn); err != nil || string(got) != "hello" {
		t.Errorf("%q, %v", got, err)
	}
}
