package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/interactive"
)

// maxLog is what is kept of a sandbox's log while a shell runs, in bytes.
const maxLog = 4 << 10

func shellCommand() command {
	return command{
		name:    "shell",
		args:    "ENV",
		first:   environments,
		summary: "open a terminal in a sandbox: see what the model sees",
		details: `The sandbox is a new one, with the environment's limits and no time limit; it
ends with the shell. Keys go to it, Ctrl-C and Ctrl-Z too.
`,
		define: func(flags *flag.FlagSet) runner {
			var project string
			var interpreter bool
			flags.StringVar(&project, "project", "", "show the folder `DIR`, read-only")
			flags.BoolVar(&interpreter, "interpreter", false, "open the environment's interpreter, not a shell")
			return func(streams streams, args []string) (int, error) {
				switch {
				case len(args) == 0:
					return 0, &misuse{"no environment was named", "see which there are: " + program + " list"}
				case len(args) > 1:
					return 0, &misuse{fmt.Sprintf("unknown argument %q", args[1]), "see " + program + " shell --help"}
				case !isTerminal(streams.in) || !isTerminal(streams.out):
					return 0, &misuse{"shell needs a terminal", "run code without one: " + program + " run " + args[0]}
				}
				env, err := choose(args[0], project)
				if err != nil {
					return 0, err
				}
				return openShell(env, streams.in.(*os.File), streams.out.(*os.File), streams.err, interpreter)
			}
		},
	}
}

// openShell connects a terminal to a shell in a sandbox until one of them
// ends.
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
	var logged tail
	spec.Stdout, spec.Stderr = screen, &logged

	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGPIPE, syscall.SIGTSTP, syscall.SIGCONT, syscall.SIGWINCH)
	defer signal.Stop(signals)
	terminal, err := makeRaw(in)
	if err != nil {
		return 0, err
	}
	// On every way out, before anything is said.
	defer terminal.restore(screen)
	p, err := interactive.Start(spec)
	if err != nil {
		return 0, err
	}
	gone := make(chan struct{})
	go func() { // ends with the program: a read of a terminal cannot be ended
		feed(p, in)
		close(gone)
	}()
	status, err := follow(p, terminal, out, screen, signals, gone)
	terminal.restore(screen)
	if text := strings.TrimSpace(logged.String()); text != "" {
		fmt.Fprintln(visible(log), text)
	}
	return status, err
}

// follow waits for the end of a shell and passes on what happens to its
// terminal.
func follow(p *interactive.Program, terminal *raw, out *os.File, screen *screen, signals <-chan os.Signal, gone <-chan struct{}) (int, error) {
	resized := make(chan struct{}, 1)
	defer close(resized)
	go func() {
		// A storm of changes is one change: the size is asked for when the
		// last one has been told.
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
		case <-gone:
			p.Kill()
			_, err := p.Wait()
			return 128 + int(syscall.SIGHUP), err
		case sig := <-signals:
			switch sig {
			case syscall.SIGPIPE:
			case syscall.SIGWINCH:
				resize()
			case syscall.SIGTSTP:
				// Not a key, which the shell gets, but from elsewhere.
				terminal.restore(screen)
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

// validTerm is what the type of a terminal may be.
var validTerm = regexp.MustCompile(`^[A-Za-z0-9._+-]{1,64}$`)

// sizeOf is the size of a terminal, or the usual one where it has none.
func sizeOf(file *os.File) frame.Terminal {
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Row == 0 || size.Col == 0 {
		return frame.Terminal{Rows: 24, Columns: 80}
	}
	return frame.Terminal{Rows: size.Row, Columns: size.Col}
}

// raw is a terminal whose keys arrive as they are typed.
type raw struct {
	fd             int
	before, during unix.Termios
}

// makeRaw makes a terminal raw, as cfmakeraw(3) does.
func makeRaw(file *os.File) (*raw, error) {
	fd := int(file.Fd())
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("look at the terminal: %w", err)
	}
	r := &raw{fd: fd, before: *before, during: *before}
	r.during.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	r.during.Oflag &^= unix.OPOST
	r.during.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	r.during.Cflag &^= unix.CSIZE | unix.PARENB
	r.during.Cflag |= unix.CS8
	r.during.Cc[unix.VMIN], r.during.Cc[unix.VTIME] = 1, 0
	return r, r.again()
}

// again makes it raw once more.
func (r *raw) again() error {
	if err := unix.IoctlSetTermios(r.fd, unix.TCSETSW, &r.during); err != nil {
		return fmt.Errorf("prepare the terminal: %w", err)
	}
	return nil
}

// restore makes the terminal what it was. What was typed or answered and not
// yet read is dropped: it was not meant for the program that reads next.
func (r *raw) restore(screen *screen) {
	screen.leave()
	_ = unix.IoctlSetTermios(r.fd, unix.TCSETSF, &r.before)
}

// tail keeps the beginning of a log.
type tail struct{ bytes.Buffer }

func (t *tail) Write(data []byte) (int, error) {
	t.Buffer.Write(data[:min(len(data), max(0, maxLog-t.Len()))])
	return len(data), nil
}
