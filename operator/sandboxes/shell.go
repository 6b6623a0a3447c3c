package sandboxes

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/cli"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/sessions"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/terminal"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// Shell opens a terminal in a new sandbox, or in that of a live session.
func Shell(std cli.Streams) *cobra.Command {
	var project string
	var interpreter bool
	var p sessions.Place
	cmd := &cobra.Command{
		Use:   "shell ENV | --session NAME",
		Short: "Open a terminal in a sandbox and see what the model sees",
		Long: `Open a terminal in a sandbox and see what the model sees.

The sandbox is new, has the environment's limits but no time limit, and ends with
the shell. All keys go to the shell, also Ctrl-C and Ctrl-Z. Connections that the
environment's network refuses are shown as they are refused.

With --session, the sandbox is the one that the model uses in this session of a
running server: the same files and processes. The model is told which files you
changed, and nothing else.`,
		Example:           "  " + cli.Program + " shell python\n  " + cli.Program + " shell --session analysis",
		Args:              cli.AtMost(1),
		ValidArgsFunction: completeEnvironment(cobra.ShellCompDirectiveNoFileComp),
		RunE: func(_ *cobra.Command, args []string) error {
			if p.Session != "" {
				if len(args) > 0 {
					return command.Misuse(fmt.Sprintf("both an environment, %q, and --session were named", args[0]), "use --env "+args[0]+" with --session")
				}
				if interpreter {
					return command.Misuse("--interpreter is for a new sandbox", "leave it out: python and others start from the shell")
				}
				return cli.Exit(sessions.Join(p, std))
			}
			if len(args) == 0 || args[0] == "" {
				return command.Misuse("no environment was named", "list them with "+cli.Program+" list")
			}
			env, err := choose(terminal.Visible(std.Err), args[0], project)
			if err != nil {
				return err
			}
			if !terminal.Is(std.In) || !terminal.Is(std.Out) {
				return command.Misuse("shell needs a terminal", "run code without one: "+cli.Program+" run "+args[0])
			}
			return cli.Exit(openShell(env, std.In.(*os.File), std.Out.(*os.File), std.Err, interpreter))
		},
	}
	cli.ProjectFlag(cmd, &project, "show the folder `DIR`, read-only")
	cmd.Flags().BoolVar(&interpreter, "interpreter", false, "open the environment's interpreter instead of a shell")
	cmd.Flags().StringVar(&p.Session, "session", "", "join this live session, `NAME`")
	p.AddTo(cmd)
	if err := cmd.RegisterFlagCompletionFunc("session", sessions.CompleteLive); err != nil {
		panic(err) // the flag has just been added
	}
	return cmd
}

// openShell connects a terminal to a shell in a sandbox until either ends.
func openShell(env chosen, in, out *os.File, log io.Writer, interpreter bool) (int, error) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	return terminal.Connect(in, out, log, func(size frame.Terminal, screen *terminal.Screen) (terminal.Program, func(), error) {
		size.Interpreter = interpreter
		logged := &terminal.Log{Show: screen.Notify}
		p, err := startProgram(env, frame.Request{Terminal: &size}, screen, screen, logged, signals)
		if err != nil {
			return nil, nil, err
		}
		return p, func() {
			screen.Waiting = append(screen.Waiting, p.left(nil, false)...)
			p.close()
			logged.Flush()
			if text := strings.TrimSpace(logged.Kept.String()); text != "" {
				screen.Waiting = append(screen.Waiting, text)
			}
		}, nil
	})
}
