package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
)

// A shell script pipes a heredoc and reads what comes: initialize, calls,
// end of input. Every request has its reply, every time.
func TestPipedHeredoc(t *testing.T) {
	const tries, calls = 200, 3
	var input strings.Builder
	input.WriteString(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"heredoc","version":"1"}}}` + "\n")
	input.WriteString(`{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n")
	for i := range calls {
		fmt.Fprintf(&input, `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"run","arguments":{"code":"sleep 0.2; echo $((%d+1))","env":"bash"}}}`+"\n", i+1, i)
	}
	room := make(chan struct{}, 8)
	var wg sync.WaitGroup
	for range tries {
		room <- struct{}{}
		cmd := command(t)
		wg.Go(func() {
			defer func() { <-room }()
			cmd.Stdin = strings.NewReader(input.String())
			var log bytes.Buffer
			cmd.Stderr = &log
			out, err := cmd.Output()
			if err != nil {
				t.Errorf("the server: %v\n%s", err, &log)
				return
			}
			var ids []int
			for line := range bytes.Lines(out) {
				var reply struct {
					ID     int
					Result *struct{ Content []mcptest.Content }
				}
				if err := json.Unmarshal(line, &reply); err != nil || reply.Result == nil {
					t.Errorf("reply %s", line)
					continue
				}
				if len(ids) == 0 && reply.ID != 0 {
					t.Errorf("the first reply is to %d, not to initialize", reply.ID)
				}
				if reply.ID > 0 && reply.Result.Content[0].Text != fmt.Sprintln(reply.ID) {
					t.Errorf("call %d was answered %s", reply.ID, line)
				}
				ids = append(ids, reply.ID)
			}
			if len(ids) != calls+1 {
				t.Errorf("replies to %v only\n%s", ids, &log)
			}
		})
	}
	wg.Wait()
}

// Clients of every age work: those that initialize and those that do not.
func TestProtocolEras(t *testing.T) {
	for _, version := range []string{mcptest.Oldest, "2025-03-26", "2025-06-18", mcptest.Newest, mcptest.Stateless} {
		t.Run(version, func(t *testing.T) {
			c := mcptest.Start(t, command(t))
			var about struct {
				ProtocolVersion   string
				SupportedVersions []string
				Instructions      string
				Capabilities      struct{ Tools *struct{ ListChanged bool } }
			}
			must.Do(t, json.Unmarshal(c.Initialize(version).Result, &about))
			if version != mcptest.Stateless && about.ProtocolVersion != version {
				t.Errorf("the server answered version %q", about.ProtocolVersion)
			}
			if version == mcptest.Stateless && !strings.Contains(fmt.Sprint(about.SupportedVersions), version) {
				t.Errorf("the server supports %v", about.SupportedVersions)
			}
			if about.Capabilities.Tools == nil || about.Instructions == "" {
				t.Errorf("the server says %+v", about)
			}
			expect(t, run(c, "bash", "echo hi"), "hi\n")
			in(c, "s", "bash", "x=1")
			expect(t, in(c, "s", "bash", "echo $x"), "1\n")
		})
	}
}

// A client that speaks the stateless protocol and has not asked for anything
// before calls at once.
func TestStatelessFirstCall(t *testing.T) {
	c := mcptest.Start(t, command(t))
	c.Raw([]byte(`{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"run","arguments":{"code":"echo hi","env":"bash"},` +
		`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}` + "\n"))
	if answer := c.AwaitRun(`"x"`); answer.Text() != "hi\n" {
		t.Errorf("answer %+v", answer)
	}
}

// tools/list and the instructions take less than 1,400 bytes of context.
func TestContextCost(t *testing.T) {
	c := mcptest.Start(t, command(t, "PROJECT_DIR="+t.TempDir()))
	var about struct{ Instructions string }
	must.Do(t, json.Unmarshal(c.Initialize(mcptest.Newest).Result, &about))
	list := c.Request("tools/list", nil).Result
	if count := len(environments(t)); count != 3 {
		t.Skipf("the server has %d environments, not three", count)
	}
	cost := len(list) + len(about.Instructions)
	t.Logf("%d bytes", cost)
	if cost >= 1400 {
		t.Errorf("%d bytes:\n%s\n%s", cost, list, about.Instructions)
	}
}

// Wrong calls are answered with what to do.
func TestProtocol_ErrorCodes(t *testing.T) {
	c := start(t)
	for name, test := range map[string]struct {
		args any
		want []string
	}{
		"unknown environment": {map[string]any{"code": "1", "env": "cobol"}, []string{`there is no env "cobol"`, "- python: ", "- bash: ", "- node: "}},
		"no environment":      {map[string]any{"code": "1"}, []string{"env is missing", "bash, node, python"}},
		"no code":             {map[string]any{"env": "python"}, []string{"code is missing", "bash, node, python"}},
		"nothing":             {map[string]any{}, []string{"code is missing"}},
		"one too many":        {map[string]any{"code": "1", "env": "python", "cwd": "/"}, []string{`unknown argument "cwd"`}},
		"wrong type":          {map[string]any{"code": 1, "env": "python"}, []string{"code is not a string"}},
		"no arguments":        {nil, []string{"code is missing"}},
		"a list":              {[]int{1}, []string{"the arguments are not an object"}},
		"bad session":         {map[string]any{"code": "1", "env": "python", "session": "../x"}, []string{`session is "../x"`}},
		"injection":           {map[string]any{"code": "1", "env": "python; rm -rf /"}, []string{"there is no env"}},
	} {
		t.Run(name, func(t *testing.T) {
			answer := c.Run(test.args)
			for _, want := range test.want {
				if !answer.IsError || !strings.Contains(answer.Text(), want) {
					t.Errorf("answer %+v, want an error with %q", answer, want)
				}
			}
		})
	}
}

