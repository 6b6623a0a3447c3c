package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// withNix is a configuration in which code may add packages itself.
const withNix = `
[environments.python]
preset = "python"
packages_on_demand = ["jq", "psutil", "six"]
nix = true
timeout_seconds = 25
[environments.sh]
preset = "shell"
packages_on_demand = "all"
nix = true
timeout_seconds = 25
[environments.plain]
preset = "shell"
`

// same means that a command line prints what it prints with Nix.
const same = ""

// commandLines are written as models and documentation write them, with what they print here.
var commandLines = []struct{ line, want string }{
	// Shells.
	{"nix shell nixpkgs#strace -c strace --version | head -1", same},
	{"nix shell nixpkgs#tree nixpkgs#strace -c sh -c 'tree --version; strace --version | head -1'", same},
	{"nix shell nixpkgs#tree --command tree --version", same},
	{"nix shell 'nixpkgs#tree' -c bash -c 'echo $0 $1' a b", same},
	{"nix shell nixpkgs#tree -c sh -c 'exit 7'; echo $?", same},
	{"nix --extra-experimental-features 'nix-command flakes' shell nixpkgs#tree -c tree --version", same},
	{"nix shell --extra-experimental-features 'nix-command flakes' nixpkgs#tree -c tree --version", same},
	{"NIXPKGS_ALLOW_UNFREE=1 nix shell --impure nixpkgs#tree -c tree --version", same},
	{"nix shell nixpkgs#legacyPackages.x86_64-linux.tree -c tree --version", same},
	{"nix shell nixpkgs#tree nixpkgs#tree -c tree --version", same},
	{"nix shell nixpkgs#{tree,strace} -c tree --version", same},
	{"echo 'tree --version' | SHELL=/bin/bash nix shell nixpkgs#tree", same},
	{"nix shell nixpkgs#jq -c jq -n 6*7", same},
	{"echo '{\"a\": [1]}' | nix shell nixpkgs#jq -c jq -c .a", same},
	{"nix shell -L nixpkgs#tree -c tree --version", same},
	{"nix shell nixpkgs#strace nixpkgs#tree -c nosuchprogram", "nosuchprogram: no such program"},
	// Programs.
	{"nix run nixpkgs#tree -- --version", same},
	{"nix run nixpkgs#jq -- -n 1+1", same},
	{"echo '[3,4]' | nix run nixpkgs#jq -- .[1]", same},
	{"nix run --impure nixpkgs#tree -- --version", same},
	// The older commands, which the package set of the tests does not have with Nix.
	{"nix-shell -p tree --run 'tree --version'", "^tree v"},
	{"nix-shell -p tree strace --run 'strace --version | head -1; tree --version'", "^strace -- version .*\ntree v"},
	{"nix-shell --packages tree --command 'tree --version'", "^tree v"},
	{"nix-shell --pure -p tree --run 'tree --version'", "^tree v"},
	{"nix-shell -p jq --run 'jq -n 2'", "^2\n$"},
	{"nix-shell -p python3Packages.six --run 'python3 -c \"import six; print(six.__name__)\"'", "^six\n$"},
	{"printf '#!/usr/bin/env nix-shell\\n#! nix-shell -i bash -p tree\\ntree --version; echo $1\\n' > script; chmod +x script; ./script word", "^tree .*\nword\n$"},
	{"nix-build '<nixpkgs>' -A tree --no-out-link", same},
	{"nix-env -iA nixpkgs.strace && strace --version | head -1 && nix-env -q", "^strace -- version .*\nName: +strace\n"},
	// Builds and profiles.
	{"nix build nixpkgs#tree && ls result/bin", same},
	{"nix build nixpkgs#tree -o made && readlink made", same},
	{"nix build nixpkgs#jq nixpkgs#tree && ls result-1/bin", same},
	{"nix build --no-link nixpkgs#tree; echo $?", same},
	{"nix profile install nixpkgs#tree && tree --version && nix profile list", "^tree .*\nName: +tree\n"},
	{"nix profile add nixpkgs#jq && nix profile remove jq && nix profile list | grep -c jq", "^0\n"},
	{"nix profile remove nosuch", "the profile has no nosuch: see nix profile list"},
	// Evaluation and search.
	{"nix eval --raw nixpkgs#tree.version", same},
	{"nix eval nixpkgs#strace.name", same},
	{"nix eval --raw nixpkgs#jq.outPath", same},
	{"nix eval --raw nixpkgs#tree.drvAttrs", "cannot be evaluated here: of a package, name, pname, version"},
	{"nix search nixpkgs strac", `^\* nixpkgs#strace \([0-9].*\)\n$`},
	{"nix search nixpkgs stra --json", `"legacyPackages.strace":\{"name":"strace","version":"`},
	{"nix-env -qaP sqli", `\* nixpkgs#sqlite `},
	{"nix search nixpkgs nosuchword", `no package has "nosuchword" in its name: try another word`},
	// What it is.
	{"nix --version", `^nix \(nix-sandbox-mcp\) [0-9]`},
	{"nix-shell --version", `^nix-shell \(nix-sandbox-mcp\) [0-9]`},
	{"nix --help", "adds packages to the sandbox: use nix shell"},
	// Wrong names.
	{"nix shell nixpkgs#nosuchpackage -c true", "there is no package nosuchpackage in nixpkgs: look for its name with nix search nixpkgs WORD"},
	{"nix shell nixpkgs#stracee -c true", `there is no package stracee in nixpkgs: did you mean nixpkgs#strace\?`},
	{"nix shell nixpkgs#rg -c true", "there is no package rg in nixpkgs: (nixpkgs#ripgrep has it|did you mean)"},
	{"nix shell jq -c jq", `jq is the name of a flake: did you mean nixpkgs#jq\?`},
	{"nix shell nixpkgs -c jq", "nixpkgs alone is no package: name one, as in nixpkgs#hello"},
	{"nix shell", "no package is named: use nix shell nixpkgs#NAME -c COMMAND"},
	// What it does not do.
	{"nix shell github:NixOS/nixpkgs/nixos-24.05#jq -c jq", "there is one version of nixpkgs here: use nixpkgs#jq"},
	{"nix shell nixpkgs/nixos-unstable#jq -c jq", "there is one version of nixpkgs here: use nixpkgs#jq"},
	{"nix run github:owner/tool", "flake github:owner/tool is not allowed here: packages come from nixpkgs"},
	{"nix-shell -p 'python3.withPackages (ps: [ ps.numpy ])' --run true", `an expression is not evaluated here: .*run\(env: "python\+numpy"\)`},
	{"nix-shell", "shell.nix and default.nix are not evaluated here: name packages, as in nix-shell -p jq"},
	{"nix eval --expr '1 + 1'", "an expression is not evaluated here"},
	{"nix shell --option sandbox false nixpkgs#jq -c true", "settings of Nix are the user's: leave --option out"},
	{"nix store gc", "nix store gc does not work in this sandbox: use nix shell nixpkgs#NAME -c COMMAND"},
	{"nix flake update", "nix flake update does not work in this sandbox: use nix shell"},
	{"nix repl", "nix repl does not work in this sandbox: use nix shell"},
	{"nix shell /nix/store/00000000000000000000000000000000-none -c true", "is not in this sandbox: name its package"},
}

