package gate

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/toolbox/server"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/jailtest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

func TestMain(m *testing.M) { os.Exit(jailtest.Main(m)) }

// world is a gate before a real server in a jail, and the names that its environment may call.
type world struct {
	t    *testing.T
	gate *Gate
	env  registry.Environment
	log  *observer
}

type observer struct {
	mu   sync.Mutex
	uses []call.ToolUse
}

func (o *observer) Begin(call.Call) func(call.Result, error) { return func(call.Result, error) {} }
func (o *observer) UseTool(_ context.Context, _ call.Call, use call.ToolUse) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.uses = append(o.uses, use)
}

func (o *observer) outcomes() (all []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, use := range o.uses {
		all = append(all, use.Tool+" "+use.Outcome)
	}
	return all
}

// program is the server of these tests, in the sandbox of an artifact.
func program(t *testing.T) server.Spec {
	t.Helper()
	exec := jailtest.Sandbox{Args: []string{"serve", "/bin/sh", "-c"}}.Write(t)
	text := must.Get(os.ReadFile("testdata/server.py"))(t)
	return server.Spec{Exec: exec, Start: "exec python3 -u -c '" + string(text) + "'", ResultBytes: 1 << 20}
}

func newWorld(t *testing.T, change func(*Server)) *world {
	t.Helper()
	spec := program(t)
	log := slog.New(slog.DiscardHandler)
	client, tools, err := server.Start(t.Context(), spec, log)
	must.Do(t, err)
	one := &Server{Spec: spec, TimeoutSeconds: 30, AtOnce: 4, Calls: 100, ResultMB: 1, Shared: "principal", Tools: map[string]*Tool{}}
	for name, tool := range tools {
		one.Tools[name] = &Tool{Hash: tool.Hash, Signature: name + "(…)", Input: Schema{RawMessage: tool.Input}, Output: Schema{RawMessage: tool.Output}}
	}
	client.Close()
	if change != nil {
		change(one)
	}
	var allowed []string
	for name := range one.Tools {
		if name != "forbidden" {
			allowed = append(allowed, name)
		}
	}
	w := &world{t: t, env: registry.Environment{Name: "python", SessionExec: "/artifact/bin/session-run"}, log: &observer{}}
	w.gate = New(&Catalog{
		Servers:      map[string]*Server{"it": one, "other": one},
		Environments: map[string]map[string][]string{w.env.SessionExec: {"it": allowed}},
	}, log)
	t.Cleanup(w.gate.Close)
	return w
}

// code is an executor whose code is a function that asks.
type code func(ask func(tool, arguments string) string)

func (c code) Answer(ctx context.Context, made call.Call) (call.Result, error) {
	c(func(tool, arguments string) string {
		server := "it"
		if of, name, found := strings.Cut(tool, "/"); found {
			server, tool = of, name
		}
		question := fmt.Sprintf(`{"server":%q,"tool":%q,"arguments":%s}`, server, tool, arguments)
		return string(made.Ask(ctx, nil, []byte(question)))
	})
	return call.Result{}, nil
}

// run runs code under a gate.
func (w *world) run(ctx context.Context, c call.Call, do code) call.Tools {
	w.t.Helper()
	c.Env = w.env
	result := must.Get(w.gate.Executor(do, []call.Observer{w.log}).Answer(ctx, c))(w.t)
	if note := call.Find[call.Tools](result.Notes); note != nil {
		return *note
	}
	return call.Tools{}
}

// says fails a test unless an answer contains all of the texts.
func says(t *testing.T, answer string, texts ...string) {
	t.Helper()
	if !json.Valid([]byte(answer)) {
		t.Errorf("no JSON: %.200s", answer)
	}
	for _, text := range texts {
		if !strings.Contains(answer, text) {
			t.Errorf("%.500s\nhas no %q", answer, text)
		}
	}
}

