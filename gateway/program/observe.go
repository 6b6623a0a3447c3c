package program

import (
	"cmp"
	"context"
	"fmt"
	"net"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/audit"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/live"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/metrics"
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
	if address := cmp.Or(settings.Metrics, serve.MetricsListen); address != "" {
		if err := o.expose(address, server, calls); err != nil {
			o.Close()
			return nil, err
		}
	}
	return o, nil
}

func (o *observers) expose(address string, server *service.Server, calls *watch.Server) (err error) {
	// Metrics are for everybody, because they contain no code.
	if o.listener, err = listen(address, true); err != nil {
		return err
	}
	o.metrics = metrics.New(metrics.Options{Version: command.Version(), Sessions: func() int { return len(calls.Sessions()) }, Audit: o.audit})
	o.all = append(o.all, o.metrics)
	ready := func() bool { return server.Context.Err() == nil && len(server.Environments.Now().Names()) > 0 }
	o.site = &live.Site{Server: calls, Metrics: o.metrics, IsReady: ready, Log: server.Log}
	return nil
}

// start adds the observers to the options, and serves the metrics until Close. When the server's
// context has ended, it is not ready any more.
func (o *observers) start(server *service.Server, options *service.Options) {
	options.Tool.Observers = append(o.all, options.Tool.Observers...)
	if o.listener == nil {
		return
	}
	log := server.Log
	var serving context.Context
	serving, o.end = context.WithCancel(context.Background())
	log.Info("metrics", "address", o.listener.Addr().String())
	server.Go(func(context.Context) {
		if err := o.site.Serve(serving, o.listener); err != nil {
			log.Error("metrics are served no longer", "error", err)
		}
	})
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
