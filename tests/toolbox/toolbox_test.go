// Package toolbox tests tools from code with servers that npm has published, in the sandboxes that
// ./build made: NIX_SANDBOX_TEST_TOOLS names its server.
package toolbox

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/audit"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
)

// server returns the path of the server under test.
func server(t testing.TB) string {
	t.Helper()
	return named(t, "NIX_SANDBOX_TEST_TOOLS")
}

func named(t testing.TB, variable string) string {
	t.Helper()
	path := os.Getenv(variable)
	if path == "" {
		t.Skip(variable + " does not name the server that ./build makes")
	}
	return path
}

type world struct {
	*mcptest.Client
	audit string
}

func start(t *testing.T, variables ...string) world { return startOf(t, server(t), variables...) }

func startOf(t *testing.T, server string, variables ...string) world {
	t.Helper()
	home := t.TempDir()
	w := world{audit: filepath.Join(home, "audit.jsonl")}
	cmd := exec.Command(server, "--stdio")
	cmd.Env = append([]string{"HOME=" + home, "TMPDIR=" + home, "NIX_SANDBOX_DIR=" + home, "NIX_SANDBOX_AUDIT=" + w.audit, "HOST_SECRET=swordfish"}, variables...)
	w.Client = mcptest.Start(t, cmd)
	w.Initialize(mcptest.Newest)
	return w
}

func (w world) run(env, code string) mcptest.Answer {
	return w.Run(mcptest.Arguments{Env: env, Code: code})
}

// records are the records of the audit log.
func (w world) records(t *testing.T) (all []audit.Record) {
	t.Helper()
	text := must.Get(os.ReadFile(w.audit))(t)
	for line := range strings.Lines(string(text)) {
		var r audit.Record
		must.Do(t, json.Unmarshal([]byte(line), &r))
		all = append(all, r)
	}
	return all
}

