package tool

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/callfiles"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/sandboxtest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostile"
)

// fixture is the tool over a machine of this process. Its time is a bubble's.
type fixture struct {
	*Tool
	t   *testing.T
	set *registry.Set // that the environments were made of
}

// inBubble runs a test with the tool and one environment, bash.
func inBubble(t *testing.T, test func(*testing.T, *fixture)) {
	t.Helper()
	set := &registry.Set{Languages: languages(), Environments: map[string]registry.Environment{"bash": {
		Name: "bash", InterpreterType: "bash", Language: languages()["bash"], SessionExec: "/session-run",
		Timeout: 30 * time.Second, OutputBytes: 8 << 10, Closure: "the-closure", MemoryMB: 512,
	}}}
	synctest.Test(t, func(t *testing.T) {
		log := slog.New(slog.DiscardHandler)
		machine := &sandboxtest.Machine{}
		left := callfiles.New(callfiles.Limits{Idle: time.Hour, Lifetime: time.Hour, Calls: 8, Bytes: 32 << 20}, os.TempDir(), log)
		defer left.Close()
		spec := func(c call.Call) sandbox.Spec {
			return sandbox.Spec{Name: c.Env.Name, OutputBytes: c.Env.OutputBytes, Network: c.Env.Network != nil}
		}
		sessions := session.New(session.Options{Starter: machine, Spec: spec, OneShot: session.OneShot(machine, spec, left), Limits: session.Limits{Idle: time.Hour, Lifetime: time.Hour, Max: 8}, Log: log})
		test(t, &fixture{New(Options{Environments: registry.New(set), Executor: sessions, Sessions: sessions, Kept: left, Log: log}), t, set})
		sessions.Close()
		machine.Close(0)
	})
}

// bash answers a call in the environment; session may be empty.
func (f *fixture) bash(session, code string) *mcp.CallToolResult {
	f.t.Helper()
	arguments := map[string]any{"code": code, "env": "bash"}
	if session != "" {
		arguments["session"] = session
	}
	return f.Accept("", arguments).Answer(f.t.Context(), nil)
}

// text is the result as a client shows it that joins its texts.
func text(result *mcp.CallToolResult) string {
	return strings.Join(texts(result), "")
}

// texts are the texts of a result.
func texts(result *mcp.CallToolResult) (texts []string) {
	for _, content := range result.Content {
		if content, ok := content.(mcp.TextContent); ok {
			texts = append(texts, content.Text)
		}
	}
	return texts
}

func TestRun_Answers(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		for _, step := range []struct {
			session, code, want string
			failed              bool
		}{
			{"", "echo hi", "hi\n", false},
			{"", "echo out; echo err >&2; exit 3", "out\n--- stderr ---\nerr\n[exit status 3]", true},
			{"s", "x=1", "[no output]", false},
			{"s", "echo $x; sleep 99", "1\n[timed out after 30 s; the session's state was kept]", true},
			{"s", "echo $x; crash", "1\n[the sandbox ended during the call: the machine crashed; the session's variables and files are lost, and its next call starts a new one]", true},
			{"s", "echo none$x", "none\n[new session: the earlier one ended because its sandbox died]", false},
			{"", "nothing", "--- stderr ---\nbash: line 1: nothing: command not found\n[hint: " + nothingInstalled + "]", true},
		} {
			result := f.bash(step.session, step.code)
			if step.code == "nothing" {
				step.want = strings.Replace(step.want, "[hint", "[exit status 127]\n[hint", 1)
			}
			if diff := cmp.Diff(step.want, text(result)); diff != "" || result.IsError != step.failed {
				t.Errorf("%s: isError %v, %s", step.code, result.IsError, diff)
			}
		}
	})
}

