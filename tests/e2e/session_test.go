package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
)

// State of every language stays over 20 calls.
func TestSession_KeepsState(t *testing.T) {
	c := start(t)
	for env, code := range map[string][3]string{
		"python": {"n = 0\nimport math\ndef up():\n    global n\n    n += 1\n    return n", "print(up(), int(math.sqrt(4)))", "%d 2\n"},
		"bash":   {"n=0; up() { n=$((n+1)); }; cd /tmp; alias two='echo 2'", "up; echo $n; pwd", "%d\n/tmp\n"},
		"node":   {"let n = 0; const two = 2; class Up { up() { return ++n } }", "console.log(new Up().up(), two)", "%d 2\n"},
	} {
		t.Run(env, func(t *testing.T) {
			if answer := in(c, env, env, code[0]); answer.IsError {
				t.Fatalf("answer %+v", answer)
			}
			for i := range 20 {
				expect(t, in(c, env, env, code[1]), fmt.Sprintf(code[2], i+1))
			}
		})
	}
}

// What runs too long is interrupted, with its state kept; what ignores that
// is ended, and its files are kept.
func TestSession_SurvivesTimeLimit(t *testing.T) {
	t.Parallel()
	c := start(t, tightened(t, map[string]any{"timeout_seconds": 3, "max_timeout_seconds": 60}))
	// Only the call that never ends has the usual time: a busy machine may take longer
	// for the others.
	patiently := func(session, env, code string) mcptest.Answer {
		return c.Run(mcptest.Arguments{Code: code, Env: env, Session: session, Timeout: 60})
	}
	for name, test := range map[string]struct {
		env, before, code, after string
		lost                     bool
	}{
		"python computes":   {"python", "x = 'kept'", "while True: pass", "print(x)", false},
		"python sleeps":     {"python", "x = 'kept'", "import time; time.sleep(99)", "print(x)", false},
		"bash sleeps":       {"bash", "x=kept", "sleep 99", "echo $x", false},
		"bash computes":     {"bash", "x=kept", "while :; do :; done", "echo $x", false},
		"node computes":     {"node", "let x = 'kept'", "while(true){}", "console.log(x)", false},
		"python ignores it": {"python", "open('f', 'w').write('kept')", "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass", "print(open('f').read())", true},
		"bash ignores it":   {"bash", "echo kept >f", "trap '' INT; while :; do sleep 1; done", "cat f", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			session := strings.ReplaceAll(name, " ", "-")
			patiently(session, test.env, test.before)
			answer := in(c, session, test.env, test.code)
			want := "[timed out after 3 s; the session's state was kept]"
			if test.lost {
				want = "[timed out after 3 s; the session's variables are lost, its files in /workspace are kept]"
			}
			expectError(t, answer, want)
			expect(t, patiently(session, test.env, test.after), "kept\n")
		})
	}
}

// 100 calls that are sent at once run in the order in which they were sent.
func TestSession_RunsCallsInOrder(t *testing.T) {
	c := start(t)
	var ids []string
	for i := range 100 {
		ids = append(ids, c.SendRun(mcptest.Arguments{Code: fmt.Sprintf("all = globals().get('all', []) + [%d]; print(all == list(range(%d)))", i, i+1), Env: "python", Session: "s"}))
	}
	for i, id := range ids {
		if answer := c.AwaitRun(id); answer.Text() != "True\n" {
			t.Fatalf("call %d: %+v", i, answer)
		}
	}
}

// Calls to different sessions run at the same time.
func TestSessions_RunSideBySide(t *testing.T) {
	const sessions = 8
	c := start(t)
	mark := seconds()
	var ids []string
	for i := range sessions {
		ids = append(ids, c.SendRun(mcptest.Arguments{Code: fmt.Sprintf("{ sleep %s; } 2>/dev/null; echo %d", mark, i), Env: "bash", Session: fmt.Sprint(i)}))
	}
	together(t, sessions, mark)
	for i, id := range ids {
		expect(t, c.AwaitRun(id), fmt.Sprintf("%d\n", i))
	}
}

// Where the environments of a session share no files, a session has one environment.
func TestSession_RefusesOtherEnvironment(t *testing.T) {
	c := start(t, "NIX_SANDBOX_METADATA="+mcptest.Metadata(t, environments(t)))
	in(c, "s", "bash", "x=1")
	if answer := in(c, "s", "python", "1"); !answer.IsError || answer.Text() != `session "s" belongs to env "bash": call it with that env, or use another session name for "python" (the operator's option shared_files would let both have its files)` {
		t.Errorf("answer %+v", answer)
	}
	expect(t, in(c, "s", "bash", "echo $x"), "1\n")
}

