package cli

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
)

// outcome is what a command did without a terminal.
type outcome struct {
	stdout, stderr string
	status         int
}

// do runs the program with an input.
func do(t testing.TB, input string, args ...string) outcome {
	t.Helper()
	return finish(t, command(t, args...), input)
}

func finish(t testing.TB, cmd *exec.Cmd, input string) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	var ended *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &ended) {
		t.Fatal(err)
	}
	return outcome{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// Without arguments a person reads what to do next, and a client is served.
func TestWithoutArguments(t *testing.T) {
	p := sit(t, 40, 120, command(t))
	if status := p.leaves(); status != 0 {
		t.Errorf("status %d", status)
	}
	server := built(t)
	p.sees("nix-sandbox-mcp 0.1.0")
	p.sees(": sandboxes for a language model, over MCP\n")
	p.sees(fmt.Sprintf("Next: list the environments, and configure your client:\n\n  %[1]s list\n  %[1]s client-config claude-code", server))

	const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}` + "\n"
	if got := do(t, ping); got.status != 0 || strings.TrimSpace(got.stdout) != `{"jsonrpc":"2.0","id":1,"result":{}}` {
		t.Errorf("%+v", got)
	}
}

// Every command has a help, and the help of the program names every one.
func TestHelp(t *testing.T) {
	all := do(t, "", "--help")
	if all.status != 0 || all.stderr != "" {
		t.Fatalf("%+v", all)
	}
	_, list, _ := strings.Cut(all.stdout, "\nAvailable Commands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	names := 0
	for line := range strings.Lines(list) {
		name := strings.Fields(line)[0]
		names++
		asked, helped := do(t, "", name, "--help"), do(t, "", "help", name)
		if asked != helped || !strings.Contains(asked.stdout, "\nUsage:\n  nix-sandbox-mcp "+name) || asked.status != 0 {
			t.Errorf("%s: %+v, %+v", name, asked, helped)
		}
		for line := range strings.Lines(asked.stdout) {
			if len([]rune(line)) > 101 {
				t.Errorf("%s: a line is too long for a terminal: %s", name, line)
			}
		}
	}
	if names < 6 {
		t.Errorf("%d commands in\n%s", names, all.stdout)
	}
}

func TestMistakes(t *testing.T) {
	for line, want := range map[string]string{
		"lst --jsn":              "unknown command \"lst\"\nhint: write nix-sandbox-mcp list, or see nix-sandbox-mcp --help",
		"list --jsn":             "unknown flag --jsn\nhint: write --json, or see nix-sandbox-mcp list --help",
		"list all":               "unknown argument \"all\"\nhint: see nix-sandbox-mcp list --help",
		"run":                    "no environment was named\nhint: see which there are: nix-sandbox-mcp list",
		"run bash a b":           "unknown argument \"b\"\nhint: see nix-sandbox-mcp run --help",
		"run bash -c":            "-c needs a value\nhint: see nix-sandbox-mcp run --help",
		"run bash --timeout -1":  "--timeout is -1\nhint: write seconds, up to 31536000",
		"run bash --timeout NaN": "--timeout is NaN\nhint: write seconds, up to 31536000",
		"shell":                  "no environment was named\nhint: see which there are: nix-sandbox-mcp list",
		"client-config emacs":    "unknown client \"emacs\"\nhint: write one of claude-code, claude-desktop, codex, cursor, vscode, zed",
		"completion tcsh":        "unknown command \"tcsh\"\nhint: write nix-sandbox-mcp completion bash, or see nix-sandbox-mcp completion --help",
		"--stdio --log-format x": "--log-format is \"x\"\nhint: write text or json",
	} {
		got := do(t, "", strings.Fields(line)...)
		problem, hint, _ := strings.Cut(want, "\n")
		if got.stderr != "nix-sandbox-mcp: error: "+problem+"\nnix-sandbox-mcp: "+hint+"\n" || got.stdout != "" || got.status != 2 {
			t.Errorf("%s: %+v", line, got)
		}
	}
	got := do(t, "", "run", "nope", "-c", "1")
	if got.status != 1 || got.stderr != "nix-sandbox-mcp: error: there is no environment \"nope\"\nnix-sandbox-mcp: hint: use one of bash, node, python\n" {
		t.Errorf("%+v", got)
	}
	for value, problem := range map[string]string{
		"/nowhere": "read metadata: open /nowhere: no such file or directory",
		"{":        "NIX_SANDBOX_METADATA: not valid JSON",
	} {
		cmd := command(t, "list")
		cmd.Env = append(cmd.Env, "NIX_SANDBOX_METADATA="+value)
		want := outcome{"", "nix-sandbox-mcp: error: " + problem + "\nnix-sandbox-mcp: hint: unset NIX_SANDBOX_METADATA to serve what the server was built with, or build the server again\n", 1}
		if got := finish(t, cmd, ""); got != want {
			t.Errorf("%+v", got)
		}
	}
}

func TestList(t *testing.T) {
	// A broken one beside those that the server was built with.
	cmd := command(t, "list")
	folder := filepath.Join(t.TempDir(), "own")
	if err := os.MkdirAll(filepath.Join(folder, "mine"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "mine", "metadata.json"), []byte(`{"schema":1,"name":"mine","backend":"a\u001b[31mjail"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(cmd.Env, "NIX_SANDBOX_DIR="+folder)

	p := sit(t, 24, 60, cmd)
	p.leaves()
	p.sees("\nmine ")
	lines := strings.Split(p.display.String(), "\n")
	if len(lines) != 5 {
		t.Fatalf("the screen is\n%s", p.display)
	}
	for i, name := range []string{"NAME", "bash", "node", "python", "mine"} {
		if !strings.HasPrefix(lines[i], name+" ") || len([]rune(lines[i])) > 60 {
			t.Errorf("line %d is %q", i, lines[i])
		}
	}
	if !strings.HasPrefix(lines[1][8:], "ready") || !strings.HasPrefix(lines[4][8:], "failed") || !strings.HasSuffix(lines[1], "…") {
		t.Errorf("the screen is\n%s", p.display)
	}

	// Elsewhere nothing is cut, and nothing is obeyed.
	plain := exec.Command(cmd.Path, "list")
	plain.Env = cmd.Env
	got := finish(t, plain, "")
	if got.status != 0 || strings.Contains(got.stdout, "…") || strings.Contains(got.stdout, "\x1b") ||
		!strings.Contains(got.stdout, "Bash with the usual text tools, jq, ripgrep and git\n") || !strings.Contains(got.stdout, "metadata.json: backend is") {
		t.Errorf("%+v", got)
	}

	var all []struct {
		Name, State, Reason string
		Bytes               int64 `json:"closure_bytes"`
		Memory              int64 `json:"memory_mb"`
	}
	asJSON := exec.Command(cmd.Path, "list", "--json")
	asJSON.Env = cmd.Env
	got = finish(t, asJSON, "")
	if err := json.Unmarshal([]byte(got.stdout), &all); err != nil || len(all) != 4 {
		t.Fatalf("%v, %+v", err, got)
	}
	if all[0].Name != "bash" || all[0].State != "ready" || all[0].Bytes < 1e6 || all[0].Memory != 512 || all[3].State != "failed" || all[3].Reason == "" {
		t.Errorf("%+v", all)
	}
	if got := do(t, "", "list", "--names"); got.stdout != "bash\nnode\npython\n" {
		t.Errorf("%+v", got)
	}
}

func TestRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "code.py")
	if err := os.WriteFile(file, []byte("import sys\nprint(sys.stdin.read().upper())\nsys.exit(4)\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	project := t.TempDir()
	if err := os.WriteFile(filepath.Join(project, "data"), []byte("of the project\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		input string
		args  []string
		want  outcome
	}{
		"-c":             {"", []string{"python", "-c", "print(6*7)"}, outcome{"42\n", "", 0}},
		"stdin":          {"print(6*7)", []string{"python"}, outcome{"42\n", "", 0}},
		"dash":           {"console.log(6*7)", []string{"node", "-"}, outcome{"42\n", "", 0}},
		"file and stdin": {"words", []string{"python", file}, outcome{"WORDS\n", "", 4}},
		"node's stdin":   {"words", []string{"node", "-c", "process.stdin.pipe(process.stdout); undefined"}, outcome{"words", "", 0}},
		"bash's stdin":   {"words", []string{"bash", "-c", "cat"}, outcome{"words", "", 0}},
		"both streams":   {"", []string{"bash", "-c", "echo out; echo err >&2; exit 3"}, outcome{"out\n", "err\n", 3}},
		"project":        {"", []string{"bash", "--project", project, "-c", "cat /project/data"}, outcome{"of the project\n", "", 0}},
		"options after":  {"", []string{"bash", "-c", "echo $0", "--timeout", "9"}, outcome{"bash\n", "", 0}},
		"killed":         {"", []string{"bash", "-c", "kill -9 $$"}, outcome{"", "", 137}},
		"memory": {"", []string{"python", "-c", "import time; words = b'x' * (700 << 20); time.sleep(60)"},
			outcome{"", "nix-sandbox-agent: stopped: used more than 512 MB of memory\n", 137}},
		"time": {"", []string{"bash", "--timeout", "0.5", "-c", "echo begun; sleep 60"},
			outcome{"begun\n", "nix-sandbox-mcp: error: the code was stopped: it ran longer than 0.5 s\nnix-sandbox-mcp: hint: give it more with --timeout SECONDS\n", 124}},
		"time, deaf": {"", []string{"bash", "--timeout", "0.5", "-c", "trap '' INT; while :; do sleep 0.1; done"},
			outcome{"", "nix-sandbox-mcp: error: the code was stopped: it ran longer than 0.5 s\nnix-sandbox-mcp: hint: give it more with --timeout SECONDS\n", 124}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := do(t, test.input, append([]string{"run"}, test.args...)...); got != test.want {
				t.Errorf("%+v, want %+v", got, test.want)
			}
		})
	}
}

// Bytes arrive as they are, and more of them than a model would be answered.
func TestRunBytes(t *testing.T) {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	if got := do(t, "", "run", "python", "-c", "import sys; _ = sys.stdout.buffer.write(bytes(range(256)))"); got.stdout != string(every) {
		t.Errorf("%+v", got)
	}
	const size = 64 << 20
	cmd := command(t, "run", "bash", "-c", "cat")
	sum := sha256.New()
	cmd.Stdin, cmd.Stdout = io.LimitReader(endless{}, size), sum
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	want := sha256.New()
	_, _ = io.Copy(want, io.LimitReader(endless{}, size))
	if !bytes.Equal(sum.Sum(nil), want.Sum(nil)) {
		t.Errorf("%d bytes went in, and others came out", size)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// Output is seen while the code runs, and a reader that leaves ends it.
func TestRunStreams(t *testing.T) {
	cmd := command(t, "run", "bash", "-c", "echo first; sleep 1000")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 6)
	if _, err := io.ReadFull(out, line); err != nil || string(line) != "first\n" {
		t.Errorf("%q, %v", line, err)
	}
	cmd.Process.Signal(syscall.SIGTERM)
	cmd.Wait()
	if status := cmd.ProcessState.ExitCode(); status != 143 {
		t.Errorf("status %d", status)
	}

	cmd = command(t, "run", "bash", "-c", "yes")
	if out, err = cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, line); err != nil {
		t.Fatal(err)
	}
	sandbox := mcptest.Descendants(cmd.Process.Pid)
	out.Close()
	cmd.Wait()
	if status := cmd.ProcessState.ExitCode(); status != 141 {
		t.Errorf("status %d, want that of SIGPIPE", status)
	}
	mcptest.Gone(t, 5*time.Second, sandbox)
}

// What the code printed and nobody has is an error.
func TestRunOntoAFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	cmd := command(t, "run", "bash", "-c", "echo hi")
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = full, &stderr
	_ = cmd.Run()
	if status := cmd.ProcessState.ExitCode(); status != 1 || !strings.HasPrefix(stderr.String(), "nix-sandbox-mcp: error: not all that the code printed could be written: ") {
		t.Errorf("status %d: %s", status, stderr.String())
	}
}

