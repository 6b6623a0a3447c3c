// Package service puts a server together: what it does before it serves ([Server]), and the
// layers that a call passes ([Assembly]). Both are the same for one client on standard streams
// ([Stdio]) and for the clients of the gateway.
package service

import (
	"context"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/keep/callfiles"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/packages/ondemand"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
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
	// maxKept and maxKeptBytes bound the calls without a session whose files are
	// kept, and these files together, on disk.
	maxKept      = 256
	maxKeptBytes = 256 << 20
	// endTimeout bounds the end of all sandboxes after a signal; the promise is
	// 3 s.
	endTimeout = 2500 * time.Millisecond
	// LastAnswersTimeout bounds the wait for answers to calls that the end cut
	// short: a client may not read them.
	LastAnswersTimeout = 500 * time.Millisecond
)

// Starter starts sandboxes and ends them all.
type Starter interface {
	sandbox.Starter
	sandbox.Workspaces
	// Close ends every sandbox. It waits until nothing of them is left, at
	// most for within.
	Close(within time.Duration)
}

// Accounts charges principals for what they have the server hold; package account does it.
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

// Options are what a server is made of.
type Options struct {
	Environments *registry.Registry
	Starter      Starter // is closed at the end
	Sessions     session.Limits
	// Accounts charges principals for what they have the server hold. If it is nil, there is
	// one principal, and calls begin when they come.
	Accounts Accounts
	// SharedFiles lets a session have several environments.
	SharedFiles bool
	// Parts add to sessions. Changes reads the patches that one of them writes; it is nil if
	// none does. KeepsFiles and Suspends say whether there is a part that keeps files, and
	// one that suspends sessions.
	Parts                []session.Part
	Changes              tool.Changes
	KeepsFiles, Suspends bool
	// Packages is the folder of environments to which calls added packages, and Build
	// asks for the one of a key; see package ondemand.
	Packages string
	Build    func(key string) error
	// Host is what every sandbox shows, InboxMount where it shows the inbox, and
	// Variables are in each.
	Host       sandbox.HostFolders
	InboxMount string
	Variables  map[string]string
	Version    string
	// AfterFirst is called when the one client has its first answer, or the server
	// takes connections; it may be nil.
	AfterFirst func()
	// Observers are told of every call, also of those that are refused.
	Observers []call.Observer
	// ShowSessions is told how to list the sessions that live; it may be nil.
	ShowSessions func(list func() []session.Live)
	Log          *slog.Logger
}

// Stdio serves one client until in ends and all that came is answered, or
// until ctx ends. When it returns, no sandbox is left. The error is one of in
// or out.
func Stdio(ctx context.Context, in io.Reader, out io.Writer, o Options) error {
	a := o.Assemble()
	defer a.Stop()
	transport := mcpstdio.New(a.Handler, a.Begin)
	served := make(chan error, 1)
	go func() { served <- transport.Serve(ctx, in, out) }()
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
	// Stop ends what goes on beside the calls. It follows End.
	Stop func()

	starter Starter
	warm    *pool.Pool
}

