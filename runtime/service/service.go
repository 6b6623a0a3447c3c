// Package service puts a server together: its preparations ([Server]), and the layers that a call
// passes ([Assembly]). Both are the same for one client on standard streams ([Stdio]) and for the
// clients of the gateway.
package service

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"slices"
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
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/pipe"
)

const (
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

// Layer is what a part of a server adds to the way of a call. Each field is optional.
type Layer struct {
	Session session.Part
	// Executor and Starter return one around another.
	Executor func(call.Executor) call.Executor
	Starter  func(sandbox.Starter) sandbox.Starter
	// OnSessions gets the sessions before the first call.
	OnSessions func(*session.Manager)
	// Close is called when all sandboxes have ended.
	Close func()
}

// Options are the parts and settings of a server.
type Options struct {
	Starter  Starter // is closed at the end
	Sessions session.Limits
	// Layers are the parts, the outermost first.
	Layers []Layer
	// Tool is what the model reads of the server and its parts. Assemble sets its executor and
	// sessions.
	Tool tool.Options
	// Admission bounds the calls that wait; nil is [rpc.DefaultBounds].
	Admission rpc.Admission
	// OneShots bounds the sandboxes of calls without a session that live at once; further calls
	// wait. 0 is no bound.
	OneShots int
	// CallFiles keep files of calls without a session; nil loses them.
	CallFiles session.CallFiles
	// Suspends says that there is a part that suspends sessions.
	Suspends bool
	// Host has the folders that every sandbox shows, the inbox at InboxMount. Variables are
	// set in each.
	Host       sandbox.HostFolders
	InboxMount string
	Variables  map[string]string
	Version    string
	// AfterFirst is called after the first answer to one client, or when the server takes
	// connections. It may be nil.
	AfterFirst func()
	Log        *slog.Logger

	warm *pool.Pool
}

// Stdio serves one client until in ends and all its messages are answered, or until ctx ends.
// When it returns, all sandboxes have ended. The error is one of in or out.
func Stdio(ctx context.Context, in io.Reader, out io.Writer, o *Options) error {
	a := o.Assemble()
	defer a.Stop()
	transport := mcpstdio.New(a.Handler, a.Begin)
	served := make(chan error, 1)
	messages, gone := watch(pipe.Reader(in), out)
	go func() {
		defer guard.Recover(func(err error) { served <- err })
		served <- transport.Serve(ctx, messages, pipe.Writer(out))
	}()
	select {
	case err := <-served:
		a.End()
		return err
	case <-gone:
		a.End()
		return nil
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
	o.warm = pool.New(o.Starter, o.Log)
	starter := sandbox.Starter(o.warm)
	var parts []session.Part
	for _, layer := range slices.Backward(o.Layers) {
		if layer.Starter != nil {
			starter = layer.Starter(starter)
		}
		if layer.Session != nil {
			parts = append(parts, layer.Session)
		}
	}
	slices.Reverse(parts)
	oneShots := starter
	if o.OneShots > 0 {
		oneShots = sandbox.Limit(starter, o.OneShots)
	}
	managed := session.Options{Starter: starter, Spec: spec, OneShot: session.OneShot(oneShots, spec, o.CallFiles), Limits: o.Sessions, Parts: parts, Log: o.Log}
	if o.Tool.SharedFiles {
		managed.Workspaces = o.Starter
	}
	sessions := session.New(managed)
	executor := call.Executor(sessions)
	for _, layer := range slices.Backward(o.Layers) {
		if layer.OnSessions != nil {
			layer.OnSessions(sessions)
		}
		if layer.Executor != nil {
			executor = layer.Executor(executor)
		}
	}
	o.Tool.Executor, o.Tool.Sessions, o.Tool.Project = call.Log(executor, o.Log), sessions, o.project()
	admission := o.Admission
	if admission == nil {
		admission = rpc.DefaultBounds()
	}
	handler, stopHandler := rpc.New(tool.New(o.Tool), o.Version, newProcessors(admission), o.Log)
	stopWarm := o.keepWarm()
	return &Assembly{
		Handler: handler, Sessions: sessions, starter: o.Starter, warm: o.warm,
		Begin: func() {
			o.warm.Fill()
			if o.AfterFirst != nil {
				o.AfterFirst()
			}
		},
		Stop: func() {
			stopWarm()
			stopHandler()
			for _, layer := range o.Layers {
				if layer.Close != nil {
					layer.Close()
				}
			}
		},
	}
}

// Warm has sandboxes of an environment wait for a while, which a call is about to use.
func (o *Options) Warm(env registry.Environment) {
	if o.waits() {
		o.warm.Add(pool.Kind{Spec: o.Spec(env), Count: env.Prewarm}, o.Sessions.Idle)
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
	project := tool.Project{Mount: o.Host.Project.Mount, Overlaid: o.Host.Project.IsOverlay()}
	if o.Host.Inbox != "" {
		project.Inbox = o.InboxMount
	}
	return project
}

// Spec returns the specification of an environment's sandboxes.
func (o *Options) Spec(env registry.Environment) sandbox.Spec {
	variables := o.Variables
	if len(env.Inherit) > 0 {
		variables = config.Inherited(env.Inherit...)
		maps.Copy(variables, o.Variables)
	}
	base, baseExec := env.Base, env.BaseExec
	if env.Reports || baseExec == "" { // a virtual machine does not grow
		base, baseExec = "", ""
	}
	return sandbox.Spec{
		Base:        base,
		BaseExec:    baseExec,
		Name:        env.Name,
		Exec:        env.SessionExec,
		OutputBytes: env.OutputBytes,
		Limits:      sandbox.Limits{Memory: env.MemoryMB << 20, Tasks: int(env.PIDs), CPUs: env.CPUs},
		Variables:   variables,
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
func (o *Options) waits() bool { return !o.Host.Project.IsOverlay() }

// keepWarm has the pool keep sandboxes of all environments that ask for that, also if these
// change, until the returned function is called.
func (o *Options) keepWarm() (stop func()) {
	if !o.waits() {
		return func() {}
	}
	var one sync.Mutex // at a time, so that the newest counts
	keep := func() {
		one.Lock()
		defer one.Unlock()
		kinds := []pool.Kind{}
		for _, env := range o.Tool.Environments.Now().Ready() {
			kinds = append(kinds, pool.Kind{Spec: o.Spec(env), Count: env.Prewarm})
		}
		o.warm.Keep(kinds)
	}
	stop = o.Tool.Environments.Subscribe(func(_, _ *registry.Snapshot) { keep() })
	keep()
	return stop
}