// A call may ask for less time than the environment's usual, or for more; it counts
// from when the code begins, and not while the call waits for its turn.
func TestRun_EndsAtTheTimeoutOfTheCall(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		bash := f.set.Environments["bash"]
		bash.MaxTimeout = 10 * time.Minute
		f.set.Environments["bash"] = bash
		f.Environments.Publish(f.set)
		call := func(session string, seconds float64, code string) *Run {
			arguments := map[string]any{"code": code, "env": "bash", "timeout": seconds}
			if session != "" {
				arguments["session"] = session
			}
			return f.Accept("", arguments)
		}
		for name, test := range map[string]struct {
			session string
			seconds float64
			code    string
			want    string
			takes   time.Duration
		}{
			"less":            {"", 2, "sleep 20", "[timed out after 2 s]\n[hint: with timeout a call may run up to 600 s]", 2 * time.Second},
			"less, a session": {"a", 0.5, "sleep 20", "[timed out after 0.5 s; the session's state was kept]\n[hint: with timeout a call may run up to 600 s]", 500 * time.Millisecond},
			"more":            {"", 90, "sleep 60; echo done", "done\n", time.Minute},
			"the longest":     {"", 600, "sleep 900", "[timed out after 600 s]\n[hint: 600 s is the limit of each call: do less in one, and keep what is done in a session]", 10 * time.Minute},
		} {
			began := time.Now()
			result := call(test.session, test.seconds, test.code).Answer(t.Context(), nil)
			if took := time.Since(began); text(result) != test.want || took != test.takes {
				t.Errorf("%s: %q after %v, want %q after %v", name, text(result), took, test.want, test.takes)
			}
		}
		first, second := call("q", 100, "sleep 50; echo first"), call("q", 2, "sleep 1; echo second")
		answers := make(chan string, 2)
		for _, run := range []*Run{second, first} {
			go func() { answers <- text(run.Answer(t.Context(), nil)) }()
		}
		if one, two := <-answers, <-answers; one != "first\n" || two != "second\n" {
			t.Errorf("in a queue: %q, %q", one, two)
		}
	})
}

// What the network refused is in the answer of the call that asked for it, and
// an environment without a network says that there is none.
func TestRun_NamesWhatTheNetworkRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		const none = "[exit status 6]\n[hint: there is no network, and trying again does not help]"
		if got := text(f.bash("", "fetch evil.example")); !strings.HasSuffix(got, none) {
			t.Errorf("without a network: %q", got)
		}
		env := f.set.Environments["bash"]
		env.Network = &registry.Network{Domains: []string{"files.example"}, Ports: []int{443}}
		f.set.Environments["bash"] = env
		f.Environments.Publish(f.set)
		const refused = "[exit status 6]\n[network: refused evil.example; this env reaches files.example on port 443. " +
			`Trying again does not help: do without, or ask the user to add [environments.bash.network] domains = ["evil.example"]]`
		if got := text(f.bash("s", "fetch evil.example")); !strings.HasSuffix(got, refused) {
			t.Errorf("with a network: %q", got)
		}
		if got := text(f.bash("s", "echo later")); got != "later\n" {
			t.Errorf("the call after it: %q", got)
		}
	})
}

// Images come back as images, other files, SVG among them, as links, in a session and
// without one. What is not kept is named.
func TestRun_ShowsFiles(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		const code = "png outputs/dot.png; echo <svg/>; echo notes >outputs/notes.txt; echo drawing >outputs/a.svg"
		result := f.bash("s", code)
		kinds := ""
		for _, content := range result.Content {
			switch content := content.(type) {
			case mcp.TextContent:
				kinds += "text:" + content.Text + " "
			case mcp.ImageContent:
				kinds += content.MIMEType + " "
			case mcp.ResourceLink:
				kinds += content.URI + " "
			}
		}
		if want := "image/png sandbox://s/outputs/notes.txt sandbox://s/outputs/a.svg "; kinds != want {
			t.Errorf("content %q", kinds)
		}
		result = f.bash("", code)
		// An image is something to see: no text says that there is no output.
		if len(result.Content) != 3 || text(result) != "" {
			t.Fatalf("without a session: %+v", result.Content)
		}
		for i, want := range []mcp.ResourceLink{{Name: "notes.txt", MIMEType: "text/plain"}, {Name: "a.svg", MIMEType: "image/svg+xml"}} {
			link := result.Content[i+1].(mcp.ResourceLink)
			if link.Name != want.Name || link.MIMEType != want.MIMEType || !regexp.MustCompile(`^sandbox://call\.[0-9a-f]{16}/outputs/`+link.Name+"$").MatchString(link.URI) {
				t.Errorf("link %+v", link)
			}
		}
		many := ""
		for i := range 20 {
			many += fmt.Sprintf("echo %d >outputs/%d.txt\n", i, i)
		}
		result = f.bash("", many)
		if got, want := text(result), "[written and gone with the sandbox: 4 more files; to keep files, use a session]"; got != want || len(result.Content) != 1+maxLinks {
			t.Errorf("%d files: %q", len(result.Content)-1, got)
		}
		f.Kept.(*callfiles.Files).Close()
		result = f.bash("", "echo notes >outputs/notes.txt")
		if got, want := text(result), "[written and gone with the sandbox: /workspace/outputs/notes.txt (6 bytes); to keep files, use a session]"; got != want {
			t.Errorf("not kept: %q", got)
		}
	})
}

