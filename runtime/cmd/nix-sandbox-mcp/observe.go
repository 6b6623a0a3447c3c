package main

import (
	"cmp"
	"fmt"
	"log/slog"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/audit"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
)

// observers are what is told of every call, as far as the operator asked for it.
type observers struct {
	all   []call.Observer
	audit *audit.Log // nil where there is none
}

// observe makes the observers.
func observe(settings config.Config, serve *registry.Serve, log *slog.Logger) (o *observers, err error) {
	o = &observers{}
	path := settings.Audit
	if serve != nil {
		path = cmp.Or(path, serve.AuditFile)
	}
	if path != "" {
		if o.audit, err = audit.Open(path, log); err != nil {
			return nil, &config.Error{
				Problem: fmt.Sprintf("open the audit log: %v", err),
				Hint:    "make its folder, and let the server write there; without NIX_SANDBOX_AUDIT and audit_file there is no audit log",
			}
		}
		o.all = append(o.all, o.audit)
	}
	return o, nil
}

// Close ends what the observers keep open.
func (o *observers) Close() {
	if o.audit != nil {
		o.audit.Close()
	}
}