// Idle time and lifetime end a session when they say, and the next call is
// told.
func TestSession_EndsWhenIdleOrOld(t *testing.T) {
	t.Parallel()
	for variable, why := range map[string]string{"SESSION_IDLE_TIMEOUT=1": "ended after 1 s idle", "SESSION_MAX_LIFETIME=1": "ended at its lifetime of 1 s"} {
		t.Run(variable, func(t *testing.T) {
			c := start(t, variable, unpooled(t))
			in(c, "s", "bash", "x=1")
			began := time.Now()
			patience.Wait(t, patience.Long, func() string { return fmt.Sprintf("it lives after %v", time.Since(began)) }, func() bool {
				return len(procfs.Descendants(c.PID())) == 0
			})
			told := "[new session: the earlier one " + why + "]"
			again := time.Now()
			expect(t, in(c, "s", "bash", "echo none$x"), "none\n"+told)
			answer := in(c, "s", "bash", "echo again")
			// This one may have ended as well, where a second has passed since.
			if got := answer.Text(); answer.IsError || got != "again\n" && (got != "again\n"+told || time.Since(again) < time.Second) {
				t.Errorf("the call after it is answered %q", got)
			}
		})
	}
}

func TestSessions_AreBounded(t *testing.T) {
	c := start(t, "SESSION_MAX=2")
	in(c, "one", "bash", ":")
	in(c, "two", "bash", ":")
	expectError(t, in(c, "three", "bash", ":"), "all 2 sessions are in use; idle: one (bash, ", "two (bash, ")
	expect(t, run(c, "bash", "echo 1"), "1\n")
}

// 64 sessions fit; each costs at most 25 MB while it is idle, and nothing
// after the end.
func TestSessions_CostLittleMemory(t *testing.T) {
	const sessions, most = 64, 25 << 20
	c := start(t)
	var ids []string
	for i := range sessions {
		ids = append(ids, c.SendRun(mcptest.Arguments{Code: "x = 1", Env: "python", Session: fmt.Sprint(i)}))
	}
	for _, id := range ids {
		if answer := c.AwaitRun(id); answer.IsError {
			t.Fatalf("answer %+v", answer)
		}
	}
	expectError(t, in(c, "one-more", "python", "1"), "all 64 sessions are in use")
	children := procfs.Descendants(c.PID())
	all, err := procfs.Memory(children...)
	if err != nil {
		t.Skipf("memory cannot be measured: %v", err)
	}
	each := all / sessions
	t.Logf("%.1f MB each", float64(each)/1e6)
	if each > most {
		t.Errorf("a session costs %d bytes, at most %d are allowed", each, most)
	}
	c.CloseInput()
	if status := c.Wait(10 * time.Second); status != 0 {
		t.Errorf("status %d", status)
	}
	patience.Gone(t, children...)
}

// After the interpreter's death the session goes on with a new one; after the
// agent's the sandbox is replaced. The answers say so, and no other session is
// touched.
func TestSession_GoesOnAfterInterpretersDeath(t *testing.T) {
	c := start(t)
	in(c, "other", "python", "x = 'untouched'")
	for name, test := range map[string]struct{ env, code, after string }{
		"python ends itself": {"python", "import os; open('f', 'w').write('kept'); os._exit(3)", "print(open('f').read())"},
		"bash kills itself":  {"bash", "echo kept >f; kill -9 $$", "cat f"},
		"python crashes":     {"python", "open('f', 'w').write('kept')\nimport ctypes; ctypes.string_at(0)", "print(open('f').read())"},
		"node aborts":        {"node", "require('fs').writeFileSync('f', 'kept'); process.abort()", "console.log(require('fs').readFileSync('f', 'utf8'))"},
	} {
		t.Run(name, func(t *testing.T) {
			session := strings.ReplaceAll(name, " ", "-")
			expectError(t, in(c, session, test.env, test.code), "the session's variables are lost, its files in /workspace are kept]")
			expect(t, in(c, session, test.env, test.after), "kept\n")
		})
	}
	expect(t, in(c, "other", "python", "print(x)"), "untouched\n")
}

