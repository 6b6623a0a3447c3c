package sandboxes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/cli"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/terminal"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/interactive"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/machine"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// endCodeWithin is the time for code to end after an interrupt: the agent's grace period of 2 s,
// and 1 s for the result to arrive.
const endCodeWithin = 3 * time.Second

// chunk is the size of a read from standard input, in bytes.
const chunk = 32 << 10

// maxSeconds bounds --timeout, in seconds: a year.
const maxSeconds = 365 * 24 * 3600

type runOptions struct {
	code    string
	hasCode bool
	project string
	seconds float64
}

// Run runs code in a new sandbox.
func Run(std cli.Streams) *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run ENV [FILE | -c CODE | -]",
		Short: "Run code in a new sandbox, as a call of the model would",
		Long: `Run code in a new sandbox, as a call of the model would.

The code comes from FILE, from -c, or from standard input. In the first two
cases the code can read standard input, unless that is a terminal. The output
appears as the code writes it and is not bounded. The exit status is the code's.
Ctrl-C interrupts the code, and a second Ctrl-C ends the sandbox.`,
		ValidArgsFunction: completeEnvironment(cobra.ShellCompDirectiveDefault),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.hasCode = cmd.Flags().Changed("code")
			return cli.Exit(runCode(o, std, args))
		},
	}
	cmd.Flags().StringVarP(&o.code, "code", "c", "", "run `CODE`")
	cli.ProjectFlag(cmd, &o.project, "show the folder `DIR` to the code, read-only")
	cmd.Flags().Float64Var(&o.seconds, "timeout", 0, "stop the code after `SECONDS`; 0 is the environment's time limit")
	return cmd
}

// runCode runs code at the command line.
func runCode(o runOptions, streams cli.Streams, args []string) (int, error) {
	const hint = "see " + cli.Program + " run --help"
	switch {
	case len(args) == 0 || args[0] == "":
		return 0, command.Misuse("no environment was named", "list them with "+cli.Program+" list")
	case len(args) > 2 || len(args) == 2 && o.hasCode:
		return 0, command.Misuse(fmt.Sprintf("unknown argument %q", args[len(args)-1]), hint)
	case !(o.seconds >= 0 && o.seconds <= maxSeconds): // "NaN" is neither
		return 0, command.Misuse(fmt.Sprintf("--timeout is %v", o.seconds), fmt.Sprintf("use seconds, up to %d", maxSeconds))
	}
	env, err := choose(terminal.Visible(streams.Err), args[0], o.project)
	if err != nil {
		return 0, err
	}
	spec, err := env.spec()
	if err != nil {
		return 0, err
	}
	code, fromStdin := []byte(o.code), false
	if !o.hasCode {
		name := "-"
		if len(args) == 2 {
			name = args[1]
		}
		if len(args) == 1 && terminal.Is(streams.In) {
			return 0, command.Misuse("no code was given", "name a file, use -c CODE, or pipe the code in")
		}
		fromStdin = name == "-"
		if code, err = readCode(name, streams.In); err != nil {
			return 0, err
		}
	}
	if len(code) > interactive.MaxCode {
		return 0, fmt.Errorf("the code is longer than %d MiB", interactive.MaxCode>>20)
	}
	limit := env.Timeout
	if o.seconds > 0 {
		limit = time.Duration(o.seconds * float64(time.Second))
	}
	spec.First = frame.Request{Type: frame.Execute, Contents: code, Env: env.inherited}
	stderr := &opening{Writer: terminal.Visible(streams.Err)}
	spec.Stdout, spec.Stderr = terminal.Visible(streams.Out), stderr

	signals := make(chan os.Signal, 4)
	// If the reader of our output is gone, the next write fails and closes the code's own pipe.
	// The signal must not end this program before that.
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer signal.Stop(signals)
	p, err := interactive.Start(spec)
	if err != nil {
		return 0, err
	}
	if fromStdin || terminal.Is(streams.In) {
		go func() { _ = p.CloseInput() }()
	} else {
		go feed(p, streams.In) // a read of standard input may last as long as the process
	}
	status, err := await(p, limit, signals)
	terminal.Reset(spec.Stdout)
	terminal.Reset(stderr.Writer)
	if err == nil && status == command.Failed && stderr.isOfBubblewrap() {
		err = env.unstarted()
	}
	return status, err
}

