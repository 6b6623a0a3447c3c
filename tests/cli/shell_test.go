package cli

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
)

// shell opens one and waits for its prompt.
func shell(t *testing.T, rows, columns int, args ...string) *person {
	t.Helper()
	p := sit(t, rows, columns, command(t, append([]string{"shell"}, args...)...))
	p.sees(`sandbox:/workspace$`)
	return p
}

// mess makes a mess of the terminal, as a full-screen program that is then
// killed does.
const mess = `printf '\033[?1049h\033[?1000;1006h\033[?25l\033[?1h\033=\033[31;1mmess'; echo made; stty -echo raw` + "\r"

func TestShell(t *testing.T) {
	p := shell(t, 24, 80, "bash")
	p.types("echo $((6*7)) $TERM; tty; pwd\r")
	p.sees("42 xterm-256color\n/dev/pts/0\n/workspace\n")
	p.types("stty size\r")
	p.sees("24 80\n")
	p.types("exit 7\r")
	if status := p.leaves(); status != 7 {
		t.Errorf("status %d", status)
	}
}

// What a person sees from within is what the model's code would.
func TestShellIsASandbox(t *testing.T) {
	p := shell(t, 24, 80, "bash")
	p.types("ls /home /root; id -u; ls /proc/self/fd | wc -l; ls /dev/pts\r")
	p.sees("cannot access '/home'")
	p.sees("1000\n4\n0  ptmx\n")
	// Typing into the terminal, also one's own, is refused.
	p.types(`exit` + "\r")
	p.leaves()

	p = sit(t, 24, 80, command(t, "shell", "python", "--interpreter"))
	p.sees("\n>>>")
	p.types("import fcntl\r")
	p.types("try: fcntl.ioctl(0, 0x5412, b'x')\rexcept OSError as e: print('refused', e.errno)\r\r")
	p.sees("refused 1\n")
	p.types("\x04")
	if status := p.leaves(); status != 0 {
		t.Errorf("status %d", status)
	}
}

