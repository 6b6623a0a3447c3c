package tool

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/pool"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
)

func TestMain(m *testing.M) { os.Exit(mcptest.Main(m)) }

// languages are those of nix/interpreters, as the server's metadata has them.
var languages = sync.OnceValue(func() map[string]*registry.Language {
	files, err := filepath.Glob("../../nix/interpreters/*/interpreter.json")
	if err != nil || len(files) == 0 {
		panic(fmt.Sprint("no interpreters: ", err))
	}
	known := map[string]any{}
	for _, file := range files {
		var interpreter struct{ Language json.RawMessage }
		text, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(text, &interpreter)
		}
		if err != nil {
			panic(err)
		}
		known[filepath.Base(filepath.Dir(file))] = interpreter.Language
	}
	metadata, err := json.Marshal(mcptest.Settings(map[string]any{"environments": map[string]any{}, "interpreters": known}))
	if err != nil {
		panic(err)
	}
	set, err := registry.Read(string(metadata))
	if err != nil {
		panic(err)
	}
	return set.Languages
})

// speaking is an environment of an interpreter that keeps sessions.
func speaking(name, language, description string) registry.Environment {
	return registry.Environment{Name: name, InterpreterType: language, Language: languages()[language], Description: description}
}

// described is a set of environments as the presets have them.
func described() *registry.Set {
	return &registry.Set{Languages: languages(), Environments: map[string]registry.Environment{
		"python": speaking("python", "python", "Python 3 with NumPy, pandas and matplotlib"),
		"bash":   speaking("bash", "bash", "Bash with the usual text tools, jq, ripgrep and git"),
		"node":   speaking("node", "node", "JavaScript in Node.js"),
	}}
}