// real runs a command line with Nix itself, in which nixpkgs is the package set of the tests.
func real(t *testing.T, folder, line string) string {
	t.Helper()
	packages := undertest.Packages(t)
	cmd := exec.Command("bash", "-c", line)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "NIX_CONFIG="+os.Getenv("NIX_CONFIG")+"\nflake-registry = "+folder+"/none.json", "HOME="+folder, "XDG_CONFIG_HOME="+folder+"/.config", "XDG_CACHE_HOME="+folder+"/.cache", "NIX_PATH=nixpkgs="+packages)
	out, err := cmd.Output()
	if err != nil {
		t.Logf("Nix: %s: %v", line, err)
	}
	return string(out)
}

// In one session, command lines for Nix do what they do with Nix, or say what works in their place. What runs goes on.
func TestNix_TakesCommandLines(t *testing.T) {
	s := withOnDemand(t, withNix)
	c := s.start()
	offered(t, c, "sh", true)
	folder := t.TempDir()
	must.Write(t, filepath.Join(folder, "none.json"), `{"version": 2, "flakes": []}`, 0o644)
	real(t, folder, "nix --extra-experimental-features 'nix-command flakes' registry add nixpkgs path:"+undertest.Packages(t))
	expect(t, in(c, "s", "sh", "x=41; sleep 3600 & cd /workspace"), "[no output]")
	for _, test := range commandLines {
		answer := again(t, c, "s", "sh", test.line)
		if test.want == same {
			work := filepath.Join(folder, "work")
			must.Do(t, os.RemoveAll(work))
			must.Do(t, os.Mkdir(work, 0o755))
			if got, want := answer.Content[0].Text, real(t, folder, "cd work; "+test.line); got != want || want == "" {
				t.Errorf("%s\n%q\nwith Nix\n%q\n%s", test.line, got, want, answer.Text())
			}
			continue
		}
		if found, err := regexp.MatchString("(?s)"+test.want, answer.Text()); err != nil || !found {
			t.Errorf("%s\n%s\nwant %s", test.line, answer.Text(), test.want)
		}
	}
	expect(t, in(c, "s", "sh", "echo $x; jobs -r | wc -l; kill %1"), "41\n1\n")
	if log := c.Log(); !regexp.MustCompile(`msg="packages added" session=s env=sh packages=strace artifact=/nix/store/\S+ bytes=[1-9]\d+ ms=\d+`).MatchString(log) {
		t.Errorf("the log does not say what was added:\n%s", log)
	}
}

