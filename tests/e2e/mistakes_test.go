package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// mostBytes bounds what the server adds to the output of the code in an answer.
const mostBytes = 300

// mistake is something that a model is likely to get wrong.
type mistake struct {
	name string
	args map[string]any
	// want is in the answer, and says what to do; a want that begins with [
	// is a line of the server's own.
	want string
	// next is a call that does what the answer says, which must succeed. nil is a
	// mistake that is none: the answer is not an error.
	next map[string]any
}

// mistakes are the likeliest ones. A hint stands only where the interpreter's
// own words leave open what to do.
var mistakes = []mistake{
	// The code is not what the interpreter takes.
	{"python -c around it", code("python", `python -c "print(1)"`), "[hint: code is run by the interpreter itself: send the program alone", code("python", "print(1)")},
	{"a here-document around it", code("python", "python3 - <<'EOF'\nprint(1)\nEOF"), "[hint: code is run by the interpreter itself", code("python", "print(1)")},
	{"node -e around it", code("node", `node -e "console.log(1)"`), "[hint: code is run by the interpreter itself", code("node", "console.log(1)")},
	{"node -e in Python", code("python", `node -e "console.log(1)"`), `[hint: use env "node", and send the program alone`, code("node", "console.log(1)")},
	{"python -c in JavaScript", code("node", `python3 -c "print(1)"`), `[hint: use env "python", and send the program alone`, code("python", "print(1)")},
	{"a fence around Python", code("python", "```python\nprint(1)\n```"), "1\n", nil},
	{"a fence around Bash", code("bash", "```bash\necho hi\n```"), "hi\n", nil},
	{"a fence around JavaScript", code("node", "```js\nconsole.log(1)\n```"), "1\n", nil},
	{"a byte order mark", code("bash", "\ufeffecho hi"), "hi\n", nil},
	{"lines of another system", code("bash", "if true; then\r\n  echo hi\r\nfi\r\n"), "hi\n", nil},
	{"prompts", code("python", ">>> x = 1\n>>> x\n1"), "1\n", nil},
	{"prompts of a shell", code("bash", "$ echo hi\nhi"), "hi\n", nil},
	{"code that is indented", code("python", "    x = 1\n    print(x)"), "1\n", nil},
	{"a notebook's shell line", code("python", "!pip install torch"), " be installed: leave this line out and use what is there", code("python", "import numpy")},
	{"a notebook's pip", code("python", "%pip install nosuchpackage\nimport numpy"), " be installed: leave this line out", code("python", "import numpy")},
	{"a notebook's pip of what is there", code("python", "%pip install -q numpy\nimport numpy; print(1)"), "1\n", nil},
	{"a notebook's magic", code("python", "%matplotlib inline\nprint(1)"), "1\n", nil},
	{"a notebook's unknown magic", code("python", "%sql select 1\nprint(1)"), "[hint: this line of a notebook is not known here: leave it out]", code("python", "print(1)")},
	{"a notebook's command", code("python", "!echo hi"), "hi\n", nil},
	{"a notebook's shell", code("python", "get_ipython().system('echo hi')"), "hi\n", nil},
	{"a notebook's display", code("python", "display('hi')"), "hi", nil},
	{"TypeScript", code("node", "const x: number = 6 * 7; x"), "42\n", nil},
	{"a module", code("node", "import { sep } from 'path'; export const x = sep; x"), "'/'\n", nil},
	{"a last value that is not printed", code("python", "6 * 7"), "42\n", nil},
	{"nothing printed", code("python", "x = 3"), "[no output]", nil},
	{"empty code", code("python", ""), "[no output]", nil},

	// The arguments are not those of the tool.
	{"an interpreter for an environment", code("python3", "1"), "there is no env \"python3\"; choose one of\n- bash: ", code("python", "1")},
	{"a language for an environment", code("javascript", "1"), "- node: JavaScript and TypeScript in Node.js", code("node", "1")},
	{"language for env", map[string]any{"language": "python", "code": "1"}, `unknown argument "language": call run with code (a string) and env (one of bash, node, python)`, code("python", "1")},
	{"an argument timeout", map[string]any{"env": "python", "code": "1", "timeout": 60}, `unknown argument "timeout": call run with code`, code("python", "1")},
	{"no env", map[string]any{"code": "1"}, "env is missing: call run with code (a string) and env (one of bash, node, python)", code("python", "1")},
	{"no code", map[string]any{"env": "bash"}, "code is missing: call run with code", code("bash", "true")},
	{"lines for code", map[string]any{"env": "python", "code": []string{"a = 1", "a"}}, "code is not a string: call run with code (a string)", code("python", "a = 1\na")},
	{"a list for env", map[string]any{"env": []string{"python"}, "code": "1"}, "env is not a string: call run with", code("python", "1")},
	{"a session with a space", kept("my session", "python", "1"), "must be 1 to 64 letters, digits, _ or -", kept("my-session", "python", "1")},
	{"a session of another env", kept("theirs", "bash", "echo 1"), `session "theirs" belongs to env "python": call it with that env, or use another session name`, kept("others", "bash", "echo 1")},

	// The language is another.
	{"a command in Python", code("python", "ls\n"), "[hint: this env runs another language: choose env by the code's]", code("bash", "ls\n")},
	{"a command with arguments in Python", code("python", "mkdir -p a/b"), `[hint: this is a command of a shell: use env "bash" for it]`, code("bash", "mkdir -p a/b")},
	{"a program that is started in Python", code("python", "python3 main.py"), `[hint: this is a command of a shell: send the program itself, or use env "bash"]`, code("bash", "python3 --version")},
	{"JavaScript in Python", code("python", "console.log(1)"), "[hint: this env runs another language", code("node", "console.log(1)")},
	{"a declaration of JavaScript in Python", code("python", "const x = 1;\nconsole.log(x);"), `[hint: this is JavaScript: use env "node" for it]`, code("node", "const x = 1;\nconsole.log(x);")},
	{"Python in Bash", code("bash", "import os\nos.getcwd()"), `[hint: this is Python: use env "python" for it]`, code("python", "import os\nos.getcwd()")},
	{"Python's print in Bash", code("bash", "print('hi')"), `[hint: this is Python: use env "python" for it]`, code("python", "print('hi')")},
	{"JavaScript in Bash", code("bash", "console.log(1)"), `[hint: this is JavaScript: use env "node" for it]`, code("node", "console.log(1)")},
	{"Python's print in JavaScript", code("node", "print(1)"), "[hint: this env runs another language", code("python", "print(1)")},
	{"Python in JavaScript", code("node", "import math\nprint(math.pi)"), `[hint: this is Python: use env "python" for it]`, code("python", "import math\nprint(math.pi)")},
	{"a function of Python in JavaScript", code("node", "def f(x):\n    return x\n"), `[hint: this is Python: use env "python" for it]`, code("python", "def f(x):\n    return x\n")},
	{"a command in JavaScript", code("node", "ls -la /"), `[hint: this is a command of a shell: use env "bash" for it]`, code("bash", "ls -la /")},
	{"a command with arguments in JavaScript", code("node", "mkdir -p a/b"), `[hint: this is a command of a shell: use env "bash" for it]`, code("bash", "mkdir -p a/b")},
	{"Python from Bash", code("bash", "python3 -c 'print(1)'"), "1\n", nil},
	{"a file of Python in Bash", code("bash", "#!/usr/bin/env python3\nprint(1)"), "1\n", nil},
	{"Node.js from Bash", code("bash", "node -e 'console.log(1)'"), `[hint: this env does not have it: use env "node" for such code]`, code("node", "console.log(1)")},
	{"a file of Node.js in Bash", code("bash", "#!/usr/bin/env node\nconst x = 1;\nconsole.log(x);"), `use env "node"`, code("node", "#!/usr/bin/env node\nconst x = 1;\nconsole.log(x);")},

	// Something is to be installed or fetched.
	{"pip in Bash", code("bash", "pip install pandas"), " be installed: use what is there, or ask the user to add it to this env]", code("bash", "python3 -c 'import csv'")},
	{"pip as code of Python", code("python", "pip install pandas"), " be installed: leave this line out", code("python", "import csv")},
	{"pip from Python", code("python", "import subprocess\nsubprocess.run(['pip', 'install', 'pandas'], check=True)"), " be installed", code("python", "import csv")},
	{"pip as a module", code("python", "import subprocess, sys\nsubprocess.check_call([sys.executable, '-m', 'pip', 'install', 'pandas'])"), " be installed", code("python", "import csv")},
	{"a program that Python starts", code("python", "import subprocess\nsubprocess.run(['ffmpeg'])"), " be installed", code("python", "import subprocess\nsubprocess.run(['git', '--version'])")},
	{"a program that Python's shell starts", code("python", "import subprocess\nsubprocess.run('ffmpeg -i x', shell=True, check=True)"), " be installed", code("python", "import wave")},
	{"a program that Node.js starts", code("node", "require('child_process').execFileSync('ffmpeg')"), " be installed", code("node", "require('child_process').execFileSync('make', ['--version'])")},
	{"npm", code("bash", "npm install lodash"), " be installed", code("bash", "true")},
	{"npm as code of Node.js", code("node", "npm install lodash"), " be installed: use what Node.js has, or ask the user", code("node", "require('util').isDeepStrictEqual([], [])")},
	{"npx", code("node", "npx tsc --version"), " be installed", code("node", "const x: number = 1")},
	{"apt-get", code("bash", "apt-get install -y make"), " be installed", code("bash", "make --version")},
	{"sudo", code("bash", "sudo ls /"), "[hint: there is no sudo: run the command without it", code("bash", "ls /")},
	{"a package that Python lacks", code("python", "import torch"), `modules of the project need sys.path.insert(0, "/project")]`, code("python", "import sys\nsys.path.insert(0, \"/project\")\nimport sales")},
	{"a package that Node.js lacks", code("node", "const _ = require('lodash')"), " be installed", code("node", "Object.groupBy ?? Array.from")},
	{"curl", code("bash", "curl -sS https://example.org"), "[hint: there is no network, and trying again does not help]", code("bash", "true")},
	{"wget", code("bash", "wget https://example.org"), "[hint: there is no network", code("bash", "true")},
	{"a download in Python", code("python", "import urllib.request\nurllib.request.urlopen('https://example.org')"), "[hint: there is no network, and trying again does not help]", code("python", "1")},
	{"a download in JavaScript", code("node", "await fetch('https://example.org')"), "[hint: there is no network", code("node", "1")},
	{"git clone", code("bash", "git clone https://example.org/x.git"), "[hint: there is no network", code("bash", "git init x")},
	{"an address", code("python", "import socket\nsocket.create_connection(('10.0.0.1', 80), timeout=3)"), "[hint: there is no network", code("python", "1")},

	// Files are where the host has them, or where an earlier call left them.
	{"a path of the host", code("python", "open('/home/me/sales.csv')"), "[hint: the user's files are under /project", code("python", "open('/project/sales.csv')")},
	{"a file of the project by its name", code("python", "open('sales.csv')"), "[hint: the user's files are under /project", code("python", "open('/project/sales.csv')")},
	{"outputs beside the project", code("python", "import os\nos.chdir('/project')\nopen('outputs/a.csv', 'w')"), "[hint: files for the user go to /workspace/outputs", code("python", "import os\nos.chdir('/project')\nopen('/workspace/outputs/a.csv', 'w')")},
	{"a home folder", code("bash", "ls /Users/me"), "[hint: the user's files are under /project", code("bash", "ls /project")},
	{"a folder of another product", code("python", "open('/mnt/data/sales.csv')"), "[hint: the user's files are under /project", code("python", "open('/project/sales.csv')")},
	{"a file in a folder that nobody made", code("python", "open('/workspace/outputs/table.csv', 'w').write('a,b')"), "3\n", nil},
	{"a file of an earlier call", code("bash", "cat result.txt"), "/workspace is empty at first, and shared by calls with the same session]", kept("files", "bash", "echo 1 >result.txt; cat result.txt")},
	{"writing to the project", code("python", "open('/project/out.txt', 'w')"), "[hint: write to /workspace: this path is read-only]", code("python", "open('/workspace/out.txt', 'w')")},
	{"writing to the project in JavaScript", code("node", "require('fs').writeFileSync('/project/x', '1')"), "[hint: write to /workspace", code("node", "require('fs').writeFileSync('/workspace/x', '1')")},
	{"writing to the system", code("bash", "mkdir /data"), "[hint: write to /workspace", code("bash", "mkdir /workspace/data")},

	// State is expected where none is kept.
	{"a variable of an earlier call", code("python", "print(frame.head())"), "[hint: nothing of earlier calls is here: give all calls of a task the same session]", kept("frames", "python", "frame = []\nprint(frame)")},
	{"a variable of an earlier call in JavaScript", code("node", "console.log(total)"), "[hint: nothing of earlier calls is here", kept("totals", "node", "const total = 1; console.log(total)")},
	{"a server of an earlier call", code("python", "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:8000')"), "[hint: nothing of earlier calls is here", kept("servers", "python", "1")},
	{"exit in a session", kept("theirs", "python", "exit()"), "[no output]", nil},
	{"and its variables after it", kept("theirs", "python", "x"), "1\n", nil},
	{"and input after it", kept("theirs", "python", "input()"), "[hint: there is no input: write the values into the code]", kept("theirs", "python", "'me'")},
	{"a module's last line in JavaScript", code("node", "function main() { console.log('main') }\nif (require.main === module) main()"), "main\n", nil},
	{"the same in a module of the language", code("node", "function main() { console.log('main') }\nif (import.meta.url === `file://${process.argv[1]}`) main()"), "main\n", nil},
	{"an alias", code("bash", "alias ll='ls -l'\nll /project/sales.csv"), "sales.csv\n", nil},

	// What no sandbox has, and what is too much.
	{"input", code("python", "input('name? ')"), "[hint: there is no input: write the values into the code]", code("python", "name = 'me'")},
	{"a debugger", code("python", "x = 1\nbreakpoint()\nprint(x)"), "[hint: there is no debugger to type into: print the values instead]", code("python", "x = 1\nprint(x)")},
	{"standard input", code("python", "import sys\nn = int(sys.stdin.readline())"), "[hint: there is no input: write the values into the code]", code("python", "n = 1")},
	{"standard input of JSON", code("python", "import json, sys\njson.load(sys.stdin)"), "[hint: there is no input: write the values into the code]", code("python", "import json; json.loads('[]')")},
	{"standard input in JavaScript", code("node", "JSON.parse(require('fs').readFileSync(0, 'utf8'))"), "[hint: there is no input: write the values into the code]", code("node", "JSON.parse('[]')")},
	{"read", code("bash", "read -p 'name? ' name && echo $name"), "[hint: there is no input: write the values into the code]", code("bash", "name=me; echo $name")},
	{"arguments", code("python", "import sys\nprint(sys.argv[1])"), "[hint: there are no arguments: write the values into the code]", code("python", "print('me')")},
	{"arguments in JavaScript", code("node", "console.log(process.argv[2].length)"), "[hint: there are no arguments", code("node", "console.log('me'.length)")},
	{"a page", code("node", "document.body.innerHTML = 'hi'"), "[hint: there is no browser here, so no document, window, alert or prompt: print the result]", code("node", "console.log('hi')")},
	{"a window", code("node", "window.x = 1; window.alert('hi')"), "[hint: there is no browser here", code("node", "console.log('hi')")},
	{"a page in Python", code("python", "document.title"), "[hint: there is no browser here", code("python", "print('hi')")},
	{"require in a module", code("node", "require('fs').writeFileSync('m.mjs', 'require(\"fs\")'); require('child_process').execSync('node m.mjs')"), "[hint: this file is a module: load what it needs with import", code("node", "require('fs').writeFileSync('m.mjs', 'import \"fs\"'); require('child_process').execSync('node m.mjs')")},
	{"a file of TypeScript", code("node", "require('fs').writeFileSync('m.ts', 'export const x: number = 1'); await import('./m.ts')"), "[hint: Node.js loads no file of TypeScript here: run esbuild FILE.ts --outfile=FILE.mjs first", code("node", "require('fs').writeFileSync('m.ts', 'export const x: number = 1'); require('child_process').execSync('esbuild m.ts --outfile=m.mjs', { stdio: 'pipe' }); await import('./m.mjs')")},
	{"a container", code("bash", "docker ps"), "[hint: no containers or services run here: start the program itself]", code("bash", "git --version")},
	{"an editor", code("bash", "vim notes.txt"), "[hint: there is no terminal to edit in: write the file with a here-document", code("bash", "cat >notes.txt <<'END'\nhi\nEND")},
	{"too much memory", code("python", "x = bytearray(3 << 30)"), "MB of memory: load and compute less at a time, or ask the user for more (memory_mb)]", code("python", "x = bytearray(3 << 20)")},
	{"a full disk", code("bash", "head -c 2G /dev/zero >big"), "[hint: the disk is full: delete files", code("bash", "head -c 2M /dev/zero >small")},
	{"too many threads", code("python", "import threading\nfor _ in range(5000): threading.Thread(target=threading.Event().wait, daemon=True).start()"), "[hint: at most ", code("python", "import threading\nthreading.Thread(target=print).start()")},
	{"a binary file", code("bash", "cat /bin/sh"), "[binary output: stdout is not UTF-8 text: decode it, or write it to a file in /workspace/outputs]", nil},
	{"a huge print", code("python", "print('x' * 200000)"), "of output cut; print less of it]", nil},
	{"an exit", code("python", "exit(3)"), "[exit status 3]", code("python", "exit(0)")},
}