// Assemble puts the layers together, from what starts sandboxes to what answers messages.
func (o *Options) Assemble() *Assembly {
	spec := func(c call.Call) sandbox.Spec {
		spec := o.Spec(c.Env)
		spec.Principal = c.Principal
		return spec
	}
	warm := pool.New(o.Starter, o.Log)
	left := callfiles.New(callfiles.Limits{Idle: o.Sessions.Idle, Lifetime: o.Sessions.Lifetime, Calls: maxKept, Bytes: maxKeptBytes}, os.TempDir(), o.Log)
	starter, limits := sandbox.Starter(warm), o.Sessions
	oneShotStarter := sandbox.Limit(starter, maxOneShot)
	if o.Accounts != nil {
		starter = o.Accounts.Starter(starter)
		oneShotStarter = starter // the calls that run are bounded
		limits.MaxEach = o.Accounts.Sessions
	}
	oneShot := session.OneShot(oneShotStarter, spec, left)
	managed := session.Options{Starter: starter, Spec: spec, OneShot: oneShot, Limits: limits, Parts: o.Parts, Log: o.Log}
	if o.SharedFiles {
		managed.Workspaces = o.Starter
	}
	sessions := session.New(managed)
	if o.ShowSessions != nil {
		o.ShowSessions(sessions.List)
	}
	executor, inUse := call.Executor(sessions), newInUse(o.Sessions.Idle)
	build := ondemand.Options{Folder: o.Packages, Ask: o.Build, Used: inUse.use, Log: o.Log}
	admission, reads := rpc.Admission(rpc.DefaultBounds()), tool.Gate(nil)
	if o.Accounts != nil {
		executor, build.Turn = o.Accounts.Executor(executor), o.Accounts.Build
		admission, reads = o.Accounts, o.Accounts
	}
	executor = ondemand.New(executor, build)
	calls := call.Observe(call.Log(executor, o.Log), o.Observers...)
	offered := tool.Options{
		Environments: o.Environments,
		Executor:     calls,
		Sessions:     sessions,
		Project:      o.project(),
		SharedFiles:  o.SharedFiles,
		KeptFiles:    o.KeepsFiles,
		Branches:     o.Suspends,
		Kept:         left,
		Observers:    o.Observers,
		Changes:      o.Changes,
		Reads:        reads,
		Log:          o.Log,
	}
	handler, stopHandler := rpc.New(tool.New(offered), o.Version, admission, o.Log)
	stopWarm := o.keepWarm(warm, inUse)
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
			left.Close()
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

// project is what the model is told of the host's folders.
func (o *Options) project() tool.Project {
	project := tool.Project{Mount: o.Host.Project.Mount, Overlaid: o.Host.Project.Mode == config.Overlay}
	if o.Host.Inbox != "" {
		project.Inbox = o.InboxMount
	}
	return project
}

// Spec is the sandbox of an environment.
func (o *Options) Spec(env registry.Environment) sandbox.Spec {
	return sandbox.Spec{
		Name:        env.Name,
		Exec:        env.SessionExec,
		OutputBytes: env.OutputBytes,
		Limits:      sandbox.Limits{Memory: env.MemoryMB << 20, Tasks: int(env.PIDs), CPUs: env.CPUs},
		Variables:   o.Variables,
		Host:        o.Host,
		Network:     env.Network != nil,
		Secrets:     env.Secrets(),
		Reports:     env.Reports,
		Control:     o.Suspends && env.Suspend,
		Overhead:    sandbox.Limits{Memory: env.OverheadMB << 20, Tasks: int(env.OverheadPIDs)},
	}
}

// keepWarm has the pool keep what the environments ask for, and follow them
// until the returned function is called.
func (o *Options) keepWarm(warm *pool.Pool, used *inUse) (stop func()) {
	// What a layer shows of files that change beneath it is undefined
	// (Documentation/filesystems/overlayfs.rst of the kernel): no sandbox waits
	// on top of a project.
	if o.Host.Project.Mode == config.Overlay {
		return func() {}
	}
	var one sync.Mutex // at a time, so that the newest counts
	keep := func() {
		one.Lock()
		defer one.Unlock()
		environments := o.Environments.Now()
		var kinds []pool.Kind
		for _, env := range environments.Ready() {
			kinds = append(kinds, pool.Kind{Spec: o.Spec(env), Count: env.Prewarm})
		}
		for _, env := range used.environments() {
			kinds = append(kinds, pool.Kind{Spec: o.Spec(env), Count: env.Prewarm})
		}
		warm.Keep(kinds)
	}
	keep()
	stopUsed := used.subscribe(keep)
	stopChanges := o.Environments.Subscribe(func(_, _ *registry.Snapshot) { keep() })
	return func() {
		stopUsed()
		stopChanges()
	}
}