func TestCalls(t *testing.T) {
	w := newWorld(t, nil)
	note := w.run(t.Context(), call.Call{}, func(ask func(string, string) string) {
		says(t, ask("add", `{"a":1,"b":2}`), `{"result":`, `"text": "3"`)
		says(t, ask("add", `{"a":"1","b":" 2 "}`), `"text": "3"`) // texts, as shells have them
		says(t, ask("add", `{"a":"one","b":2}`), `"usage"`, "got string, want number")
		says(t, ask("add", `{"a":"[1]","b":2}`), `"usage"`, "got array, want number")
		says(t, ask("add", `{"a":1}`), `"usage"`, "missing property 'b'", "it.add(…)")
		says(t, ask("add", `{"a":1,"b":2,"c":3}`), `"usage"`, "additional properties 'c' not allowed")
		says(t, ask("add", `[1,2]`), `"usage"`, "no object")
		says(t, ask("ad", `{}`), `"usage"`, `there is no tool \"ad\" of it`, "it.add(…)")
		says(t, ask("nowhere/add", `{}`), `"usage"`, `there is no server \"nowhere\" here`)
		says(t, ask("forbidden", `{}`), `"denied"`, "it.forbidden may not be called here")
		// A server of the catalogue that the environment does not name.
		says(t, ask("other/add", `{"a":1,"b":2}`), `"denied"`)
		says(t, ask("fail", `{}`), `"isError": true`)
		says(t, ask("refuse", `{}`), `"error"`, "no such thing")
		says(t, ask("wrong", `{}`), `"usage"`, "its schema is wrong")
	})
	want := []string{"add ok", "add ok", "add usage", "add usage", "add usage", "add usage", "add usage", "ad usage", "add usage", "forbidden denied", "add denied", "fail ok", "refuse error", "wrong usage"}
	if got := w.log.outcomes(); !slices.Equal(got, want) {
		t.Errorf("recorded %q\nwant %q", got, want)
	}
	if note.Calls != len(want) || note.Failed != len(want)-3 || !slices.Equal(note.Refused, []string{"it.forbidden", "other.add"}) {
		t.Errorf("%+v", note)
	}
	if hash := note.First[0].ArgumentsHash; len(hash) != 64 || hash == note.First[2].ArgumentsHash {
		t.Errorf("hash of arguments %q", hash)
	}
}

// What a server does that it should not harms the call that meets it, and no later one.
func TestHostileServer(t *testing.T) {
	w := newWorld(t, func(s *Server) { s.TimeoutSeconds = 5 })
	works := func(ask func(string, string) string) { says(t, ask("add", `{"a":1,"b":2}`), `"text": "3"`) }
	w.run(t.Context(), call.Call{}, func(ask func(string, string) string) {
		works(ask)
		says(t, ask("flood", `{}`), `"unavailable"`, "a line of more than 1 MiB")
		works(ask)
		says(t, ask("large", `{}`), `"error"`, "result_mb = 1")
		works(ask)
		says(t, ask("die", `{}`), `"unavailable"`, "dying words")
		works(ask)
		says(t, ask("hang", `{}`), `"timeout"`, "timeout_seconds = 5", "may have done its work")
		works(ask)
		says(t, ask("nested", `{}`), "-32601", "-32601") // it asked for sampling and elicitation
		works(ask)
		says(t, ask("garbage", `{}`), `"text": "after garbage"`)
		works(ask)
	})
}

// Structured data is as the lock file says, or not used.
func TestOutputSchema(t *testing.T) {
	w := newWorld(t, nil)
	w.run(t.Context(), call.Call{}, func(ask func(string, string) string) {
		says(t, ask("shaped", `{"n":1}`), `{"result":`)
		says(t, ask("shaped", `{"n":"1"}`), `"error"`, "has done its work", "got string, want number")
		says(t, ask("shaped", `{}`), `"error"`, "missing property 'n'")
		// Keys in other letters are other keys, as they are for the code that reads the result.
		says(t, ask("shaped", `{"whole":{"structuredContent":{"n":"evil"},"STRUCTUREDCONTENT":{"n":1}}}`), `"error"`, "got string, want number")
		says(t, ask("shaped", `{"whole":{"structuredContent":{"n":"evil"},"iserror":true}}`), `"error"`, "got string, want number")
		says(t, ask("shaped", `{"whole":{"structuredContent":{"n":"not used"},"isError":true}}`), `{"result":`) // the control
	})
}

// Answers in another order than the questions' reach those who asked.
func TestAnswersOutOfOrder(t *testing.T) {
	w := newWorld(t, nil)
	w.run(t.Context(), call.Call{}, func(ask func(string, string) string) {
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() { says(t, ask("late", fmt.Sprintf(`{"n":%d}`, i)), fmt.Sprintf(`"text": "%d"`, i)) })
		}
		all.Wait()
	})
}

func TestBoundsOfARun(t *testing.T) {
	w := newWorld(t, func(s *Server) { s.Calls = 2 })
	for range 2 { // each has its own
		w.run(t.Context(), call.Call{}, func(ask func(string, string) string) {
			ask("add", `{"a":1,"b":2}`)
			ask("add", `{"a":1,"b":2}`)
			says(t, ask("add", `{"a":1,"b":2}`), `"denied"`, "go on in another call")
		})
	}
}

