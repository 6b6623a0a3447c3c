// Package tool is the model's view of the server: the tool run, the files of sessions as resources,
// and the words of every answer.
//
// It promises answers that a model can act on: the code's output and its end, or one sentence that
// says how to make a call that runs. An answer is never longer than the environment allows.
package tool

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
)

// Name is the tool's, ServerName the server's that offers it.
const (
	Name       = "run"
	ServerName = "nix-sandbox-mcp"
)

// Options configure a tool.
type Options struct {
	Environments *registry.Registry
	// Executor answers the calls.
	Executor call.Executor
	Sessions Sessions
	// Kept has the files of one-shot calls, or is nil if they are not kept.
	Kept Kept
	// Changes has the changes of sessions in the project, or is nil if they are not saved.
	Changes Changes
	// Packages lets calls add packages to environments; nil if they may not.
	Packages Packages
	// More describes what else code can do in the environments; it may be nil.
	More    func(*registry.Snapshot) string
	Project Project
	// SharedFiles says that a session may have several environments, which have its
	// files in common.
	SharedFiles bool
	// KeptFiles says that the files of a session are there again after its end.
	KeptFiles bool
	// Branches says that sessions may begin as copies of others.
	Branches bool
	// Observers are told of every call, also if it is refused before it reaches the executor.
	Observers []call.Observer
	// Reads bounds the files that are read at once: each is in memory several times until
	// it has been encoded for the client. If it is nil, files are read one at a time.
	Reads Gate
	Log   *slog.Logger
}

// Gate bounds how much happens at once; package account has one that shares its slots among
// principals.
type Gate interface {
	// Enter waits for a slot and returns a function that gives it back, which may be called
	// more than once. The error is ctx's.
	Enter(ctx context.Context, principal string) (leave func(), err error)
}

// single is a Gate with one slot. It contains an element while that is taken.
type single chan struct{}