// Code that does its worst gets a true answer or an error; the next
// call works, other sessions notice nothing, and the server does not grow.
func TestSession_WithstandsHostileCode(t *testing.T) {
	t.Parallel() // it waits more than it works
	c := start(t, tightened(t, map[string]any{"timeout_seconds": 5, "max_timeout_seconds": 60}))
	// Only the code that does its worst has the usual time.
	patiently := func(session, env, code string) mcptest.Answer {
		return c.Run(mcptest.Arguments{Code: code, Env: env, Session: session, Timeout: 50})
	}
	patiently("other", "python", "x = 'untouched'")
	for name, test := range map[string]struct{ env, code string }{
		"closes every descriptor":    {"python", "import os; os.closerange(0, 256)"},
		"writes to every descriptor": {"python", "import os\nfor fd in range(0, 256):\n    try: os.write(fd, b'\\x00\\x00\\x00\\x02{}' * 1000)\n    except OSError: pass"},
		"imitates frames":            {"bash", `printf '\0\0\0\60{"type":"result","id":1,"outcome":"ok","exit_code":0}'; printf '\0\0\0\60{"type":"result","id":1}' >&2`},
		"kills everything":           {"bash", "kill -9 -1"},
		"kills the agent":            {"python", "import os, signal\nfor s in (9, 15, 2, 11, 19): \n    try: os.kill(1, s)\n    except OSError: pass"},
		"leaves printing children":   {"bash", "(while :; do echo late; sleep 0.05; done) & disown; echo now"},
		"many processes":             {"bash", "for i in $(seq 1000); do sleep 30 & done 2>/dev/null; echo started"},
		"deletes the workspace":      {"bash", "rm -rf /workspace /workspace/* /workspace/.* 2>/dev/null; echo gone"},
		"replaces sys.stdout":        {"python", "import sys, builtins; sys.stdout = None; sys.stderr = None; builtins.print = None; builtins.exit = None"},
		"eats the disk":              {"bash", "head -c 1G /dev/zero >big; head -c 1G /dev/zero >/tmp/big; echo full"},
		"endless output":             {"bash", "yes"},
		"planted start-up files":     {"bash", "echo 'exit 9' >.bashrc; echo 'exit 9' >.profile; echo 'raise SystemExit(9)' >sitecustomize.py; mkdir -p node_modules; echo 'process.exit(9)' >node_modules/fs.js"},
	} {
		t.Run(name, func(t *testing.T) {
			session := strings.ReplaceAll(strings.ReplaceAll(name, " ", "-"), ".", "")
			answer := in(c, session, test.env, test.code)
			t.Logf("%.200q", answer.Text())
			again := map[string]string{"python": "import builtins, importlib\nimport os; os.write(1, b'alive\\n')", "bash": "echo alive"}[test.env]
			// One call may still pay for what was done: it says so, and the
			// one after it works.
			if answer := patiently(session, test.env, again); !strings.Contains(answer.Text(), "alive\n") {
				t.Logf("next: %.200q", answer.Text())
				if answer := patiently(session, test.env, again); !strings.Contains(answer.Text(), "alive\n") {
					t.Errorf("the session is of no more use: %+v", answer)
				}
			}
			expect(t, patiently("other", "python", "print(x)"), "untouched\n")
		})
	}
	if peak := c.PeakMemory(); peak >= 64<<20 {
		t.Errorf("the server used %d MiB", peak>>20)
	}
}

// All of an output that is cut can be searched by the next call.
func TestSession_KeepsWholeOutput(t *testing.T) {
	c := start(t)
	answer := in(c, "s", "bash", "seq 1000000")
	_, rest, ok := strings.Cut(answer.Text(), "all of it is in ")
	if !ok {
		t.Fatalf("answer %q", answer.Text()[max(0, len(answer.Text())-300):])
	}
	path := strings.TrimSuffix(strings.TrimSpace(rest), "]")
	expect(t, in(c, "s", "bash", "wc -l <"+path+"; grep -c 7 "+path), "1000000\n468559\n")
}

// A 300 KB table arrives as a resource, a picture as an image.
func TestOutputs_ArriveAsResourceAndImage(t *testing.T) {
	c := start(t)
	answer := in(c, "s", "python", "import os\nos.makedirs('outputs', exist_ok=True)\nopen('outputs/table.csv', 'w').write('a,b\\n' * 75000)")
	if len(answer.Content) != 2 || answer.Content[1].Type != "resource_link" || answer.Content[1].Size != 300000 {
		t.Fatalf("answer %+v", answer)
	}
	var read struct {
		Contents []struct{ Text, MIMEType string }
	}
	must.Do(t, json.Unmarshal(c.Request("resources/read", map[string]any{"uri": answer.Content[1].URI}).Result, &read))
	if len(read.Contents) != 1 || len(read.Contents[0].Text) != 300000 {
		t.Errorf("read %d contents", len(read.Contents))
	}
	const dot = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
	answer = run(c, "bash", "echo "+dot+" | base64 -d >outputs/dot.png")
	if len(answer.Content) != 1 || answer.Content[0].Type != "image" || answer.Content[0].MIMEType != "image/png" {
		t.Errorf("answer %+v", answer)
	}
}

