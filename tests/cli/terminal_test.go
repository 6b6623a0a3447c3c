package cli

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// At a terminal, the program without arguments says what to do next.
func TestProgram_WithoutArguments(t *testing.T) {
	u := startOnTerminal(t, 40, 200, command(t))
	if status := u.awaitExit(); status != 0 {
		t.Errorf("status %d", status)
	}
	u.sees("nix-sandbox-mcp " + undertest.Version(t))
	u.sees(": sandboxes for a language model, over MCP\n")
	u.sees("  client-config Print or install what")
	u.sees(fmt.Sprintf("Next: list the environments, and configure your client:\n\n  %[1]s list\n  %[1]s client-config claude-code --install", undertest.Server(t)))
}

// The list fits the terminal.
func TestList_FitsTerminal(t *testing.T) {
	cmd := command(t, "list")
	folder := filepath.Join(t.TempDir(), "own")
	must.Do(t, os.MkdirAll(filepath.Join(folder, "mine"), 0o755))
	must.Do(t, os.WriteFile(filepath.Join(folder, "mine", "metadata.json"), []byte(`{"schema":1,"name":"mine","backend":"jail","interpreter_type":"a\u001b[31mjail"}`), 0o644))
	cmd.Env = append(cmd.Env, "NIX_SANDBOX_DIR="+folder)
	u := startOnTerminal(t, 24, 60, cmd)
	u.awaitExit()
	u.sees("\nmine ")
	lines := strings.Split(u.display.String(), "\n")
	if len(lines) != 5 {
		t.Fatalf("the screen is\n%s", u.display)
	}
	for i, name := range []string{"NAME", "bash", "node", "python", "mine"} {
		if !strings.HasPrefix(lines[i], name+" ") || len([]rune(lines[i])) > 60 {
			t.Errorf("line %d is %q", i, lines[i])
		}
	}
	if !strings.HasPrefix(lines[1][8:], "ready") || !strings.HasPrefix(lines[4][8:], "failed") || !strings.HasSuffix(lines[1], "…") {
		t.Errorf("the screen is\n%s", u.display)
	}
}

// A reader that closes its pipe ends the code.
func TestRun_EndsWithItsReader(t *testing.T) {
	cmd := command(t, "run", "bash", "-c", "yes")
	out := must.Get(cmd.StdoutPipe())(t)
	must.Do(t, cmd.Start())
	if _, err := io.ReadFull(out, make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	sandbox := procfs.Descendants(cmd.Process.Pid)
	out.Close()
	_ = cmd.Wait()
	if status := cmd.ProcessState.ExitCode(); status != 128+int(syscall.SIGPIPE) {
		t.Errorf("status %d, want that of SIGPIPE", status)
	}
	patience.Gone(t, sandbox...)
}

// Ctrl-C and control sequences of code that runs at a terminal.
func TestRun_OnTerminal(t *testing.T) {
	// Ctrl-C reaches the code, which may clean up.
	u := startOnTerminal(t, 24, 80, command(t, "run", "python", "-c", `
import time
try:
    print('begun', flush=True)
    time.sleep(1000)
except KeyboardInterrupt:
    print('cleaned up')
    raise SystemExit(9)
`))
	u.sees("begun")
	sandbox := u.sandbox()
	u.types("\x03")
	if status := u.awaitExit(); status != 9 {
		t.Errorf("status %d", status)
	}
	u.sees("^Ccleaned up")
	patience.Gone(t, sandbox...)

	// A second Ctrl-C ends code that ignores the first, and so does the end of the
	// grace period: which comes first does not show.
	for _, again := range []string{"\x03", ""} {
		u = startOnTerminal(t, 24, 80, command(t, "run", "bash", "-c", "trap '' INT; echo begun; while :; do sleep 1; done"))
		u.sees("begun")
		sandbox = u.sandbox()
		u.types("\x03")
		u.sees("begun\n^C")
		if again != "" {
			u.types(again)
		}
		if status := u.awaitExit(); status != 130 {
			t.Errorf("status %d", status)
		}
		patience.Gone(t, sandbox...)
	}

	// Colours pass. Sequences that make the terminal send input or overwrite
	// older output are shown.
	u = startOnTerminal(t, 24, 80, command(t, "run", "bash", "-c", `printf '\033[31mred\033[0m \033[c\033]0;title\007\033[2J\033[?1049h\xc2\x9bH ok\n'`))
	u.awaitExit()
	u.shows(`red ^[[c^[]0;title^[[2J^[[?1049h<U+009B>H ok`)

	u = startOnTerminal(t, 24, 80, command(t, "run", "bash"))
	if status := u.awaitExit(); status != 2 {
		t.Errorf("status %d", status)
	}
	u.sees("nix-sandbox-mcp: error: no code was given\nnix-sandbox-mcp: hint: name a file, use -c CODE, or pipe the code in")
}

// Each shell completes commands, options and the names of environments.
func TestCompletion_OfEachShell(t *testing.T) {
	lines := map[string]string{
		"nix-sandbox-mcp sh":              "shell",
		"nix-sandbox-mcp run py":          "python",
		"nix-sandbox-mcp run bash --time": "--timeout",
		"nix-sandbox-mcp client-config v": "vscode",
		"nix-sandbox-mcp --ver":           "--version",
	}
	bin := t.TempDir()
	must.Do(t, os.Symlink(undertest.Server(t), filepath.Join(bin, "nix-sandbox-mcp")))
	variables := append(command(t).Env, "PATH="+bin+":"+os.Getenv("PATH"), "PS1=prompt> ")
	for shell, start := range map[string]struct {
		args  []string
		setUp string
	}{
		"bash":                  {[]string{"--norc", "-i"}, "source <(nix-sandbox-mcp completion bash)"},
		"bash with its package": {[]string{"--norc", "-i"}, "source /usr/share/bash-completion/bash_completion; source <(nix-sandbox-mcp completion bash)"},
		"zsh":                   {[]string{"-f", "-i"}, "autoload -U compinit; compinit -D -u; source <(nix-sandbox-mcp completion zsh)"},
	} {
		t.Run(shell, func(t *testing.T) {
			name, _, withPackage := strings.Cut(shell, " ")
			path, err := exec.LookPath(name)
			if err != nil {
				t.Skipf("there is no %s", name)
			}
			if withPackage {
				if _, err := os.Stat("/usr/share/bash-completion/bash_completion"); err != nil {
					t.Skip(err)
				}
			}
			cmd := exec.Command(path, start.args...)
			cmd.Env = variables
			u := startOnTerminal(t, 24, 100, cmd)
			u.types(start.setUp + "\r")
			for line, want := range lines {
				u.types("\x15clear\r")
				u.shows("prompt>")
				u.types(line + "\t")
				u.sees("prompt> " + line[:strings.LastIndexByte(line, ' ')+1] + want)
			}
		})
	}
	t.Run("fish", func(t *testing.T) {
		path, err := exec.LookPath("fish")
		if err != nil {
			t.Skip("there is no fish")
		}
		for line, want := range lines {
			cmd := exec.Command(path, "-c", `nix-sandbox-mcp completion fish | source; complete -C $argv[1] | string split -f 1 \t`, line)
			cmd.Env = variables
			// string(1) of fish fails where there is no description to cut off.
			if out, _ := cmd.CombinedOutput(); string(out) != want+"\n" {
				t.Errorf("%s: %q, want %s", line, out, want)
			}
		}
	})
}
