// Package gate decides which calls of tools code may make, and makes them. There is no other way
// from code to a tool: what an environment does not name does not exist for it.
//
// A call passes a list of checks, in order: the environment's list, the bounds of the run, the
// arguments by the tool's schema, the user's answer if the tool is marked with ask. A further one is a
// line in that list.
package gate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/toolbox/server"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/account"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/rpc"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostile"
)

// Outcomes of a call, which are also the kinds of errors that code sees.
const (
	ok          = "ok"
	failed      = "error"       // the tool, or its server, says so
	denied      = "denied"      // by a check
	usage       = "usage"       // the tool or its arguments are wrong
	timeout     = "timeout"     // of the call
	cancelled   = "cancelled"   // the run ended first
	unavailable = "unavailable" // the server does not run
)

const (
	// maxFirst is how many calls of a run its answer's facts have, and maxRefused how many
	// refused tools its words name.
	maxFirst   = 10
	maxRefused = 3
	maxName    = 128
	// maxShown is how many arguments a question to the user shows.
	maxShown = 64
	// maxDenied is how many calls of a run that checks refuse are recorded. Later ones are only
	// refused.
	maxDenied = 10_000
)

// memory is what questions and answers of code may take together, in bytes, and how principals share
// that.
var memory = account.Terms{Total: 256 << 20, Least: 16 << 20, Reserve: 64 << 20}

// Gate makes the calls of code. It wraps the Executor of runs.
type Gate struct {
	catalog *Catalog
	servers *servers
	log     *slog.Logger
	checks  []check
	runs    atomic.Uint64
	memory  *account.Pool

	mu       sync.Mutex
	sessions map[string]int // sandboxes by ownOf
}

// check refuses a call, or lets it pass with nil. It may wait, until ctx ends.
type check func(ctx context.Context, r *run, q *question) *refusal

// New returns a Gate. The caller calls Close.
func New(catalog *Catalog, log *slog.Logger) *Gate {
	g := &Gate{catalog: catalog, servers: newServers(log), log: log, memory: account.NewPool(memory), sessions: map[string]int{}}
	g.checks = []check{g.isAllowed, g.isWithinRun, g.hasArguments, g.isApproved}
	return g
}

// Close ends all tool servers.
func (g *Gate) Close() { g.servers.close() }

// Executor returns an Executor whose code can call tools. Observers that are [call.ToolObserver]
// are told of each call.
func (g *Gate) Executor(next call.Executor, observers []call.Observer) call.Executor {
	e := &executor{Gate: g, next: next}
	for _, one := range observers {
		if told, is := one.(call.ToolObserver); is {
			e.observers = append(e.observers, told)
		}
	}
	return e
}

type executor struct {
	*Gate
	next      call.Executor
	observers []call.ToolObserver
}

