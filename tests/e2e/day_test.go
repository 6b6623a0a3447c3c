package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// day is a user's working day: a project, a folder of outputs, and what the server keeps.
type day struct {
	*testing.T
	project, outputs, state, runtime string
}

// window starts a client's server, as each of its windows does.
func (d *day) window(variables ...string) *mcptest.Client {
	d.Helper()
	return start(d, append(variables, "PROJECT_DIR="+d.project, "PROJECT_MODE=overlay", "NIX_SANDBOX_OUTPUTS="+d.outputs,
		"XDG_STATE_HOME="+d.state, "XDG_RUNTIME_DIR="+d.runtime, "SESSION_KEEP_FILES=1")...)
}

// types runs a command of the user in the project.
func (d *day) types(args ...string) (string, int) {
	d.Helper()
	cmd := exec.Command(undertest.Server(d), args...)
	cmd.Dir, cmd.Env = d.project, append(command(d).Env, "PATH="+os.Getenv("PATH"), "XDG_STATE_HOME="+d.state, "XDG_RUNTIME_DIR="+d.runtime)
	out, _ := cmd.CombinedOutput()
	return string(out), cmd.ProcessState.ExitCode()
}

// says has an answer contain texts.
func (d *day) says(answer mcptest.Answer, parts ...string) {
	d.Helper()
	for _, part := range parts {
		if !strings.Contains(answer.Text(), part) {
			d.Errorf("%q is not in %q", part, answer.Text())
		}
	}
}

// has has a file of the project or the outputs have a content.
func (d *day) has(name, want string) {
	d.Helper()
	if got, err := os.ReadFile(name); string(got) != want {
		d.Errorf("%s has %q (%v), want %q", name, got, err, want)
	}
}

// reads reads a resource.
func (d *day) reads(c *mcptest.Client, uri string) []byte {
	d.Helper()
	var read struct{ Contents []struct{ Text, Blob string } }
	must.Do(d, json.Unmarshal(c.Request("resources/read", map[string]any{"uri": uri}).Result, &read))
	if len(read.Contents) != 1 {
		d.Fatalf("%s has %+v", uri, read)
	}
	if blob := read.Contents[0].Blob; blob != "" {
		return must.Get(base64.StdEncoding.DecodeString(blob))(d)
	}
	return []byte(read.Contents[0].Text)
}