// Files of a call without a session can be read after its sandbox has gone, as long as
// those of a session, and nothing of them lies in a folder.
func TestOutputs_OutliveTheirCall(t *testing.T) {
	t.Parallel()
	for era, version := range eras {
		t.Run(era, func(t *testing.T) {
			t.Parallel()
			// Longer where a busy machine has read them too late.
			for idle := 2; !outliveTheirCall(t, version, idle); idle *= 5 {
				if idle > 60 {
					t.Fatal("they are gone however long they are kept")
				}
			}
		})
	}
}

// outliveTheirCall returns false where the first file is gone when it is read.
func outliveTheirCall(t *testing.T, version string, idle int) bool {
	temporary := t.TempDir()
	// Only files of calls are in TMPDIR: what builds packages has its folder elsewhere.
	c := mcptest.Start(t, command(t, unpooled(t), "TMPDIR="+temporary, "XDG_RUNTIME_DIR="+t.TempDir(), fmt.Sprint("SESSION_IDLE_TIMEOUT=", idle)))
	c.Initialize(version)
	answer := run(c, "bash", "cd outputs; echo small >a.txt; head -c 300000 /dev/zero >b.bin; truncate -s 9M c.bin; ls")
	if len(answer.Content) != 4 || !strings.HasSuffix(answer.Text(), "[written and gone with the sandbox: /workspace/outputs/c.bin (9.4 MB); to keep files, use a session]") {
		t.Fatalf("answer %+v", answer)
	}
	patience.Until(t, "the sandbox ends", func() bool { return len(procfs.Descendants(c.PID())) == 0 })
	read := func(uri string) mcptest.Message {
		return c.Await(c.Send("resources/read", map[string]any{"uri": uri}))
	}
	for i, want := range []string{`"text":"small\n"`, `"blob":"AAAA`} {
		link := answer.Content[2+i]
		got := read(link.URI)
		if got.Error != nil {
			return false
		}
		if link.Type != "resource_link" || !strings.Contains(string(got.Result), want) {
			t.Errorf("link %+v reads %.300s", link, got.Line)
		}
	}
	// The next call does not find them, and a session does not have such a name.
	expect(t, run(c, "bash", "ls outputs"), "[no output]")
	if left := must.Get(os.ReadDir(temporary))(t); len(left) > 0 {
		t.Errorf("there are %v", left)
	}
	var gone mcptest.Message
	patience.Until(t, "the files are gone", func() bool {
		time.Sleep(time.Duration(idle) * time.Second) // a read begins the idle time anew
		gone = read(answer.Content[2].URI)
		return gone.Error != nil
	})
	notFound := mcp.RESOURCE_NOT_FOUND
	if version == mcptest.Stateless {
		notFound = mcp.INVALID_PARAMS
	}
	if gone.Error.Code != notFound || !strings.Contains(gone.Error.Message, fmt.Sprintf("kept until nobody has read them for %d s, at most 3600 s", idle)) {
		t.Errorf("error %+v, want the code %d", gone.Error, notFound)
	}
	expect(t, in(c, "s", "bash", "echo 1"), "1\n")
	if none := read("sandbox://s/outputs/none"); none.Error == nil || none.Error.Code != notFound {
		t.Errorf("a file that does not exist: %s, want the code %d", none.Line, notFound)
	}
	return true
}

func TestResources_HaveTemplate(t *testing.T) {
	list := start(t).Request("resources/templates/list", nil).Result
	if !strings.Contains(string(list), `"uriTemplate":"sandbox://{session}/{+path}"`) {
		t.Errorf("templates %s", list)
	}
}