// What each language sees of the same tools.
var surfaces = map[string][]struct{ code, want string }{
	"python": {
		{`print(tools.ten.add(a=1, b=2))`, "3\n"},
		{`print(tools.ten.add({"a": 1, "b": 2}))`, "3\n"},
		{`print(tools.ten["add"](a=1, b=2))`, "3\n"},
		{`print(tools.everything.echo(message="hé"))`, "Echo: hé\n"},
		{`print(sorted(tools.everything.get_structured_content(location="New York")))`, "['conditions', 'humidity', 'temperature']\n"},
		{`r = tools.everything.get_tiny_image(); print(len(r.images), r.images[0].mime_type, open(r.images[0].path, "rb").read()[:4])`, "1 image/png b'\\x89PNG'\n"},
		{`print(tools.files.read_text_file(path="/data/words.txt").split())`, "['words', 'in', 'a', 'file']"},
		{`
try: tools.files.read_text_file(path="/etc/passwd")
except ValueError: print("no")
except Exception as e: print(type(e).__name__, e.code, e.server, e.tool)`, "ToolError error files read_text_file\n"},
		{`
try: tools.files.write_file(path="/data/x", content="y")
except tools.ToolDenied as e: print(e)`, "files.write_file may not be called here"},
		{`
try: tools.files.read_file(pth="/data/words.txt")
except tools.ToolError as e: print(e.code, e)`, "usage the arguments of files.read_file are wrong: missing property 'path'"},
		{`
try: tools.files.read_fil(path="/data/words.txt")
except tools.ToolError as e: print(e)`, "tools.files.read_file(path: string"},
		{`help(tools.ten.add)`, "tools.ten.add(a: number, b: number)\n"},
		{`print(tools.search("adds"))`, "['tools.ten.add(a: number, b: number)']\n"},
		{`print(tools.map(tools.ten.add, [{"a": n, "b": 1} for n in range(20)])[-1])`, "20\n"},
		{"import asyncio\nprint(await asyncio.gather(*(atools.ten.add(a=n, b=1) for n in range(3))))", "['1', '2', '3']\n"},
		{"import threading\nout = []\nts = [threading.Thread(target=lambda: out.append(tools.ten.add(a=1, b=1))) for _ in range(40)]\n[t.start() for t in ts]; [t.join() for t in ts]; print(len(out), set(out))", "40 {'2'}\n"},
		{"import subprocess, sys\nprint(subprocess.check_output([sys.executable, '-c', 'import tools; print(tools.ten.add(a=1, b=2))']).decode())", "3\n"},
		{"import os\ntools.ten.add(a=1, b=1)\nif os.fork() == 0:\n    print(tools.ten.add(a=2, b=2)); os._exit(0)\nos.wait(); print(tools.ten.add(a=1, b=2))", "4\n3\n"},
		{`tools.memory.create_entities(entities=[{"name": "a", "entityType": "b", "observations": ["c"]}]); print([e["name"] for e in tools.memory.read_graph()["entities"]])`, "['a']\n"},
	},
	"node": {
		{`console.log(await tools.ten.add({a: 1, b: 2}))`, "3\n"},
		{`console.log((await tools.files.read_text_file({path: "/data/words.txt"})).split(" ").length)`, "4\n"},
		{`console.log(await tools.everything.get_sum({a: 1, b: 2}))`, "The sum of 1 and 2 is 3."},
		{`console.log(Object.keys(await tools.everything.get_structured_content({location: "New York"})).sort().join())`, "conditions,humidity,temperature\n"},
		{`const r = await tools.everything.get_tiny_image(); console.log(r.images.length, require("fs").readFileSync(r.images[0].path).subarray(1, 4).toString())`, "1 PNG\n"},
		{`await tools.files.write_file({path: "/data/x", content: ""}).catch((e) => console.log(e.name, e.code))`, "ToolDenied denied\n"},
		{`await tools.ten.add({a: 1}).catch((e) => console.log(e.message))`, "missing property 'b'\n  tools.ten.add(a: number, b: number)\n"},
		{`console.log((await Promise.all([...Array(100).keys()].map((n) => tools.ten.add({a: n, b: 1})))).at(-1))`, "100\n"},
		{`console.log(tools.ten.add.help, tools.search("adds"))`, "tools.ten.add(a: number, b: number)\n\nAdds two numbers. [ 'tools.ten.add(a: number, b: number)' ]\n"},
	},
	"shell": {
		{`tool ten add a:=1 b:=2`, "3\n"},
		{`echo '{"a": 1, "b": 2}' | tool ten add -`, "3\n"},
		{`tool ten add a=1 b=2`, "3\n"},
		{`tool everything echo message="a b"`, "Echo: a b\n"},
		{`tool ten add a:=1 2>&1; echo $?`, "missing property 'b'\n  tool ten add(a: number, b: number)\n2\n"},
		{`tool everything get_sum a:=1 b:=2 2>/dev/null; echo $?`, "3\n"},
		{`tool ten add a=1 2>/dev/null b:=x; echo $?`, "2\n"},
		{`tool --search numbers; tool ten --help; ls /tools/ten`, "tool ten add(a: number, b: number)\ntool ten add(a: number, b: number)\nadd.json\n"},
		{`seq 50 | xargs -P 8 -I{} tool ten add a:={} b:=1 | sort -n | tail -n 1`, "51\n"},
		{`tool ten add a:=1 b:=2 -o /tmp/sum; cat /tmp/sum; tool ten add a:=1 b:=2 --raw`, "3\n{\"content\": [{\"type\": \"text\", \"text\": \"3\"}]}\n"},
		{`python3 -c 'import tools; print(tools.ten.add(a=1, b=2))'`, "3\n"},
	},
}

func TestSurfaces(t *testing.T) {
	w := start(t)
	for env, cases := range surfaces {
		for _, one := range cases {
			answer := w.run(env, one.code)
			if !strings.Contains(answer.Text(), one.want) {
				t.Errorf("%s: %s\nanswers %s\nwant    %s", env, one.code, answer.Text(), one.want)
			}
		}
	}
}

