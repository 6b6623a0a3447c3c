// Package terminal connects a user's terminal to programs in sandboxes, which change the terminal only
// while they run.
package terminal

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/lazyregexp"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// Program is a program with a terminal of its own in a sandbox.
type Program interface {
	// Type sends input to it, and CloseInput ends that.
	Type(data []byte) error
	CloseInput() error
	Resize(frame.Terminal) error
	Kill()
	Ended() <-chan struct{}
	// Wait waits for its end, and returns its exit status.
	Wait() (int, error)
}

// Connect connects a terminal to a program until either ends. It calls end, which start
// returns, when the program has ended.
func Connect(in, out *os.File, log io.Writer, start func(size frame.Terminal, screen *Screen) (p Program, end func(), err error)) (int, error) {
	size := Size(out)
	if size.Term = os.Getenv("TERM"); !validTerm.MatchString(size.Term) {
		size.Term = "dumb"
	}
	screen := &Screen{w: out}
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
			fmt.Fprintln(Visible(log), text)
		}
	}
	return status, err
}

// follow waits for the end of a shell. Meanwhile it passes on signals and the size of the
// terminal.
func follow(p Program, terminal *rawTerminal, out *os.File, screen *Screen, signals <-chan os.Signal, keys *keyboard) (int, error) {
	resized := make(chan struct{}, 1)
	defer close(resized)
	go func() {
		// Many changes in a row become one, because the size is read only when the last one has
		// been sent.
		for range resized {
			if p.Resize(Size(out)) != nil {
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