func TestRunOnATerminal(t *testing.T) {
	// Ctrl-C reaches the code, which may clean up.
	p := sit(t, 24, 80, command(t, "run", "python", "-c", `
import time
try:
    print('begun', flush=True)
    time.sleep(1000)
except KeyboardInterrupt:
    print('cleaned up')
    raise SystemExit(9)
`))
	p.sees("begun")
	sandbox := p.sandbox()
	p.types("\x03")
	if status := p.leaves(); status != 9 {
		t.Errorf("status %d", status)
	}
	p.sees("^Ccleaned up")
	mcptest.Gone(t, 5*time.Second, sandbox)

	// A second one is for those who wait no longer.
	p = sit(t, 24, 80, command(t, "run", "bash", "-c", "trap '' INT; echo begun; while :; do sleep 1; done"))
	p.sees("begun")
	sandbox = p.sandbox()
	p.types("\x03")
	p.sees("begun\n^C")
	p.types("\x03")
	if status := p.leaves(); status != 130 {
		t.Errorf("status %d", status)
	}
	mcptest.Gone(t, 5*time.Second, sandbox)

	// Colours pass; what asks the terminal to type, or draws over what was
	// there before, is shown.
	p = sit(t, 24, 80, command(t, "run", "bash", "-c", `printf '\033[31mred\033[0m \033[c\033]0;title\007\033[2J\033[?1049h\xc2\x9bH ok\n'`))
	p.leaves()
	p.shows(`red ^[[c^[]0;title^[[2J^[[?1049h<U+009B>H ok`)

	p = sit(t, 24, 80, command(t, "run", "bash"))
	if status := p.leaves(); status != 2 {
		t.Errorf("status %d", status)
	}
	p.sees("nix-sandbox-mcp: error: no code was given\nnix-sandbox-mcp: hint: name a file, write -c CODE, or pipe the code in")
}