// An image of a tool reaches the answer if code shows it, and not otherwise. This one is a link,
// because a part of it has a wrong checksum, and such an image could end a client's conversation.
func TestImages(t *testing.T) {
	w := start(t)
	images := func(code string) (n int) {
		for _, content := range w.run("python", code).Content {
			if content.Type == "image" || content.Type == "resource_link" {
				n++
			}
		}
		return n
	}
	if n := images("r = tools.everything.get_tiny_image()"); n != 0 {
		t.Errorf("%d images were shown unasked", n)
	}
	if n := images("tools.everything.get_tiny_image().images[0].show()"); n != 1 {
		t.Errorf("%d images were shown", n)
	}
}

// A process that outlives its call reaches no tool, neither between two calls nor after.
func TestBetweenCalls(t *testing.T) {
	w := start(t)
	run := func(code string) string {
		return w.Run(mcptest.Arguments{Env: "shell", Session: "s", Code: code}).Text()
	}
	run("(sleep 0.3; tool ten add a:=40 b:=2 >/tmp/out 2>&1; echo $? >>/tmp/out) </dev/null >/dev/null 2>&1 &")
	time.Sleep(time.Second)
	if got := run("cat /tmp/out"); !strings.Contains(got, "outlived its call") || strings.Contains(got, "42") {
		t.Errorf("between two calls: %s", got)
	}
	if got := run("tool ten add a:=40 b:=2"); got != "42\n" {
		t.Errorf("in the next call: %s", got)
	}
}

// The time limit of a call and its cancellation end the calls of tools that it made.
func TestCallsEndWithTheirRun(t *testing.T) {
	w := start(t)
	long := "try: tools.everything.trigger_long_running_operation(duration=600, steps=2)\nexcept BaseException as e: print(type(e).__name__); raise"
	w.run("python", "tools.everything.echo(message='x')") // has started
	answer := w.Run(map[string]any{"env": "python", "code": long, "timeout": 2})
	if !strings.Contains(answer.Text(), "timed out after 2 s") {
		t.Errorf("at its time limit: %s", answer.Text())
	}
	id := w.SendRun(mcptest.Arguments{Env: "python", Code: long, Session: "s"})
	time.Sleep(500 * time.Millisecond)
	w.Notify("notifications/cancelled", map[string]any{"requestId": json.RawMessage(id)})
	patience.Until(t, "both calls of the tool are recorded", func() bool {
		n := 0
		for _, r := range w.records(t) {
			if r.Event == audit.Used && r.Tool.Name == "trigger-long-running-operation" && r.Outcome == "cancelled" {
				n++
			}
		}
		return n == 2
	})
	if got := w.Run(mcptest.Arguments{Env: "python", Code: "print(tools.ten.add(a=1, b=2))", Session: "s"}).Text(); got != "3\n" {
		t.Errorf("the session goes on with %s", got)
	}
}

// Each call of a tool is in the chain, before the record of its run, and the answer counts them.
func TestRecord(t *testing.T) {
	w := start(t)
	answer := w.run("python", "tools.ten.add(a=1, b=2)\ntry: tools.ten.add(a=1)\nexcept tools.ToolError: pass\ntry: tools.files.write_file()\nexcept tools.ToolError: pass")
	if !strings.Contains(answer.Text(), "[tools: refused files.write_file, which the user has not allowed]") {
		t.Errorf("the answer: %s", answer.Text())
	}
	var got []string
	for _, r := range w.records(t) {
		line := r.Env + " " + r.Outcome
		if r.Tool != nil {
			line += " " + r.Tool.Server + "." + r.Tool.Name
		}
		got = append(got, line)
		if r.CodeHash == "" || r.Tool != nil && len(r.Tool.ArgumentsHash) != 64 {
			t.Errorf("%+v", r)
		}
	}
	if want := []string{"python ok ten.add", "python usage ten.add", "python denied files.write_file", "python ok"}; !slices.Equal(got, want) {
		t.Errorf("records %q\nwant    %q", got, want)
	}
	facts, _ := answer.Fact("tools").(map[string]any)
	if facts["calls"] != 3.0 || facts["failed"] != 2.0 {
		t.Errorf("facts %v", facts)
	}
}