// The end of a run ends its calls, and the server is told.
func TestCancelledRun(t *testing.T) {
	w := newWorld(t, nil)
	patience.Until(t, "the server hears of it", func() (heard bool) {
		// On a busy machine a run may end before the server has its call.
		ctx, cancel := context.WithCancel(t.Context())
		w.run(ctx, call.Call{}, func(ask func(string, string) string) {
			time.AfterFunc(100*time.Millisecond, cancel)
			says(t, ask("hang", `{}`), `"cancelled"`, "may have done its work")
		})
		w.run(t.Context(), call.Call{}, func(ask func(string, string) string) {
			heard = strings.Contains(ask("heard", `{}`), "notifications/cancelled")
		})
		return heard
	})
}

// The processes of a session end with the last of its sandboxes.
func TestEndOfSession(t *testing.T) {
	w := newWorld(t, func(s *Server) { s.Shared = "session" })
	c := call.Call{Env: w.env, Principal: "a", Session: "1"}
	next := func(context.Context, *session.Start) (session.Member, error) { return ended{}, nil }
	start := func() session.Member { return must.Get(w.gate.Start(t.Context(), &session.Start{Call: c}, next))(t) }
	running := func() int {
		w.gate.servers.mu.Lock()
		defer w.gate.servers.mu.Unlock()
		return len(w.gate.servers.all)
	}
	first, second := start(), start()
	w.run(t.Context(), c, func(ask func(string, string) string) { ask("count", `{}`) })
	first.End("idle")
	first.End("idle") // the server ends too
	w.run(t.Context(), c, func(ask func(string, string) string) { says(t, ask("count", `{}`), `"text": "2"`) })
	if running() != 1 {
		t.Errorf("%d processes run", running())
	}
	second.End("idle")
	patience.Until(t, "its process ends", func() bool { return running() == 0 })
}

// ended is a sandbox that ends.
type ended struct{ session.Member }

func (ended) End(call.Cause) {}

// A tool that is no longer as it was reviewed is off.
func TestChangedTool(t *testing.T) {
	w := newWorld(t, func(s *Server) {
		s.Tools["add"].Hash = "0"
		s.Tools["gone"] = &Tool{Hash: "1", Signature: "gone()", Input: Schema{RawMessage: json.RawMessage(`{}`)}}
	})
	w.run(t.Context(), call.Call{}, func(ask func(string, string) string) {
		says(t, ask("add", `{"a":1,"b":2}`), `"denied"`, "otherwise than tools.lock.json")
		says(t, ask("gone", `{}`), `"denied"`, "does not have it any more")
		says(t, ask("late", `{"n":1}`), `"text": "1"`) // as it was
	})
}

// Principals have processes of their own, unless a server is shared.
func TestShared(t *testing.T) {
	for shared, same := range map[string][2]bool{"server": {true, true}, "principal": {true, false}, "session": {false, false}} {
		t.Run(shared, func(t *testing.T) {
			w := newWorld(t, func(s *Server) { s.Shared = shared })
			count := func(c call.Call) (got string) {
				w.run(t.Context(), c, func(ask func(string, string) string) { got = ask("count", `{}`) })
				return got
			}
			first := count(call.Call{Principal: "a", Session: "1"})
			if again := count(call.Call{Principal: "a", Session: "1"}); again == first {
				t.Errorf("a session has lost its process: %s", again)
			}
			if got := count(call.Call{Principal: "a", Session: "2"}) != first; got != same[0] {
				t.Errorf("another session has the process: %v", got)
			}
			if got := count(call.Call{Principal: "b", Session: "1"}) != first; got != same[1] {
				t.Errorf("another principal has the process: %v", got)
			}
		})
	}
}

func TestServerThatDoesNotStart(t *testing.T) {
	w := newWorld(t, func(s *Server) { s.Start = "echo broken >&2; exit 3" })
	w.run(t.Context(), call.Call{}, func(ask func(string, string) string) {
		says(t, ask("add", `{"a":1,"b":2}`), `"unavailable"`, "exit status 3", "broken")
	})
}

// An environment without tools has no way to ask.
func TestEnvironmentWithoutTools(t *testing.T) {
	w := newWorld(t, nil)
	w.env.SessionExec = "/elsewhere/bin/session-run"
	next := executorFunc(func(c call.Call) {
		if c.Ask != nil {
			t.Error("its code can ask")
		}
	})
	must.Get(w.gate.Executor(next, nil).Answer(t.Context(), call.Call{Env: w.env}))(t)
}