// again makes a call as often as it is told that a build goes on.
func again(t *testing.T, c *mcptest.Client, session, env, code string) (answer mcptest.Answer) {
	t.Helper()
	patience.Wait(t, building, func() string { return answer.Text() + "\n" + c.Log() }, func() bool {
		answer = in(c, session, env, code)
		return !strings.Contains(answer.Text(), "run this again in a minute")
	})
	return answer
}

// Code in every language, calls with a session and without, and shells of the user ask alike.
func TestNix_FromEverywhere(t *testing.T) {
	s := withOnDemand(t, withNix)
	s.variables = append(s.variables, "XDG_RUNTIME_DIR="+t.TempDir())
	c := s.start()
	offered(t, c, "sh", true)
	const version = `^strace -- version `
	matches := func(answer mcptest.Answer, want string) {
		t.Helper()
		if found, _ := regexp.MatchString(want, answer.Text()); !found {
			t.Errorf("answer %s\n%s", answer.Text(), c.Log())
		}
	}
	matches(again(t, c, "", "sh", "nix shell nixpkgs#strace -c strace --version"), version)
	expect(t, in(c, "p", "python", "x = 41"), "[no output]")
	expect(t, again(t, c, "p", "python", "import subprocess; print(subprocess.run('nix shell nixpkgs#jq -c jq -n 1', shell=True, capture_output=True, text=True).stdout.strip(), x)"), "1 41\n")
	// Only what the environment's list has, by the name that Nix knows it by.
	answer := again(t, c, "p", "python", "import subprocess; subprocess.run(['nix-shell', '-p', 'python3Packages.six', '--run', 'python3 -c \"import six; print(six.__name__)\"']); subprocess.run(['nix', 'run', 'nixpkgs#strace'])")
	matches(answer, `^six\n(?s:.*)strace may not be added, because it is not in packages_on_demand of \[environments.python\]`)
	// Both ways to add a package to a session are ways into the same sandbox.
	answer = in(c, "p", "python+six", "import six; print(six.__name__, x, subprocess.run('nix shell nixpkgs#jq -c jq -n 2', shell=True, capture_output=True, text=True).stdout.strip())")
	matches(answer, "^six 41 2\n")
	// The environment without the option has no nix.
	if answer := in(c, "q", "plain", "nix --version"); !strings.Contains(answer.Text(), "command not found") {
		t.Errorf("plain: %s", answer.Text())
	}
	expect(t, in(c, "q", "plain", "ls -A /tmp; echo $PATH | grep -c nix-profile || true"), "0\n")
	// A command of the user's, or of an agent's own shell, asks as a call does.
	in(c, "visited", "sh", "true")
	if out := s.command("exec", "--session", "visited", "-c", "nix shell nixpkgs#strace -c strace --version"); !strings.HasPrefix(out, "strace -- version ") {
		t.Errorf("exec: %s", out)
	}
	// A sandbox sees what was added to it alone.
	path := strings.TrimSpace(again(t, c, "s", "sh", "nix build --no-link nixpkgs#strace; nix eval --raw nixpkgs#strace.outPath").Text())
	expect(t, in(c, "s", "sh", "ls -d "+path), path+"\n")
	if answer := in(c, "other", "sh", "ls -d "+path+" || nix shell "+path+" -c strace --version"); !answer.IsError || !strings.Contains(answer.Text(), "is not in this sandbox") {
		t.Errorf("another session: %+v", answer)
	}
}

// Without a builder, the sandbox says so in one line.
func TestNix_WithoutNix(t *testing.T) {
	s := withOnDemand(t, withNix)
	s.start()
	c := mcptest.Start(t, command(t, "XDG_CACHE_HOME="+s.cache, s.variables[len(s.variables)-1], "PATH="+t.TempDir()))
	c.Initialize(mcptest.Newest)
	expectError(t, run(c, "sh", "nix shell nixpkgs#jq -c jq"), "nix: there is no Nix beside this server, so that packages cannot be added: do without, or tell the user\n")
	expect(t, run(c, "sh", "nix --version | head -c 3"), "nix")
}