func TestClientConfig(t *testing.T) {
	server := built(t)
	for name, key := range map[string]string{"claude-code": "mcpServers", "claude-desktop": "mcpServers", "cursor": "mcpServers", "vscode": "servers", "zed": "context_servers"} {
		got := do(t, "", "client-config", name, "--project", "/some where")
		var config map[string]map[string]struct {
			Command string
			Args    []string
			Env     map[string]string
		}
		if err := json.Unmarshal([]byte(got.stdout), &config); err != nil || len(config) != 1 {
			t.Errorf("%s: %v, %+v", name, err, got)
			continue
		}
		entry := config[key]["sandbox"]
		if entry.Command != server || len(entry.Args) != 1 || entry.Args[0] != "--stdio" || entry.Env["PROJECT_DIR"] != "/some where" {
			t.Errorf("%s: %+v", name, config)
		}
		// What it says is what starts.
		start := exec.Command(entry.Command, entry.Args...)
		start.Env = command(t).Env
		if got := finish(t, start, `{"jsonrpc":"2.0","id":1,"method":"ping"}`+"\n"); !strings.Contains(got.stdout, `"result":{}`) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	want := fmt.Sprintf("[mcp_servers.sandbox]\ncommand = %q\nargs = [\"--stdio\"]\n", server)
	if got := do(t, "", "client-config", "codex"); got.stdout != want || got.stderr != "nix-sandbox-mcp: this belongs into ~/.codex/config.toml\n" {
		t.Errorf("%+v", got)
	}
}

// Each shell completes commands, options and the names of environments.
func TestCompletion(t *testing.T) {
	lines := map[string]string{
		"nix-sandbox-mcp sh":              "shell",
		"nix-sandbox-mcp run py":          "python",
		"nix-sandbox-mcp run bash --time": "--timeout",
		"nix-sandbox-mcp client-config v": "vscode",
		"nix-sandbox-mcp --ver":           "--version",
	}
	bin := t.TempDir()
	if err := os.Symlink(built(t), filepath.Join(bin, "nix-sandbox-mcp")); err != nil {
		t.Fatal(err)
	}
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
			p := sit(t, 24, 100, cmd)
			p.types(start.setUp + "\r")
			for line, want := range lines {
				p.types("\x15clear\r")
				p.shows("prompt>")
				p.types(line + "\t")
				p.sees("prompt> " + line[:strings.LastIndexByte(line, ' ')+1] + want)
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
			if got := finish(t, cmd, ""); got.stdout != want+"\n" || got.stderr != "" {
				t.Errorf("%s: %+v, want %s", line, got, want)
			}
		}
	})
}

