// Command nix-sandbox-gateway serves sandboxes to many clients over HTTP, to those who may
// call, within quotas. It also keeps audit logs and serves metrics, for one client on its
// standard streams too.
package main

import (
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/mcphttp"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/service"
)

// gcPercent is GOGC of a server for many clients: by how much its heap grows, in percent of
// what is used, until the garbage collector runs. Go's default of 100 makes twice of what
// large answers take. A collection of what hundreds of sessions use takes milliseconds.
const gcPercent = 50

func main() {
	args := os.Args[1:]
	if slices.Equal(args, []string{"check"}) {
		os.Exit(command.Report(os.Stderr, check(os.Stdout)))
	}
	os.Exit(command.Report(os.Stderr, run(args, os.Stdin, os.Stdout, os.Stderr)))
}

// run serves until the input of its client ends, or a signal comes.
func run(args []string, in io.Reader, out, logTo io.Writer) error {
	var flags command.Serve
	if err := flags.Parse(args, flags.Add, flags.AddHTTP); err != nil {
		return err
	}
	log := flags.Log(logTo)
	settings, base, err := config.Load()
	if err != nil {
		return err
	}
	server, err := service.Open(settings, base, log)
	if err != nil {
		return err
	}
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
	if err := parts.Add(&options, server); err != nil {
		return err
	}
	observers, err := observe(server)
	if err != nil {
		return err
	}
	defer observers.Close()
	observers.start(server)
	options.Observers, options.ShowSessions = observers.all, observers.showSessions
	if front == nil {
		return service.Stdio(server.Context, in, out, options)
	}
	if !server.HasGroups {
		front.warnUnheld(log)
	}
	// The operator's own setting counts.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	server.Go(front.reload(log))
	options.Quota, options.CallsAtOnce = front.quota, front.callsAtOnce()
	options.Sessions.Max = settings.SessionMaxOfMany
	transport := front.options()
	transport.Observe = observers.request()
	transport.Ending = func() {
		log.Info("ending", "lame_duck", transport.LameDuck, "drain", transport.DrainTimeout)
		notify("STOPPING=1")
	}
	log.Info("listening", "address", front.Addr().String(), "path", mcphttp.Path, "callers", front.callers())
	notify("READY=1")
	return serve(server, front, options, transport)
}

// serve serves the clients that connect until the context of the server ends. Then it serves
// those with running calls until these are answered, their time is over, or a second signal
// comes. When it returns, no sandbox is left. The error is one of the listener.
func serve(server *service.Server, front *front, o service.Options, h mcphttp.Options) error {
	a := o.Assemble()
	defer a.Stop()
	// systemd names the folder of StateDirectory= so, or several.
	state, _, _ := strings.Cut(os.Getenv("STATE_DIRECTORY"), ":")
	takeEnded(state, a.Sessions, o.Log)
	h.IsReady = func() bool { return len(o.Environments.Now().Names()) > 0 }
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