// The files of a call without a session can be read while a session's could.
func TestRead_AnswersLinksOfCalls(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		result := f.bash("", "echo a,b >outputs/table.csv")
		uri := result.Content[len(result.Content)-1].(mcp.ResourceLink).URI
		read := func(principal, uri string) (string, error) {
			read, err := f.AcceptRead(principal, uri)
			if err != nil {
				return "", err
			}
			defer read.Release()
			contents, err := read.Answer(t.Context())
			if err != nil {
				return "", err
			}
			return contents[0].(mcp.TextResourceContents).Text, nil
		}
		time.Sleep(50 * time.Minute)
		if got, err := read("", uri); got != "a,b\n" || err != nil {
			t.Errorf("%q, error %v", got, err)
		}
		const gone = "there is no such file any more: files of a call without a session are kept until nobody has read them for 3600 s, at most 3600 s"
		for name, test := range map[string]struct{ principal, uri, want string }{
			"another principal": {"bob", uri, gone},
			"another call":      {"", "sandbox://call.0123456789abcdef/outputs/table.csv", gone},
			"another file":      {"", strings.Replace(uri, "table", "chair", 1), "file does not exist"},
			"a bad id":          {"", "sandbox://call.x/outputs/table.csv", "is not sandbox://SESSION/PATH"},
			"up and out":        {"", strings.Replace(uri, "outputs", "%2e%2e", 1), "does not name a file under /workspace"},
		} {
			if got, err := read(test.principal, test.uri); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: %q, error %v, want %q", name, got, err, test.want)
			}
		}
		time.Sleep(11 * time.Minute)
		if got, err := read("", uri); err == nil || !strings.Contains(err.Error(), gone) {
			t.Errorf("after its lifetime: %q, error %v", got, err)
		}
	})
}

// read reads the file of a link.
func read(tool *Tool, uri string) (mcp.ResourceContents, error) {
	read, err := tool.AcceptRead("", uri)
	if err != nil {
		return nil, err
	}
	defer read.Release()
	contents, err := read.Answer(context.Background())
	if err != nil {
		return nil, err
	}
	return contents[0], nil
}

func TestRead_AnswersLinks(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		f.bash("s", "echo a,b >outputs/table.csv; png outputs/dot.png")
		got, err := read(f.Tool, "sandbox://s/outputs/table.csv")
		if diff := cmp.Diff(mcp.TextResourceContents{URI: "sandbox://s/outputs/table.csv", MIMEType: "text/csv", Text: "a,b\n"}, got); diff != "" || err != nil {
			t.Errorf("error %v, %s", err, diff)
		}
		if got, err := read(f.Tool, "sandbox://s/outputs/dot.png"); err != nil || got.(mcp.BlobResourceContents).MIMEType != "image/png" {
			t.Errorf("contents %+v, error %v", got, err)
		}
		for _, uri := range []string{
			"sandbox://s/../etc/hostname", "sandbox://s/%2e%2e/etc/hostname", "sandbox://s//etc/hostname", "sandbox://s/", "sandbox://s",
			"sandbox://s/none", "sandbox://other/outputs/table.csv", "sandbox://s/%00", "sandbox://s/%zz", "file:///etc/hostname", "sandbox://a b/x",
		} {
			if contents, err := read(f.Tool, uri); err == nil {
				t.Errorf("%s: %+v", uri, contents)
			}
		}
		if got := text(f.bash("s", "echo alive")); got != "alive\n" {
			t.Errorf("afterwards: %q", got)
		}
	})
}

