package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// command is the program with these arguments and a home of the test's.
func command(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	home := t.TempDir()
	cmd := exec.Command(undertest.Server(t), args...)
	cmd.Env = []string{"HOME=" + home, "TMPDIR=" + home, "NIX_SANDBOX_DIR=" + filepath.Join(home, "sandboxes"), "PATH=" + os.Getenv("PATH"), "TERM=xterm-256color"}
	return cmd
}

// user is at a terminal on which the program was started.
type user struct {
	t        testing.TB
	cmd      *exec.Cmd
	keys     *os.File // the user's end of the terminal
	terminal *os.File // the program's end
	display  *display
	before   unix.Termios
	ended    chan struct{}
	reading  chan struct{} // closed when readScreen has ended
	closed   chan struct{} // closed when the terminal is
	// away is how long the terminal's answers take to the program.
	away time.Duration
}

// startOnTerminal starts a program on a new terminal of this size.
func startOnTerminal(t testing.TB, rows, columns int, cmd *exec.Cmd) *user {
	t.Helper()
	keys, terminal, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	u := &user{t: t, cmd: cmd, keys: keys, terminal: terminal, display: newDisplay(rows, columns), ended: make(chan struct{}), reading: make(chan struct{}), closed: make(chan struct{})}
	u.resize(rows, columns)
	u.before = u.termios()
	u.display.answer = u.answers()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	must.Do(t, cmd.Start())
	go func() {
		_ = cmd.Wait()
		close(u.ended)
	}()
	go u.readScreen()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-u.ended
		u.close()
	})
	return u
}

// answers returns a function that sends an answer of the terminal to the
// program, in order and u.away later.
func (u *user) answers() func(string) {
	type answer struct {
		due  time.Time
		text string
	}
	queue := make(chan answer, 1<<10)
	go func() {
		for {
			select {
			case <-u.closed:
				return
			case next := <-queue:
				time.Sleep(time.Until(next.due))
				_, _ = io.WriteString(u.keys, next.text)
			}
		}
	}()
	return func(text string) { queue <- answer{time.Now().Add(u.away), text} }
}

// readScreen shows what the program writes on the display, until the user closes
// the terminal. A read of a terminal cannot be cancelled, so it reads only when
// there is something.
func (u *user) readScreen() {
	defer close(u.reading)
	buf := make([]byte, 64<<10)
	ready := []unix.PollFd{{Fd: int32(u.keys.Fd()), Events: unix.POLLIN}}
	for {
		select {
		case <-u.closed:
			return
		default:
		}
		if n, err := unix.Poll(ready, 50); err != nil && !errors.Is(err, unix.EINTR) || n <= 0 {
			continue
		}
		n, err := u.keys.Read(buf)
		if err != nil {
			return
		}
		_, _ = u.display.Write(buf[:n])
	}
}

// close closes the terminal, as closing its window does.
func (u *user) close() {
	select {
	case <-u.closed:
		return
	default:
	}
	close(u.closed)
	<-u.reading
	u.terminal.Close()
	u.keys.Close()
}

func (u *user) resize(rows, columns int) {
	u.t.Helper()
	u.display.resize(rows, columns)
	must.Do(u.t, pty.Setsize(u.keys, &pty.Winsize{Rows: uint16(rows), Cols: uint16(columns)}))
}

func (u *user) termios() unix.Termios {
	u.t.Helper()
	settings := must.Get(unix.IoctlGetTermios(int(u.terminal.Fd()), unix.TCGETS))(u.t)
	return *settings
}

// unread returns how many bytes of input wait for the next program, whether or
// not they end a line.
func (u *user) unread() int {
	u.t.Helper()
	if _, err := term.MakeRaw(int(u.terminal.Fd())); err != nil {
		u.t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(u.terminal.Fd()), unix.TIOCINQ)
	if err != nil {
		u.t.Fatal(err)
	}
	return n
}

// types presses keys.
func (u *user) types(keys string) {
	u.t.Helper()
	if _, err := io.WriteString(u.keys, keys); err != nil {
		u.t.Fatal(err)
	}
}

// sees waits until a text is on the screen.
func (u *user) sees(text string) {
	u.t.Helper()
	patience.Wait(u.t, patience.Long, func() string {
		return fmt.Sprintf("the screen does not show %q:\n%s", text, u.display)
	}, func() bool { return strings.Contains(u.display.String(), text) })
}

// shows waits until the screen has exactly this text.
func (u *user) shows(screen string) {
	u.t.Helper()
	patience.Wait(u.t, patience.Long, func() string {
		return fmt.Sprintf("the screen is\n%s\nand not\n%s", u.display, screen)
	}, func() bool { return u.display.String() == screen })
}

// awaitExit waits for the program's end, checks that the terminal is as it was,
// and returns the exit status: 128 + N after signal N.
func (u *user) awaitExit() int {
	u.t.Helper()
	select {
	case <-u.ended:
	case <-time.After(patience.Long):
		u.t.Fatalf("the program does not end:\n%s", u.display)
	}
	if after := u.termios(); after != u.before {
		u.t.Errorf("the terminal's settings are %+v; they were %+v", after, u.before)
	}
	// readScreen may not have read the last output yet.
	patience.Wait(u.t, patience.Long, func() string {
		return fmt.Sprintf("the terminal is left with %q", u.display.changed())
	}, func() bool { return len(u.display.changed()) == 0 })
	status := u.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// sandbox waits until the program has started a sandbox, and returns its
// processes.
func (u *user) sandbox() []int {
	u.t.Helper()
	var found []int
	patience.Until(u.t, "a sandbox runs", func() bool {
		found = procfs.Descendants(u.cmd.Process.Pid)
		return len(found) >= 3
	})
	slices.Sort(found)
	return found
}

// awaitProgram waits until a program of this name runs in the sandbox.
func (u *user) awaitProgram(name string) {
	u.t.Helper()
	patience.Until(u.t, name+" runs", func() bool {
		return slices.ContainsFunc(procfs.Descendants(u.cmd.Process.Pid), func(pid int) bool {
			p, err := procfs.Read(pid)
			return err == nil && p.Name() == name
		})
	})
}