// A thousand calls, eight at once, are all recorded, and the server stays small.
func TestThousandCalls(t *testing.T) {
	w := start(t)
	w.run("python", "tools.ten.add(a=1, b=2)")
	answer := w.run("python", "import time\nbegan = time.perf_counter()\nr = tools.map(tools.ten.add, [{'a': n, 'b': 1} for n in range(1000)], at_once=8)\nprint(r == [str(n + 1) for n in range(1000)], round(time.perf_counter() - began, 3))")
	if !strings.HasPrefix(answer.Text(), "True ") {
		t.Fatal(answer.Text())
	}
	n := 0
	for _, r := range w.records(t) {
		if r.Tool != nil && r.Outcome == "ok" {
			n++
		}
	}
	if n != 1001 {
		t.Errorf("%d calls are recorded", n)
	}
	if memory := w.PeakMemory(); memory > 64<<20 {
		t.Errorf("the server used %d MiB", memory>>20)
	}
	t.Logf("1,000 calls: %s s; the server's memory at its peak: %d MiB", strings.TrimSpace(strings.TrimPrefix(answer.Text(), "True ")), w.PeakMemory()>>20)
}

// Nothing is left of the servers when this one has ended.
func TestServersEnd(t *testing.T) {
	w := start(t)
	w.run("python", "tools.ten.add(a=1, b=2); tools.everything.echo(message='x')")
	running := procfs.Descendants(w.PID())
	servers := 0
	for _, pid := range running {
		if process, err := procfs.Read(pid); err == nil && strings.Contains(process.Command(), "/server/") {
			servers++
		}
	}
	if servers == 0 {
		t.Fatal("no server runs")
	}
	w.CloseInput()
	w.Wait(patience.Long)
	patience.Until(t, "all processes are gone", func() bool {
		return !slices.ContainsFunc(running, func(pid int) bool { _, err := procfs.Read(pid); return err == nil })
	})
}

// What the model reads is short, and nothing of it is about environments without tools.
func TestContext(t *testing.T) {
	w := start(t)
	var list struct {
		Tools []struct{ Description string }
	}
	must.Do(t, json.Unmarshal(w.Request("tools/list", map[string]any{}).Result, &list))
	_, about, found := strings.Cut(list.Tools[0].Description, "\nCode can call tools")
	if !found || len(about) > 700 || regexp.MustCompile(`(?m)^- .*\bnone\b`).MatchString(about) {
		t.Errorf("%d bytes: %s", len(about), about)
	}
	t.Logf("%d bytes", len(about))
}

// The lock says of each server what it says itself.
func TestLock(t *testing.T) {
	lock := filepath.Join(t.TempDir(), "tools.lock.json")
	command := func(args ...string) (string, error) {
		out, err := exec.Command(server(t), append([]string{"tools", "lock", "--file", lock}, args...)...).CombinedOutput()
		return string(out), err
	}
	if out, err := command("--check"); err == nil || !strings.Contains(out, "+ ten.add\n") || !strings.Contains(out, "differ from") {
		t.Errorf("without a file: %v: %s", err, out)
	}
	if out, err := command(); err != nil || !strings.Contains(out, "+ files.read_file   (calls itself read-only)") {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := command("--check"); err != nil || !strings.Contains(out, "is up to date") {
		t.Errorf("%v: %s", err, out)
	}
	text := must.Get(os.ReadFile(lock))(t)
	must.Do(t, os.WriteFile(lock, bytes.Replace(text, []byte(`"sha256": "`), []byte(`"sha256": "0`), 1), 0o600))
	if out, err := command("--check"); err == nil || !strings.Contains(out, "~ ") {
		t.Errorf("a changed hash: %v: %s", err, out)
	}
	must.Do(t, os.WriteFile(lock, []byte("{"), 0o600))
	if out, err := command(); err == nil || !strings.Contains(out, "read the lock file") {
		t.Errorf("a damaged file: %v: %s", err, out)
	}
}