// Where the operator lets the environments of a session share its files, each of them
// finds what the others wrote, beside a project and an overlay too.
func TestSession_SharesFiles(t *testing.T) {
	t.Parallel()
	metadata := "NIX_SANDBOX_METADATA=" + mcptest.MetadataWith(t, environments(t), map[string]any{
		"session": mcptest.Session(map[string]any{"shared_files": true}),
	})
	project := sample(t, "project")
	for name, variables := range map[string][]string{
		"alone":             nil,
		"beside a project":  {"PROJECT_DIR=" + project, "NIX_SANDBOX_INBOX=" + project},
		"beside an overlay": {"PROJECT_DIR=" + project, "PROJECT_MODE=overlay"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := start(t, append(variables, metadata)...)
			in(c, "s", "bash", "n=1; seq 3 >numbers; echo a >outputs/first.txt")
			expect(t, in(c, "s", "python", "sum(map(int, open('numbers')))"), "6\n")
			expect(t, in(c, "s", "node", "require('fs').appendFileSync('numbers', '4\\n')"), "[no output]")
			expect(t, in(c, "s", "bash", "wc -l <numbers; echo $n"), "4\n1\n")
			expect(t, in(c, "other", "python", "import os; os.path.exists('numbers')"), "False\n")
			expect(t, run(c, "bash", "ls -A"), "outputs\n")
			answer := in(c, "s", "python", "open('outputs/second.txt', 'w').write('b')")
			if link := answer.Content[len(answer.Content)-1]; len(answer.Content) != 2 || link.URI != "sandbox://s/outputs/second.txt" {
				t.Errorf("answer %+v", answer)
			}
			if read := c.Request("resources/read", map[string]any{"uri": "sandbox://s/outputs/first.txt"}); !strings.Contains(string(read.Result), `"text":"a\n"`) {
				t.Errorf("read %s", read.Result)
			}
			if len(variables) > 0 {
				expect(t, in(c, "s", "node", "require('fs').existsSync('/project/Makefile')"), "true\n")
			}
			// The files together are as large as those of one sandbox may be.
			expectError(t, in(c, "s", "bash", "head -c 250M /dev/zero >zeros && ls zeros; head -c 250M /dev/zero >more"), "No space left on device")
			expectError(t, in(c, "s", "python", "open('zeros2', 'wb').write(bytes(20 << 20))"), "No space left on device")
			// They count as memory of each sandbox: bash may have 512 MB. One that ends leaves them and
			// the others.
			in(c, "s", "python", "n = 7")
			expectError(t, in(c, "s", "bash", "head -c 300M /dev/zero >/tmp/x; head -c 100M /dev/zero >/dev/shm/x"), "; the session's variables are lost, its files in /workspace are kept]")
			expect(t, in(c, "s", "python", "import os; os.remove('zeros'); os.remove('more'); print(len(open('numbers').readlines()), n)"), "4 7\n")
			if answer := in(c, "s", "bash", "wc -l <numbers"); answer.Text() != "4\n[the session's variables are lost, its files in /workspace are kept: the sandbox of this env died]" {
				t.Errorf("answer %+v", answer)
			}
		})
	}
}

// Files that code of a call without a session saves where it works reach the user as those in outputs
// do, and one that is lost is named. Those of a session stay where they are.
func TestOutputs_HaveLooseFiles(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	c := start(t, "NIX_SANDBOX_OUTPUTS="+folder)
	const code = `import os, subprocess, tempfile
with open('report.xlsx', 'wb') as f: _ = f.write(b'PK')
with open('/tmp/lost.csv', 'w') as f: _ = f.write('a,b')
open('.hidden', 'w').close()
_, _ = tempfile.mkstemp(), os.mkdir('folder')
_ = subprocess.run(['cp', 'report.xlsx', 'folder/inner.xlsx'])`
	answer := run(c, "python", code)
	if text := answer.Text(); !strings.Contains(text, "[written and gone with the sandbox: /tmp/lost.csv (3 bytes)") || !strings.Contains(text, "[copied for the user to "+folder) {
		t.Errorf("the answer is %s", text)
	}
	var uri string
	for _, one := range answer.Content {
		if one.URI != "" {
			uri += one.URI
		}
	}
	if !regexp.MustCompile(`^sandbox://call\.[0-9a-f]{16}/report\.xlsx$`).MatchString(uri) {
		t.Errorf("the links are %q", uri)
	}
	if message := c.Await(c.Send("resources/read", map[string]any{"uri": uri})); !strings.Contains(string(message.Result), "PK") {
		t.Errorf("the file is read as %s", message.Result)
	}
	if copied := must.Get(filepath.Glob(filepath.Join(folder, "calls", "*", "*")))(t); len(copied) != 1 || filepath.Base(copied[0]) != "report.xlsx" {
		t.Errorf("copied are %q", copied)
	}
	if answer := in(c, "s", "python", code); len(answer.Content) != 1 || strings.Contains(answer.Text(), "report.xlsx") {
		t.Errorf("the answer of a session is %+v", answer)
	}
}

// What code takes back is not in the answer, also if the client has been told of it.
func TestAnswer_LacksWhatWasTakenBack(t *testing.T) {
	t.Parallel()
	c := start(t)
	expect(t, run(c, "bash", `for i in 1 2 3; do printf '\033[H\033[2J\033[3J'; echo "generation $i"; sleep 0.2; done`), "generation 3\n")
	expect(t, run(c, "python", "from IPython.display import clear_output\nimport time\nfor i in range(20): clear_output(wait=True); print('frame', i); time.sleep(0.02)"), "frame 19\n")
}