func code(env, code string) map[string]any { return map[string]any{"env": env, "code": code} }

func kept(session, env, code string) map[string]any {
	return map[string]any{"session": session, "env": env, "code": code}
}

// Each of a model's likely mistakes is answered with what to do, in few words.
func TestMistakes_AreAnsweredWithAHint(t *testing.T) {
	t.Parallel() // it waits more than it works
	project := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(project, "sales.csv"), []byte("a,b\n1,2\n"), 0o644))
	must.Do(t, os.WriteFile(filepath.Join(project, "sales.py"), nil, 0o644))
	// Some are mistakes only if a call cannot ask for time, and a session has one environment.
	all := environments(t)
	for _, fields := range all {
		fields["max_timeout_seconds"] = nil
	}
	c := start(t, "PROJECT_DIR="+project, "NIX_SANDBOX_METADATA="+mcptest.MetadataWith(t, all, map[string]any{
		"session": mcptest.Session(map[string]any{"shared_files": false}),
	}))
	in(c, "theirs", "python", "x = 1")
	check := func(c *mcptest.Client, m mistake) {
		t.Run(m.name, func(t *testing.T) {
			answer := c.Run(m.args)
			if answer.IsError == (m.next == nil) || !strings.Contains(answer.Text(), m.want) {
				t.Errorf("error %v, it lacks %q:\n%s", answer.IsError, m.want, answer.Text())
			}
			if own := ours(answer); len(own) > mostBytes {
				t.Errorf("%d bytes of it are ours:\n%s", len(own), own)
			}
			t.Log(ours(answer))
			if m.next == nil {
				return
			}
			if answer := c.Run(m.next); answer.IsError {
				t.Errorf("what it says to do fails:\n%s", answer.Text())
			}
		})
	}
	for _, m := range mistakes {
		check(c, m)
	}
	// A server of its own, so that the others have the time that a busy machine takes.
	hasty := start(t, tightened(t, map[string]any{"timeout_seconds": 5}))
	check(hasty, mistake{
		"a long sleep", code("python", "import time\ntime.sleep(60)"),
		"[hint: 5 s is the limit of each call: do less in one, and keep what is done in a session]", kept("sleeps", "bash", "sleep 0.1"),
	})
}

