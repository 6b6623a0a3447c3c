package main

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/interactive"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
)

func shellCommand(std streams) *cobra.Command {
	var project string
	var interpreter bool
	cmd := &cobra.Command{
		Use:   "shell ENV",
		Short: "Open a terminal in a sandbox and see what the model sees",
		Long: `Open a terminal in a sandbox and see what the model sees.

The sandbox is new, has the environment's limits but no time limit, and ends with
the shell. All keys go to the shell, also Ctrl-C and Ctrl-Z. Connections that the
environment's network refuses are shown as they are refused.`,
		Args:              atMost(1),
		ValidArgsFunction: completeEnvironment(cobra.ShellCompDirectiveNoFileComp),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return command.Misuse("no environment was named", "list them with "+program+" list")
			}
			env, err := choose(args[0], project)
			if err != nil {
				return err
			}
			if !isTerminal(std.in) || !isTerminal(std.out) {
				return command.Misuse("shell needs a terminal", "run code without one: "+program+" run "+args[0])
			}
			return exit(openShell(env, std.in.(*os.File), std.out.(*os.File), std.err, interpreter))
		},
	}
	projectFlag(cmd, &project, "show the folder `DIR`, read-only")
	cmd.Flags().BoolVar(&interpreter, "interpreter", false, "open the environment's interpreter instead of a shell")
	return cmd
}

// openShell connects a terminal to a shell in a sandbox until one of them ends.
func openShell(env chosen, in, out *os.File, log io.Writer, interpreter bool) (int, error) {
	spec, err := env.spec()
	if err != nil {
		return 0, err
	}
	size := sizeOf(out)
	size.Interpreter, size.Term = interpreter, os.Getenv("TERM")
	if !validTerm.MatchString(size.Term) {
		size.Term = "dumb"
	}
	spec.First = frame.Request{Type: frame.Open, Terminal: &size, Env: env.inherited}
	screen := &screen{w: out}
	logged := &shellLog{show: screen.notify}
	spec.Stdout, spec.Stderr = screen, logged

	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGPIPE, syscall.SIGTSTP, syscall.SIGCONT, syscall.SIGWINCH)
	defer signal.Stop(signals)
	terminal, err := makeRaw(in)
	if err != nil {
		return 0, err
	}
	keys := &keyboard{gone: make(chan struct{})}
	// Errors are printed after this.
	defer terminal.restore(screen, keys)
	p, err := interactive.Start(spec)
	if err != nil {
		return 0, err
	}
	go keys.feed(p, in)
	status, err := follow(p, terminal, out, screen, signals, keys)
	terminal.restore(screen, keys)
	logged.flush()
	for _, text := range append(screen.takeWaiting(), strings.TrimSpace(logged.kept.String())) {
		if text != "" {
			fmt.Fprintln(visible(log), text)
		}
	}
	return status, err
}

// follow waits for the end of a shell. Meanwhile it passes on signals and the size of the
// terminal.
func follow(p *interactive.Program, terminal *rawTerminal, out *os.File, screen *screen, signals <-chan os.Signal, keys *keyboard) (int, error) {
	resized := make(chan struct{}, 1)
	defer close(resized)
	go func() {
		// Many changes in a row become one, because the size is read only when the last one has
		// been sent.
		for range resized {
			if p.Resize(sizeOf(out)) != nil {
				return
			}
		}
	}()
	resize := func() {
		select {
		case resized <- struct{}{}:
		default:
		}
	}
	for {
		select {
		case <-p.Ended():
			return p.Wait()
		case <-keys.gone:
			p.Kill()
			_, err := p.Wait()
			return 128 + int(syscall.SIGHUP), err
		case sig := <-signals:
			switch sig {
			case syscall.SIGPIPE:
			case syscall.SIGWINCH:
				resize()
			case syscall.SIGTSTP:
				// Another process sent this: Ctrl-Z goes to the shell.
				terminal.restore(screen, keys)
				_ = unix.Kill(os.Getpid(), unix.SIGSTOP)
			case syscall.SIGCONT:
				if err := terminal.again(); err != nil {
					p.Kill()
					_, _ = p.Wait()
					return 0, err
				}
				resize()
			default:
				p.Kill()
				_, err := p.Wait()
				return 128 + int(sig.(syscall.Signal)), err
			}
		}
	}
}

// validTerm matches the values of TERM that are passed on.
var validTerm = regexp.MustCompile(`^[A-Za-z0-9._+-]{1,64}$`)