// Answer implements [call.Executor].
func (e *executor) Answer(ctx context.Context, c call.Call) (call.Result, error) {
	tools := e.catalog.of(c.Env.SessionExec)
	if tools == nil {
		return e.next.Answer(ctx, c)
	}
	r := &run{executor: e, call: c, tools: tools, counts: map[string]int{}, number: e.runs.Add(1)}
	c.Ask = r.answer
	c.Hold = func(bytes int64) (release func(), err error) { return e.memory.Try(c.Principal, bytes) }
	if c.User != nil && e.catalog.asks(tools) {
		c.User.MayAsk()
	}
	result, err := e.next.Answer(ctx, c)
	if c.Session == "" {
		// A process of this run alone is not used again.
		go e.servers.endOwner(r.own())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.note.Calls > 0 {
		result.Notes = append(result.Notes, r.note)
	}
	return result, err
}

// run is a call of run, whose code calls tools.
type run struct {
	*executor
	call   call.Call
	number uint64              // of the gate's runs
	tools  map[string][]string // by server

	mu     sync.Mutex
	counts map[string]int
	denied int // by checks
	note   call.Tools
}

// own names processes that only this session has, or only this run without one.
func (r *run) own() string {
	if r.call.Session != "" {
		return ownOf(r.call)
	}
	return fmt.Sprintf("%s\x00\x00%d", r.call.Principal, r.number)
}

// ownOf names what only the session of a call has.
func ownOf(c call.Call) string { return c.Principal + "\x00" + c.Session }

// owner names those who share a process of a server.
func (r *run) owner(s *Server) string {
	switch s.Shared {
	case "server":
		return ""
	case "session":
		return r.own()
	}
	return r.call.Principal
}

// question is what code asks.
type question struct {
	Server    string          `json:"server"`
	Tool      string          `json:"tool"`
	Arguments json.RawMessage `json:"arguments"`

	server *Server // set by isAllowed
	tool   *Tool
}

// refusal is an answer that is no result.
type refusal struct {
	Kind    string   `json:"kind"`
	Message string   `json:"message"`
	Near    []string `json:"near,omitempty"`
}

// answer answers a question in JSON: {"result":…} as the server sent it, or {"error":{…}}. The
// call is recorded first.
func (r *run) answer(ctx context.Context, _ sandbox.Sandbox, text []byte) []byte {
	began := time.Now()
	r.mu.Lock()
	over := r.denied >= maxDenied
	r.mu.Unlock()
	if over {
		return []byte(`{"error":{"kind":"denied","message":"this call of run has made too many wrong calls of tools: go on in another call"}}`)
	}
	var q question
	var result json.RawMessage
	refused := &refusal{Kind: usage, Message: "a question is JSON with server, tool and arguments"}
	values, err := rpc.Cost(text)
	release, full := r.memory.Try(r.call.Principal, int64(len(text))+values)
	switch {
	case full == nil:
		defer release()
	case err == nil:
		refused = &refusal{Kind: unavailable, Message: "too many bytes of questions and answers of tools are in work: ask fewer at a time"}
	}
	if err == nil && full == nil && json.Unmarshal(text, &q) == nil {
		if len(q.Arguments) == 0 || string(q.Arguments) == "null" {
			q.Arguments = json.RawMessage("{}")
		}
		result, refused = r.make(ctx, &q)
	}
	sum := sha256.Sum256(q.Arguments)
	use := call.ToolUse{
		Server: bounded.Head(q.Server, maxName), Tool: bounded.Head(q.Tool, maxName), ArgumentsHash: hex.EncodeToString(sum[:]),
		Outcome: ok, Took: time.Since(began), Bytes: len(result),
	}
	if refused != nil {
		use.Outcome = refused.Kind
		result, _ = json.Marshal(refused) // strings alone
		result = fmt.Appendf(nil, `{"error":%s}`, result)
	} else {
		result = fmt.Appendf(nil, `{"result":%s}`, result)
	}
	r.record(ctx, use)
	return result
}

// record tells the observers of a call, and counts it.
func (r *run) record(ctx context.Context, use call.ToolUse) {
	for _, observer := range r.observers {
		observer.UseTool(ctx, r.call, use)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note.Calls++
	r.note.Bytes += int64(use.Bytes)
	if use.Outcome != ok {
		r.note.Failed++
	}
	if use.Outcome == usage || use.Outcome == denied {
		r.denied++
	}
	if len(r.note.First) < maxFirst {
		r.note.First = append(r.note.First, use)
	}
}

// make makes a call that passes the checks. Exactly one of the results is nil.
func (r *run) make(ctx context.Context, q *question) (json.RawMessage, *refusal) {
	for _, passes := range r.checks {
		if refused := passes(ctx, r, q); refused != nil {
			return nil, refused
		}
	}
	within := time.Duration(q.server.TimeoutSeconds * float64(time.Second))
	// A server that starts takes its own time.
	client, done, err := r.servers.use(ctx, key{q.Server, r.owner(q.server)}, r.call.Principal, q.server)
	if err == nil {
		defer done()
		if err := changed(client, q.Tool, q.tool); err != nil {
			return nil, &refusal{Kind: denied, Message: fmt.Sprintf("%s.%s: %v", q.Server, q.Tool, err)}
		}
		timed, stop := context.WithTimeout(ctx, within)
		defer stop()
		var result json.RawMessage
		result, err = client.Call(timed, q.Tool, q.Arguments)
		switch {
		case err == nil && len(result) > q.server.ResultBytes:
			return nil, &refusal{Kind: failed, Message: fmt.Sprintf("%s.%s answered with %d bytes, more than its result_mb = %d allows: ask it for less", q.Server, q.Tool, len(result), q.server.ResultMB)}
		case err == nil:
			if wrong := q.tool.fits(ctx, result); wrong != "" {
				return nil, &refusal{Kind: failed, Message: fmt.Sprintf("%s.%s has done its work, and its answer is not used: %s", q.Server, q.Tool, wrong)}
			}
			return result, nil
		}
	}
	var answered *server.Error
	switch {
	case ctx.Err() != nil:
		return nil, &refusal{Kind: cancelled, Message: fmt.Sprintf("the call of run ended before %s.%s answered: it may have done its work", q.Server, q.Tool)}
	case errors.Is(err, context.DeadlineExceeded):
		return nil, &refusal{Kind: timeout, Message: fmt.Sprintf("%s.%s did not answer within timeout_seconds = %g: it may have done its work", q.Server, q.Tool, q.server.TimeoutSeconds)}
	case errors.As(err, &answered):
		return nil, &refusal{Kind: failed, Message: fmt.Sprintf("%s.%s: %s", q.Server, q.Tool, answered.Message)}
	}
	var at *url.Error
	if errors.As(err, &at) {
		err = at.Err // without the URL, which may have a key
	}
	return nil, &refusal{Kind: unavailable, Message: fmt.Sprintf("the server %s cannot be asked: %s", q.Server, hostile.Message(err.Error()))}
}

// isAllowed finds the tool among the environment's.
func (g *Gate) isAllowed(_ context.Context, r *run, q *question) *refusal {
	known := g.catalog.Servers[q.Server]
	if known != nil && known.Tools[q.Tool] == nil {
		// Of the tools that code calls by this name, the environment has at most one. If it has
		// none, the refusal names another.
		all := slices.Concat(r.tools[q.Server], slices.Sorted(maps.Keys(known.Tools)))
		if i := slices.IndexFunc(all, func(name string) bool { return plain(name) == q.Tool }); i >= 0 {
			q.Tool = all[i]
		}
	}
	if slices.Contains(r.tools[q.Server], q.Tool) {
		q.server = g.catalog.Servers[q.Server]
		q.tool = q.server.Tools[q.Tool]
		return nil
	}
	refused := &refusal{Kind: usage, Near: g.catalog.nearest(r.tools, q.Server, q.Tool)}
	name := bounded.Head(q.Server, maxName) + "." + bounded.Head(q.Tool, maxName)
	switch {
	case known != nil && known.Tools[q.Tool] != nil:
		refused.Kind = denied
		refused.Message = fmt.Sprintf("%s may not be called here; the user allows it with allow of [tools.%s] and tools of this environment", name, q.Server)
		r.refuse(name)
	case r.tools[q.Server] == nil:
		refused.Message = fmt.Sprintf("there is no server %q here", bounded.Head(q.Server, maxName))
	default:
		refused.Message = fmt.Sprintf("there is no tool %q of %s", bounded.Head(q.Tool, maxName), q.Server)
	}
	return refused
}

// hasArguments checks the arguments by the schema of the lock file. Code in a shell has numbers and
// lists as texts, and so have answers of many tools: these are read as JSON if the schema wants no
// text.
func (g *Gate) hasArguments(ctx context.Context, _ *run, q *question) *refusal {
	value, count, err := decode(q.Arguments, maxArgumentValues)
	arguments, isObject := value.(map[string]any)
	wrong := "they are no object"
	switch {
	case err != nil:
		wrong = err.Error()
	case isObject:
		if wrong = q.tool.Input.check(ctx, arguments, count); wrong != "" {
			if read := q.tool.read(arguments); read != nil {
				arguments, wrong = read, q.tool.Input.check(ctx, read, count)
			}
		}
	}
	if wrong != "" {
		return &refusal{Kind: usage, Message: fmt.Sprintf("the arguments of %s.%s are wrong: %s", q.Server, q.Tool, wrong), Near: []string{q.Server + "." + q.tool.Signature}}
	}
	// What was checked is what a user is asked about, and what the tool gets.
	q.Arguments = encode(arguments)
	if !q.tool.Ask {
		return nil
	}
	for name := range arguments {
		if len(arguments) > maxShown || len(name) > maxName {
			return &refusal{Kind: usage, Message: fmt.Sprintf("the user is asked before each call of %s.%s, and reads at most %d arguments with names of at most %d bytes: send fewer", q.Server, q.Tool, maxShown, maxName)}
		}
	}
	return nil
}

// isApproved asks the user about a call of a tool that the configuration marks with ask. The call is
// made with the arguments that the user has seen.
func (g *Gate) isApproved(ctx context.Context, r *run, q *question) *refusal {
	if !q.tool.Ask {
		return nil
	}
	name, choice := q.Server+"."+q.Tool, call.Nobody
	if r.call.User != nil {
		choice = r.call.User.Decide(ctx, call.Matter{
			Kind: call.ToTool, Name: name, Arguments: string(q.Arguments),
			Table: "[tools." + q.Server + "]", Option: fmt.Sprintf("allow = [%q]", q.Tool),
		})
	}
	switch choice {
	case call.No:
		return &refusal{Kind: denied, Message: fmt.Sprintf("the user said no to this call of %s", name)}
	case call.Nobody:
		r.refuse(name)
		return &refusal{Kind: denied, Message: fmt.Sprintf("the user has to allow %s, and could not be asked or did not answer: ask the user to run nix-sandbox-mcp approve, or to allow it with allow of [tools.%s]", name, q.Server)}
	}
	return nil
}

// refuse notes a tool that the user has not allowed.
func (r *run) refuse(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.note.Refused) < maxRefused && !slices.Contains(r.note.Refused, name) {
		r.note.Refused = append(r.note.Refused, name)
	}
}

// plain is the name by which code calls a tool. Two tools of an environment never have the same.
func plain(name string) string {
	return strings.Map(func(c rune) rune {
		if c == '-' || c == '.' {
			return '_'
		}
		return c
	}, name)
}

// isWithinRun counts the calls of a run.
func (g *Gate) isWithinRun(_ context.Context, r *run, q *question) *refusal {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counts[q.Server]++; r.counts[q.Server] > q.server.Calls {
		return &refusal{Kind: denied, Message: fmt.Sprintf("this call of run has called tools of %s %d times, as often as calls of [tools.%s] allows: go on in another call", q.Server, q.server.Calls, q.Server)}
	}
	return nil
}
