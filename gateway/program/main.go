// Package program is the program nix-sandbox-gateway: it serves sandboxes to many clients over HTTP,
// authenticates them and holds them to quotas. It also writes audit logs and serves metrics, and does so
// for one client on its standard streams too.
package program

import (
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/mcphttp"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk/watch"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/account"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/service"
)

// gcPercent is GOGC of a server for many clients: by how many percent its heap grows until the
// garbage collector runs. With Go's default of 100, large answers take twice their memory. With
// hundreds of sessions, a collection takes milliseconds.
const gcPercent = 50

// memoryLimit is GOMEMLIMIT of such a server, in bytes: near it, garbage is collected more often. It
// leaves room below the 512 MB that docs/serving.md states.
const memoryLimit = 400 << 20

// Main serves, and ends the process.
func Main(with parts.With) {
	args := os.Args[1:]
	if slices.Equal(args, []string{"check"}) {
		os.Exit(command.Report(os.Stderr, check(os.Stdout)))
	}
	command.Init()
	os.Exit(command.Report(os.Stderr, run(args, with, os.Stdin, os.Stdout, os.Stderr)))
}

// run serves until the input of its client ends, or a signal comes.
func run(args []string, with parts.With, in io.Reader, out, logTo io.Writer) error {
	var flags command.Serve
	if err := flags.Parse(args, flags.Add, flags.AddHTTP); err != nil {
		return err
	}
	log := flags.Log(logTo)
	settings, base, err := config.Load()
	if err != nil {
		return err
	}
	server := service.Open(settings, base, log)
	defer server.Close()
	var front *front
	if !flags.Stdio {
		if front, err = newFront(flags.HTTP, settings, base.Serve); err != nil {
			return err
		}
		defer front.Close()
		server.Together = front.together
	}
	options, err := server.Start()
	if err != nil {
		return err
	}
	calls := watch.New(server.Environments)
	observers, err := observe(server, calls)
	if err != nil {
		return err
	}
	defer observers.Close()
	with.Calls = calls
	var book *account.Book
	if front != nil {
		book = account.NewBook(front.quota, front.callsAtOnce())
		with.Charge = service.Layer{Executor: book.Executor, Starter: book.Starter}
		options.Admission, options.Tool.Reads = book, book
		// Of calls without a session the sandboxes are bounded by the calls that run.
		options.OneShots, options.Sessions.Max, options.Sessions.MaxEach = 0, settings.SessionMaxOfMany, book.Sessions
	}
	if err := parts.Add(options, server, with); err != nil {
		return err
	}
	observers.start(server, options)
	if front == nil {
		return service.Stdio(server.Context, in, out, options)
	}
	if !server.HasGroups {
		front.warnUnheld(log)
	}
	// The operator's own setting wins.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
	server.Go(front.reload(log))
	if observers.audit != nil {
		observers.audit.Charge(book.Record)
	}
	transport := front.options()
	transport.Book = book
	if m := observers.metrics; m != nil {
		transport.Observe = func(r mcphttp.Request) { m.Request(r.Method, r.Era, r.Status) }
	}
	transport.Ending = func() {
		log.Info("ending", "lame_duck", transport.LameDuck, "drain", transport.DrainTimeout)
		notify("STOPPING=1")
	}
	log.Info("listening", "address", front.Addr().String(), "path", mcphttp.Path, "callers", front.callers())
	notify("READY=1")
	return serve(server, front, options, transport)
}

// serve serves all clients until the context of the server ends. Then it waits for running calls
// until they are answered, their time is over, or a second signal comes. When it returns, all
// sandboxes have ended. The error is one of the listener.
func serve(server *service.Server, front *front, o *service.Options, h mcphttp.Options) error {
	a := o.Assemble()
	defer a.Stop()
	// systemd sets this to the folders of StateDirectory=.
	state, _, _ := strings.Cut(os.Getenv("STATE_DIRECTORY"), ":")
	takeEnded(state, a.Sessions, o.Log)
	h.IsReady = func() bool { return len(o.Tool.Environments.Now().Names()) > 0 }
	h.Log = o.Log
	transport := mcphttp.New(a.Handler, h)
	a.Begin()
	served := make(chan error, 1)
	go func() { served <- transport.Serve(front) }()
	select {
	case err := <-served:
		a.End()
		return err
	case <-server.Context.Done():
		transport.Drain(server.Now)
		// The end of all sandboxes answers the calls that still run.
		a.End()
		keepEnded(state, a.Sessions, o.Log)
		transport.Close(service.LastAnswersTimeout)
		return <-served
	}
}