// What is no request is answered with an error; the server lives, and its
// memory stays small, also with a line of 100 MB.
func TestProtocol_SurvivesBadInput(t *testing.T) {
	c := start(t)
	const parse, invalid = -32700, -32600
	codes := []int{}
	send := func(code int, data []byte) {
		c.Raw(append(data, '\n'))
		codes = append(codes, code)
	}
	send(parse, []byte(`{"jsonrpc":"2.0","id":1,"method":`))
	send(parse, []byte("hello"))
	send(invalid, []byte(`[{"jsonrpc":"2.0","id":1,"method":"ping"}]`))
	noise := make([]byte, 1<<20)
	random := rand.NewChaCha8([32]byte{1})
	random.Read(noise)
	noise = bytes.ReplaceAll(noise, []byte("\n"), []byte{0})
	send(parse, noise)
	send(parse, bytes.Repeat([]byte("["), 1<<20))
	for n, want := range codes {
		if reply := c.Anonymous(n); reply.Error == nil || reply.Error.Code != want {
			t.Errorf("line %d: %+v, want error %d", n, reply, want)
		}
	}
	part := bytes.Repeat([]byte("x"), 1<<20)
	c.Raw([]byte(`{"jsonrpc":"2.0","id":"long","method":"tools/call","params":{"name":"run","arguments":{"env":"bash","code":"`))
	for range 100 {
		c.Raw(part)
	}
	c.Raw([]byte("\"}}}\n"))
	if reply := c.Await(`"long"`); reply.Error == nil || reply.Error.Code != invalid {
		t.Errorf("the long line: %+v", reply)
	}
	expect(t, run(c, "bash", "echo alive"), "alive\n")
	if peak := c.PeakMemory(); peak >= 128<<20 {
		t.Errorf("the server used %d MiB", peak>>20)
	}
}

// 1 MB of code works.
func TestRun_TakesLongCode(t *testing.T) {
	c := start(t)
	filler := strings.Repeat("# a comment\n", 1<<20/12)
	for env, code := range map[string]string{"python": "print(1)", "bash": "echo 1"} {
		expect(t, run(c, env, filler+code), "1\n")
	}
	expect(t, run(c, "node", "//"+strings.Repeat("x", 1<<20)+"\nconsole.log(1)"), "1\n")
}

// A call that takes long tells that it goes on, at least every 5 s, with what
// it wrote last.
func TestRun_TellsProgress(t *testing.T) {
	t.Parallel() // it waits more than it works
	c := start(t)
	began := time.Now()
	id := c.Send("tools/call", map[string]any{
		"name":      "run",
		"arguments": mcptest.Arguments{Code: "for i in $(seq 11); do echo step $i; sleep 1; done", Env: "bash"},
		"_meta":     map[string]any{"progressToken": "p"},
	})
	reply := c.Await(id)
	notes := c.Notes()
	if len(notes) < 2 {
		t.Fatalf("%d notifications in %v", len(notes), time.Since(began))
	}
	last, late := began, max(0, reply.At.Sub(began)-11*time.Second)
	for _, note := range append(notes, reply) {
		// A report comes every 4 s; a busy machine is late by as much as the call is.
		if silence := note.At.Sub(last); silence > 10*time.Second+late {
			t.Errorf("nothing was heard for %v", silence)
		}
		last = note.At
	}
	for _, note := range notes {
		if note.Seq > reply.Seq || !strings.Contains(string(note.Params), `"progressToken":"p"`) || !strings.Contains(string(note.Params), "step ") {
			t.Errorf("notification %d %s, the result is %d", note.Seq, note.Params, reply.Seq)
		}
	}
}

func TestRun_EndsWhenCancelled(t *testing.T) {
	c := start(t)
	in(c, "s", "bash", "x=kept")
	mark := fmt.Sprintf("999.%d%09d", os.Getpid(), time.Now().UnixNano()%1e9)
	running := c.SendRun(mcptest.Arguments{Code: "sleep " + mark, Env: "bash", Session: "s"})
	waiting := c.SendRun(mcptest.Arguments{Code: "touch ran", Env: "bash", Session: "s"})
	c.Notify("notifications/cancelled", map[string]any{"requestId": json.RawMessage(waiting)})
	patience.Until(t, "the call runs", func() bool { return len(procfs.WithCommand(mark)) > 0 })
	c.Notify("notifications/cancelled", map[string]any{"requestId": json.RawMessage(running)})
	expect(t, in(c, "s", "bash", "echo $x; find -name ran"), "kept\n")
	for _, id := range []string{waiting, running} {
		if c.Answered(id) {
			t.Errorf("the cancelled call %s is answered", id)
		}
	}
}