// Questions without end, from processes that outlive their call, in wrong forms, and while the sandbox ends, harm no
// other call.
func TestNix_Attempts(t *testing.T) {
	s := withOnDemand(t, withNix)
	c := s.start()
	offered(t, c, "sh", true)
	expect(t, again(t, c, "s", "sh", "nix build --no-link nixpkgs#tree"), "[no output]")
	const asks = `
import socket, struct, threading, json
def ask(text):
    s = socket.socket(socket.AF_UNIX); s.connect('\0nix-sandbox-tools')
    s.sendall(struct.pack('>I', len(text)) + text); 
    head = s.recv(4, socket.MSG_WAITALL)
    return s.recv(struct.unpack('>I', head)[0], socket.MSG_WAITALL).decode() if len(head) == 4 else ''
def nix(**q): return ask(json.dumps({'nix': q}).encode())
`
	python := func(session, code string) mcptest.Answer {
		t.Helper()
		return again(t, c, session, "sh", "cat > /tmp/a.py <<'EOF'\n"+asks+code+"\nEOF\npython3 /tmp/a.py")
	}
	// A call may ask a thousand times.
	answer := python("s", "print({nix(add=['tree'])[:9] for _ in range(900)}, nix(add=['tree'])[:9])\nprint([nix(add=['tree']) for _ in range(150)][-1])")
	if !strings.HasPrefix(answer.Text(), "{'{\"result\"'} {\"result\"\n") || !strings.Contains(answer.Text(), "this call has asked for packages 1000 times: go on in another call") {
		t.Errorf("%s", answer.Text())
	}
	// Wrong names and texts.
	for _, test := range []struct{ code, want string }{
		{"nix(add=['../../etc/passwd'])", "is no name of a package"},
		{"nix(add=['tree;id'])", "is no name of a package"},
		{"nix(add=['$(id)'])", "is no name of a package"},
		{"nix(add=['tree\\n'])", "is no name of a package"},
		{"nix(add=['a.b.c.d.e'])", "is no name of a package"},
		{"nix(add=['.tree'])", "is no name of a package"},
		{"nix(add=['tree..out'])", "is no name of a package"},
		{"nix(add=['x' * 100000])", "is no name of a package"},
		{"nix(add=['tree'] * 17)", "these are too many packages at once: name at most 16"},
		{"nix(add=['lib'])", "there is no package lib"},
		{"nix(add=['stdenv.mkDerivation'])", "there is no package"},
		{"nix(add=['pkgs.lib.version'])", "there is no package pkgs"},
		{"nix(add=['path'])", "there is no package path"},
		{"nix(add=['writeShellScript'])", "there is no package writeShellScript"},
		{"nix(add=['builtins.readFile'])", "there is no package builtins"},
		{"nix(facts=['../x'])", "is no name of a package"},
		{"nix(search=['x' * 200])", "a search takes at most 8 words of 100 bytes"},
		{"nix(search=[''] * 9)", "a search takes at most 8 words"},
		{"nix()", "has add, search, facts or flake"},
		{"ask(b'')", "a question is JSON, and this one is empty"},
		{"ask(b'{')", "a question about packages is JSON with nix"},
		{"ask(b'[]')", "a question about packages is JSON with nix"},
		{"ask(b'{\"nix\": {\"add\": \"tree\"}}')", "a question about packages is JSON with nix"},
		{"ask(b'{\"server\": \"x\", \"tool\": \"y\"}')", "a question about packages is JSON with nix"},
	} {
		if answer := python("s", "print("+test.code+")"); !strings.Contains(answer.Text(), test.want) {
			t.Errorf("%s: %s\nwant %s", test.code, answer.Text(), test.want)
		}
	}
	// The control of all of these.
	if answer := python("s", "print(nix(add=['tree']))"); !strings.Contains(answer.Text(), `"paths":["/nix/store/`) {
		t.Errorf("the control: %s", answer.Text())
	}
	// A process that outlives its call is refused, or is answered if it asks while another call of its session runs: it
	// asks for as long as it takes to be refused.
	in(c, "s", "sh", "(until nix shell nixpkgs#tree -c tree --version 2>&1 | grep outlived > late; do sleep 0.1; done) & disown")
	patience.Until(t, "the late process is refused", func() bool {
		return strings.Contains(in(c, "s", "sh", "cat late").Text(), "this process outlived its call")
	})
	// Sandboxes that end meanwhile.
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			in(c, fmt.Sprint("r", i), "sh", fmt.Sprintf("for n in 1 2 3 4 5; do nix shell nixpkgs#tree -c true & done; sleep 0.0%d; kill -9 -1", i))
		})
	}
	all.Wait()
	expect(t, again(t, c, "s", "sh", "nix shell nixpkgs#tree -c tree --version | head -c 4"), "tree")
	if log := c.Log(); strings.Contains(log, "panic") {
		t.Errorf("the log:\n%s", log)
	}
}
