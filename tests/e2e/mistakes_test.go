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
	// want is a part of the answer that says what to do. If it begins with [,
	// it is the beginning of a line that the server wrote.
	want string
	// fine is a mistake that is none: the answer is not an error.
	fine bool
}

// mistakes are the likeliest ones. A hint stands only where the interpreter's
// own words leave open what to do.
var mistakes = []mistake{
	// The code is not what the interpreter takes.
	{"python -c around it", code("python", `python -c "print(1)"`), "[hint: code is run by the interpreter itself: send the program alone", false},
	{"a here-document around it", code("python", "python3 - <<'EOF'\nprint(1)\nEOF"), "[hint: code is run by the interpreter itself", false},
	{"node -e around it", code("node", `node -e "console.log(1)"`), "[hint: code is run by the interpreter itself", false},
	{"a fence around Python", code("python", "```python\nprint(1)\n```"), "[hint: code is run as it is: send it without the ``` fence]", false},
	{"a fence around Bash", code("bash", "```bash\necho hi\n```"), "[hint: code is run as it is: send it without the ``` fence]", false},
	{"a fence around JavaScript", code("node", "```js\nconsole.log(1)\n```"), "[hint: code is run as it is: send it without the ``` fence]", false},
	{"a notebook's shell line", code("python", "!pip install pandas"), "[hint: this is no notebook: leave out lines that begin with ! or %]", false},
	{"a notebook's magic", code("python", "%matplotlib inline\nprint(1)"), "[hint: this is no notebook", false},
	{"a last value that is not printed", code("python", "6 * 7"), "42\n", true},
	{"nothing printed", code("python", "x = 3"), "[no output]", true},
	{"empty code", code("python", ""), "[no output]", true},

	// The arguments are not those of the tool.
	{"an interpreter for an environment", code("python3", "1"), "there is no env \"python3\"; choose one of\n- bash: ", false},
	{"a language for an environment", code("javascript", "1"), "- node: JavaScript and TypeScript in Node.js", false},
	{"language for env", map[string]any{"language": "python", "code": "1"}, `unknown argument "language": call run with code (a string) and env (one of bash, node, python)`, false},
	{"an argument timeout", map[string]any{"env": "python", "code": "1", "timeout": 60}, `unknown argument "timeout": call run with code`, false},
	{"no env", map[string]any{"code": "1"}, "env is missing: call run with code (a string) and env (one of bash, node, python)", false},
	{"no code", map[string]any{"env": "bash"}, "code is missing: call run with code", false},
	{"lines for code", map[string]any{"env": "python", "code": []string{"a = 1", "a"}}, "code is not a string: call run with code (a string)", false},
	{"a list for env", map[string]any{"env": []string{"python"}, "code": "1"}, "env is not a string: call run with", false},
	{"a session with a space", kept("my session", "python", "1"), "must be 1 to 64 letters, digits, _ or -", false},
	{"a session of another env", kept("theirs", "bash", "echo $x"), `session "theirs" belongs to env "python": call it with that env, or use another session id`, false},

	// The language is another.
	{"a command in Python", code("python", "ls\n"), "[hint: this env runs another language: choose env by the code's]", false},
	{"JavaScript in Python", code("python", "console.log(1)"), "[hint: this env runs another language", false},
	{"Python in Bash", code("bash", "import os\nos.getcwd()"), "[hint: this env runs another language", false},
	{"Python in JavaScript", code("node", "print(1)"), "[hint: this env runs another language", false},
	{"Python from Bash", code("bash", "python3 -c 'print(1)'"), `[hint: this env does not have it: use env "python" for such code]`, false},

	// Something is to be installed or fetched.
	{"pip in Bash", code("bash", "pip install pandas"), "[hint: nothing can be installed or downloaded: do without, or ask the user", false},
	{"pip from Python", code("python", "import subprocess\nsubprocess.run(['pip', 'install', 'pandas'], check=True)"), "[hint: nothing can be installed", false},
	{"pip as a module", code("python", "import subprocess, sys\nsubprocess.check_call([sys.executable, '-m', 'pip', 'install', 'pandas'])"), "[hint: nothing can be installed", false},
	{"a program that Python starts", code("python", "import subprocess\nsubprocess.run(['make'])"), "[hint: nothing can be installed", false},
	{"a program that Python's shell starts", code("python", "import subprocess\nsubprocess.run('make all', shell=True, check=True)"), "[hint: nothing can be installed", false},
	{"a program that Node.js starts", code("node", "require('child_process').execFileSync('make')"), "[hint: nothing can be installed", false},
	{"npm", code("bash", "npm install lodash"), "[hint: nothing can be installed", false},
	{"apt-get", code("bash", "apt-get install -y make"), "[hint: nothing can be installed", false},
	{"sudo", code("bash", "sudo ls"), "[hint: nothing can be installed", false},
	{"a package that Python lacks", code("python", "import torch"), `modules of the project need sys.path.insert(0, "/project")]`, false},
	{"a package that Node.js lacks", code("node", "const _ = require('lodash')"), "[hint: nothing can be installed", false},
	{"curl", code("bash", "curl -s https://example.org"), "[hint: nothing can be installed or downloaded", false},
	{"a download in Python", code("python", "import urllib.request\nurllib.request.urlopen('https://example.org')"), "[hint: there is no network, and trying again does not help]", false},
	{"a download in JavaScript", code("node", "await fetch('https://example.org')"), "[hint: there is no network", false},
	{"git clone", code("bash", "git clone https://example.org/x.git"), "[hint: there is no network", false},
	{"an address", code("python", "import socket\nsocket.create_connection(('10.0.0.1', 80), timeout=3)"), "[hint: there is no network", false},

	// Files are where the host has them, or where an earlier call left them.
	{"a path of the host", code("python", "open('/home/me/data.csv')"), "[hint: the user's files are under /project", false},
	{"a file of the project by its name", code("python", "open('sales.csv')"), "[hint: the user's files are under /project", false},
	{"a home folder", code("bash", "ls /Users/me"), "[hint: the user's files are under /project", false},
	{"a file in a folder that nobody made", code("python", "open('/workspace/outputs/table.csv', 'w').write('a,b')"), "3\n", true},
	{"a file of an earlier call", code("bash", "cat result.txt"), "/workspace is empty at first, and shared by calls with the same session]", false},
	{"writing to the project", code("python", "open('/project/out.txt', 'w')"), "[hint: write to /workspace: this place is read-only]", false},
	{"writing to the project in JavaScript", code("node", "require('fs').writeFileSync('/project/x', '1')"), "[hint: write to /workspace", false},
	{"writing to the system", code("bash", "mkdir /data"), "[hint: write to /workspace", false},

	// State is expected where none is kept.
	{"a variable of an earlier call", code("python", "print(frame.head())"), "[hint: nothing of earlier calls is here: give all calls of a task the same session]", false},
	{"a variable of an earlier call in JavaScript", code("node", "console.log(total)"), "[hint: nothing of earlier calls is here", false},
	{"a server of an earlier call", code("python", "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:8000')"), "[hint: nothing of earlier calls is here", false},
	{"exit in a session", kept("theirs", "python", "exit()"), "[no output]", true},
	{"and its variables after it", kept("theirs", "python", "x"), "1\n", true},
	{"and input after it", kept("theirs", "python", "input()"), "[hint: there is no input: write the values into the code]", false},
	{"a module's last line in JavaScript", code("node", "function main() { console.log('main') }\nif (require.main === module) main()"), "main\n", true},

	// What no sandbox has, and what is too much.
	{"input", code("python", "input('name? ')"), "[hint: there is no input: write the values into the code]", false},
	{"a long sleep", code("python", "import time\ntime.sleep(60)"), "[hint: 2 s is the limit of each call: do less in one, and keep what is done in a session]", false},
	{"too much memory", code("python", "x = bytearray(3 << 30)"), "MemoryError", false},
	{"a huge print", code("python", "print('x' * 200000)"), "of output cut; print less of it]", true},
	{"an exit", code("python", "exit(3)"), "[exit status 3]", false},
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
	c := start(t, "PROJECT_DIR="+project, tightened(t, map[string]any{"timeout_seconds": 2}))
	in(c, "theirs", "python", "x = 1")
	for _, m := range mistakes {
		t.Run(m.name, func(t *testing.T) {
			answer := c.Run(m.args)
			if answer.IsError == m.fine || !strings.Contains(answer.Text(), m.want) {
				t.Errorf("error %v, it lacks %q:\n%s", answer.IsError, m.want, answer.Text())
			}
			if own := ours(answer); len(own) > mostBytes {
				t.Errorf("%d bytes of it are ours:\n%s", len(own), own)
			}
			t.Log(ours(answer))
		})
	}
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