// ask has the tool's server answer a request.
func ask(t *testing.T, tool *Tool, method string) string {
	t.Helper()
	params := `{}`
	if method == "initialize" {
		params = `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}`
	}
	s, stop := tool.Server("1.0.0")
	defer stop()
	reply := s.HandleMessage(t.Context(), []byte(`{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params+`}`))
	text, err := json.Marshal(reply)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// cost is what the tool takes of the model's context, in bytes.
func cost(t *testing.T, tool *Tool) int {
	t.Helper()
	return len(ask(t, tool, "tools/list")) + len(tool.list().instructions())
}

// What the tool costs in every conversation is bounded, and grows by a line
// for each environment.
func TestContextCost(t *testing.T) {
	bounds := map[int]int{3: 1400, 10: 2100, 30: 3400} // bytes, by the number of environments
	before, environments := 0, 0
	for _, n := range []int{3, 10, 30} {
		set := described()
		for i := len(set.Environments); i < n; i++ {
			name := fmt.Sprintf("env-%02d", i)
			set.Environments[name] = speaking(name, "python", "Python 3 with the packages of one more project, as many as it has")
		}
		tool := New(registry.New(set), "/project", nil, nil)
		bytes := cost(t, tool)
		// Four bytes make about one token of English.
		t.Logf("%d environments: %d bytes, about %d tokens", n, bytes, bytes/4)
		if bytes >= bounds[n] {
			t.Errorf("%d environments take %d bytes, %d are allowed:\n%s\n%s", n, bytes, bounds[n], ask(t, tool, "tools/list"), tool.list().instructions())
		}
		if each := (bytes - before) / (n - environments); before > 0 && each > 140 {
			t.Errorf("each further environment takes %d bytes", each)
		}
		if lines := strings.Count(tool.list().description(), "\n- "); lines != n {
			t.Errorf("%d lines for %d environments", lines, n)
		}
		if length := len(tool.list().description()); length > 2000 {
			t.Errorf("%d environments: a description of %d bytes, of which some clients show 2,000", n, length)
		}
		before, environments = bytes, n
	}
}

// A description takes a line that is not longer than it may be.
func TestLongDescription(t *testing.T) {
	set := described()
	environments := registry.New(set)
	tool := New(environments, "", nil, nil)
	three := cost(t, tool)
	set.Environments["lua"] = registry.Environment{Name: "lua", InterpreterType: registry.Command, Description: strings.Repeat("what it is for ", 20)}
	environments.Publish(set)
	if line := describeBytes + 4*len("lua") + 20; cost(t, tool)-three > line {
		t.Errorf("one further environment takes %d bytes, a line is %d", cost(t, tool)-three, line)
	}
}

// What the model reads follows the configuration.
func TestDescription(t *testing.T) {
	stateless := &registry.Set{Environments: map[string]registry.Environment{"lua": {Name: "lua", InterpreterType: registry.Command, Description: "Lua\n 5.4"}}}
	for name, test := range map[string]struct {
		tool       *Tool
		with, none []string
	}{
		"all of it":  {New(registry.New(described()), "/code", nil, nil), []string{"/code", "read-only", "session", "- python: Python 3 with", "- bash: ", "- node: ", "bash, node, python"}, nil},
		"overlaid":   {overlaid(New(registry.New(described()), "/code", nil, nil)), []string{"/code, where changes last", "never reaches the user"}, []string{"read-only", "copy what"}},
		"no project": {New(registry.New(described()), "", nil, nil), []string{"session"}, []string{"project", "read-only"}},
		"no session": {New(registry.New(stateless), "", nil, nil), []string{"- lua: Lua 5.4"}, []string{"session"}},
	} {
		t.Run(name, func(t *testing.T) {
			text := ask(t, test.tool, "tools/list") + ask(t, test.tool, "initialize")
			for _, want := range test.with {
				if !strings.Contains(text, want) {
					t.Errorf("%q is missing:\n%s", want, text)
				}
			}
			for _, unwanted := range test.none {
				if strings.Contains(text, unwanted) {
					t.Errorf("%q is there:\n%s", unwanted, text)
				}
			}
		})
	}
}

func overlaid(t *Tool) *Tool {
	t.ProjectIsOverlaid()
	return t
}

func TestDefinition(t *testing.T) {
	var reply struct {
		Result struct {
			Tools []struct {
				Name        string
				Annotations map[string]bool
				InputSchema json.RawMessage
				Output      json.RawMessage `json:"outputSchema"`
			}
		}
	}
	if err := json.Unmarshal([]byte(ask(t, New(registry.New(described()), "", nil, nil), "tools/list")), &reply); err != nil {
		t.Fatal(err)
	}
	if len(reply.Result.Tools) != 1 {
		t.Fatalf("%d tools", len(reply.Result.Tools))
	}
	tool := reply.Result.Tools[0]
	hints := map[string]bool{"readOnlyHint": false, "destructiveHint": false, "idempotentHint": false, "openWorldHint": false}
	if diff := cmp.Diff(hints, tool.Annotations); diff != "" {
		t.Error(diff)
	}
	const schema = `{"type":"object","properties":{"code":{"type":"string"},"env":{"type":"string","enum":["bash","node","python"]},` +
		`"session":{"type":"string","pattern":"^[A-Za-z0-9_-]{1,64}$"}},"required":["code","env"],"additionalProperties":false}`
	if diff := cmp.Diff(schema, string(tool.InputSchema)); diff != "" {
		t.Error(diff)
	}
	if tool.Name != "run" || tool.Output != nil {
		t.Errorf("tool %+v", tool)
	}
}

// client is one that the server tells of changes.
type client struct{ notes chan mcp.JSONRPCNotification }

func (*client) Initialize()                                           {}
func (*client) Initialized() bool                                     { return true }
func (*client) SessionID() string                                     { return "client" }
func (c *client) NotificationChannel() chan<- mcp.JSONRPCNotification { return c.notes }

// The list follows the catalog, and clients are told when it reads otherwise
// and only then.
func TestListChanges(t *testing.T) {
	set := described()
	environments := registry.New(set)
	tool := New(environments, "", nil, nil)
	s, stop := tool.Server("1.0.0")
	c := &client{make(chan mcp.JSONRPCNotification, 8)}
	if err := s.RegisterSession(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	list := func() string {
		text, err := json.Marshal(s.HandleMessage(t.Context(), []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, step := range []struct {
		name   string
		change func()
		told   int
		listed bool
	}{
		{"an artifact is replaced", func() {
			bash := set.Environments["bash"]
			bash.Exec = "/other"
			set.Environments["bash"] = bash
		}, 0, false},
		{"a build begins", func() { set.Builds = []registry.Build{{Name: "perl", Since: time.Now()}} }, 0, false},
		{"it is ready", func() {
			set.Environments["perl"] = registry.Environment{Name: "perl", InterpreterType: registry.Command}
		}, 1, true},
		{"it is described", func() {
			set.Environments["perl"] = registry.Environment{Name: "perl", InterpreterType: registry.Command, Description: "Perl 5"}
		}, 1, true},
		{"it goes", func() { delete(set.Environments, "perl") }, 1, false},
	} {
		step.change()
		if !environments.Publish(set) {
			t.Fatalf("%s: no change", step.name)
		}
		if len(c.notes) != step.told {
			t.Errorf("%s: %d notifications, want %d", step.name, len(c.notes), step.told)
		}
		for range len(c.notes) {
			if note := <-c.notes; note.Method != mcp.MethodNotificationToolsListChanged {
				t.Errorf("%s: told %s", step.name, note.Method)
			}
		}
		if listed := strings.Contains(list(), `"perl"`); listed != step.listed {
			t.Errorf("%s: listed is %v:\n%s", step.name, listed, list())
		}
	}
	stop()
	set.Environments["perl"] = registry.Environment{Name: "perl"}
	environments.Publish(set)
	if len(c.notes) != 0 {
		t.Error("told after the end")
	}
}

// Every wrong call is answered with a sentence that says what to do.
func TestArguments(t *testing.T) {
	set := described()
	set.Environments["lua"] = registry.Environment{Name: "lua", InterpreterType: registry.Command}
	set.Broken = []registry.Broken{{Name: "ruby", Err: fmt.Errorf("/etc/secret-place: backend is missing")}}
	set.Builds = []registry.Build{
		{Name: "slow", Since: time.Now().Add(-90 * time.Second)},
		{Name: "wrong", Failed: true, Reason: "error: syntax error, unexpected '}'\n       at flake.nix:3:5"},
	}
	tool := New(registry.New(set), "", nil, nil)
	const usage = "call run with code (a string) and env (one of bash, lua, node, python), and session (a string) to keep state"
	for name, test := range map[string]struct{ raw, want string }{
		"right":                 {`{"code":"1","env":"python"}`, ""},
		"empty code":            {`{"code":"","env":"python"}`, ""},
		"right session":         {`{"code":"1","env":"python","session":"A-z_09"}`, ""},
		"no session as null":    {`{"code":"1","env":"python","session":null}`, ""},
		"nothing":               {``, "code is missing: " + usage},
		"an array":              {`[]`, "the arguments are not an object: " + usage},
		"no code":               {`{"env":"python"}`, "code is missing: " + usage},
		"null code":             {`{"code":null,"env":"python"}`, "code is missing: " + usage},
		"no env":                {`{"code":"1"}`, "env is missing: " + usage},
		"code a number":         {`{"code":1,"env":"python"}`, "code is not a string: " + usage},
		"env a list":            {`{"code":"1","env":["python"]}`, "env is not a string: " + usage},
		"session a number":      {`{"code":"1","env":"python","session":1}`, "session is not a string: " + usage},
		"another argument":      {`{"code":"1","env":"python","lang":"x"}`, `unknown argument "lang": ` + usage},
		"an argument of a line": {`{"code":"1","env":"python","a\nb":"x"}`, `unknown argument "a\nb": ` + usage},
		"unknown env":           {`{"code":"1","env":"perl"}`, "there is no env \"perl\"; choose one of\n- bash: Bash with the usual text tools, jq, ripgrep and git\n- lua\n- node: JavaScript in Node.js\n- python: Python 3 with NumPy, pandas and matplotlib"},
		"env of another case":   {`{"code":"1","env":"Python"}`, `there is no env "Python"; choose one of`},
		"broken env":            {`{"code":"1","env":"ruby"}`, `env "ruby" could not be loaded, as the server's log explains; choose one of`},
		"env being built":       {`{"code":"1","env":"slow"}`, `env "slow" is still being built, for 90 s so far: call again later, or use one of bash, lua, node, python`},
		"env of a failed build": {`{"code":"1","env":"wrong"}`, "env \"wrong\" could not be built: tell the user what Nix said, or use one of bash, lua, node, python\nerror: syntax error, unexpected '}'\n       at flake.nix:3:5"},
		"bad session":           {`{"code":"1","env":"python","session":"a b"}`, `session is "a b": it must be 1 to 64 letters, digits, _ or -`},
		"empty session":         {`{"code":"1","env":"python","session":""}`, `session is "": it must be`},
		"session of two lines":  {`{"code":"1","env":"python","session":"a\n"}`, `session is "a\n": it must be`},
		"long session":          {`{"code":"1","env":"python","session":"` + strings.Repeat("a", 65) + `"}`, "it must be 1 to 64"},
		"session that cannot":   {`{"code":"1","env":"lua","session":"a"}`, `env "lua" has no sessions: leave session out, or use one of bash, node, python`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tool.list().arguments(json.RawMessage(test.raw), func(string) (registry.Environment, bool) { return registry.Environment{}, false })
			switch {
			case test.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case test.want != "" && (err == nil || !strings.HasPrefix(err.Error(), test.want)) && !strings.Contains(fmt.Sprint(err), test.want):
				t.Errorf("error %v, want %s", err, test.want)
			case err != nil && strings.Contains(err.Error(), "secret-place"):
				t.Errorf("a place of the host is shown: %v", err)
			}
		})
	}
}