func TestShellProject(t *testing.T) {
	project := t.TempDir()
	if err := os.WriteFile(project+"/file", []byte("of the project\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	p := shell(t, 24, 80, "bash", "--project", project)
	p.types("cat /project/file; touch /project/new\r")
	p.sees("of the project\n")
	p.sees("Read-only file system")
	p.types("exit\r")
	p.leaves()
}

func TestShellJobControl(t *testing.T) {
	p := shell(t, 24, 80, "bash")
	p.types("sleep 1000\r")
	time.Sleep(200 * time.Millisecond)
	p.types("\x1a")
	p.sees("[1]+  Stopped")
	p.types("jobs; fg\r")
	// What jobs lists, whose width differs between versions of bash, then what fg does.
	p.sees("sleep 1000\nsleep 1000")
	p.types("\x03")
	p.sees("^C\nsandbox:/workspace$")
	p.types("echo $?\r")
	p.sees("130\n")
	p.types("exit\r")
	if status := p.leaves(); status != 0 {
		t.Errorf("status %d", status)
	}
}

// editor is a full-screen program: it draws a frame as large as the terminal,
// shows keys as they come, and draws anew when the size changes.
const editor = `
import os, signal, sys, termios, tty
was = termios.tcgetattr(0)
tty.setraw(0)
typed = ''
def draw(*_):
    # A signal may come in the middle of drawing for the one before.
    drawn = None
    while drawn != os.get_terminal_size():
        columns, rows = drawn = os.get_terminal_size()
        lines = ['+' + '-' * (columns - 2) + '+'] + ['|' + ' ' * (columns - 2) + '|'] * (rows - 2) + ['+' + '-' * (columns - 2) + '+']
        text = '\x1b[H\x1b[2J' + '\r\n'.join(lines) + '\x1b[2;3H%dx%d' % (rows, columns) + '\x1b[3;3H' + typed
        os.write(1, text.encode())
signal.signal(signal.SIGWINCH, draw)
os.write(1, b'\x1b[?1049h\x1b[?25l')
draw()
while not typed.endswith(':q'):
    typed += os.read(0, 1).decode()
    draw()
os.write(1, b'\x1b[?25h\x1b[?1049l')
termios.tcsetattr(0, termios.TCSADRAIN, was)
`

// framed is what the editor draws.
func framed(rows, columns int, typed string) string {
	line := func(text string) string { return "|" + text + strings.Repeat(" ", columns-2-len(text)) + "|" }
	edge := "+" + strings.Repeat("-", columns-2) + "+"
	lines := []string{edge, line(fmt.Sprintf(" %dx%d", rows, columns)), line(" " + typed)}
	for len(lines) < rows-1 {
		lines = append(lines, line(""))
	}
	return strings.Join(append(lines, edge), "\n")
}

func TestShellFullScreen(t *testing.T) {
	project := t.TempDir()
	if err := os.WriteFile(project+"/editor.py", []byte(editor), 0o644); err != nil {
		t.Fatal(err)
	}
	p := shell(t, 24, 80, "python", "--project", project)
	p.types("python3 /project/editor.py\r")
	p.shows(framed(24, 80, ""))
	p.types("words")
	p.shows(framed(24, 80, "words"))
	p.resize(10, 40)
	p.shows(framed(10, 40, "words"))
	p.resize(40, 132)
	p.shows(framed(40, 132, "words"))
	// A window that is dragged.
	for i := range 200 {
		p.resize(10+i%20, 30+i%50)
	}
	p.resize(12, 44)
	p.shows(framed(12, 44, "words"))
	p.types(":q")
	p.sees("sandbox:/workspace$ ")
	p.types("exit\r")
	if status := p.leaves(); status != 0 {
		t.Errorf("status %d", status)
	}
}

// Each way in which a shell can end leaves the terminal as it was, and nothing
// behind. It is in a mess when the end comes, but where the shell has to live.
func TestShellEnds(t *testing.T) {
	for name, test := range map[string]struct {
		clean  bool // there is no mess
		end    func(p *person, sandbox []int)
		status int
		says   string
	}{
		"exit":          {true, func(p *person, _ []int) { p.types("exit 3\r") }, 3, ""},
		"Ctrl-D":        {true, func(p *person, _ []int) { p.types("\x04") }, 0, ""},
		"exec":          {true, func(p *person, _ []int) { p.types("exec false\r") }, 1, ""},
		"crash":         {true, func(p *person, _ []int) { p.types("kill -SEGV $$\r") }, 139, ""},
		"mess and exit": {true, func(p *person, _ []int) { p.types(strings.ReplaceAll(mess, "\r", "; exit 5\r")) }, 5, ""},
		"background":    {true, func(p *person, _ []int) { p.types("sleep 1000 & disown; exit 4\r") }, 4, ""},
		"memory": {true, func(p *person, _ []int) {
			p.types("head -c 400M /dev/zero > a; head -c 400M /dev/zero > /tmp/a; x=$(yes | head -c 700M); exit\r")
		}, 137, "stopped: used more than 512 MB of memory"},
		"SIGTERM":        {false, func(p *person, _ []int) { p.cmd.Process.Signal(syscall.SIGTERM) }, 143, ""},
		"SIGINT":         {false, func(p *person, _ []int) { p.cmd.Process.Signal(syscall.SIGINT) }, 130, ""},
		"SIGHUP":         {false, func(p *person, _ []int) { p.cmd.Process.Signal(syscall.SIGHUP) }, 129, ""},
		"SIGQUIT":        {false, func(p *person, _ []int) { p.cmd.Process.Signal(syscall.SIGQUIT) }, 131, ""},
		"killed jail":    {false, func(_ *person, sandbox []int) { unix.Kill(sandbox[0], unix.SIGKILL) }, 137, ""},
		"killed agent":   {false, func(_ *person, sandbox []int) { unix.Kill(sandbox[1], unix.SIGKILL) }, 137, ""},
		"killed program": {false, func(_ *person, sandbox []int) { unix.Kill(sandbox[2], unix.SIGKILL) }, 137, ""},
		"resize storm": {false, func(p *person, _ []int) {
			for i := range 300 {
				p.resize(10+i%30, 20+i%100)
			}
			p.cmd.Process.Signal(syscall.SIGTERM)
		}, 143, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := shell(t, 24, 80, "bash")
			sandbox := p.sandbox()
			if !test.clean {
				p.types(mess)
				p.sees("messmade")
			}
			test.end(p, sandbox)
			if status := p.leaves(); status != test.status {
				t.Errorf("status %d, want %d", status, test.status)
			}
			p.sees(test.says)
			mcptest.Gone(t, 5*time.Second, sandbox)
		})
	}
}

// A terminal that is gone, as when its window is closed, ends the shell.
func TestShellClosedTerminal(t *testing.T) {
	p := shell(t, 24, 80, "bash")
	sandbox := p.sandbox()
	p.close()
	select {
	case <-p.ended:
	case <-time.After(patience):
		t.Fatal("the program does not end")
	}
	mcptest.Gone(t, 5*time.Second, sandbox)
}

// Stopped from elsewhere, it lends the terminal back, and goes on where it was.
func TestShellStopped(t *testing.T) {
	p := shell(t, 24, 80, "bash")
	during := p.termios()
	p.cmd.Process.Signal(syscall.SIGTSTP)
	mcptest.Eventually(t, patience, func() string { return "the terminal is not lent back" }, func() bool { return p.termios() == p.before })
	p.cmd.Process.Signal(syscall.SIGCONT)
	mcptest.Eventually(t, patience, func() string { return "the terminal is not taken again" }, func() bool { return p.termios() == during })
	p.types("echo $((40+2))\r")
	p.sees("42\n")
	p.types("exit\r")
	if status := p.leaves(); status != 0 {
		t.Errorf("status %d", status)
	}
}

// What the terminal answers to a question of a program that has ended is not
// typed into the next one.
func TestShellDropsLateAnswers(t *testing.T) {
	p := shell(t, 24, 80, "bash")
	p.types("sleep 0.3; exit\r")
	time.Sleep(100 * time.Millisecond)
	p.types("rm -rf important")
	p.leaves()
	n, err := unix.IoctlGetInt(int(p.terminal.Fd()), unix.TIOCINQ)
	if err != nil || n != 0 {
		t.Errorf("%d bytes wait for the next program, %v", n, err)
	}
}

func TestShellNeedsATerminal(t *testing.T) {
	out, err := command(t, "shell", "bash").CombinedOutput()
	if err == nil || string(out) != "nix-sandbox-mcp: error: shell needs a terminal\nnix-sandbox-mcp: hint: run code without one: nix-sandbox-mcp run bash\n" {
		t.Errorf("%v, %s", err, out)
	}
}
