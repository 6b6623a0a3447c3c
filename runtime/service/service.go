// Package service puts a server together: its preparations ([Server]), and the layers that a call
// passes ([Assembly]). Both are the same for one client on standard streams ([Stdio]) and for the
// clients of the gateway.
package service

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/guard"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/mcpstdio"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/pool"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/rpc"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/tool"
)

const (
	// maxOneShot bounds the sandboxes of calls without a session that live at
	// once; further calls wait.
	maxOneShot = 32
	// endTimeout bounds the end of all sandboxes after a signal; the promise is
	// 3 s.
	endTimeout = 2500 * time.Millisecond
	// LastAnswersTimeout bounds the wait for the answers to interrupted calls: a client may not
	// read them.
	LastAnswersTimeout = 500 * time.Millisecond
)

// Starter starts sandboxes and ends them all.
type Starter interface {
	sandbox.Starter
	sandbox.Workspaces
	// Close ends every sandbox, and waits for their end, at most for within.
	Close(within time.Duration)
}

// Accounts charges principals for the memory and the turns that they take; package account does it.
type Accounts interface {
	rpc.Admission
	tool.Gate // of files that are read
	// Executor and Starter charge for calls that run and for sandboxes.
	Executor(call.Executor) call.Executor
	Starter(sandbox.Starter) sandbox.Starter
	// Build waits until an environment may be built for a principal.
	Build(ctx context.Context, principal string) (done func(), err error)
	// Sessions returns how many sessions a principal may have.
	Sessions(principal string) int
}

// OnDemand lets calls add packages to environments; package packages does it.
type OnDemand interface {
	tool.Packages
	// Executor returns an executor that holds calls until their environments are built. Turn
	// waits until an environment may be built for a principal; nil is at once. Used is called with
	// each environment with packages that a call is about to use.
	Executor(next call.Executor, turn func(ctx context.Context, principal string) (done func(), err error), used func(registry.Environment)) call.Executor
}

// Tools lets code call tools; package gate of the toolbox does it.
type Tools interface {
	// Executor returns an Executor whose code can call tools, of which observers that are
	// [call.ToolObserver] are told.
	Executor(next call.Executor, observers []call.Observer) call.Executor
	// Describe says what code of the environments can call.
	Describe(*registry.Snapshot) string
}

// Asking lets parts of the server ask users; package ask does it.
type Asking interface {
	// Executor returns an Executor whose calls have a user.
	Executor(call.Executor) call.Executor
	// Questions returns a principal's open questions, and Answer answers one. Its error says that the
	// question is not open.
	Questions(principal string) []call.Question
	Answer(principal, id string, choice call.Choice) error
	// Listen says that somebody can answer a principal's questions until stop is called. The channel
	// has an element when they have changed.
	Listen(principal string) (changed <-chan struct{}, stop func())
}

// CallFiles keeps files of one-shot calls; package callfiles does it.
type CallFiles interface {
	session.CallFiles
	tool.Kept
	Close()
}

// Options are the parts and settings of a server.
type Options struct {
	Environments *registry.Registry
	Starter      Starter // is closed at the end
	Sessions     session.Limits
	// Accounts is nil if there is one principal. Its calls begin at once.
	Accounts Accounts
	// SharedFiles lets a session have several environments.
	SharedFiles bool
	// Parts add to sessions. Changes reads the patches of sessions; nil if there is no such
	// part. KeepsFiles and Suspends say whether there is a part that keeps files or suspends
	// sessions.
	Parts                []session.Part
	Changes              tool.Changes
	KeepsFiles, Suspends bool
	// OnDemand lets calls add packages, and CallFiles keeps files of calls without a
	// session. Each may be nil.
	OnDemand  OnDemand
	CallFiles CallFiles
	// Tools are nil if no environment has any.
	Tools Tools
	// Asking is nil if users are never asked.
	Asking Asking
	// Host has the folders that every sandbox shows, the inbox at InboxMount. Variables are
	// set in each.
	Host       sandbox.HostFolders
	InboxMount string
	Variables  map[string]string
	Version    string
	// AfterFirst is called after the first answer to one client, or when the server takes
	// connections. It may be nil.
	AfterFirst func()
	// Observers are told of every call, also if it is refused.
	Observers []call.Observer
	// OnSessions get the sessions before the first call.
	OnSessions []func(*session.Manager)
	Log        *slog.Logger
}

// Stdio serves one client until in ends and all its messages are answered, or until ctx ends.
// When it returns, all sandboxes have ended. The error is one of in or out.
func Stdio(ctx context.Context, in io.Reader, out io.Writer, o Options) error {
	a := o.Assemble()
	defer a.Stop()
	transport := mcpstdio.New(a.Handler, a.Begin)
	served := make(chan error, 1)
	go func() {
		defer guard.Recover(func(err error) { served <- err })
		served <- transport.Serve(ctx, in, out)
	}()
	select {
	case err := <-served:
		a.End()
		return err
	case <-ctx.Done():
		// The end of all sandboxes answers the calls that run.
		a.End()
		select {
		case err := <-served:
			return err
		case <-time.After(LastAnswersTimeout):
			return nil
		}
	}
}

// Assembly is a server without its transport.
type Assembly struct {
	Handler  *rpc.Handler
	Sessions *session.Manager
	// Begin starts sandboxes that wait for calls. The transport calls it after its first
	// answer, or when it takes connections.
	Begin func()
	// Stop ends the work beside the calls. It is called after End.
	Stop func()

	starter Starter
	warm    *pool.Pool
}

