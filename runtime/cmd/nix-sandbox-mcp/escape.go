package main

import (
	"context"
	"fmt"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/escape"
)

// impossible is the exit status where no sandbox starts here, so that
// nothing could be tried.
const impossible = 77

func escapeCommand(std streams) *cobra.Command {
	var options escape.Options
	var match, skip string
	var everything bool
	cmd := &cobra.Command{
		Use:   "escape-test ENV|FOLDER",
		Short: "Try to get out of a sandbox, in some 350 ways",
		Long: `Try to get out of a sandbox, in some 350 ways.

Prints a line for each attempt, and one of figures. Each attempt is also made
outside, where it must succeed: that takes the sandbox's interpreter on the
PATH. The exit status is 1 where an attempt got out or proved nothing, and 77
where no sandbox starts on this machine.`,
		ValidArgsFunction: completeEnvironment(cobra.ShellCompDirectiveNoFileComp),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return &misuse{"escape-test takes one environment", seeHelp(cmd)}
			}
			options.Match, options.Skip = list(match), list(skip)
			if !everything {
				options.Skip = append(options.Skip, escape.Unpromised()...)
			}
			return exit(escapeTest(std, args[0], options))
		},
	}
	cmd.Flags().StringVar(&match, "match", "", "only attempts with names like these `PATTERNS`: files/*,network/*.sh")
	cmd.Flags().StringVar(&skip, "skip", "", "no attempts with these `TAGS`: limits,seccomp")
	cmd.Flags().BoolVar(&everything, "all", false, "also what SECURITY.md does not promise")
	cmd.Flags().BoolVar(&options.NoControls, "no-controls", false, "do not show that each attempt succeeds outside")
	return cmd
}

func list(text string) []string {
	return strings.FieldsFunc(text, func(char rune) bool { return char == ',' })
}

func escapeTest(streams streams, name string, options escape.Options) (int, error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	folder, err := artifact(name)
	if err != nil {
		return 0, err
	}
	spec, err := jail.ReadSpec(filepath.Join(folder, "bin", "run"))
	if err != nil {
		return 0, err
	}
	if err := jail.Check(ctx, spec.Bubblewrap); err != nil {
		fail(streams.err, &config.Error{Problem: err.Error(), Hint: jail.HintOf(err)})
		return impossible, nil
	}
	options.Each = func(result escape.Result) { fmt.Fprintln(streams.out, result) }
	report, err := escape.Run(ctx, folder, options)
	if err != nil {
		return 0, err
	}
	fmt.Fprintln(streams.out, report)
	if !report.OK() {
		return failed, nil
	}
	return 0, nil
}

// artifact is the folder of an environment, or a folder itself where the name
// is a path.
func artifact(name string) (string, error) {
	if strings.ContainsRune(name, filepath.Separator) {
		return name, nil
	}
	_, set, err := survey()
	if err != nil {
		return "", err
	}
	env, ok := set.Environments[name]
	if !ok {
		return "", &config.Error{
			Problem: fmt.Sprintf("there is no environment %q", name),
			Hint:    "use one of " + strings.Join(set.Names(), ", ") + ", or the path of an artifact",
		}
	}
	return filepath.Dir(filepath.Dir(env.Exec)), nil
}