// The next file is read when the answer of the one before has been written,
// whatever its session; one that is cancelled meanwhile is not read.
func TestRead_IsOneAtATime(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		var reads []*Read
		answered := make([]chan error, 3)
		ctx, cancel := context.WithCancel(t.Context())
		for i := range answered {
			session := fmt.Sprintf("s%d", i)
			f.bash(session, "echo a >f")
			reads = append(reads, must.Get(f.AcceptRead("", "sandbox://"+session+"/f"))(t))
			answered[i] = make(chan error, 1)
		}
		read := func(ctx context.Context, i int) {
			go func() {
				_, err := reads[i].Answer(ctx)
				answered[i] <- err
			}()
			synctest.Wait()
		}
		read(t.Context(), 0)
		read(ctx, 1)
		read(t.Context(), 2)
		if len(answered[0]) != 1 || len(answered[1])+len(answered[2]) != 0 {
			t.Error("files are read at the same time")
		}
		cancel()
		if err := <-answered[1]; !errors.Is(err, context.Canceled) {
			t.Errorf("the cancelled read: %v", err)
		}
		reads[1].Release()
		synctest.Wait()
		if len(answered[2]) != 0 {
			t.Error("the end of a read that waited lets another one begin")
		}
		reads[0].Release()
		if err := <-answered[2]; err != nil {
			t.Error(err)
		}
		reads[2].Release()
	})
}

func TestIsText(t *testing.T) {
	for text, want := range map[string]bool{
		"": true, "a\n": true, "\n\n\n": true, "\"\"\\": true, "<<<>>>&": true, "\x1b[31mERROR\x1b[0m\n": true, "日本": true,
		"\x01\x01": false, "a\x01": false, "\x00": false, "\xff": false, "\x1b\x1b\x1babcd": false,
	} {
		if got := isText([]byte(text)); got != want {
			t.Errorf("%q is text: %v", text, got)
		}
		encoded := must.Get(json.Marshal(text))(t)
		if want && !strings.ContainsAny(text, "<>&") && len(encoded) > 2*len(text)+2 {
			t.Errorf("%q is %d bytes of JSON", text, len(encoded))
		}
	}
}

// A session goes on with the artifact that it began with when its environment
// has left the list; new calls are told that there is none.
func TestRun_SessionOutlivesItsEnvironment(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		f.bash("s", "kept=yes")
		delete(f.set.Environments, "bash")
		f.Environments.Publish(f.set)
		if got := f.bash("s", "echo $kept"); got.IsError || text(got) != "yes\n" {
			t.Errorf("answer %+v", got)
		}
		for _, session := range []string{"", "other"} {
			if got := f.bash(session, "echo 1"); !got.IsError || !strings.HasPrefix(text(got), `there is no env "bash"`) {
				t.Errorf("session %q: answer %+v", session, got)
			}
		}
	})
}

// Progress comes every few seconds, grows, carries the newest line, and ends
// before the answer.
func TestRun_ReportsProgress(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		var lines []string
		last := 0.0
		run := f.Accept("", map[string]any{"env": "bash", "code": "sleep 5; echo one; sleep 4; echo two; sleep 4"})
		run.Answer(t.Context(), func(seconds float64, line string) {
			if seconds <= last {
				t.Errorf("progress %v after %v", seconds, last)
			}
			last = seconds
			lines = append(lines, line)
		})
		if diff := cmp.Diff([]string{"4 s", "8 s: one", "12 s: two"}, lines); diff != "" {
			t.Error(diff)
		}
		time.Sleep(time.Minute)
		if len(lines) != 3 {
			t.Error("progress after the answer")
		}
	})
}

