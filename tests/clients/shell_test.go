package clients

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/background"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

func readAll(r io.Reader) (string, error) {
	text, err := io.ReadAll(r)
	return string(text), err
}

// agent is a coding agent whose shell runs in the sandbox: how it is asked to run the commands of a
// model in a folder.
type agent struct {
	name string
	// settings are what it needs to know of the model, and command starts it.
	settings func(t *testing.T, s setup, m *model)
	command  func(s setup, m *model) []string
	// longest is the longest command that the client itself can start, in bytes, if that is less than
	// 100 KB.
	longest int
	// few says that it takes seconds for each command, and so runs only the first ones here.
	few bool
}

var agents = []agent{
	{name: "claude-code", command: func(s setup, m *model) []string {
		return []string{s.Claude, "-p", "run it", "--allowedTools", "Bash"}
	}, settings: func(t *testing.T, s setup, m *model) {}},
	{name: "codex", longest: 90_000, command: func(s setup, m *model) []string {
		return []string{s.Codex, "exec", "--skip-git-repo-check", "--dangerously-bypass-hook-trust", "run it"}
	}, settings: func(t *testing.T, s setup, m *model) {
		path := filepath.Join(s.home, ".codex", "config.toml")
		must.Do(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must.Write(t, path, fmt.Sprintf("model = \"m\"\nmodel_provider = \"loop\"\napproval_policy = \"never\"\nsandbox_mode = \"danger-full-access\"\n"+
			"[model_providers.loop]\nname = \"loop\"\nbase_url = %q\nwire_api = \"responses\"\n[analytics]\nenabled = false\n", m.url+"/v1"), 0o600)
	}},
	{name: "gemini-cli", few: true, command: func(s setup, m *model) []string {
		return []string{s.Node, s.Gemini, "--yolo", "--skip-trust", "-m", "gemini-2.5-pro", "-p", "run it"}
	}, settings: func(t *testing.T, s setup, m *model) {
		path := filepath.Join(s.home, ".gemini", "settings.json")
		must.Do(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must.Write(t, path, `{"security": {"auth": {"selectedType": "gemini-api-key"}}, "privacy": {"usageStatisticsEnabled": false}}`, 0o600)
	}},
	{name: "opencode", command: func(s setup, m *model) []string {
		return []string{s.OpenCode, "run", "--model", "loop/m", "run it"}
	}, settings: func(t *testing.T, s setup, m *model) {
		path := filepath.Join(s.home, ".config", "opencode", "opencode.json")
		must.Do(t, os.MkdirAll(filepath.Dir(path), 0o700))
		text := must.Get(json.Marshal(object{
			"autoupdate": false, "share": "disabled", "permission": object{"bash": "allow", "external_directory": "allow"},
			"provider": object{"loop": object{
				"npm": "@ai-sdk/openai-compatible", "name": "loop", "options": object{"baseURL": m.url + "/v1", "apiKey": "x"},
				"models": object{"m": object{"name": "m", "tool_call": true}},
			}},
		}))(t)
		must.Write(t, path, string(text), 0o600)
	}},
}

// desktop is a user's machine: a home, a project outside of the folders that are a sandbox's own, and a
// file of the host that no command may reach.
type desktop struct {
	setup
	project, canary string
}

func prepareDesktop(t *testing.T) desktop {
	t.Helper()
	s := prepare(t)
	root := must.Get(os.MkdirTemp("/var/tmp", "agent"))(t)
	root = must.Get(filepath.EvalSymlinks(root))(t)
	d := desktop{setup: s, project: filepath.Join(root, "project"), canary: filepath.Join(root, "canary")}
	t.Cleanup(func() { os.RemoveAll(root) })
	must.Do(t, os.MkdirAll(d.project, 0o700))
	runtime := must.Get(os.MkdirTemp("", "run"))(t)
	t.Cleanup(func() { os.RemoveAll(runtime) })
	must.Do(t, os.Chmod(runtime, 0o700))
	d.variables = []string{"XDG_RUNTIME_DIR=" + runtime}
	d.do(t, "git", "init", "-q", d.project)
	t.Cleanup(func() { patience.Gone(t, d.left()...) })
	background.EndServers(t, runtime)
	return d
}

// do runs a program in the project, and returns what it prints.
func (d desktop) do(t *testing.T, words ...string) string {
	t.Helper()
	cmd := d.command(t, words[0], words[1:]...)
	cmd.Dir = d.project
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", words, err, out)
	}
	return string(out)
}

// ask has an agent run the commands of a model, and returns what the client said of each.
func (d desktop) ask(t *testing.T, a agent, m *model) []string {
	t.Helper()
	words := a.command(d.setup, m)
	if _, err := os.Stat(words[0]); err != nil {
		t.Skip(err)
	}
	cmd := d.command(t, words[0], words[1:]...)
	cmd.Dir = d.project
	cmd.Env = append(cmd.Env, "ANTHROPIC_BASE_URL="+m.url, "ANTHROPIC_API_KEY=x", "GEMINI_API_KEY=x", "GOOGLE_GEMINI_BASE_URL="+m.url,
		"DISABLE_TELEMETRY=1", "DISABLE_AUTOUPDATER=1", "OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_MODELS_FETCH=1", "BASH_DEFAULT_TIMEOUT_MS=20000")
	out, err := cmd.CombinedOutput()
	if results := m.all(); len(results) > 0 {
		return results
	}
	t.Fatalf("%s: %v\n%s", a.name, err, out)
	return nil
}

// mark is the line by which an answer shows that its command ran in a sandbox.
var mark = regexp.MustCompile(`\[sandbox \w+ \w{8}[]:]`)

// saved matches the file in which a client keeps what is too long for its model.
var saved = regexp.MustCompile(`saved to: (\S+)`)

// commands are what an agent's model has its shell do, and what the answer contains, as bash prints it.
var shellCommands = []struct{ command, want string }{
	{`echo hello`, "hello"},
	{`pwd`, "@PROJECT@"},
	{`printf '%s|' 'single'"'"'s' "double \"d\"" $'tab\tx' "\$HOME" '$HOME' \\ "back\` + "`" + `tick"`, "single's|double \"d\"|tab\tx|$HOME|$HOME|\\|back`tick|"},
	{"cat <<'EOF' | tr a-z A-Z\nline 'one' $x\nline \"two\"\nEOF", "LINE 'ONE' $X\nLINE \"TWO\""},
	{"x=41; f() { echo \"f says $((x + 1))\"; }", ""},
	{`f`, "f says 42"},
	{`mkdir -p src/deep && cd src/deep && pwd`, "@PROJECT@/src/deep"},
	{`pwd; cd ../..`, "@PROJECT@/src/deep"},
	{`export EXPORTED=yes; bash -c 'echo $EXPORTED'`, "yes"},
	{`seq 5 | tac | paste -sd, -`, "5,4,3,2,1"},
	{`bash -c "exit 3"; echo "status $?"`, "status 3"},
	{`false; echo "after: $?"`, "after: 1"},
	{`ls /nonexistent`, "No such file or directory"},
	{`nosuchcommand`, "command not found"},
	{`echo ünïcödé 日本語 🎉`, "ünïcödé 日本語 🎉"},
	{`read -r line; echo "read: [$line]"`, "read: []"},
	{`(exec sleep 30) & echo "started"`, "started"},
	{`jobs; echo "next command"`, "next command"},
	{`echo out; echo err >&2`, "err"},
	{`for i in 1 2 3; do echo "n$i"; done`, "n1\nn2\nn3"},
	{`if [ -d .git ]; then echo "has git"; fi`, "has git"},
	{`git status --short | head -3; echo "git: $?"`, "git: 0"},
	{`echo 'content' > made.txt && cat made.txt`, "content"},
	{`cat made.txt | wc -c`, "8"},
	{`arr=(a "b c" d); echo "${#arr[@]} ${arr[1]}"`, "3 b c"},
	{`echo "${arr[2]}"`, "d"},
	{`echo {a,b}{1,2}`, "a1 a2 b1 b2"},
	{`diff <(echo one) <(echo two); echo "diff: $?"`, "diff: 1"},
	{`echo $((16#ff)) ${x/4/5}`, "255 51"},
	{`head -c 1000000 /dev/zero | tr '\0' 'a' | wc -c`, "1000000"},
	{"head -c 300 /dev/urandom; echo; echo 'end of bytes'", "end of bytes"},
	{": '" + strings.Repeat("x", 50_000) + "'; echo 'end of a long command'", "end of a long command"},
	{": '@LONG@'; echo 'end of 100 KB'", "end of 100 KB"},
	{"head -c 1000000 /dev/zero | tr '\\0' a; echo; echo 'end of 1 MB'", "aaaaaaaa"},
	{`set -e; false; echo "not reached"`, ""},
	{`echo "still here"`, "still here"},
	{`cat > script.sh <<'EOF'` + "\n#!/usr/bin/env bash\necho \"script: $1\"\nEOF\nchmod +x script.sh; ./script.sh arg", "script: arg"},
	{`timeout 1 sleep 5; echo "timeout: $?"`, "timeout: 124"},
	{`kill -TERM $$`, ""},
	{`python3 -c 'import os; print(os.getcwd())'`, "@PROJECT@"},
	{`trap 'echo trapped' INT; kill -INT $$; echo done`, "trapped\ndone"},
	{`curl -sS --max-time 2 @MODEL@/canary`, "curl: ("},
	{`cat @CANARY@`, "No such file or directory"},
	{`touch @CANARY@ 2>/dev/null; echo gone > @CANARY@; true`, ""},
}

// The commands of agents run in the sandbox, and give what bash gives. Nothing of the host is reached.
func TestShell_RunsInTheSandbox(t *testing.T) {
	given(t)
	for _, a := range agents {
		t.Run(a.name, func(t *testing.T) {
			d := prepareDesktop(t)
			fill := strings.NewReplacer("@PROJECT@", d.project, "@CANARY@", d.canary, "@LONG@", strings.Repeat("x", cmp.Or(a.longest, 100_000)))
			m := startModel(t)
			all := shellCommands
			if a.few {
				all = append(all[:12:12], all[len(all)-3:]...)
			}
			for _, one := range all {
				m.commands = append(m.commands, strings.ReplaceAll(fill.Replace(one.command), "@MODEL@", m.url))
			}
			a.settings(t, d.setup, m)
			d.do(t, d.server, "client-config", a.name, "--install", "--shell", "--allow")
			began := time.Now()
			results := d.ask(t, a, m)
			t.Logf("%d commands in %v", len(results), time.Since(began).Round(time.Millisecond))
			if len(results) != len(all) {
				t.Fatalf("%d of %d commands have results; the last is %q", len(results), len(all), results[len(results)-1])
			}
			for i, one := range all {
				if elsewhere := saved.FindStringSubmatch(results[i]); elsewhere != nil {
					results[i] = string(must.Get(os.ReadFile(elsewhere[1]))(t))
				}
				if want := fill.Replace(one.want); !strings.Contains(results[i], want) {
					t.Errorf("%.200s\nanswers %.1000q, want %q", m.commands[i], results[i], want)
				}
				if mark.FindString(results[i]) == "" {
					t.Errorf("%.200s\nanswers %.1000q, without a mark", m.commands[i], results[i])
				}
			}
			d.untouched(t)
			if text := d.do(t, d.server, "changes"); !a.few && !strings.Contains(text, "shell") {
				t.Errorf("changes prints %s", text)
			}
		})
	}
}

// untouched fails if something of the host was changed.
func (d desktop) untouched(t *testing.T) {
	t.Helper()
	if _, err := os.Lstat(d.canary); err == nil {
		t.Errorf("a command reached %s", d.canary)
	}
	for _, name := range []string{"made.txt", "script.sh", "src"} {
		if _, err := os.Lstat(filepath.Join(d.project, name)); err == nil {
			t.Errorf("%s is in the project itself", name)
		}
	}
}

// If the program of the hook is missing, crashes, fails or refuses, no command runs. In the control
// there is no hook, and the command reaches the host.
func TestShell_FailsClosed(t *testing.T) {
	given(t)
	for _, a := range agents {
		for name, program := range map[string]string{
			"control": "", "missing": "", "crashing": "kill -SEGV $$", "failing": "exit 1", "refusing": "exec @SERVER@ hook nobody",
			"silent": "exit 0", "nonsense": "echo 5", "slow": "exec sleep 900",
		} {
			t.Run(a.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				d := prepareDesktop(t)
				m := startModel(t, "touch "+d.canary)
				a.settings(t, d.setup, m)
				if name != "control" {
					path := filepath.Join(d.programs, "nix-sandbox-mcp")
					if program != "" {
						must.Write(t, path, "#!/bin/sh\n"+strings.ReplaceAll(program, "@SERVER@", d.server)+"\n", 0o700)
					}
					d.do(t, d.server, "client-config", a.name, "--install", "--shell", "--allow")
					d.replaceProgram(t, path)
				}
				results := d.ask(t, a, m)
				if _, err := os.Lstat(d.canary); (err == nil) != (name == "control") {
					t.Errorf("touched: %v; the answer is %q", err == nil, results)
				}
			})
		}
	}
}

// replaceProgram has the hooks of all clients call another program.
func (d desktop) replaceProgram(t *testing.T, with string) {
	t.Helper()
	changed := 0
	for _, name := range []string{".claude/settings.json", ".codex/hooks.json", ".gemini/settings.json", ".config/opencode/plugin/nix-sandbox.js"} {
		path := filepath.Join(d.home, name)
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		installed := regexp.MustCompile(`( |spawnSync\(")[^" ]*/nix-sandbox-mcp"`)
		if installed.Match(text) {
			changed++
		}
		must.Write(t, path, string(installed.ReplaceAll(text, []byte(`${1}`+with+`"`))), 0o600)
	}
	if changed != 1 {
		t.Fatalf("%d hooks are installed", changed)
	}
}

// The plugin brings the hook too.
func TestShell_OfThePlugin(t *testing.T) {
	given(t)
	d := prepareDesktop(t)
	must.Do(t, os.Symlink(d.server, filepath.Join(d.programs, "nix-sandbox-mcp")))
	checkout := must.Get(filepath.Abs("../.."))(t)
	d.do(t, d.Claude, "plugin", "marketplace", "add", checkout)
	d.do(t, d.Claude, "plugin", "install", "nix-sandbox@nix-sandbox-mcp")
	results := d.ask(t, agents[0], startModel(t, "touch "+d.canary, "pwd"))
	d.untouched(t)
	if last := results[len(results)-1]; !strings.Contains(last, d.project) || mark.FindString(last) == "" {
		t.Errorf("the answers are %q", results)
	}
}

// What is installed is taken away again.
func TestShell_Uninstalls(t *testing.T) {
	given(t)
	for _, a := range agents {
		t.Run(a.name, func(t *testing.T) {
			d := prepareDesktop(t)
			m := startModel(t, "touch "+d.canary)
			a.settings(t, d.setup, m)
			d.do(t, d.server, "client-config", a.name, "--install", "--shell", "--allow")
			d.do(t, d.server, "client-config", a.name, "--uninstall")
			results := d.ask(t, a, m)
			if _, err := os.Lstat(d.canary); err != nil {
				t.Errorf("the command did not run outside: %q", results)
			}
		})
	}
}

// Two clients, two projects, and one user at a time: each command runs in the project of its client.
func TestShell_KeepsClientsApart(t *testing.T) {
	given(t)
	d := prepareDesktop(t)
	both := []desktop{d, d}
	both[1].project = filepath.Join(filepath.Dir(d.project), "second")
	must.Do(t, os.Mkdir(both[1].project, 0o700))
	d.do(t, "git", "init", "-q", both[1].project)
	var models []*model
	for i, a := range agents[:2] {
		m := startModel(t)
		for n := range 8 {
			m.commands = append(m.commands, fmt.Sprintf("pwd; x=${x}%d; echo \"is $x\" | tee -a %s", i, a.name), fmt.Sprintf("ls; grep -c is %s; sleep 0.%d", a.name, n))
		}
		models = append(models, m)
		a.settings(t, d.setup, m)
		d.do(t, d.server, "client-config", a.name, "--install", "--shell", "--allow")
	}
	var all sync.WaitGroup
	for i, a := range agents[:2] {
		all.Go(func() { both[i].ask(t, a, models[i]) })
	}
	all.Wait()
	marks := map[string]int{}
	for i, a := range agents[:2] {
		results := models[i].all()
		if len(results) != 16 {
			t.Fatalf("%s: %d results", a.name, len(results))
		}
		for n, result := range results {
			want := fmt.Sprintf("%s\n%d\n", a.name, n/2+1)
			if n%2 == 0 {
				want = fmt.Sprintf("%s\nis %s\n", both[i].project, strings.Repeat(fmt.Sprint(i), n/2+1))
			}
			if !strings.Contains(result, want) {
				t.Errorf("%s, command %d: %q, want %q", a.name, n, result, want)
			}
			marks[a.name+" "+strings.TrimRight(mark.FindString(result), "]:")]++
		}
	}
	if len(marks) != 2 || marks[""] > 0 {
		t.Errorf("the marks are %v", marks)
	}
}

// A client starts its server in the folder in which it was started, and the server shows that folder.
func TestInstall_ShowsWhereOneWorks(t *testing.T) {
	given(t)
	for _, a := range agents {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			d := prepareDesktop(t)
			m := startModel(t, "true")
			a.settings(t, d.setup, m)
			log := filepath.Join(t.TempDir(), "log")
			server := filepath.Join(d.programs, "server")
			must.Write(t, server, fmt.Sprintf("#!/bin/sh\necho \"$PWD $PROJECT_DIR\" >>%q\nexec %q \"$@\"\n", log, d.server), 0o700)
			d.do(t, d.server, "client-config", a.name, "--install")
			for _, name := range []string{".claude.json", ".codex/config.toml", ".gemini/settings.json", ".config/opencode/opencode.json"} {
				path := filepath.Join(d.home, name)
				if text, err := os.ReadFile(path); err == nil {
					must.Write(t, path, regexp.MustCompile(`"[^"]*/bin/nix-sandbox-mcp"`).ReplaceAllString(string(text), `"`+server+`"`), 0o600)
				}
			}
			d.ask(t, a, m)
			if text := string(must.Get(os.ReadFile(log))(t)); !strings.HasPrefix(text, d.project+" .\n") {
				t.Errorf("the server was started with %q, and the project is %s", text, d.project)
			}
		})
	}
}