func TestAnswerText(t *testing.T) {
	once := arguments{Env: "python", environment: registry.Environment{Timeout: 30 * time.Second, MemoryMB: 512, PIDs: 256}}
	kept := once
	kept.Session = "s"
	ok := sandbox.Result{Outcome: frame.OutcomeOK}
	memory, tasks := &frame.Limit{Name: "memory_mb", Value: 512, Used: 530}, &frame.Limit{Name: "pids", Value: 256, Used: 257}
	text := func(s string) sandbox.Text { return sandbox.Text{Head: s} }
	for name, test := range map[string]struct {
		answer answer
		want   string
		failed bool
	}{
		"stdout":         {answer{args: once, ended: ok, stdout: text("2\n")}, "2\n", false},
		"nothing":        {answer{args: once, ended: ok}, "[no output]", false},
		"both":           {answer{args: once, ended: ok, stdout: text("out"), stderr: text("err\n")}, "out\n--- stderr ---\nerr\n", false},
		"stderr alone":   {answer{args: once, ended: ok, stderr: text("err")}, "--- stderr ---\nerr", false},
		"exit status":    {answer{args: once, ended: sandbox.Result{Outcome: frame.OutcomeOK, ExitCode: 3}, stdout: text("a\n")}, "a\n[exit status 3]", true},
		"timeout":        {answer{args: once, ended: sandbox.Result{Outcome: frame.OutcomeTimeout, ExitCode: 137}}, "[timed out after 30 s]", true},
		"timeout, kept":  {answer{args: kept, ended: sandbox.Result{Outcome: frame.OutcomeTimeout, State: frame.StateKept}}, "[timed out after 30 s; the session's state was kept]", true},
		"timeout, lost":  {answer{args: kept, ended: sandbox.Result{Outcome: frame.OutcomeTimeout, State: frame.StateLost}}, "[timed out after 30 s; the session's variables are lost, its files in /workspace are kept]", true},
		"cancelled":      {answer{args: kept, ended: sandbox.Result{Outcome: frame.OutcomeCancelled, State: frame.StateKept}}, "[cancelled; the session's state was kept]", true},
		"memory":         {answer{args: once, ended: sandbox.Result{Outcome: frame.OutcomeMemory, Limit: memory}}, "[stopped: used more than 512 MB of memory]", true},
		"memory, lost":   {answer{args: kept, ended: sandbox.Result{Outcome: frame.OutcomeMemory, Limit: memory, State: frame.StateLost}}, "[stopped: used more than 512 MB of memory; the session's variables are lost, its files in /workspace are kept]", true},
		"memory before":  {answer{args: kept, ended: sandbox.Result{Outcome: frame.OutcomeOK, Limit: memory, State: frame.StateLost}}, "[stopped before this call: used more than 512 MB of memory; the session's variables are lost, its files in /workspace are kept]", false},
		"tasks":          {answer{args: once, ended: sandbox.Result{Outcome: frame.OutcomeLimit, Limit: tasks}}, "[stopped: more than 256 processes and threads]", true},
		"crashed":        {answer{args: kept, ended: sandbox.Result{Outcome: frame.OutcomeCrashed, ExitCode: 139, State: frame.StateLost}}, "[the interpreter died with exit status 139; the session's variables are lost, its files in /workspace are kept]", true},
		"fresh":          {answer{args: kept, fresh: "ended after 300 s idle", ended: sandbox.Result{Outcome: frame.OutcomeOK, State: frame.StateKept}, stdout: text("1\n")}, "1\n[new session: the earlier one ended after 300 s idle]", false},
		"lost, although": {answer{args: kept, ended: sandbox.Result{Outcome: frame.OutcomeOK, State: frame.StateLost}}, "[the session's variables are lost, its files in /workspace are kept]", false},
		"cut":            {answer{args: once, ended: ok, stdout: sandbox.Text{Head: "a\n", Tail: "z\n", Cut: 1234567}}, "a\n[... 1.2 MB cut here ...]\nz\n[1.2 MB of output cut; print less of it]", false},
		"cut and stored": {answer{args: kept, ended: sandbox.Result{Outcome: frame.OutcomeOK, Stored: []sandbox.Stored{{Path: "/workspace/.outputs/7.stdout", All: true}}}, stdout: sandbox.Text{Head: "a", Tail: "z", Cut: 999}}, "a\n[... 999 bytes cut here ...]\nz\n[999 bytes of output cut; all of it is in /workspace/.outputs/7.stdout]", false},
		"cut and stored in part": {answer{args: kept, ended: sandbox.Result{Outcome: frame.OutcomeOK, Stored: []sandbox.Stored{{Path: "/workspace/.outputs/7.stdout", Bytes: 5_000_000}}}, stdout: sandbox.Text{Head: "a", Tail: "z", Cut: 2_000_000_000}},
			"a\n[... 2.0 GB cut here ...]\nz\n[2.0 GB of output cut; its first 5.0 MB are in /workspace/.outputs/7.stdout]", false},
		"died":    {answer{args: once, trouble: "the sandbox ended during the call", stdout: text("so far\n")}, "so far\n[the sandbox ended during the call]", true},
		"refused": {answer{args: once, trouble: "all 64 sessions are in use"}, "all 64 sessions are in use", true},
	} {
		t.Run(name, func(t *testing.T) {
			test.answer.began = name != "refused"
			if diff := cmp.Diff(test.want, test.answer.text()); diff != "" {
				t.Error(diff)
			}
			if got := test.answer.result().IsError; got != test.failed {
				t.Errorf("isError %v", got)
			}
		})
	}
}