// Calls take their tickets when they are accepted, not when they
// are answered.
func TestAccept_TakesATicket(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		arguments := func(code string) map[string]any {
			return map[string]any{"env": "bash", "session": "s", "code": code}
		}
		first, second := f.Accept("", arguments("sleep 5; x=late")), f.Accept("", arguments("echo $x"))
		answer := make(chan string)
		go func() { answer <- text(second.Answer(t.Context(), nil)) }()
		synctest.Wait()
		first.Answer(t.Context(), nil)
		if got := <-answer; got != "late\n" {
			t.Errorf("answer %q", got)
		}
	})
}

// What is refused takes no ticket.
func TestAccept_RefusesWithoutATicket(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		refused := f.Accept("", map[string]any{"env": "none", "session": "s", "code": ""})
		if got := text(f.bash("s", "echo 1")); got != "1\n" {
			t.Errorf("answer %q", got)
		}
		if got := refused.Answer(t.Context(), nil); !got.IsError {
			t.Errorf("answer %+v", got)
		}
	})
}

func TestRun_Facts(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		got := f.bash("s", "sleep 2; exit 3").Meta.AdditionalFields
		want := map[string]any{
			"nix-sandbox-mcp/outcome": "failed", "nix-sandbox-mcp/exit_code": 3, "nix-sandbox-mcp/state": "kept", "nix-sandbox-mcp/truncated": false,
			"nix-sandbox-mcp/duration_ms": int64(2000),
			"nix-sandbox-mcp/limits_by":   "machine",
			"nix-sandbox-mcp/closure":     "the-closure",
			"nix-sandbox-mcp/content":     []string{"remarks"},
			"nix-sandbox-mcp/code_sha256": fmt.Sprintf("%x", sha256.Sum256([]byte("sleep 2; exit 3"))),
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}

// failing is an Executor that only fails.
type failing struct{ err error }

func (f failing) Answer(context.Context, call.Call) (call.Result, error) {
	return call.Result{}, f.err
}

// Each error of an Executor is one sentence that says what to do.
func TestRun_WordsErrors(t *testing.T) {
	dead := &sandbox.DeadError{Reason: "the agent ended", Log: "no space"}
	for want, err := range map[string]error{
		`session "s" belongs to env "bash": call it with that env, or use another session name for "cat" (the operator's option shared_files would let both have its files)`: &call.OtherEnvError{Session: "s", Has: "bash", Wanted: "cat"},
		`all 2 sessions are in use; idle: one (bash, 3 s): go on in one of these, or call without session`:                                                                   &call.FullError{Max: 2, Idle: []call.IdleSession{{ID: "one", Env: "bash", Idle: 3 * time.Second}}},
		`all 2 sessions are in use and none is idle: wait until a call has ended, or call without session`:                                                                   &call.FullError{Max: 2},
		`the sandbox of env "bash" did not start: the agent ended; its log ends: no space: ask the user to run nix-sandbox-mcp doctor`:                                       &call.StartError{Env: "bash", Err: dead},
		`[the sandbox ended during the call: the agent ended; its log ends: no space]`:                                                                                       dead,
		`[stopped: used more than 512 MB of memory]`:                                                                                                                         &sandbox.DeadError{Reason: "x", Limit: frame.Memory},
		`[stopped: your sandboxes together used more memory than you may have]`:                                                                                              &sandbox.DeadError{Reason: "x", Limit: sandbox.MemoryUsed},
		"cancelled before it ran":           context.Canceled,
		"not run: the server is ending":     sandbox.ErrClosed,
		"the sandbox refused the call: odd": errors.New("the sandbox refused the call: odd"),
	} {
		inBubble(t, func(t *testing.T, f *fixture) {
			f.Executor = failing{err}
			if result := f.bash("", "echo"); !result.IsError || text(result) != want {
				t.Errorf("%v is answered %q, want %q", err, text(result), want)
			}
		})
	}
}

// The bound on an answer is kept for what is long too, and the answer says so.
func TestRun_BoundsOutput(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		result := f.bash("", "seq 100000")
		got := text(result)
		if len(got) > 8<<10+300 || !strings.HasPrefix(got, "1\n2\n3\n") || !strings.Contains(got, "cut here ...]\n") || !strings.HasSuffix(got, "\n100000\n[580.7 KB of output cut; print less of it]") {
			t.Errorf("%d bytes: %.100q ... %q", len(got), got, got[len(got)-100:])
		}
		if result.Meta.AdditionalFields["nix-sandbox-mcp/truncated"] != true {
			t.Errorf("facts %v", result.Meta.AdditionalFields)
		}
	})
}

