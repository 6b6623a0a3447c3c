package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// openShell starts the command shell at a terminal and waits for its prompt.
func openShell(t *testing.T, rows, columns int, args ...string) *user {
	t.Helper()
	u := startOnTerminal(t, rows, columns, command(t, append([]string{"shell"}, args...)...))
	u.sees(`sandbox:/workspace$`)
	return u
}

// mess is input that leaves the terminal's modes changed, as a full-screen
// program does that is killed.
const mess = `printf '\033[4;20h\033[2;20r\033[>1u\033[>4;2m\033[5 q\033]10;red\a\033]11;red\a\033]4;1;red\a';` +
	`printf '\033[?1049h\033[?1000;1006h\033[?25l\033[?1h\033=\033[31;1mmess'; echo made; stty -echo raw` + "\r"

func TestShell_RunsCommands(t *testing.T) {
	u := openShell(t, 24, 80, "bash")
	u.types("echo $((6*7)) $TERM; tty; pwd\r")
	u.sees("42 xterm-256color\n/dev/pts/0\n/workspace\n")
	u.types("stty size\r")
	u.sees("24 80\n")
	u.types("exit 7\r")
	if status := u.awaitExit(); status != 7 {
		t.Errorf("status %d", status)
	}
}

// The user sees in a shell what the model's code would see.
func TestShell_IsASandbox(t *testing.T) {
	u := openShell(t, 24, 80, "bash")
	u.types("ls /home /root; id -u; ls /proc/self/fd | wc -l; ls /dev/pts\r")
	u.sees("cannot access '/home'")
	u.sees("1000\n4\n0  ptmx\n")
	u.types("exit\r")
	u.awaitExit()

	// TIOCSTI, which types into a terminal, is refused on one's own terminal too.
	u = startOnTerminal(t, 24, 80, command(t, "shell", "python", "--interpreter"))
	u.sees("\n>>>")
	u.types("import fcntl\r")
	u.types("try: fcntl.ioctl(0, 0x5412, b'x')\rexcept OSError as e: print('refused', e.errno)\r\r")
	u.sees("refused 1\n")
	u.types("\x04")
	if status := u.awaitExit(); status != 0 {
		t.Errorf("status %d", status)
	}
}

func TestShell_ShowsTheProject(t *testing.T) {
	project := t.TempDir()
	must.Do(t, os.WriteFile(project+"/file", []byte("of the project\n"), 0o644))
	u := openShell(t, 24, 80, "bash", "--project", project)
	u.types("cat /project/file; touch /project/new\r")
	u.sees("of the project\n")
	u.sees("Read-only file system")
	u.types("exit\r")
	u.awaitExit()
}

