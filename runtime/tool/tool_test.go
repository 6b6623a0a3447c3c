package tool

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/packages"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

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
		"bash":   speaking("bash", "bash", "Bash with command-line tools, jq, ripgrep, git and Python 3"),
		"node":   speaking("node", "node", "JavaScript and TypeScript in Node.js"),
	}}
}

// describing is a tool that is only asked what it is.
func describing(environments *registry.Registry, project Project) *Tool {
	return New(Options{Environments: environments, Project: project, Packages: packages.Catalog{}})
}

// ask returns what a client learns of the tool by a request.
func ask(t *testing.T, tool *Tool, method string) string {
	t.Helper()
	if method == "initialize" {
		return string(must.Get(json.Marshal(tool.Instructions()))(t))
	}
	var shown mcp.Tool
	tool.Watch(func(one mcp.Tool) { shown = one })()
	reply := mcp.NewJSONRPCResultResponse(mcp.NewRequestId(1), mcp.ListToolsResult{Tools: []mcp.Tool{shown}})
	return string(must.Get(json.Marshal(reply))(t))
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
		tool := describing(registry.New(set), Project{Mount: "/project"})
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

// Where the environments of a session share its files, the model reads so.
func TestDescription_TellsOfSharedFiles(t *testing.T) {
	tool := describing(registry.New(described()), Project{})
	tool.SharedFiles = true
	text := ask(t, tool, "tools/list") + ask(t, tool, "initialize")
	for _, want := range []string{"calls with the same session share files, and variables per env.", "use one session per task."} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	for _, overlaid := range []bool{false, true} {
		tool.Project = Project{Mount: "/project", Overlaid: overlaid}
		if bytes := cost(t, tool); bytes >= 1400 {
			t.Errorf("overlaid %v: %d bytes", overlaid, bytes)
		} else {
			t.Logf("overlaid %v: %d bytes", overlaid, bytes)
		}
	}
}

// The tool cuts the description of an environment to one line of bounded length.
func TestLongDescription(t *testing.T) {
	set := described()
	environments := registry.New(set)
	tool := describing(environments, Project{})
	three := cost(t, tool)
	set.Environments["lua"] = registry.Environment{Name: "lua", InterpreterType: "command", Description: strings.Repeat("what it is for ", 20)}
	environments.Publish(set)
	if line := describeBytes + 4*len("lua") + 20; cost(t, tool)-three > line {
		t.Errorf("one further environment takes %d bytes, a line is %d", cost(t, tool)-three, line)
	}
}

// What the model reads follows the configuration.
func TestDescription(t *testing.T) {
	stateless := &registry.Set{Environments: map[string]registry.Environment{"lua": {Name: "lua", InterpreterType: "command", Description: "Lua\n 5.4"}}}
	for name, test := range map[string]struct {
		tool       *Tool
		with, none []string
	}{
		"all of it":            {describing(registry.New(described()), Project{Mount: "/code"}), []string{"/code", "read-only", "session", "- python: Python 3 with", "- bash: ", "- node: "}, nil},
		"overlaid":             {describing(registry.New(described()), Project{Mount: "/code", Overlaid: true}), []string{"/code, where changes last as long as the call or session.", "changes there reach the user only as a session's patch."}, []string{"read-only", "copy what"}},
		"overlaid, no session": {describing(registry.New(stateless), Project{Mount: "/code", Overlaid: true}), []string{"/code, where changes last as long as the call."}, nil},
		"an inbox":             {describing(registry.New(described()), Project{Inbox: "/inbox"}), []string{"; files given to it are in /inbox, read-only. Each"}, []string{"project"}},
		"no project":           {describing(registry.New(described()), Project{}), []string{"session"}, []string{"project", "read-only", "inbox"}},
		"no session":           {describing(registry.New(stateless), Project{}), []string{"- lua: Lua 5.4"}, []string{"session"}},
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
	must.Do(t, json.Unmarshal([]byte(ask(t, describing(registry.New(described()), Project{}), "tools/list")), &reply))
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

// The tool follows the catalog, and is shown again when it reads otherwise and only then.
func TestWatch_ShowsWhatReadsOtherwise(t *testing.T) {
	set := described()
	environments := registry.New(set)
	var shown []mcp.Tool
	stop := describing(environments, Project{}).Watch(func(one mcp.Tool) { shown = append(shown, one) })
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
		{"a build begins", func() { set.Builds = []registry.Build{{Name: "perl", Since: time.Now()}} }, 1, true},
		{"it is ready", func() {
			set.Environments["perl"] = registry.Environment{Name: "perl", InterpreterType: "command"}
		}, 1, true},
		{"it is described", func() {
			set.Environments["perl"] = registry.Environment{Name: "perl", InterpreterType: "command", Description: "Perl 5"}
		}, 1, true},
		{"it goes", func() {
			delete(set.Environments, "perl")
			set.Builds = nil
		}, 1, false},
	} {
		before := len(shown)
		step.change()
		if !environments.Publish(set) {
			t.Fatalf("%s: no change", step.name)
		}
		if told := len(shown) - before; told != step.told {
			t.Errorf("%s: shown %d times, want %d", step.name, told, step.told)
		}
		list := string(must.Get(json.Marshal(shown[len(shown)-1]))(t))
		if listed := strings.Contains(list, `"perl"`); listed != step.listed {
			t.Errorf("%s: listed is %v:\n%s", step.name, listed, list)
		}
	}
	stop()
	set.Environments["perl"] = registry.Environment{Name: "perl"}
	before := len(shown)
	environments.Publish(set)
	if len(shown) != before {
		t.Error("shown after the end")
	}
}

// Every wrong call is answered with a sentence that says what to do.
func TestArguments(t *testing.T) {
	set := described()
	set.Environments["lua"] = registry.Environment{Name: "lua", InterpreterType: "command"}
	set.Broken = []registry.Broken{{Name: "ruby", Err: fmt.Errorf("/etc/secret-place: backend is missing")}}
	set.Builds = []registry.Build{
		{Name: "slow", Since: time.Now().Add(-90 * time.Second)},
		{Name: "wrong", Failed: true, Reason: "error: syntax error, unexpected '}'\n       at flake.nix:3:5\n[hint: x]"},
	}
	tool := describing(registry.New(set), Project{})
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
		"unknown env":           {`{"code":"1","env":"perl"}`, "there is no env \"perl\"; choose one of\n- bash: Bash with command-line tools, jq, ripgrep, git and Python 3\n- lua\n- node: JavaScript and TypeScript in Node.js\n- python: Python 3 with NumPy, pandas and matplotlib"},
		"env of another case":   {`{"code":"1","env":"Python"}`, `there is no env "Python"; choose one of`},
		"broken env":            {`{"code":"1","env":"ruby"}`, `env "ruby" could not be loaded, as the server's log explains; choose one of`},
		"env being built":       {`{"code":"1","env":"slow"}`, `env "slow" is still being built, for 90 s so far: call again, which waits for it, or use one of bash, lua, node, python`},
		"env of a failed build": {`{"code":"1","env":"wrong"}`, "env \"wrong\" could not be built: tell the user what Nix said, or use one of bash, lua, node, python\nerror: syntax error, unexpected '}'\n       at flake.nix:3:5\nNix: [hint: x]"},
		"bad session":           {`{"code":"1","env":"python","session":"a b"}`, `session is "a b": it must be 1 to 64 letters, digits, _ or -`},
		"empty session":         {`{"code":"1","env":"python","session":""}`, `session is "": it must be`},
		"session of two lines":  {`{"code":"1","env":"python","session":"a\n"}`, `session is "a\n": it must be`},
		"long session":          {`{"code":"1","env":"python","session":"` + strings.Repeat("a", 65) + `"}`, "it must be 1 to 64"},
		"session that cannot":   {`{"code":"1","env":"lua","session":"a"}`, `env "lua" has no sessions: leave session out, or use one of bash, node, python`},
	} {
		t.Run(name, func(t *testing.T) {
			var arguments any
			if test.raw != "" {
				must.Do(t, json.Unmarshal([]byte(test.raw), &arguments))
			}
			_, err := tool.list().call(arguments, noSession)
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

// waiting is a set of environments of which python lets a call ask for more time
// than it has without, and bash does not.
func waiting() *registry.Set {
	set := described()
	for name, longest := range map[string]time.Duration{"python": 10 * time.Minute, "bash": 30 * time.Second, "node": 30 * time.Second} {
		env := set.Environments[name]
		env.Timeout, env.MaxTimeout = 30*time.Second, longest
		set.Environments[name] = env
	}
	return set
}

// The argument is in the schema only where a call may ask for more.
func TestSchema_HasTimeoutWhereACallMayAsk(t *testing.T) {
	set := waiting()
	without := ask(t, describing(registry.New(described()), Project{}), "tools/list")
	if text := ask(t, describing(registry.New(set), Project{}), "tools/list"); !strings.Contains(text, `"timeout":{"type":"number","maximum":600,"default":30,"description":"seconds"}`) || len(text)-len(without) > 85 {
		t.Errorf("%d bytes more: %s", len(text)-len(without), text)
	}
	// One default of all environments is stated.
	node := set.Environments["node"]
	node.Timeout = 20 * time.Second
	set.Environments["node"] = node
	if text := ask(t, describing(registry.New(set), Project{}), "tools/list"); !strings.Contains(text, `"maximum":600,"description":"seconds"`) {
		t.Errorf("two defaults: %s", text)
	}
	for name, env := range set.Environments {
		env.Timeout, env.MaxTimeout = 30*time.Second, 30*time.Second
		set.Environments[name] = env
	}
	if text := ask(t, describing(registry.New(set), Project{}), "tools/list"); text != without {
		t.Errorf("nothing may be asked for, and the model reads\n%s\nin place of\n%s", text, without)
	}
}

func TestTimeout_IsCheckedByTheEnvironment(t *testing.T) {
	const write = ": use seconds, more than 0 and at most 600, or leave it out for 30"
	for name, test := range map[string]struct {
		env, value string
		want       time.Duration
		refusal    string
	}{
		"less than usual":   {"python", "2.5", 2500 * time.Millisecond, ""},
		"more than usual":   {"python", "600", 10 * time.Minute, ""},
		"null":              {"python", "null", 0, ""},
		"a nanosecond":      {"python", "1e-9", time.Millisecond, ""},
		"of another env":    {"bash", "30", 30 * time.Second, ""},
		"too large":         {"python", "601", 0, `timeout is 601, more than env "python" allows, whose max_timeout_seconds is 600` + write},
		"far too large":     {"python", "1e300", 0, `timeout is 1e+300, more than env "python" allows, whose max_timeout_seconds is 600` + write},
		"too large for one": {"bash", "31", 0, `timeout is 31, more than env "bash" allows, whose max_timeout_seconds is 30: use seconds, more than 0 and at most 30, or leave it out for 30`},
		"zero":              {"python", "0", 0, "timeout is 0" + write},
		"negative":          {"python", "-1", 0, "timeout is -1" + write},
		"in quotes":         {"python", `"60"`, 0, `timeout is "60", which is not a number` + write},
		"a long text":       {"python", `"` + strings.Repeat("6", 999) + `"`, 0, `timeout is "` + strings.Repeat("6", 79) + ", which is not a number" + write},
		"a list":            {"python", "[60]", 0, "timeout is [60], which is not a number" + write},
		"true":              {"python", "true", 0, "timeout is true, which is not a number" + write},
		"of no env":         {"perl", "60", 0, `there is no env "perl"`},
	} {
		t.Run(name, func(t *testing.T) {
			var arguments any
			must.Do(t, json.Unmarshal([]byte(fmt.Sprintf(`{"code":"1","env":%q,"timeout":%s}`, test.env, test.value)), &arguments))
			c, err := describing(registry.New(waiting()), Project{}).list().call(arguments, noSession)
			if test.refusal == "" && (err != nil || c.Timeout != test.want) {
				t.Errorf("%v, error %v, want %v", c.Timeout, err, test.want)
			}
			if test.refusal != "" && (err == nil || !strings.HasPrefix(err.Error(), test.refusal)) {
				t.Errorf("error %v, want %s", err, test.refusal)
			}
		})
	}
	// Where no environment has it, it is an argument like any unknown one.
	_, err := describing(registry.New(described()), Project{}).list().call(map[string]any{"code": "1", "env": "python", "timeout": 5.0}, nil)
	if err == nil || !strings.HasPrefix(err.Error(), `unknown argument "timeout": call run with code (a string) and env (one of bash, node, python), and session (a string) to keep state`) || strings.Contains(err.Error(), "at most") {
		t.Errorf("error %v", err)
	}
}

func TestAnswerText(t *testing.T) {
	once := call.Call{Env: registry.Environment{Name: "python", Timeout: 30 * time.Second, MemoryMB: 512, PIDs: 256}}
	kept := once
	kept.Session = "s"
	came := func(c call.Call, result sandbox.Result, restart *call.Restart, err error) answer {
		return answer{call: c, result: call.Result{Result: result, Restart: restart}, err: err}
	}
	memory, tasks := &frame.Limit{Name: "memory_mb", Value: 512, Used: 530}, &frame.Limit{Name: "pids", Value: 256, Used: 257}
	wrote := func(s string) sandbox.Text { return sandbox.Text{Head: s} }
	noise, program, latin := strings.Repeat("\ufffd\x01a\n\ufffd", 40), strings.Repeat("\x00_rl_vi_bword", 70), strings.Repeat("Stra\ufffde, M\ufffdnchen, 12 Euro\n", 60)
	verbatim := func(a answer) answer { a.call.Verbatim = true; return a }
	for name, test := range map[string]struct {
		answer answer
		want   string
		failed bool
	}{
		"stdout":         {came(once, sandbox.Result{Outcome: frame.OutcomeOK, Stdout: wrote("2\n")}, nil, nil), "2\n", false},
		"nothing":        {came(once, sandbox.Result{Outcome: frame.OutcomeOK}, nil, nil), "[no output]", false},
		"both":           {came(once, sandbox.Result{Outcome: frame.OutcomeOK, Stdout: wrote("out"), Stderr: wrote("err\n")}, nil, nil), "out\n--- stderr ---\nerr\n", false},
		"stderr alone":   {came(once, sandbox.Result{Outcome: frame.OutcomeOK, Stderr: wrote("err")}, nil, nil), "--- stderr ---\nerr", false},
		"exit status":    {came(once, sandbox.Result{Outcome: frame.OutcomeOK, ExitCode: 3, Stdout: wrote("a\n")}, nil, nil), "a\n[exit status 3]", true},
		"timeout":        {came(once, sandbox.Result{Outcome: frame.OutcomeTimeout, ExitCode: 137}, nil, nil), "[timed out after 30 s]", true},
		"timeout, kept":  {came(kept, sandbox.Result{Outcome: frame.OutcomeTimeout, State: frame.StateKept}, nil, nil), "[timed out after 30 s; the session's state was kept]", true},
		"timeout, lost":  {came(kept, sandbox.Result{Outcome: frame.OutcomeTimeout, State: frame.StateLost}, nil, nil), "[timed out after 30 s; the session's variables are lost, its files in /workspace are kept]", true},
		"cancelled":      {came(kept, sandbox.Result{Outcome: frame.OutcomeCancelled, State: frame.StateKept}, nil, nil), "[cancelled; the session's state was kept]", true},
		"memory":         {came(once, sandbox.Result{Outcome: frame.OutcomeMemory, Limit: memory}, nil, nil), "[stopped: used more than 512 MB of memory]", true},
		"memory, lost":   {came(kept, sandbox.Result{Outcome: frame.OutcomeMemory, Limit: memory, State: frame.StateLost}, nil, nil), "[stopped: used more than 512 MB of memory; the session's variables are lost, its files in /workspace are kept]", true},
		"memory before":  {came(kept, sandbox.Result{Outcome: frame.OutcomeOK, Limit: memory, State: frame.StateLost}, nil, nil), "[stopped before this call: used more than 512 MB of memory; the session's variables are lost, its files in /workspace are kept]", false},
		"tasks":          {came(once, sandbox.Result{Outcome: frame.OutcomeLimit, Limit: tasks}, nil, nil), "[stopped: more than 256 processes and threads]", true},
		"crashed":        {came(kept, sandbox.Result{Outcome: frame.OutcomeCrashed, ExitCode: 139, State: frame.StateLost}, nil, nil), "[the interpreter died with exit status 139; the session's variables are lost, its files in /workspace are kept]", true},
		"fresh":          {came(kept, sandbox.Result{Outcome: frame.OutcomeOK, State: frame.StateKept, Stdout: wrote("1\n")}, &call.Restart{Cause: call.Idle, After: 300 * time.Second}, nil), "1\n[new session: the earlier one ended after 300 s idle]", false},
		"lost, although": {came(kept, sandbox.Result{Outcome: frame.OutcomeOK, State: frame.StateLost}, nil, nil), "[the session's variables are lost, its files in /workspace are kept]", false},
		"cut":            {came(once, sandbox.Result{Outcome: frame.OutcomeOK, Stdout: sandbox.Text{Head: "a\n", Tail: "z\n", Cut: 1234567}}, nil, nil), "a\n[... 1.2 MB cut here ...]\nz\n[1.2 MB of output cut; print less of it]", false},
		"cut and stored": {came(kept, sandbox.Result{Outcome: frame.OutcomeOK, Stored: []sandbox.Stored{{Path: "/workspace/.outputs/7.stdout", All: true}}, Stdout: sandbox.Text{Head: "a", Tail: "z", Cut: 999}}, nil, nil), "a\n[... 999 bytes cut here ...]\nz\n[999 bytes of output cut; all of it is in /workspace/.outputs/7.stdout]", false},
		"cut and stored in part": {came(kept, sandbox.Result{Outcome: frame.OutcomeOK, Stored: []sandbox.Stored{{Path: "/workspace/.outputs/7.stdout", Bytes: 5_000_000}}, Stdout: sandbox.Text{Head: "a", Tail: "z", Cut: 2_000_000_000}}, nil, nil),
			"a\n[... 2.0 GB cut here ...]\nz\n[2.0 GB of output cut; its first 5.0 MB are in /workspace/.outputs/7.stdout]", false},
		"binary":               {came(once, sandbox.Result{Outcome: frame.OutcomeOK, Stdout: wrote("an image:\n\x89PNG" + noise)}, nil, nil), "an image:\n[binary output: stdout is not UTF-8 text: decode it, or write it to a file in /workspace/outputs]", false},
		"binary in both":       {came(once, sandbox.Result{Outcome: frame.OutcomeOK, ExitCode: 1, Stdout: wrote(noise), Stderr: wrote(noise)}, nil, nil), "[exit status 1]\n[binary output: stdout is not UTF-8 text: decode it, or write it to a file in /workspace/outputs]\n[binary output: stderr is not UTF-8 text: decode it, or write it to a file in /workspace/outputs]", true},
		"a program":            {came(once, sandbox.Result{Outcome: frame.OutcomeOK, Stdout: wrote(program)}, nil, nil), "[binary output: stdout is not UTF-8 text: decode it, or write it to a file in /workspace/outputs]", false},
		"binary, verbatim":     {verbatim(came(once, sandbox.Result{Outcome: frame.OutcomeOK, Stdout: wrote(noise)}, nil, nil)), noise, false},
		"text of another code": {came(once, sandbox.Result{Outcome: frame.OutcomeOK, Stdout: wrote(latin)}, nil, nil), latin, false},
		"died":                 {came(once, sandbox.Result{Stdout: wrote("so far\n")}, nil, &sandbox.DeadError{Reason: "the agent ended"}), "so far\n[the sandbox ended during the call: the agent ended]", true},
		"died, not its files":  {answer{call: kept, result: call.Result{Notes: []call.Note{call.Survived{}}}, err: &sandbox.DeadError{Reason: "the agent ended"}}, "[the sandbox ended during the call: the agent ended; the session's variables are lost, its files in /workspace are kept]", true},
		"new, with its files":  {came(kept, sandbox.Result{Outcome: frame.OutcomeOK, State: frame.StateKept, Stdout: sandbox.Text{Head: "1\n"}}, &call.Restart{Cause: call.Died, FilesKept: true}, nil), "1\n[the session's variables are lost, its files in /workspace are kept: the sandbox of this env died]", false},
		"refused":              {came(once, sandbox.Result{}, nil, &call.FullError{Max: 64}), "all 64 sessions are in use and none is idle: wait until a call has ended, or call without session", true},
	} {
		t.Run(name, func(t *testing.T) {
			test.answer.result.Remarks = test.answer.remarks("")
			result := test.answer.toolResult()
			if diff := cmp.Diff(test.want, text(result)); diff != "" {
				t.Error(diff)
			}
			if result.IsError != test.failed {
				t.Errorf("isError %v", result.IsError)
			}
			// Whatever the server says would be marked in output.
			for i, kind := range result.Meta.AdditionalFields["nix-sandbox-mcp/content"].([]string) {
				for line := range strings.Lines(texts(result)[i]) {
					own := kind == "remarks" && name != "refused" || strings.HasPrefix(line, separator) || strings.HasPrefix(line, "[...")
					if marked := markImitations("x", line) != line; marked != own {
						t.Errorf("line %q of %s is marked: %v", line, kind, marked)
					}
				}
			}
		})
	}
}