type executorFunc func(call.Call)

func (f executorFunc) Answer(_ context.Context, c call.Call) (call.Result, error) {
	f(c)
	return call.Result{}, nil
}

func FuzzQuestion(f *testing.F) {
	f.Add([]byte(`{"server":"it","tool":"add","arguments":{"a":1,"b":2}}`))
	f.Add([]byte(`{"server":"it","tool":"add","arguments":null}`))
	f.Add([]byte(`[]`))
	f.Add([]byte(`{"server":"it","tool":"add","arguments":{"a":1e9999999}}`))
	tool := &Tool{Signature: "add()", Input: Schema{RawMessage: json.RawMessage(`{"type":"object","properties":{"a":{"type":"number","minimum":1,"multipleOf":2},"b":{"uniqueItems":true},"c":{"anyOf":[{"enum":[1,2]},{"maximum":1}]}},"required":["a"]}`)}}
	g := New(&Catalog{
		Servers:      map[string]*Server{"it": {AtOnce: 1, Calls: 1, Tools: map[string]*Tool{"add": tool}}},
		Environments: map[string]map[string][]string{"/x": {"it": {"add"}}},
	}, slog.New(slog.DiscardHandler))
	f.Cleanup(g.Close)
	f.Fuzz(func(t *testing.T, question []byte) {
		next := executorFunc(func(c call.Call) {
			if answer := c.Ask(t.Context(), nil, question); !json.Valid(answer) {
				t.Errorf("%q", answer)
			}
		})
		_, _ = g.Executor(next, nil).Answer(t.Context(), call.Call{Env: registry.Environment{SessionExec: "/x"}})
	})
}

// asker is a call's user, who makes one choice and keeps what was asked.
type asker struct {
	call.User
	choice call.Choice
	mu     sync.Mutex
	asked  []call.Matter
}

func (a *asker) MayAsk() {}

func (a *asker) Decide(_ context.Context, m call.Matter) call.Choice {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, m)
	return a.choice
}

func TestGate_AsksTheUser(t *testing.T) {
	w := newWorld(t, func(s *Server) {
		s.Tools["add"].Ask = true
		s.Tools["add"].Input.RawMessage = json.RawMessage(`{"properties":{"a":{"type":"number"},"b":{"type":"number"}},"required":["a","b"]}`)
	})
	for choice, want := range map[call.Choice]string{
		call.Once: `{"result":`, call.ForSession: `{"result":`, call.No: "the user said no to this call of it.add",
		call.Nobody: "the user has to allow it.add, and could not be asked or did not answer: ask the user to run nix-sandbox-mcp approve, or to allow it with allow of [tools.it]",
	} {
		user := &asker{choice: choice}
		note := w.run(t.Context(), call.Call{User: user}, func(ask func(tool, arguments string) string) {
			says(t, ask("add", `{"a": 1, "b": 2}`), want)
			says(t, ask("add", `{"a": "x"}`), "the arguments of it.add are wrong")
		})
		if len(user.asked) != 1 || user.asked[0].Name != "it.add" || user.asked[0].Arguments != `{"a":1,"b":2}` {
			t.Errorf("%q: asked %+v", choice, user.asked)
		}
		if refused := slices.Equal(note.Refused, []string{"it.add"}); refused != (choice == call.Nobody) {
			t.Errorf("%q: the note refuses %v", choice, note.Refused)
		}
	}
	// What is asked is what is sent: one value of each name, in plain characters, all names shown.
	user := &asker{choice: call.Once}
	w.run(t.Context(), call.Call{User: user}, func(ask func(tool, arguments string) string) {
		says(t, ask("add", `{"b":2,"\u0061":"1"}`), `{"result":`)
		says(t, ask("add", `{"a":1,"b":2,"\u0061":9999}`), `the name \"a\" comes twice in one object`)
		many := `{"a":1,"b":2`
		for i := range maxShown {
			many += fmt.Sprintf(`,"x%d":1`, i)
		}
		says(t, ask("add", many+"}"), "reads at most 64 arguments with names of at most 128 bytes")
	})
	if len(user.asked) != 1 || user.asked[0].Arguments != `{"a":1,"b":2}` {
		t.Errorf("asked %+v", user.asked)
	}
	// Without anyone to ask.
	w.run(t.Context(), call.Call{}, func(ask func(tool, arguments string) string) {
		says(t, ask("add", `{"a": 1, "b": 2}`), "the user has to allow it.add")
	})
}