func TestShell_HasJobControl(t *testing.T) {
	u := openShell(t, 24, 80, "bash")
	u.types("sleep 1000\r")
	u.awaitProgram("sleep")
	u.types("\x1a")
	u.sees("[1]+  Stopped")
	u.types("jobs; fg\r")
	// jobs pads its line as wide as this version of bash does; fg prints the command.
	u.sees("sleep 1000\nsleep 1000")
	u.types("\x03")
	u.sees("^C\nsandbox:/workspace$")
	u.types("echo $?\r")
	u.sees("130\n")
	u.types("exit\r")
	if status := u.awaitExit(); status != 0 {
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

func TestShell_DrawsFullScreen(t *testing.T) {
	project := t.TempDir()
	must.Do(t, os.WriteFile(project+"/editor.py", []byte(editor), 0o644))
	u := openShell(t, 24, 80, "python", "--project", project)
	u.types("python3 /project/editor.py\r")
	u.shows(framed(24, 80, ""))
	u.types("words")
	u.shows(framed(24, 80, "words"))
	u.resize(10, 40)
	u.shows(framed(10, 40, "words"))
	u.resize(40, 132)
	u.shows(framed(40, 132, "words"))
	// A window that is dragged.
	for i := range 200 {
		u.resize(10+i%20, 30+i%50)
	}
	u.resize(12, 44)
	u.shows(framed(12, 44, "words"))
	u.types(":q")
	u.sees("sandbox:/workspace$ ")
	u.types("exit\r")
	if status := u.awaitExit(); status != 0 {
		t.Errorf("status %d", status)
	}
}

// Each way in which a shell can end leaves the terminal as it was, and nothing
// behind. It is in a mess when the end comes, but where the shell has to live.
func TestShell_RestoresTheTerminal(t *testing.T) {
	for name, test := range map[string]struct {
		clean  bool // there is no mess
		end    func(u *user, sandbox []int)
		status int
		says   string
	}{
		"exit":          {true, func(u *user, _ []int) { u.types("exit 3\r") }, 3, ""},
		"Ctrl-D":        {true, func(u *user, _ []int) { u.types("\x04") }, 0, ""},
		"exec":          {true, func(u *user, _ []int) { u.types("exec false\r") }, 1, ""},
		"crash":         {true, func(u *user, _ []int) { u.types("kill -SEGV $$\r") }, 139, ""},
		"mess and exit": {true, func(u *user, _ []int) { u.types(strings.ReplaceAll(mess, "\r", "; exit 5\r")) }, 5, ""},
		"background":    {true, func(u *user, _ []int) { u.types("sleep 1000 & disown; exit 4\r") }, 4, ""},
		"memory": {true, func(u *user, _ []int) {
			u.types("{ head -c 400M /dev/zero > a; head -c 400M /dev/zero > /tmp/a; } 2>&-; x=$(yes 2>&- | head -c 700M 2>&-); exit\r")
		}, 137, "used more than 512 MB of memory"},
		"SIGTERM":        {false, func(u *user, _ []int) { u.cmd.Process.Signal(syscall.SIGTERM) }, 143, ""},
		"SIGINT":         {false, func(u *user, _ []int) { u.cmd.Process.Signal(syscall.SIGINT) }, 130, ""},
		"SIGHUP":         {false, func(u *user, _ []int) { u.cmd.Process.Signal(syscall.SIGHUP) }, 129, ""},
		"SIGQUIT":        {false, func(u *user, _ []int) { u.cmd.Process.Signal(syscall.SIGQUIT) }, 131, ""},
		"killed jail":    {false, func(_ *user, sandbox []int) { unix.Kill(sandbox[0], unix.SIGKILL) }, 137, ""},
		"killed agent":   {false, func(_ *user, sandbox []int) { unix.Kill(sandbox[1], unix.SIGKILL) }, 137, ""},
		"killed program": {false, func(_ *user, sandbox []int) { unix.Kill(sandbox[2], unix.SIGKILL) }, 137, ""},
		"resize storm": {false, func(u *user, _ []int) {
			for i := range 300 {
				u.resize(10+i%30, 20+i%100)
			}
			u.cmd.Process.Signal(syscall.SIGTERM)
		}, 143, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := openShell(t, 24, 80, "bash")
			sandbox := u.sandbox()
			if !test.clean {
				u.types(mess)
				u.sees("messmade")
			}
			test.end(u, sandbox)
			if status := u.awaitExit(); status != test.status {
				t.Errorf("status %d, want %d", status, test.status)
			}
			u.sees(test.says)
			patience.Gone(t, sandbox...)
		})
	}
}

// A terminal that is gone, as when its window is closed, ends the shell.
func TestShell_EndsWithItsTerminal(t *testing.T) {
	u := openShell(t, 24, 80, "bash")
	sandbox := u.sandbox()
	u.close()
	select {
	case <-u.ended:
	case <-time.After(patience.Long):
		t.Fatal("the program does not end")
	}
	patience.Gone(t, sandbox...)
}

// Stopped from elsewhere, it lends the terminal back, and goes on where it was.
func TestShell_CanBeStopped(t *testing.T) {
	u := openShell(t, 24, 80, "bash")
	during := u.termios()
	u.cmd.Process.Signal(syscall.SIGTSTP)
	patience.Until(t, "the terminal is given back", func() bool { return u.termios() == u.before })
	u.cmd.Process.Signal(syscall.SIGCONT)
	patience.Until(t, "the terminal is taken again", func() bool { return u.termios() == during })
	u.types("echo $((40+2))\r")
	u.sees("42\n")
	u.types("exit\r")
	if status := u.awaitExit(); status != 0 {
		t.Errorf("status %d", status)
	}
}

// Input that the shell has not read when it ends, such as the terminal's answer
// to a query, does not reach the program that reads next.
func TestShell_DropsUnreadInput(t *testing.T) {
	u := openShell(t, 24, 80, "bash")
	u.types("sleep 0.5; exit\r")
	u.awaitProgram("sleep")
	u.types("rm -rf important")
	u.awaitExit()
	if n := u.unread(); n != 0 {
		t.Errorf("%d bytes wait for the next program", n)
	}
}

// Nor do answers of a terminal that is far away, which come when the shell has
// ended: not even where earlier answers look like those that are waited for.
func TestShell_DropsLateAnswers(t *testing.T) {
	for name, ask := range map[string]string{
		"title":            `printf '\033[21t'`,
		"many":             `for i in {1..100}; do printf '\033[21t\033[6n'; done`,
		"forged positions": `for i in {1..24}; do printf '\033[%d;7H\033[6n' $i; done; printf '\033[21t'`,
	} {
		t.Run(name, func(t *testing.T) {
			u := openShell(t, 24, 80, "bash")
			u.away = 300 * time.Millisecond
			u.types(ask + "; exit\r")
			u.awaitExit()
			time.Sleep(2 * u.away)
			if n := u.unread(); n != 0 {
				t.Errorf("%d bytes wait for the next program", n)
			}
		})
	}
}

// The shell has the variables that the operator passes on, and no others.
func TestShell_PassesVariables(t *testing.T) {
	server := undertest.Server(t)
	text := must.Get(os.ReadFile(filepath.Join(filepath.Dir(server), "..", "share", "nix-sandbox-mcp", "metadata.json")))(t)
	var metadata map[string]any
	must.Do(t, json.Unmarshal(text, &metadata))
	metadata["project"] = mcptest.Project(map[string]any{"inherit_env": map[string]any{"vars": []string{"TOKEN"}}})
	cmd := command(t, "shell", "bash")
	cmd.Env = append(cmd.Env, "NIX_SANDBOX_METADATA="+string(must.Get(json.Marshal(metadata))(t)), "TOKEN=a secret", "OTHER=hidden")
	u := startOnTerminal(t, 24, 80, cmd)
	u.sees("sandbox:/workspace$")
	u.types("echo \"$TOKEN ${OTHER-unset}\"; exit\r")
	u.awaitExit()
	u.sees("a secret unset\n")
}