// bench is the tool over real sandboxes.
type bench struct {
	*Tool
	t   testing.TB
	set *registry.Set // that the catalog was made of
}

func lay(t testing.TB, change func(map[string]map[string]any)) *bench {
	t.Helper()
	environments := mcptest.Artifacts(t)
	if change != nil {
		change(environments)
	}
	set, err := registry.Read(mcptest.Metadata(t, environments))
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	launcher := sandbox.NewLauncher(log, nil, nil)
	manager := session.New(pool.New(launcher, pool.Options{}, log), session.Limits{Idle: time.Hour, Lifetime: time.Hour, Max: 8}, log)
	t.Cleanup(func() {
		manager.Close()
		launcher.Close(20 * time.Second)
	})
	return &bench{New(registry.New(set), "", manager, log), t, set}
}

func (b *bench) call(ctx context.Context, env, session, code string, meta *mcp.Meta) *mcp.CallToolResult {
	b.t.Helper()
	args := map[string]string{"code": code, "env": env}
	if session != "" {
		args["session"] = session
	}
	raw, err := json.Marshal(args)
	if err != nil {
		b.t.Fatal(err)
	}
	result, err := b.run(ctx, mcp.CallToolRequest{Params: mcp.CallToolParams{Name: "run", RawArguments: raw, Meta: meta}})
	if err != nil {
		b.t.Fatal(err)
	}
	return result
}