// A day with one project, two windows, restarts and a kill: no file, change or output that the pages promise to keep is
// lost, and the model is told of whatever ends.
func TestDay_LosesNothing(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip(err)
	}
	d := &day{t, t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()}
	in := func(c *mcptest.Client, env, code string) mcptest.Answer { return in(c, "work", env, code) }
	here := func(name string) string { return filepath.Join(d.project, name) }
	for name, text := range map[string]string{
		"price.py": "def total(prices):\n    return sum(prices) + 1\n", "test_price.py": "from price import total\n\ndef test_total():\n    assert total([1, 2]) == 3\n",
		"notes.md": "one\ntwo\nthree\n", "config.ini": "a = 1\n",
	} {
		must.Do(t, os.WriteFile(here(name), []byte(text), 0o644))
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "."}, {"-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "first"}} {
		cmd := exec.Command("git", args...)
		cmd.Dir = d.project
		must.Do(t, cmd.Run())
	}
	c := d.window()

	// A table and a plot of it, in one answer and in the folder of outputs.
	answer := in(c, "python", `
import csv, random, collections
with open("rows.csv", "w") as file: csv.writer(file).writerows([i, random.choice("abc"), i % 7] for i in range(60_000))
sums = collections.Counter()
for _, kind, n in csv.reader(open("rows.csv")): sums[kind] += int(n)
open("outputs/sums.csv", "w").write("".join(f"{k},{v}\n" for k, v in sorted(sums.items())))
import struct, zlib
chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
rows = b"".join(b"\0" + bytes(v % 256 for x in range(200) for v in (x, y, 90)) for y in range(100))
open("outputs/plot.png", "wb").write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 200, 100, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
print(sum(sums.values()))`)
	d.says(answer, fmt.Sprint(sum(60_000)), "[copied for the user to "+d.outputs)
	if !slices.ContainsFunc(answer.Content, func(one mcpclient.Content) bool { return one.Type == "image" }) {
		t.Errorf("no plot: %q", answer.Text())
	}
	sums := string(d.reads(c, "sandbox://work/outputs/sums.csv"))
	d.has(filepath.Join(d.outputs, "work", "sums.csv"), sums)

	// A failing test is fixed in the overlay, and the user applies that.
	d.says(in(c, "bash", "cd /project && python3 -c 'from test_price import test_total; test_total()'"), "AssertionError")
	d.says(in(c, "bash", "cd /project && sed -i 's/ + 1//' price.py && python3 -c 'from test_price import test_total; test_total()' && echo passed"), "passed", "nix-sandbox-mcp changes work --apply]")
	d.has(here("price.py"), "def total(prices):\n    return sum(prices) + 1\n")
	patience.Until(t, "the user sees the change", func() bool {
		out, _ := d.types("changes", "work")
		return strings.Contains(out, "-    return sum(prices) + 1\n+    return sum(prices)\n")
	})
	out, status := d.types("changes", "work", "--apply")
	if d.has(here("price.py"), "def total(prices):\n    return sum(prices)\n"); status != 0 {
		t.Errorf("%d %s", status, out)
	}

	// A second window with the session's name goes on without kept files, says so, and disturbs nothing.
	second := d.window()
	d.says(in(second, "bash", "ls; echo of the second >only.txt"), "another server of this user", "its own are not kept")
	d.says(in(c, "python", "print(len(open('rows.csv').readlines()), sums is not None)"), "60000 True")
	end(t, second)

	// A job that goes on between calls, and a lot of output.
	d.says(in(c, "bash", "(for i in $(seq 20); do echo $i >>job; sleep 0.05; done) & echo begun"), "begun")
	d.says(in(c, "python", "print('x' * 3_500_000)"), "cut here", "all of it is in ")
	patience.Until(t, "the job has ended", func() bool { return strings.Contains(in(c, "bash", "wc -l <job").Text(), "20\n") })
	// Bytes out, as the client reads them and as the user copies them.
	in(c, "python", "import os; data = os.urandom(3_000_000); open('outputs/data.bin', 'wb').write(data); import hashlib; open('sum', 'w').write(hashlib.sha256(data).hexdigest())")
	if data := d.reads(c, "sandbox://work/outputs/data.bin"); len(data) != 3_000_000 {
		t.Errorf("%d bytes", len(data))
	}
	if out, status := d.types("get", "work", "rows.csv", "--to", d.outputs+"/mine"); status != 0 || strings.Count(string(must.Get(os.ReadFile(d.outputs+"/mine/rows.csv"))(t)), "\n") != 60_000 {
		t.Errorf("%d %s", status, out)
	}
	d.says(in(c, "python", "import urllib.request; urllib.request.urlopen('http://example.com')"), "there is no network")

	// The user looks in, and the model is told of what they change.
	if out, status := d.types("exec", "--session", "work", "-c", "cd /workspace; cat sum; echo of the user >mine.txt"); status != 0 || len(strings.TrimSpace(out)) < 64 {
		t.Errorf("%d %s", status, out)
	}
	d.says(in(c, "bash", "cd /workspace; cat mine.txt"), "of the user")

	// The user and the session change the same lines, and other files.
	in(c, "bash", "cd /project && sed -i 's/^two/2 of the session/' notes.md; echo 'b = 2' >>config.ini; echo new >new.txt")
	patience.Until(t, "the user sees the changes", func() bool {
		out, _ := d.types("changes", "work")
		return strings.Contains(out, "-two\n+2 of the session")
	})
	must.Do(t, os.WriteFile(here("notes.md"), []byte("one\nTWO of the user\nthree\n"), 0o644))
	out, status = d.types("changes", "work", "--apply", "config.ini", "new.txt", "notes.md")
	if status != 1 || !strings.Contains(out, "notes.md") {
		t.Errorf("%d %s", status, out)
	}
	d.has(here("notes.md"), "one\nTWO of the user\nthree\n")
	d.has(here("config.ini"), "a = 1\nb = 2\n")
	d.has(here("new.txt"), "new\n")

	// The client restarts: the files are there, and what is gone is said.
	end(t, c)
	c = d.window("SESSION_IDLE_TIMEOUT=2")
	d.says(in(c, "bash", "sha256sum outputs/data.bin | cut -c -64 | cmp - <(cat sum; echo) && cat mine.txt; wc -l <rows.csv; ls only.txt"), "of the user\n60000\n", "No such file", "[new session: ", "its files in /workspace are kept")
	// An idle time that is over, here after seconds.
	in(c, "python", "x = 41; open('later', 'w').write('kept')")
	time.Sleep(patience.For(4 * time.Second))
	d.says(in(c, "python", "print(open('later').read(), 'x' in globals())"), "kept False", "[new session: ")
	// A kill: what calls before it left is there.
	in(c, "bash", "echo last >last; cd /project; echo 3 >>config.ini")
	in(c, "bash", "true") // which waits until the files and the patch are saved
	c.Signal(syscall.SIGKILL)
	c.Wait(patience.For(10 * time.Second))
	c = d.window()
	d.says(in(c, "bash", "cat last later"), "last\nkept", "[new session: ")
	// There are two by this name: the morning's has what conflicts.
	list, _ := d.types("changes")
	newest := regexp.MustCompile(`(?m)^(work-\S+) `).FindStringSubmatch(list)
	if newest == nil {
		t.Fatalf("the list is %s", list)
	}
	out, status = d.types("changes", newest[1])
	if status != 0 || !strings.Contains(out, "+3\n") {
		t.Errorf("%d %s", status, out)
	}
	out, status = d.types("changes", newest[1], "--apply", "config.ini")
	if d.has(here("config.ini"), "a = 1\nb = 2\n3\n"); status != 0 {
		t.Errorf("%d %s", status, out)
	}
	end(t, c)
	d.has(filepath.Join(d.outputs, "work", "sums.csv"), sums)
	for name := range texts(t, d.outputs) {
		if strings.HasPrefix(filepath.Base(name), ".nix-sandbox-mcp-") {
			t.Errorf("half a file: %s", name)
		}
	}
	if out, _ := d.types("sessions"); !strings.Contains(out, "work") {
		t.Errorf("the kept files are not listed: %s", out)
	}
}

// sum is what the rows of the table add up to.
func sum(rows int) (all int) {
	for i := range rows {
		all += i % 7
	}
	return all
}