// The manual page stands where man looks for it, and says what the help says.
func TestManual(t *testing.T) {
	link, err := filepath.EvalSymlinks(built(t))
	if err != nil {
		t.Fatal(err)
	}
	share := filepath.Join(filepath.Dir(link), "..", "share")
	for _, name := range []string{"man/man1/nix-sandbox-mcp.1", "bash-completion/completions/nix-sandbox-mcp", "zsh/site-functions/_nix-sandbox-mcp", "fish/vendor_completions.d/nix-sandbox-mcp.fish"} {
		if info, err := os.Stat(filepath.Join(share, name)); err != nil || info.Size() < 1000 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if mandoc, err := exec.LookPath("mandoc"); err != nil {
		t.Log("there is no mandoc to look at the page")
	} else if out, err := exec.Command(mandoc, "-T", "lint", "-W", "error", filepath.Join(share, "man/man1/nix-sandbox-mcp.1")).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	page := do(t, "", "manual").stdout
	for _, word := range []string{`.SS run ENV [FILE | \-c CODE | \-]`, `\fB\-\-timeout\fR \fISECONDS\fR`, ".SH EXIT STATUS", "SESSION_MAX_LIFETIME"} {
		if !strings.Contains(page, word) {
			t.Errorf("the page lacks %s", word)
		}
	}
}

// The commit stands in the server's metadata; words that are none are not
// repeated.
func TestVersion(t *testing.T) {
	const commit = "0123456789abcdef0123456789abcdef01234567"
	for revision, want := range map[string]string{
		commit:            "nix-sandbox-mcp 0.1.0 (" + commit + ")\n",
		commit + "-dirty": "nix-sandbox-mcp 0.1.0 (" + commit + "-dirty)\n",
		"<b>":             "nix-sandbox-mcp 0.1.0\n",
	} {
		cmd := command(t, "--version")
		cmd.Env = append(cmd.Env, fmt.Sprintf(`NIX_SANDBOX_METADATA={"schema":1,"environments":{},"revision":%q}`, revision))
		if got := finish(t, cmd, ""); got != (outcome{want, "", 0}) {
			t.Errorf("%+v, want %q", got, want)
		}
	}
}

// What the operator lets through reaches code of a person's too.
func TestInheritedVariables(t *testing.T) {
	server, err := filepath.EvalSymlinks(built(t))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(filepath.Dir(server), "..", "share", "nix-sandbox-mcp", "metadata.json"))
	if err != nil {
		t.Fatal(err)
	}
	var metadata map[string]any
	if err := json.Unmarshal(text, &metadata); err != nil {
		t.Fatal(err)
	}
	metadata["project"] = map[string]any{"inherit_env": map[string]any{"vars": []string{"TOKEN"}}}
	if text, err = json.Marshal(metadata); err != nil {
		t.Fatal(err)
	}
	variables := []string{"NIX_SANDBOX_METADATA=" + string(text), "TOKEN=a secret", "OTHER=hidden"}
	cmd := command(t, "run", "bash", "-c", `echo "$TOKEN ${OTHER-unset}"`)
	cmd.Env = append(cmd.Env, variables...)
	if got := finish(t, cmd, ""); got != (outcome{"a secret unset\n", "", 0}) {
		t.Errorf("%+v", got)
	}
	cmd = command(t, "shell", "bash")
	cmd.Env = append(cmd.Env, variables...)
	p := sit(t, 24, 80, cmd)
	p.sees("sandbox:/workspace$")
	p.types("echo \"$TOKEN ${OTHER-unset}\"; exit\r")
	p.leaves()
	p.sees("a secret unset\n")
}