func (b *bench) bash(session, code string) *mcp.CallToolResult {
	b.t.Helper()
	return b.call(b.t.Context(), "bash", session, code, nil)
}

func text(result *mcp.CallToolResult) string {
	first, _ := result.Content[0].(mcp.TextContent)
	return first.Text
}

func picturePNG(t *testing.T, width, height int) string {
	t.Helper()
	var data bytes.Buffer
	if err := png.Encode(&data, image.NewGray(image.Rect(0, 0, width, height))); err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(data.Bytes())
}

// Images come back as images, in a session and without one.
func TestImages(t *testing.T) {
	b := lay(t, nil)
	dot := picturePNG(t, 3, 2)
	for _, session := range []string{"", "s"} {
		result := b.bash(session, "mkdir -p outputs; echo "+dot+" | base64 -d >outputs/dot.png; echo drawn")
		if len(result.Content) != 2 || text(result) != "drawn\n" {
			t.Fatalf("session %q: %+v", session, result.Content)
		}
		picture, ok := result.Content[1].(mcp.ImageContent)
		if !ok || picture.Data != dot || picture.MIMEType != "image/png" {
			t.Errorf("session %q: %+v", session, result.Content[1])
		}
	}
}

// What is no image that a model can take is no image content: one that is
// named so, one that is broken, one too large, and one too many.
func TestNotImages(t *testing.T) {
	b := lay(t, nil)
	write := func(name, data string) string { return "echo " + data + " | base64 -d >outputs/" + name + "; " }
	fake := base64.StdEncoding.EncodeToString([]byte("no image at all"))
	broken := base64.StdEncoding.EncodeToString([]byte("\x89PNG\r\n\x1a\n broken"))
	code := write("fake.png", fake) + write("broken.png", broken) + write("wide.png", picturePNG(t, 8001, 1)) +
		write("jpeg.jpg", picturePNG(t, 1, 1)) + "head -c 1100000 /dev/zero >outputs/large.png; "
	for i := range 6 {
		code += write(fmt.Sprintf("z%d.png", i), picturePNG(t, 2, 2))
	}
	result := b.bash("s", code)
	var images int
	var links []string
	for _, content := range result.Content[1:] {
		switch content := content.(type) {
		case mcp.ImageContent:
			images++
		case mcp.ResourceLink:
			links = append(links, content.Name)
		default:
			t.Errorf("content %+v", content)
		}
	}
	want := []string{"broken.png", "fake.png", "jpeg.jpg", "large.png", "wide.png", "z4.png", "z5.png"}
	if diff := cmp.Diff(want, links); images != maxImages || diff != "" {
		t.Errorf("%d images; links: %s", images, diff)
	}
	named := text(b.bash("", write("fake.png", fake)+"echo hi >outputs/notes.txt"))
	const sentence = "[written and gone with the sandbox: /workspace/outputs/fake.png (15 bytes), /workspace/outputs/notes.txt (3 bytes); to keep files, use a session]"
	if named != sentence {
		t.Errorf("without a session: %q", named)
	}
}

