package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/doctor"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/machine"
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
				return command.Exit(command.Failed)
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
	settings, set, err := config.Survey()
	if err != nil {
		wrong := machine.Of("configuration", err)
		report := doctor.Examine(ctx, doctor.Subject{})
		report.Findings = slices.Insert(report.Findings, 0, wrong)
		return report
	}
	subject := doctor.Subject{Broken: set.Broken, Host: settings.HostFolders(), Within: settings.StartWithin}
	for _, name := range set.Names() {
		subject.Environments = append(subject.Environments, set.Environments[name])
	}
	subject.Environments = append(subject.Environments, registry.New(set).Now().AllDerived()...)
	report := doctor.Examine(ctx, subject)
	report.Findings = append(report.Findings, gatewayFindings(ctx)...)
	return report
}

// gatewayFindings returns what the gateway needs, if the server was built with one.
func gatewayFindings(ctx context.Context) []machine.Finding {
	program := os.Getenv(command.GatewayVariable)
	if program == "" {
		return nil
	}
	findings, err := machine.Ask(ctx, nil, program, "check")
	if err != nil {
		findings = []machine.Finding{machine.Of("gateway", err)}
	}
	return findings
}
