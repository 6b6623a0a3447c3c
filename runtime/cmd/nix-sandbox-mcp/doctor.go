package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os/signal"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/doctor"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
)

func doctorCommand(std streams) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Report what sandboxes need that this machine lacks, and how to fix it",
		Long: `Report what sandboxes need that this machine lacks, and how to fix it.

Starts every sandbox and runs one line of code in it. The exit status is 1 where
something that sandboxes need is missing.`,
		Args: atMost(0),
		RunE: func(*cobra.Command, []string) error {
			ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			report := examine(ctx)
			write := report.WriteTable
			if asJSON {
				write = report.WriteJSON
			}
			if err := write(std.out); err != nil {
				return fmt.Errorf("write the report: %w", err)
			}
			if !report.OK() {
				return &ending{status: failed}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	return cmd
}

// examine examines this machine, with the environments that the server would
// serve.
func examine(ctx context.Context) doctor.Report {
	settings, set, err := survey()
	if err != nil {
		wrong := finding("configuration", err)
		report := doctor.Examine(ctx, doctor.Subject{})
		report.Findings = slices.Insert(report.Findings, 0, wrong)
		return report
	}
	subject := doctor.Subject{Broken: set.Broken, Host: hostFolders(settings), Within: settings.StartWithin}
	for _, name := range set.Names() {
		subject.Environments = append(subject.Environments, set.Environments[name])
	}
	subject.Environments = append(subject.Environments, registry.New(set).Now().AllDerived()...)
	report := doctor.Examine(ctx, subject)
	report.Findings = append(report.Findings, httpFindings(settings, set.Serve)...)
	return report
}

// httpFindings is what a server for many needs, where one is configured.
func httpFindings(settings config.Config, serve *registry.Serve) []doctor.Finding {
	if serve == nil {
		return nil
	}
	tokens, address := cmp.Or(settings.TokenFile, serve.TokenFile), cmp.Or(settings.HTTP, serve.Listen)
	if tokens == "" && settings.HTTP == "" && serve.Proxy == nil && serve.OAuth == nil {
		return nil
	}
	f := &front{serve: serve}
	callers := finding("callers", f.readCallers(tokens))
	if callers.OK {
		callers.Found = f.callers()
	}
	findings := []doctor.Finding{callers}
	// Whether a socket can be had is not known without making it.
	if _, _, err := net.SplitHostPort(address); err != nil {
		return findings
	}
	listener, err := listen(address, len(f.chain) > 0)
	at := finding("address", err)
	if at.OK {
		at.Found = address + " is free"
		listener.Close()
	} else if errors.Is(err, syscall.EADDRINUSE) {
		at.Found, at.Fix = address+" is in use", "leave it so if the server listens there; otherwise end what does, or choose another address"
	}
	// A server that runs has it.
	at.Needed = !errors.Is(err, syscall.EADDRINUSE)
	return append(findings, at)
}

// finding is what an error says about something that is needed.
func finding(name string, err error) doctor.Finding {
	f := doctor.Finding{Name: name, OK: err == nil, Needed: true}
	if err != nil {
		f.Found = err.Error()
	}
	var mistake *config.Error
	if errors.As(err, &mistake) {
		f.Fix = mistake.Hint
	}
	return f
}