// ours is what of an answer the code did not write.
func ours(answer mcptest.Answer) string {
	if outcome := answer.Fact("outcome"); outcome == nil || outcome == "refused" {
		return answer.Text() // it never ran
	}
	var own strings.Builder
	for line := range strings.Lines(answer.Text()) {
		if strings.HasPrefix(line, "[") {
			own.WriteString(line)
		}
	}
	return own.String()
}

// What an error's text says is no reason for a hint where the call succeeded
// or the error is the code's own.
func TestMistakes_OfTheCodeGetNoHint(t *testing.T) {
	c := start(t)
	for name, args := range map[string]map[string]any{
		"the words of errors, printed":     code("bash", "echo 'Read-only file system'; echo 'Network is unreachable' >&2; echo 'x: command not found' >&2"),
		"an error that is handled":         code("python", "try:\n    open('/etc/x', 'w')\nexcept OSError as e:\n    print(e)"),
		"a status alone":                   code("bash", "exit 3"),
		"an exception of the code's":       code("python", "raise ValueError('no')"),
		"a name that is misspelt":          code("python", "total = 1\nprint(totl)"),
		"a syntax error":                   code("python", "def f(:\n    pass"),
		"a variable missing in a session":  kept("s", "python", "missing"),
		"an assertion":                     code("node", "require('assert').equal(1, 2)"),
		"a test that fails":                code("bash", "grep -q x /dev/null"),
		"a syntax error in a string of !":  code("python", "x = \\n!pip install x\\n' y"),
		"a list that is too short":         code("python", "x = []\nx[1]"),
		"a syntax error in JavaScript":     code("node", "const x = ;"),
		"a name that is a command's":       code("node", "find = 1; let = = 3"),
		"a value that is missing":          code("node", "null.x"),
		"a loop that reads to the end":     code("bash", "while read -r line; do :; done </dev/null; false && true; cd /nowhere 2>&1"),
		"a line that is read from a file":  code("bash", "read -r line </etc/os-release; [ -z \"$line\" ]"),
		"a fence in a string, and success": code("python", "print('```')"),
	} {
		t.Run(name, func(t *testing.T) {
			if answer := c.Run(args); strings.Contains(answer.Text(), "[hint:") {
				t.Errorf("answer %s", answer.Text())
			}
		})
	}
}

// With thirty environments an answer is as short as with three, and names
// the likeliest first.
func TestMistakesAmongMany(t *testing.T) {
	all := environments(t)
	python := all["python"]
	for _, letter := range "abcdefghijklmnopqrstuvwxyz" {
		fields := map[string]any{}
		for field, value := range python {
			fields[field] = value
		}
		name := "project-" + string(letter)
		fields["name"], fields["description"] = name, "Python 3 with the packages of project "+string(letter)
		all[name] = fields
	}
	c := start(t, "NIX_SANDBOX_METADATA="+mcptest.Metadata(t, all))
	for name, test := range map[string]struct {
		args map[string]any
		want string
	}{
		"a wrong environment": {code("python3", "1"), `there is no env "python3"; choose one of python, `},
		"a wrong argument":    {map[string]any{"language": "python"}, "more, which the tool's description lists"},
	} {
		t.Run(name, func(t *testing.T) {
			if answer := c.Run(test.args); !answer.IsError || !strings.Contains(answer.Text(), test.want) || len(answer.Text()) > mostBytes {
				t.Errorf("%d bytes: %s", len(answer.Text()), answer.Text())
			}
		})
	}
}