// opening is a writer that notes how what is written to it begins.
type opening struct {
	io.Writer
	head []byte
}

func (o *opening) Write(p []byte) (int, error) {
	o.head = append(o.head, p[:min(len(p), len(bubblewrap)-len(o.head))]...)
	return o.Writer.Write(p)
}

// bubblewrap begins what bubblewrap prints if it cannot make a sandbox. Code may print it too.
const bubblewrap = "bwrap: "

func (o *opening) isOfBubblewrap() bool { return string(o.head) == bubblewrap }

// unstarted says what sandboxes lack here; nil if they lack no needed thing.
func (c chosen) unstarted() error {
	for _, f := range machine.Check(context.Background(), []registry.Environment{c.Environment}) {
		if f.Needed && !f.OK {
			return command.End(command.NoSandbox, "the sandbox did not start: "+f.Found, cmp.Or(f.Fix, "see "+cli.Program+" doctor"))
		}
	}
	return nil
}

// await waits for the end of a program, and ends it at its time limit or after a signal. If the
// user's interrupt does not end the code, the status is that of the interrupt, no matter whether
// the agent's grace period or a second interrupt ends the sandbox.
func await(p *interactive.Program, limit time.Duration, signals <-chan os.Signal) (int, error) {
	// The time limit is that of the code.
	begun, over := p.Begun(), time.NewTimer(limit)
	over.Stop()
	defer over.Stop()
	var kill <-chan time.Time
	timedOut, interrupted := false, false
	for {
		select {
		case <-p.Ended():
			status, err := p.Wait()
			if interrupted && status == 128+int(syscall.SIGKILL) {
				status = 128 + int(syscall.SIGINT)
			}
			if err == nil && timedOut {
				err = command.End(command.TooLong, fmt.Sprintf("the code was stopped: it ran longer than %v s", limit.Seconds()), "give it more with --timeout SECONDS")
			}
			return status, err
		case <-begun:
			over.Reset(limit)
			begun = nil
		case <-over.C:
			timedOut = true
			p.Interrupt()
			kill = time.After(endCodeWithin)
		case <-kill:
			p.Kill()
		case sig := <-signals:
			switch {
			case sig == syscall.SIGPIPE:
			case sig == syscall.SIGINT && kill == nil:
				p.Interrupt()
				interrupted, kill = true, time.After(endCodeWithin)
			default:
				p.Kill()
				_, err := p.Wait()
				return 128 + int(sig.(syscall.Signal)), err
			}
		}
	}
}

// readCode reads the file of this name, or in if the name is "-".
func readCode(name string, in io.Reader) ([]byte, error) {
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, unreadable(err)
		}
		defer file.Close()
		in = file
	}
	code, err := io.ReadAll(io.LimitReader(in, interactive.MaxCode+1))
	if err != nil {
		return nil, unreadable(err)
	}
	return code, nil
}

// unreadable returns the error for code that cannot be read.
func unreadable(err error) error {
	return &config.Error{Problem: fmt.Sprintf("the code cannot be read: %v", err), Hint: "name a file with code, pass the code with -c CODE, or pipe it in"}
}

// feed copies in to the program's standard input until either ends.
func feed(p *interactive.Program, in io.Reader) {
	buf := make([]byte, chunk)
	for {
		n, err := in.Read(buf)
		if p.Type(buf[:n]) != nil {
			return
		}
		if errors.Is(err, io.EOF) {
			_ = p.CloseInput()
		}
		if err != nil {
			return
		}
	}
}
