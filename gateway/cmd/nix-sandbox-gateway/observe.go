package main

import (
	"cmp"
	"context"
	"fmt"
	"net"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/audit"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/live"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/metrics"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk/visit"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk/watch"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/service"
)

// observers are told of every call: the audit log, and metrics.
type observers struct {
	all      []call.Observer
	audit    *audit.Log       // nil if there is none
	metrics  *metrics.Metrics // nil if there are none, as the next two are
	listener net.Listener
	site     *live.Site
	end      context.CancelFunc // ends serve
}

// observe makes the observers that the operator asked for, and listens at the address of metrics.
func observe(server *service.Server, calls *watch.Server) (o *observers, err error) {
	settings, serve, log := server.Settings, server.Base.Serve, server.Log
	if serve == nil {
		serve = &registry.Serve{}
	}
	o = &observers{}
	if path := cmp.Or(settings.Audit, serve.AuditFile); path != "" {
		if o.audit, err = audit.Open(path, log); err != nil {
			return nil, &config.Error{
				Problem: fmt.Sprintf("open the audit log: %v", err),
				Hint:    "make its folder, and let the server write there; without NIX_SANDBOX_AUDIT and audit_file there is no audit log",
			}
		}
		o.all = append(o.all, o.audit)
		calls.Audit = func() watch.Audit { return watch.Audit(o.audit.State()) }
	}
	address := cmp.Or(settings.Metrics, serve.MetricsListen)
	page := settings.Page == "1" || settings.Page == "" && serve.Page
	switch {
	case address != "":
		err = o.expose(address, page, server, calls)
	case page:
		err = &config.Error{Problem: "the page is switched on, and no address is named", Hint: "set NIX_SANDBOX_METRICS or metrics_listen to an address such as 127.0.0.1:9464"}
	}
	if err != nil {
		o.Close()
		return nil, err
	}
	return o, nil
}

func (o *observers) expose(address string, page bool, server *service.Server, calls *watch.Server) (err error) {
	// Metrics are for everybody, because they contain no code.
	if o.listener, err = listen(address, true); err != nil {
		return err
	}
	if page && !live.IsPrivate(o.listener.Addr()) {
		return &config.Error{
			Problem: fmt.Sprintf("%s can be reached from other machines, and the page shows the code of every call to everybody", address),
			Hint:    "serve it at an address of this machine alone, such as 127.0.0.1:9464, or without the page",
		}
	}
	calls.Contents = page
	o.metrics = metrics.New(metrics.Options{Version: command.Version(), Sessions: func() int { return len(calls.Sessions()) }, Audit: o.audit})
	o.all = append(o.all, o.metrics)
	ready := func() bool { return server.Context.Err() == nil && len(server.Environments.Now().Names()) > 0 }
	o.site = &live.Site{Server: calls, Metrics: o.metrics, IsReady: ready, Page: page, Log: server.Log}
	return nil
}

// start adds the observers to the options, and serves the metrics until Close. When the server's
// context has ended, it is not ready any more.
func (o *observers) start(server *service.Server, options *service.Options, added parts.Added) {
	options.Tool.Observers = append(o.all, options.Tool.Observers...)
	if o.listener == nil {
		return
	}
	if o.site.Page {
		o.site.Answers = live.NewAnswers(added.Book)
		o.site.Answers.Forward = func(ctx context.Context, session string, port uint16) (string, error) {
			at, err := added.Visits.Listen(ctx, visit.ForwardArgs{Place: visit.Place{Session: session}, Port: port}, func(err error) {
				server.Log.Debug("forward a port for the page", "session", session, "port", port, "error", err)
			})
			return at.Address, err
		}
	}
	log := server.Log
	var serving context.Context
	serving, o.end = context.WithCancel(context.Background())
	log.Info("metrics", "address", o.listener.Addr().String(), "page", o.site.Page)
	server.Go(func(context.Context) {
		if err := o.site.Serve(serving, o.listener); err != nil {
			log.Error("metrics are served no longer", "error", err)
		}
	})
}

// link returns the address of the page for the server's user, who can answer questions there. It is
// empty if there is no page.
func (o *observers) link() any {
	if o.listener == nil || o.site.Answers == nil {
		return ""
	}
	return o.site.Answers.Link(o.listener.Addr())
}

// Close closes the listener.
func (o *observers) Close() {
	if o.end != nil {
		o.end()
	}
	if o.listener != nil {
		o.listener.Close()
	}
}