// Reading what is named like an image is bounded, for its time is not the
// code's: a hundred of them would take seconds after it.
func TestImagesAreBounded(t *testing.T) {
	b := lay(t, nil)
	result := b.bash("s", fmt.Sprintf("mkdir outputs; for ((n = 0; n < %d; n++)); do truncate -s 1M outputs/a$n.png; done; echo %s | base64 -d >outputs/z.png", maxTries, picturePNG(t, 2, 2)))
	for _, content := range result.Content[1:] {
		if _, ok := content.(mcp.ImageContent); ok {
			t.Errorf("the image after %d that are none was read", maxTries)
		}
	}
}

// Names alone cost a session nothing, however many and long they are.
func TestLongNames(t *testing.T) {
	b := lay(t, nil)
	const code = `x=$(printf '\001%.0s' {1..250}); d=outputs/$x/$x/$x; mkdir -p "$d"; for n in {1..1000}; do : >"$d/$n"; done; echo made`
	if got := text(b.bash("s", code)); !strings.HasPrefix(got, "made\n") {
		t.Errorf("%.300q", got)
	}
	if got := text(b.bash("s", "echo $d | wc -c")); got != "761\n" {
		t.Errorf("after it: %q", got)
	}
}

func TestSVGIsText(t *testing.T) {
	b := lay(t, nil)
	result := b.bash("s", `echo '<svg/>' >outputs/a.svg; { echo '<svg>'; head -c 40000 /dev/zero | tr '\0' ' '; echo '</svg>'; } >outputs/b.svg`)
	if len(result.Content) != 3 {
		t.Fatalf("content %+v", result.Content)
	}
	if svg, ok := result.Content[1].(mcp.TextContent); !ok || svg.Text != "outputs/a.svg:\n<svg/>\n" {
		t.Errorf("the small one: %+v", result.Content[1])
	}
	if link, ok := result.Content[2].(mcp.ResourceLink); !ok || link.Name != "b.svg" {
		t.Errorf("the one beyond output_kb: %+v", result.Content[2])
	}
}