// Nix says what is wrong with a configuration.
func TestConfigCheck(t *testing.T) {
	if _, err := exec.LookPath("nix"); err != nil {
		t.Skip("there is no Nix")
	}
	folder := t.TempDir()
	check := func(text string, more ...string) outcome {
		file := filepath.Join(folder, "config.toml")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := command(t, append([]string{"config", "check", "config.toml"}, more...)...)
		cmd.Dir = folder
		return finish(t, cmd, "")
	}
	if got := check("[environments.mine]\npreset = \"python\"\n[environments.other]\nsandbox = \"/somewhere\"\n"); got != (outcome{"config.toml: no mistakes\n  mine\n  other, from /somewhere\n", "", 0}) {
		t.Errorf("%+v", got)
	}
	got := check("[environments.mine]\npreset = \"perl\"\nmemory = 3\n")
	if lines := strings.Split(got.stderr, "\n"); got.status != 1 || got.stdout != "" || len(lines) != 4 ||
		!strings.HasPrefix(lines[0], `nix-sandbox-mcp: error: config.toml: [environments.mine] has no option "memory": write one of `) ||
		!strings.HasPrefix(lines[1], `nix-sandbox-mcp: error: config.toml: [environments.mine] preset is "perl"`) ||
		lines[2] != "nix-sandbox-mcp: hint: correct what is named above" {
		t.Errorf("%+v", got)
	}
	if got := check("# A comment.\n[environments.mine\n"); got.status != 1 || !strings.HasPrefix(got.stderr, "nix-sandbox-mcp: error: config.toml could not be read: ") ||
		!strings.Contains(got.stderr, " (line 2)\n") {
		t.Errorf("%+v", got)
	}
	if got := check("", "more"); got.status != 2 || !strings.HasPrefix(got.stderr, `nix-sandbox-mcp: error: unknown argument "more"`) {
		t.Errorf("%+v", got)
	}
	if got := do(t, "", "config", "check", "/nowhere.toml"); got.status != 1 || !strings.HasPrefix(got.stderr, "nix-sandbox-mcp: error: /nowhere.toml is no file that can be read\n") {
		t.Errorf("%+v", got)
	}
}