// Enter implements [Gate].
func (s single) Enter(ctx context.Context, _ string) (leave func(), err error) {
	select {
	case s <- struct{}{}:
		return sync.OnceFunc(func() { <-s }), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Sessions are the tool's requests to sessions beside running calls; package session implements it.
type Sessions interface {
	Enqueue(call.Key) *call.Ticket
	Environments(call.Key) []registry.Environment
	Sandbox(context.Context, *call.Ticket) (sandbox.Sandbox, error)
}

// Changes has the patches of sessions; package changes implements it.
type Changes interface {
	// Read returns the patch of a session. The error is a [*sandbox.TooLargeError] if it
	// has more than limit bytes.
	Read(key call.Key, limit int64) ([]byte, error)
}

// Kept has files of one-shot calls after the end of their sandboxes; package callfiles implements
// it.
type Kept interface {
	// Read returns a file by the id that it was kept under, and by its path.
	Read(principal, id, path string) ([]byte, error)
}

// Packages lets calls add packages to environments; package packages implements it.
type Packages interface {
	// Environment returns the environment that a call names, with the packages that it adds and
	// those that its session has: live are the environments of the session's sandboxes. ok is
	// false if there are none. The error is a sentence for the model.
	Environment(now *registry.Snapshot, name string, live []registry.Environment) (env registry.Environment, ok bool, err error)
	// Offer returns a hint which package has a module, or a program, that code lacks, or "".
	Offer(env registry.Environment, missing string, isModule bool) string
	// Describe returns a line for the tool's description, or "".
	Describe(now *registry.Snapshot) string
}

// Project describes the project to the model; the zero value means no project.
type Project struct {
	Mount string // in every sandbox
	// Overlaid says that code may write there, on a layer that ends with the call or session.
	Overlaid bool
	// Inbox is the path of the operator's files in every sandbox, or "".
	Inbox string
}

// mounts are the paths of the host's files in a sandbox.
func (p Project) mounts() []string {
	return slices.DeleteFunc([]string{p.Mount, p.Inbox}, func(mount string) bool { return mount == "" })
}

// Tool answers calls of run.
type Tool struct {
	Options
	calls         call.Executor
	progressEvery time.Duration // shorter in tests
}

// New returns the tool.
func New(options Options) *Tool {
	if options.Reads == nil {
		options.Reads = make(single, 1)
	}
	t := &Tool{Options: options, progressEvery: progressEvery}
	t.calls = call.Observe(remarking{t}, options.Observers...)
	return t
}

// Watch calls show with the tool as tools/list shows it, and again whenever the model would read it
// otherwise, until stop is called. A client that is told of a change fetches the list and pays for
// it, so that invisible changes are not shown.
func (t *Tool) Watch(show func(mcp.Tool)) (stop func()) {
	// A change that comes before the first definition waits for it.
	begun := make(chan struct{})
	var shown mcp.Tool
	stop = t.Environments.Subscribe(func(_, after *registry.Snapshot) {
		<-begun
		if next := (listing{after, &t.Options}).definition(); !reflect.DeepEqual(next, shown) {
			shown = next
			show(shown)
		}
	})
	shown = t.list().definition()
	show(shown)
	close(begun)
	return stop
}

// Instructions tell a model, when its client begins, what the tool is for.
func (t *Tool) Instructions() string { return t.list().instructions() }

// Run is a call of the tool that has arrived.
type Run struct {
	tool      *Tool
	arguments any // if it has to be checked again
	call      call.Call
	given     map[string]json.RawMessage // by the message's _meta
	refusal   error                      // why it does not run, or nil
	release   func()                     // nil if the call has no place
}

// Accept checks the arguments of a call, as encoding/json decodes them into an
// any, and takes the call's ticket. It does not wait, so that a transport
// accepts calls in their order of arrival. [Run.Answer] must be called.
func (t *Tool) Accept(principal string, arguments any) *Run {
	r := &Run{tool: t, arguments: arguments}
	r.call.Principal = principal
	r.check()
	var building *buildingError
	waits := errors.As(r.refusal, &building)
	if !waits {
		r.arguments = nil
	}
	if r.call.Session != "" && (r.refusal == nil || waits && ValidSession.MatchString(r.call.Session)) {
		r.call.Ticket = t.Sessions.Enqueue(r.call.Key())
	}
	return r
}

// check makes the call of the arguments, as far as they are right.
func (r *Run) check() {
	c, refusal := r.tool.list().call(r.arguments, func(session string) []registry.Environment {
		return r.tool.Sessions.Environments(call.Key{Principal: r.call.Principal, ID: session})
	})
	r.call.Code, r.call.Env, r.call.Session, r.call.From, r.call.Timeout, r.refusal = c.Code, c.Env, c.Session, c.From, c.Timeout, refusal
}

// SetTrace gives the call the trace id of the message that brought it, before
// [Run.Answer].
func (r *Run) SetTrace(id string) { r.call.Trace = id }

// SetClient lets the call ask the user by its client, before [Run.Answer].
func (r *Run) SetClient(client call.Way) { r.call.Client = client }

// Refuse tells observers of a call that the transport refused, with the readable part of its
// arguments.
func (t *Tool) Refuse(principal, trace string, arguments any, why error) {
	if len(t.Observers) == 0 {
		return
	}
	c := call.Call{Principal: principal, Trace: trace}
	fields, _ := arguments.(map[string]any)
	c.Code, _ = fields["code"].(string)
	c.Env.Name, _ = fields["env"].(string)
	c.Session, _ = fields["session"].(string)
	call.ReportRefusal(c, why, t.Observers...)
}

// Answer runs the call. A failure is an answer too, because an error of the protocol would not
// reach the model. Progress is called now and then, with the seconds that have passed and a line
// about the call; it may be nil, and is not called after Answer has returned.
func (r *Run) Answer(ctx context.Context, progress func(seconds float64, line string)) *mcp.CallToolResult {
	// Before the answer is written: a client that has read it finds the session idle.
	defer r.call.Ticket.Release()
	t := r.tool
	if progress != nil || len(t.Observers) > 0 {
		r.call.Progress = &sandbox.Progress{}
	}
	if progress != nil {
		defer reportProgress(t.progressEvery, r.call.Progress, progress)()
	}
	r.await(ctx)
	if r.refusal == nil { // the environment, which bounds some of it, is known
		r.refusal = give(&r.call, r.given)
	}
	r.given = nil // a call may wait for long
	if r.refusal != nil {
		sentence, _, _ := strings.Cut(r.refusal.Error(), "\n")
		facts := []any{"env", bounded.Head(r.call.Env.Name, 64), "session", bounded.Head(r.call.Session, 64), "outcome", "refused", "reason", sentence}
		t.Log.Info("call", append(facts, r.call.Origin()...)...)
		call.ReportRefusal(r.call, r.refusal, t.Observers...)
		return mcp.NewToolResultError(r.refusal.Error())
	}
	a := answer{call: r.call}
	a.result, a.err = t.calls.Answer(ctx, r.call)
	r.release = a.result.Release
	return a.toolResult()
}

// Release gives back what the call holds. It is called when the answer has been encoded.
func (r *Run) Release() {
	if r.release != nil {
		r.release()
	}
}

// Sentence words the refusal of a call or a read for the model.
func Sentence(refusal error) string { return answer{err: refusal}.problem() }