// Assemble puts the layers together, from the starter of sandboxes to the handler of messages.
func (o *Options) Assemble() *Assembly {
	spec := func(c call.Call) sandbox.Spec {
		spec := o.Spec(c.Env)
		spec.Principal = c.Principal
		return spec
	}
	warm := pool.New(o.Starter, o.Log)
	starter, limits := sandbox.Starter(warm), o.Sessions
	oneShotStarter := sandbox.Limit(starter, maxOneShot)
	if o.Accounts != nil {
		starter = o.Accounts.Starter(starter)
		oneShotStarter = starter // the calls that run are bounded
		limits.MaxEach = o.Accounts.Sessions
	}
	oneShot := session.OneShot(oneShotStarter, spec, o.CallFiles)
	managed := session.Options{Starter: starter, Spec: spec, OneShot: oneShot, Limits: limits, Parts: o.Parts, Log: o.Log}
	if o.SharedFiles {
		managed.Workspaces = o.Starter
	}
	sessions := session.New(managed)
	for _, show := range o.OnSessions {
		show(sessions)
	}
	executor, admission, reads := call.Executor(sessions), rpc.Admission(rpc.DefaultBounds()), tool.Gate(nil)
	if o.Tools != nil {
		executor = o.Tools.Executor(executor, o.Observers)
	}
	var turn func(ctx context.Context, principal string) (done func(), err error)
	if o.Accounts != nil {
		executor, turn = o.Accounts.Executor(executor), o.Accounts.Build
		admission, reads = o.Accounts, o.Accounts
	}
	if o.OnDemand != nil {
		executor = o.OnDemand.Executor(executor, turn, func(env registry.Environment) {
			if o.waits() {
				warm.Add(pool.Kind{Spec: o.Spec(env), Count: env.Prewarm}, o.Sessions.Idle)
			}
		})
	}
	if o.Asking != nil {
		executor = o.Asking.Executor(executor)
	}
	offered := tool.Options{
		Environments: o.Environments,
		Executor:     call.Log(executor, o.Log),
		Sessions:     sessions,
		Project:      o.project(),
		SharedFiles:  o.SharedFiles,
		KeptFiles:    o.KeepsFiles,
		Branches:     o.Suspends,
		Packages:     o.OnDemand,
		Kept:         o.CallFiles,
		Observers:    o.Observers,
		Changes:      o.Changes,
		Reads:        reads,
		Log:          o.Log,
	}
	if o.Tools != nil {
		offered.More = o.Tools.Describe
	}
	handler, stopHandler := rpc.New(tool.New(offered), o.Version, admission, o.Log)
	stopWarm := o.keepWarm(warm)
	return &Assembly{
		Handler: handler, Sessions: sessions, starter: o.Starter, warm: warm,
		Begin: func() {
			warm.Fill()
			if o.AfterFirst != nil {
				o.AfterFirst()
			}
		},
		Stop: func() {
			stopWarm()
			stopHandler()
			if o.CallFiles != nil {
				o.CallFiles.Close()
			}
		},
	}
}

// End suspends the sessions that can be suspended, and ends every sandbox.
func (a *Assembly) End() {
	a.Sessions.Suspend()
	deadline := time.Now().Add(endTimeout)
	a.Sessions.Close()
	a.warm.Close(time.Until(deadline))
	a.starter.Close(time.Until(deadline))
}

// project returns the host's folders, for the tool's description.
func (o *Options) project() tool.Project {
	project := tool.Project{Mount: o.Host.Project.Mount, Overlaid: o.Host.Project.Mode == config.Overlay}
	if o.Host.Inbox != "" {
		project.Inbox = o.InboxMount
	}
	return project
}

// Spec returns the specification of an environment's sandboxes.
func (o *Options) Spec(env registry.Environment) sandbox.Spec {
	return sandbox.Spec{
		Name:        env.Name,
		Exec:        env.SessionExec,
		OutputBytes: env.OutputBytes,
		Limits:      sandbox.Limits{Memory: env.MemoryMB << 20, Tasks: int(env.PIDs), CPUs: env.CPUs},
		Variables:   o.Variables,
		Host:        o.Host,
		Network:     env.Network != nil,
		Asks:        env.Network != nil && len(env.Network.Ask) > 0,
		Secrets:     env.Secrets(),
		Reports:     env.Reports,
		Control:     o.Suspends && env.Suspend,
		Overhead:    sandbox.Limits{Memory: env.OverheadMB << 20, Tasks: int(env.OverheadPIDs)},
	}
}

// waits reports whether sandboxes may wait for calls. If the files beneath a layer change, its own
// are undefined (Documentation/filesystems/overlayfs.rst of the kernel), so no sandbox waits above a
// project.
func (o *Options) waits() bool { return o.Host.Project.Mode != config.Overlay }

// keepWarm has the pool keep sandboxes of all environments that ask for that, also if these
// change, until the returned function is called.
func (o *Options) keepWarm(warm *pool.Pool) (stop func()) {
	if !o.waits() {
		return func() {}
	}
	var one sync.Mutex // at a time, so that the newest counts
	keep := func() {
		one.Lock()
		defer one.Unlock()
		kinds := []pool.Kind{}
		for _, env := range o.Environments.Now().Ready() {
			kinds = append(kinds, pool.Kind{Spec: o.Spec(env), Count: env.Prewarm})
		}
		warm.Keep(kinds)
	}
	stop = o.Environments.Subscribe(func(_, _ *registry.Snapshot) { keep() })
	keep()
	return stop
}
