// Package stdio is a server for one client, on the standard streams of its program.
//
// It writes nothing but messages to its standard output, and leaves no process behind however it ends. An audit log
// and metrics are the gateway's: it hands over to that program if the operator asks for one of them.
package stdio

import (
	"cmp"
	"fmt"
	"io"
	"os"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/service"
)

// Main serves, and ends the process.
func Main(with parts.With) {
	command.Init()
	os.Exit(command.Report(os.Stderr, run(os.Args[1:], with, os.Stdin, os.Stdout, os.Stderr)))
}

func run(args []string, with parts.With, in io.Reader, out, logTo io.Writer) error {
	var flags command.Serve
	if err := flags.Parse(args, flags.Add); err != nil {
		return err
	}
	settings, base, err := config.Load()
	if err != nil {
		return err
	}
	if what := observed(settings, base.Serve); what != "" {
		return command.Gateway(what, append([]string{"--stdio"}, args...)...)
	}
	server := service.Open(settings, base, flags.Log(logTo))
	defer server.Close()
	options, err := server.Start()
	if err != nil {
		return err
	}
	if err := parts.Add(options, server, with); err != nil {
		return err
	}
	return service.Stdio(server.Context, in, out, options)
}

// observed returns the setting that asks for an audit log or metrics; empty if none does.
func observed(settings config.Config, serve *registry.Serve) string {
	if serve == nil {
		serve = &registry.Serve{}
	}
	set := func(variable, value, option, configured string) string {
		switch {
		case value != "":
			return fmt.Sprintf("%s is %q", variable, value)
		case configured != "":
			return fmt.Sprintf("the configuration's %s is %q", option, configured)
		}
		return ""
	}
	return cmp.Or(
		set("NIX_SANDBOX_AUDIT", settings.Audit, "audit_file", serve.AuditFile),
		set("NIX_SANDBOX_METRICS", settings.Metrics, "metrics_listen", serve.MetricsListen),
	)
}