// All of them together take no more than one may.
func TestSVGsShareTheirRoom(t *testing.T) {
	b := lay(t, nil)
	result := b.bash("s", `for n in a b; do { echo '<svg>'; head -c 20000 /dev/zero | tr '\0' ' '; echo '</svg>'; } >outputs/$n.svg; done`)
	if len(result.Content) != 3 {
		t.Fatalf("content %+v", result.Content)
	}
	if svg, ok := result.Content[1].(mcp.TextContent); !ok || !strings.HasPrefix(svg.Text, "outputs/a.svg:\n<svg>") {
		t.Errorf("the first: %+v", result.Content[1])
	}
	if link, ok := result.Content[2].(mcp.ResourceLink); !ok || link.Name != "b.svg" {
		t.Errorf("the one that leaves no room: %+v", result.Content[2])
	}
}

// fetch reads a resource.
func (b *bench) fetch(uri string) ([]mcp.ResourceContents, error) {
	request := mcp.ReadResourceRequest{}
	request.Params.URI = uri
	return b.read(b.t.Context(), request)
}

// A link can be read, whatever its file is called.
func TestResources(t *testing.T) {
	b := lay(t, nil)
	result := b.bash("s", `mkdir -p "outputs/a dir"; printf 'a,b\n1,2\n' >"outputs/a dir/100% ü?#.csv"; printf '\0\1\2' >outputs/b.bin; seq 100000 >outputs/large.txt`)
	got := map[string]mcp.ResourceContents{}
	for _, content := range result.Content[1:] {
		link, ok := content.(mcp.ResourceLink)
		if !ok {
			t.Fatalf("content %+v", content)
		}
		contents, err := b.fetch(link.URI)
		if err != nil {
			t.Fatalf("%s: %v", link.URI, err)
		}
		got[link.Name] = contents[0]
	}
	csv, ok := got["100% ü?#.csv"].(mcp.TextResourceContents)
	if !ok || csv.Text != "a,b\n1,2\n" || csv.MIMEType != "text/csv" {
		t.Errorf("csv: %+v", got)
	}
	bin, ok := got["b.bin"].(mcp.BlobResourceContents)
	if !ok || bin.Blob != "AAEC" || bin.MIMEType != "application/octet-stream" {
		t.Errorf("bin: %+v", got["b.bin"])
	}
	if large, ok := got["large.txt"].(mcp.TextResourceContents); !ok || len(large.Text) != 588895 {
		t.Errorf("large: %d bytes", len(large.Text))
	}
}

// Nothing outside the workspace can be read, and nothing of other sessions.
func TestResourcesStayInside(t *testing.T) {
	b := lay(t, nil)
	b.bash("s", "ln -s /etc/hostname link; ln -s / root; mkfifo fifo; head -c 9000000 /dev/zero >big; mkdir dir")
	for _, uri := range []string{
		"sandbox://s/../etc/hostname", "sandbox://s/%2e%2e/etc/hostname", "sandbox://s//etc/hostname", "sandbox://s/", "sandbox://s",
		"sandbox://s/link", "sandbox://s/root/etc/hostname", "sandbox://s/fifo", "sandbox://s/big", "sandbox://s/dir", "sandbox://s/none",
		"sandbox://other/link", "sandbox://s/%00", "sandbox://s/%zz", "file:///etc/hostname", "sandbox://a b/x",
	} {
		if contents, err := b.fetch(uri); err == nil {
			t.Errorf("%s: %+v", uri, contents)
		}
	}
	if got := text(b.bash("s", "echo alive")); got != "alive\n" {
		t.Errorf("afterwards: %q", got)
	}
}

// listener is a client that notes what it is notified of.
type listener struct {
	server.ClientSession
	mu    sync.Mutex
	notes []mcp.JSONRPCNotification
}

func (l *listener) Notify(note mcp.JSONRPCNotification) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.notes = append(l.notes, note)
}

// A session goes on with the artifact that it began with when its environment
// has left the list; new calls are told that there is none.
func TestSessionOutlivesItsEnvironment(t *testing.T) {
	b := lay(t, nil)
	b.bash("s", "kept=yes")
	delete(b.set.Environments, "bash")
	b.catalog.Publish(b.set)
	if got := b.bash("s", "echo $kept"); got.IsError || text(got) != "yes\n" {
		t.Errorf("answer %+v", got)
	}
	for _, session := range []string{"", "other"} {
		if got := b.bash(session, "echo 1"); !got.IsError || !strings.HasPrefix(text(got), `there is no env "bash"; choose one of`) {
			t.Errorf("session %q: answer %+v", session, got)
		}
	}
}

