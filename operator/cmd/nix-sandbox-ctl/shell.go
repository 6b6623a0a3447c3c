package main

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/interactive"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/lazyregexp"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

func shellCommand(std streams) *cobra.Command {
	var project string
	var interpreter bool
	var p place
	cmd := &cobra.Command{
		Use:   "shell ENV | --session NAME",
		Short: "Open a terminal in a sandbox and see what the model sees",
		Long: `Open a terminal in a sandbox and see what the model sees.

The sandbox is new, has the environment's limits but no time limit, and ends with
the shell. All keys go to the shell, also Ctrl-C and Ctrl-Z. Connections that the
environment's network refuses are shown as they are refused.

With --session, the sandbox is the one that the model uses in this session of a
running server: the same files and processes. With --interpreter too, lines are
evaluated in the interpreter that the model uses, between its calls. The model is
told which files you changed, and nothing else.`,
		Example:           "  " + program + " shell python\n  " + program + " shell --session analysis",
		Args:              atMost(1),
		ValidArgsFunction: completeEnvironment(cobra.ShellCompDirectiveNoFileComp),
		RunE: func(_ *cobra.Command, args []string) error {
			if p.session != "" {
				if len(args) > 0 {
					return command.Misuse(fmt.Sprintf("both an environment, %q, and --session were named", args[0]), "use --env "+args[0]+" with --session")
				}
				if interpreter {
					return evaluate(p, std)
				}
				if !isTerminal(std.in) || !isTerminal(std.out) {
					return command.Misuse("shell needs a terminal", "evaluate lines without one: "+program+" shell --session "+p.session+" --interpreter")
				}
				return exit(joinSession(p, std.in.(*os.File), std.out.(*os.File), std.err))
			}
			if len(args) == 0 || args[0] == "" {
				return command.Misuse("no environment was named", "list them with "+program+" list")
			}
			env, err := choose(visible(std.err), args[0], project)
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
	cmd.Flags().StringVar(&p.session, "session", "", "join this live session, `NAME`")
	p.addTo(cmd)
	if err := cmd.RegisterFlagCompletionFunc("session", completeLive); err != nil {
		panic(err) // the flag has just been added
	}
	return cmd
}

// openShell connects a terminal to a shell in a sandbox until either ends.
func openShell(env chosen, in, out *os.File, log io.Writer, interpreter bool) (int, error) {
	spec, err := env.spec()
	if err != nil {
		return 0, err
	}
	return onTerminal(in, out, log, func(size frame.Terminal, screen *screen) (terminalProgram, func(), error) {
		size.Interpreter = interpreter
		spec.First = frame.Request{Type: frame.Open, Terminal: &size, Env: env.inherited}
		logged := &shellLog{show: screen.notify}
		spec.Stdout, spec.Stderr = screen, logged
		p, err := interactive.Start(spec)
		return p, func() {
			logged.flush()
			if text := strings.TrimSpace(logged.kept.String()); text != "" {
				screen.waiting = append(screen.waiting, text)
			}
		}, err
	})
}

// terminalProgram is a program with a terminal of its own in a sandbox.
type terminalProgram interface {
	// Type sends input to it, and CloseInput ends that.
	Type(data []byte) error
	CloseInput() error
	Resize(frame.Terminal) error
	Kill()
	Ended() <-chan struct{}
	// Wait waits for its end, and returns its exit status.
	Wait() (int, error)
}

// onTerminal connects a terminal to a program until either ends. It calls end, which start
// returns, when the program has ended.
func onTerminal(in, out *os.File, log io.Writer, start func(size frame.Terminal, screen *screen) (p terminalProgram, end func(), err error)) (int, error) {
	size := sizeOf(out)
	if size.Term = os.Getenv("TERM"); !validTerm.MatchString(size.Term) {
		size.Term = "dumb"
	}
	screen := &screen{w: out}
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
	p, end, err := start(size, screen)
	if err != nil {
		return 0, err
	}
	go keys.feed(p, in)
	status, err := follow(p, terminal, out, screen, signals, keys)
	terminal.restore(screen, keys)
	end()
	for _, text := range screen.takeWaiting() {
		if text != "" {
			fmt.Fprintln(visible(log), text)
		}
	}
	return status, err
}

// follow waits for the end of a shell. Meanwhile it passes on signals and the size of the
// terminal.
func follow(p terminalProgram, terminal *rawTerminal, out *os.File, screen *screen, signals <-chan os.Signal, keys *keyboard) (int, error) {
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
var validTerm = lazyregexp.New(`^[A-Za-z0-9._+-]{1,64}$`)
