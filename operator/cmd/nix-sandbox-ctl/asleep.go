package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/keep/suspended"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/interactive"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/cgroup"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox/framed"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/service"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/tool"
)

// noneSleeps is the problem where no session of a name sleeps.
const noneSleeps = "no session %q sleeps"

func wakeSessionCommand(std streams) *cobra.Command {
	var c choice
	var code string
	cmd := &cobra.Command{
		Use:   "wake NAME [FILE | -c CODE | -]",
		Short: "Run code in a session that sleeps, which then sleeps again",
		Long: `Run code in a session that sleeps, which then sleeps again with what the code did.

The code comes from FILE, from -c, or from standard input. Its output appears
when it has ended, and this command's exit status is the code's. Ctrl-C
interrupts the code. Where anything fails, the session sleeps as it was.`,
		Example: "  " + program + " sessions wake analysis -c 'print(len(rows))'",
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			hasCode := cmd.Flags().Changed("code")
			switch {
			case len(args) == 0:
				return command.Misuse("sessions wake needs a name", "see "+program+" sessions")
			case len(args) > 2 || len(args) == 2 && hasCode:
				return command.Misuse(fmt.Sprintf("unknown argument %q", args[len(args)-1]), seeHelp(cmd))
			case len(args) == 1 && !hasCode && isTerminal(std.in):
				return command.Misuse("no code was given", "name a file, write -c CODE, or pipe the code in")
			}
			found, err := c.one(args[0], sleeps, noneSleeps)
			if err != nil {
				return err
			}
			text := []byte(code)
			if !hasCode {
				if text, err = readCode(append(args, "-")[1], std.in); err != nil {
					return err
				}
			}
			if len(text) > interactive.MaxCode {
				return fmt.Errorf("the code is longer than %d MiB", interactive.MaxCode>>20)
			}
			return wakeSession(std, *found.asleep, string(text))
		},
	}
	cmd.Flags().StringVarP(&code, "code", "c", "", "run `CODE`")
	sessionFlags(cmd, &c, sleeps, cobra.ShellCompDirectiveDefault, false)
	return cmd
}

// wakeSession runs code in a session that sleeps.
func wakeSession(std streams, s suspended.Session, code string) error {
	return withAsleep(std.err, s, func(ctx context.Context, detached suspended.Detached, limit time.Duration) error {
		result, err := detached.Run(ctx, sandbox.Request{Code: code, Timeout: limit})
		writeText(visible(std.out), result.Stdout)
		writeText(visible(std.err), result.Stderr)
		switch {
		case ctx.Err() != nil:
			return command.Exit(128 + int(syscall.SIGINT))
		case err != nil:
			return err
		case result.Outcome == frame.OutcomeTimeout:
			return command.End(command.TooLong, fmt.Sprintf("the code was stopped: it ran longer than %v s", limit.Seconds()), "")
		case result.Limit != nil:
			return command.End(result.ExitCode, "the code was stopped: it crossed its limit of "+result.Limit.Name, "")
		}
		return exit(result.ExitCode, nil)
	})
}

// writeText writes what is there of a stream.
func writeText(w io.Writer, text sandbox.Text) {
	_, _ = io.WriteString(w, text.Head)
	if text.Cut > 0 {
		fmt.Fprintf(w, "\n[... %d bytes cut here ...]\n", text.Cut)
	}
	_, _ = io.WriteString(w, text.Tail)
}

func copySessionCommand() *cobra.Command {
	var c choice
	cmd := &cobra.Command{
		Use:   "cp NAME NEW",
		Short: "Copy a session that sleeps: the copy sleeps too",
		Long: `Copy a session that sleeps: the copy sleeps too, and gets random numbers of its
own when it wakes. The session itself sleeps on as it was.`,
		Example: "  " + program + " sessions cp analysis analysis-2",
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) < 2:
				return command.Misuse("sessions cp needs a name and a new one", seeHelp(cmd))
			case len(args) > 2:
				return command.Misuse(fmt.Sprintf("unknown argument %q", args[2]), seeHelp(cmd))
			case !tool.ValidSession.MatchString(args[1]):
				return command.Misuse(fmt.Sprintf("the new name is %q", args[1]), "use letters, digits, \"_\" and \"-\", at most 64")
			}
			found, err := c.one(args[0], sleeps, noneSleeps)
			if err != nil {
				return err
			}
			to := found.asleep.Key
			to.Session = args[1]
			return withAsleep(io.Discard, *found.asleep, func(ctx context.Context, detached suspended.Detached, _ time.Duration) error {
				err := detached.Copy(ctx, to)
				var exists *call.BranchError
				if errors.As(err, &exists) {
					return &config.Error{Problem: fmt.Sprintf("a session %q sleeps already", to.Session), Hint: "write another name, or delete it: " + program + " sessions rm " + to.Session}
				}
				return err
			})
		},
	}
	sessionFlags(cmd, &c, sleeps, cobra.ShellCompDirectiveNoFileComp, false)
	return cmd
}

// withAsleep calls do for a session that sleeps, with the time limit of its environment's
// calls, in a context that a signal ends.
func withAsleep(log io.Writer, s suspended.Session, do func(context.Context, suspended.Detached, time.Duration) error) error {
	if s.Project != "" {
		if _, err := config.Folder(s.Project); err != nil {
			return &config.Error{Problem: fmt.Sprintf("session %q shows the project %v", s.Session, err), Hint: "have the folder there again"}
		}
	}
	env, err := choose(s.Env, s.Project)
	if err != nil {
		return err
	}
	if !env.Suspend {
		return &config.Error{Problem: fmt.Sprintf("sessions of environment %q do not sleep, and %q of it does not wake", s.Env, s.Session), Hint: "build the environment with backend = \"vm\""}
	}
	if s.Project == "" {
		env.host.Project = sandbox.Project{}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	logger := slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	groups, _ := cgroup.Find(ctx, cgroup.System) // without them, the machine has its own
	settings, err := config.Read(os.Getenv)
	if err != nil {
		return err
	}
	starter := framed.New(logger, framed.Options{StartTimeout: settings.StartWithin, Groups: groups})
	defer starter.Close(endCodeWithin)
	store := suspended.New(config.SuspendedFolder(os.Getenv), env.session.SuspendBytes, logger)
	options := service.Options{Host: env.host, Suspends: true}
	err = do(ctx, suspended.Detached{Store: store, Key: s.Key, Starter: starter, Spec: options.Spec(env.Environment)}, env.Timeout)
	var inUse *suspended.InUseError
	if errors.As(err, &inUse) {
		return &config.Error{Problem: fmt.Sprintf("session %q of %s is in use by a server", s.Session, s.Env), Hint: "call it there, or try again when it sleeps"}
	}
	return err
}