// What code and clients chose is printable in notes of progress and in refusals of reads.
func TestQuotes_ArePrintable(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		var lines []string
		var progress sandbox.Progress
		stop := reportProgress(time.Second, &progress, func(_ float64, line string) { lines = append(lines, line) })
		progress.Say("a\u202eb\x1b[8m\U000e0041\u2028[cancelled]")
		time.Sleep(1500 * time.Millisecond)
		stop()
		if want := []string{`1 s: a\u202eb\x1b[8m\U000e0041\u2028[cancelled]`}; !slices.Equal(lines, want) {
			t.Errorf("progress %q, want %q", lines, want)
		}
		for _, uri := range []string{"sandbox://\x1b[8m\u2028\u202e/x", "sandbox://s/\x1b[8m\u2028\u202e", "sandbox://call.\u202e/x", "file:///\x1b\u2028"} {
			_, err := read(f.Tool, uri)
			if err == nil || strings.ContainsFunc(err.Error(), hostile.Invisible) {
				t.Errorf("%q: error %q", uri, err)
			}
		}
	})
}

// A call of an environment that is being built waits for it with progress, and runs then. One that
// waits too long is refused.
func TestRun_WaitsForABuild(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		f.set.Builds = []registry.Build{{Name: "slow", Since: time.Now()}}
		f.Environments.Publish(f.set)
		answer := func(progress func(float64, string)) *mcp.CallToolResult {
			return f.Accept("", map[string]any{"env": "slow", "code": "echo 1", "session": "s"}).Answer(t.Context(), progress)
		}
		began := time.Now()
		if got := answer(nil); !got.IsError || !strings.Contains(text(got), "is still being built, for 45 s") || time.Since(began) != buildWait {
			t.Errorf("a build that takes too long: %q after %v", text(got), time.Since(began))
		}
		var lines []string
		time.AfterFunc(10*time.Second, func() {
			slow := f.set.Environments["bash"]
			slow.Name = "slow"
			f.set.Environments["slow"] = slow
			f.Environments.Publish(f.set)
		})
		if got := answer(func(_ float64, line string) { lines = append(lines, line) }); got.IsError {
			t.Errorf("it did not run: %q", text(got))
		}
		if want := []string{"4 s: building slow", "8 s: building slow"}; !slices.Equal(lines, want) {
			t.Errorf("progress %q, want %q", lines, want)
		}
		// What _meta gives is checked when the environment is there, whose limits it depends on.
		for seconds, want := range map[string]string{"2": "timed out after 2 s", "1e9": "more than env \"later\" allows"} {
			f.set.Builds = []registry.Build{{Name: "later", Since: time.Now()}}
			delete(f.set.Environments, "later")
			f.Environments.Publish(f.set)
			time.AfterFunc(time.Second, func() {
				later := f.set.Environments["bash"]
				later.Name, later.MaxTimeout = "later", time.Minute
				f.set.Environments["later"] = later
				f.Environments.Publish(f.set)
			})
			r := f.Accept("", map[string]any{"env": "later", "code": "sleep 5"})
			r.Give(map[string]json.RawMessage{givenTimeout: json.RawMessage(seconds)})
			if got := text(r.Answer(t.Context(), nil)); !strings.Contains(got, want) {
				t.Errorf("a timeout of %s: %q", seconds, got)
			}
		}
	})
}
