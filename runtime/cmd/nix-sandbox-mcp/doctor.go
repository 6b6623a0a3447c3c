package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os/signal"
	"slices"
	"syscall"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/doctor"
)

func doctorCommand() command {
	return command{
		name:    "doctor",
		summary: "say what sandboxes need that this machine lacks, and what mends it",
		details: "Starts every sandbox and runs one line in it. The exit status is 1 where\nsomething that is needed is missing.\n",
		define: func(flags *flag.FlagSet) runner {
			var asJSON bool
			flags.BoolVar(&asJSON, "json", false, "for programs")
			return func(streams streams, args []string) (int, error) {
				if len(args) > 0 {
					return 0, &misuse{fmt.Sprintf("unknown argument %q", args[0]), "see " + program + " doctor --help"}
				}
				ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
				defer stop()
				report := examine(ctx)
				write := report.WriteTable
				if asJSON {
					write = report.WriteJSON
				}
				if err := write(streams.out); err != nil {
					return 0, fmt.Errorf("write the report: %w", err)
				}
				if !report.OK() {
					return failed, nil
				}
				return 0, nil
			}
		},
	}
}

// examine examines this machine with what the server would serve.
func examine(ctx context.Context) doctor.Report {
	settings, set, err := survey()
	if err != nil {
		wrong := doctor.Finding{Name: "configuration", Needed: true, Found: err.Error()}
		var mistake *config.Error
		if errors.As(err, &mistake) {
			wrong.Mend = mistake.Hint
		}
		report := doctor.Examine(ctx, doctor.Subject{})
		report.Findings = slices.Insert(report.Findings, 0, wrong)
		return report
	}
	subject := doctor.Subject{Broken: set.Broken, Environ: projectVariables(settings), Within: settings.StartWithin}
	for _, name := range set.Names() {
		subject.Environments = append(subject.Environments, set.Environments[name])
	}
	return doctor.Examine(ctx, subject)
}