func TestProgress(t *testing.T) {
	b := lay(t, nil)
	b.every = 50 * time.Millisecond
	client := &listener{}
	s, stop := b.Server("1")
	defer stop()
	ctx := s.WithContext(t.Context(), client)
	b.call(ctx, "bash", "", "sleep 0.2", nil)
	if len(client.notes) != 0 {
		t.Errorf("%d notifications that nobody asked for", len(client.notes))
	}
	b.call(ctx, "bash", "", "for i in 1 2 3 4 5 6 7 8; do echo step $i; sleep 0.1; done", &mcp.Meta{ProgressToken: "token"})
	count := len(client.notes)
	last := -1.0
	newest := ""
	for _, note := range client.notes {
		fields := note.Params.AdditionalFields
		progress, _ := fields["progress"].(float64)
		if note.Method != "notifications/progress" || fields["progressToken"] != "token" || progress <= last {
			t.Errorf("notification %+v after progress %v", note, last)
		}
		last = progress
		newest, _ = fields["message"].(string)
	}
	if !strings.Contains(newest, ": step ") {
		t.Errorf("the last message is %q", newest)
	}
	time.Sleep(3 * b.every)
	if len(client.notes) != count {
		t.Error("progress after the result")
	}
}

// A call whose arguments name two sessions runs in the last, as JSON is read,
// and holds nobody up in the first.
func TestTwoSessionsNamed(t *testing.T) {
	b := lay(t, nil)
	raw := json.RawMessage(`{"code":"echo x","env":"bash","session":"one","session":"two"}`)
	ctx, leave := b.Admit(t.Context(), "tools/call", json.RawMessage(`{"name":"run","arguments":`+string(raw)+`}`))
	behind := b.manager.Enqueue("one")
	result, err := b.run(ctx, mcp.CallToolRequest{Params: mcp.CallToolParams{Name: "run", RawArguments: raw}})
	if err != nil || text(result) != "x\n" {
		t.Fatalf("answer %+v, %v", result, err)
	}
	// Its place in the first line is free although it has not left yet.
	if err := b.manager.Find(t.Context(), behind, nil); err == nil || err.Error() != `there is no session "one"` {
		t.Errorf("error %v", err)
	}
	behind.Leave()
	leave()
	if got := text(b.bash("two", "echo same")); got != "same\n" {
		t.Errorf("afterwards %q", got)
	}
}

func TestFacts(t *testing.T) {
	b := lay(t, nil)
	meta := b.bash("s", "exit 3").Meta.AdditionalFields
	if _, ok := meta["nix-sandbox-mcp/duration_ms"].(int64); !ok {
		t.Errorf("duration %v", meta["nix-sandbox-mcp/duration_ms"])
	}
	delete(meta, "nix-sandbox-mcp/duration_ms")
	want := map[string]any{
		"nix-sandbox-mcp/outcome": "ok", "nix-sandbox-mcp/exit_code": 3, "nix-sandbox-mcp/state": "kept", "nix-sandbox-mcp/truncated": false,
		"nix-sandbox-mcp/limits_by":   "watch",
		"nix-sandbox-mcp/closure":     "the-closure-of-bash",
		"nix-sandbox-mcp/code_sha256": fmt.Sprintf("%x", sha256.Sum256([]byte("exit 3"))),
	}
	if diff := cmp.Diff(want, meta); diff != "" {
		t.Error(diff)
	}
}

// The bound on an answer holds for stdout and stderr together.
func TestOutputBound(t *testing.T) {
	b := lay(t, func(environments map[string]map[string]any) { environments["bash"]["output_kb"] = 8 })
	for _, session := range []string{"", "s"} {
		result := b.bash(session, "seq 100000; seq 100000 >&2; echo end")
		got := text(result)
		if len(got) > 8<<10+300 {
			t.Errorf("session %q: %d bytes", session, len(got))
		}
		for _, want := range []string{"1\n2\n3\n", "cut here ...]\n", "\n100000\nend\n--- stderr ---\n1\n2\n", "\n100000\n[1.2 MB of output cut; "} {
			if !strings.Contains(got, want) {
				t.Errorf("session %q: %q is missing in %q", session, want, got)
			}
		}
		if result.Meta.AdditionalFields["nix-sandbox-mcp/truncated"] != true {
			t.Errorf("facts %v", result.Meta.AdditionalFields)
		}
	}
}
