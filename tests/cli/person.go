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

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
)

// patience is what a busy machine may take to show something.
const patience = 8 * time.Second

// built is the server under test.
func built(t testing.TB) string {
	t.Helper()
	path := os.Getenv("NIX_SANDBOX_MCP_SERVER")
	if path == "" {
		t.Skip("NIX_SANDBOX_MCP_SERVER does not name a built server")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// command is the program with these arguments and a home of the test's.
func command(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	home := t.TempDir()
	cmd := exec.Command(built(t), args...)
	cmd.Env = []string{"HOME=" + home, "TMPDIR=" + home, "NIX_SANDBOX_DIR=" + filepath.Join(home, "sandboxes"), "PATH=" + os.Getenv("PATH"), "TERM=xterm-256color"}
	return cmd
}

// person sits at a terminal on which the program was started.
type person struct {
	t        testing.TB
	cmd      *exec.Cmd
	keys     *os.File // our end of the terminal
	terminal *os.File // the program's
	display  *display
	before   unix.Termios
	ended    chan struct{}
	looked   chan struct{} // closed when nobody looks at the screen any more
	away     chan struct{}
}

// sit starts a program on a new terminal of a size.
func sit(t testing.TB, rows, columns int, cmd *exec.Cmd) *person {
	t.Helper()
	keys, terminal, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	p := &person{t: t, cmd: cmd, keys: keys, terminal: terminal, display: newDisplay(rows, columns), ended: make(chan struct{}), looked: make(chan struct{}), away: make(chan struct{})}
	p.resize(rows, columns)
	p.before = p.termios()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = cmd.Wait()
		close(p.ended)
	}()
	go p.look()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-p.ended
		p.close()
	})
	return p
}

// look shows what is written. A read of a terminal cannot be ended, so that it
// reads only where there is something.
func (p *person) look() {
	defer close(p.looked)
	buf := make([]byte, 64<<10)
	ready := []unix.PollFd{{Fd: int32(p.keys.Fd()), Events: unix.POLLIN}}
	for {
		select {
		case <-p.away:
			return
		default:
		}
		if n, err := unix.Poll(ready, 50); err != nil && !errors.Is(err, unix.EINTR) || n <= 0 {
			continue
		}
		n, err := p.keys.Read(buf)
		if err != nil {
			return
		}
		_, _ = p.display.Write(buf[:n])
	}
}

// close closes the terminal's window.
func (p *person) close() {
	select {
	case <-p.away:
		return
	default:
	}
	close(p.away)
	<-p.looked
	p.terminal.Close()
	p.keys.Close()
}

func (p *person) resize(rows, columns int) {
	p.t.Helper()
	p.display.resize(rows, columns)
	if err := pty.Setsize(p.keys, &pty.Winsize{Rows: uint16(rows), Cols: uint16(columns)}); err != nil {
		p.t.Fatal(err)
	}
}

func (p *person) termios() unix.Termios {
	p.t.Helper()
	settings, err := unix.IoctlGetTermios(int(p.terminal.Fd()), unix.TCGETS)
	if err != nil {
		p.t.Fatal(err)
	}
	return *settings
}

// types presses keys.
func (p *person) types(keys string) {
	p.t.Helper()
	if _, err := io.WriteString(p.keys, keys); err != nil {
		p.t.Fatal(err)
	}
}

// sees waits until the screen shows a text.
func (p *person) sees(text string) {
	p.t.Helper()
	mcptest.Eventually(p.t, patience, func() string {
		return fmt.Sprintf("the screen does not show %q:\n%s", text, p.display)
	}, func() bool { return strings.Contains(p.display.String(), text) })
}

// shows waits until the screen is exactly this.
func (p *person) shows(screen string) {
	p.t.Helper()
	mcptest.Eventually(p.t, patience, func() string {
		return fmt.Sprintf("the screen is\n%s\nand not\n%s", p.display, screen)
	}, func() bool { return p.display.String() == screen })
}

// leaves waits for the program's end, checks that the terminal is as it was,
// and returns the exit status: 128 + N after signal N.
func (p *person) leaves() int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.t.Fatalf("the program does not end:\n%s", p.display)
	}
	if after := p.termios(); after != p.before {
		p.t.Errorf("the terminal's settings are %+v; they were %+v", after, p.before)
	}
	// What was written last may still be on its way to the screen.
	mcptest.Eventually(p.t, patience, func() string {
		modes, colours := p.display.changed()
		return fmt.Sprintf("the terminal is left with modes %v, colours %v", modes, colours)
	}, func() bool {
		modes, colours := p.display.changed()
		return len(modes) == 0 && !colours
	})
	status := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// sandbox returns the processes of what the program started, and waits until
// there are some.
func (p *person) sandbox() []int {
	p.t.Helper()
	var found []int
	mcptest.Eventually(p.t, patience, func() string { return "no sandbox runs" }, func() bool {
		found = mcptest.Descendants(p.cmd.Process.Pid)
		return len(found) >= 3
	})
	slices.Sort(found)
	return found
}
