package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/tool"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/sandboxtest"
)

// inBubble runs a test with a Handler over a machine of this process, which
// takes two calls at a time.
func inBubble(t *testing.T, test func(*testing.T, *Handler), parts ...session.Part) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		set := &registry.Set{Environments: map[string]registry.Environment{"bash": {
			Name: "bash", Language: &registry.Language{Sessions: true}, SessionExec: "/session-run", Timeout: time.Minute, MaxTimeout: time.Hour, OutputBytes: 1 << 20,
		}}}
		log := slog.New(slog.DiscardHandler)
		machine := &sandboxtest.Machine{}
		spec := func(c call.Call) sandbox.Spec { return sandbox.Spec{Name: c.Env.Name, OutputBytes: c.Env.OutputBytes} }
		sessions := session.New(session.Options{Starter: machine, Spec: spec, Parts: parts, OneShot: session.OneShot(machine, spec, nil), Limits: session.Limits{Idle: time.Hour, Lifetime: time.Hour, Max: 8}, Log: log})
		h, stop := New(tool.New(tool.Options{Environments: registry.New(set), Executor: sessions, Sessions: sessions, Log: log}), "1", &Bounds{Calls: 2, Bytes: 4 << 20}, log)
		defer stop()
		test(t, h)
		sessions.Close()
		machine.Close(0)
	})
}

// answer answers a message as a transport does.
func answer(t *testing.T, h *Handler, message string) map[string]any {
	t.Helper()
	m, reply := Decode([]byte(message))
	if reply == nil && m.Waits() {
		var admitted *Call
		if admitted, reply = h.Admit("", m); admitted != nil {
			reply = admitted.Answer(t.Context(), Client{})
			admitted.Release()
		}
	} else if reply == nil {
		reply = h.Answer(m)
	}
	return plain(t, reply)
}

// plain is a reply as a client reads it.
func plain(t *testing.T, reply any) map[string]any {
	t.Helper()
	text := must.Get(json.Marshal(reply))(t)
	var fields map[string]any
	must.Do(t, json.Unmarshal(text, &fields))
	return fields
}

func content(reply map[string]any) string {
	result, _ := reply["result"].(map[string]any)
	list, _ := result["content"].([]any)
	if len(list) == 0 {
		return fmt.Sprint(reply)
	}
	return list[0].(map[string]any)["text"].(string)
}

const (
	modern  = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}},`
	odd     = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2027-01-01","io.modelcontextprotocol/clientCapabilities":{}},`
	partial = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"},`
)

// reference is mcp-go's own server with the same tool, for [TestAnswer_IsAsOfMCPGo].
func reference(h *Handler) *server.MCPServer {
	hooks := &server.Hooks{}
	hooks.AddAfterInitialize(func(_ context.Context, _ any, _ *mcp.InitializeRequest, result *mcp.InitializeResult) {
		result.Instructions = h.tool.Instructions()
	})
	hooks.AddAfterDiscover(func(_ context.Context, _ any, _ *mcp.DiscoverRequest, result *mcp.DiscoverResult) {
		result.Instructions = h.tool.Instructions()
	})
	s := server.NewMCPServer(h.info.Name, h.info.Version, server.WithHooks(hooks), server.WithToolCapabilities(true), server.WithResourceCapabilities(false, false))
	s.AddResourceTemplate(tool.Template(), func(ctx context.Context, request mcp.ReadResourceRequest) ([]mcp.ResourceContents, error) {
		read, err := h.tool.AcceptRead("", request.Params.URI)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", err, server.ErrResourceNotFound)
		}
		defer read.Release()
		contents, err := read.Answer(ctx)
		if errors.As(err, new(*tool.NoResourceError)) {
			err = fmt.Errorf("%w: %w", err, server.ErrResourceNotFound)
		}
		return contents, err
	})
	s.AddTool(h.offered.now(), func(ctx context.Context, request mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		r := h.tool.Accept("", request.Params.Arguments)
		defer r.Release()
		return r.Answer(ctx, nil), nil
	})
	return s
}

// The answers are those of mcp-go's server. Errors have its codes, and words of their own.
func TestAnswer_IsAsOfMCPGo(t *testing.T) {
	const run = `"name":"run","arguments":{"env":"bash","session":"s","code":"echo hi >outputs/f; echo hi; exit 3"}`
	inBubble(t, func(t *testing.T, h *Handler) {
		reference := reference(h)
		for name, message := range map[string]string{
			"call":                        `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + run + `}}`,
			"modern call":                 `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + modern + run + `}}`,
			"call of an unknown version":  `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + odd + run + `}}`,
			"call without capabilities":   `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + partial + run + `}}`,
			"id is a string":              `{"jsonrpc":"2.0","id":"a\u0041\ud83d","method":"tools/call","params":{` + run + `}}`,
			"no version":                  `{"id":1,"method":"tools/call","params":{` + run + `}}`,
			"a task":                      `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"task":{},` + run + `}}`,
			"a wrong name":                `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":5}}`,
			"a wrong _meta":               `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":5,` + run + `}}`,
			"another tool":                `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"walk"}}`,
			"no arguments":                `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run"}}`,
			"arguments are a list":        `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run","arguments":[]}}`,
			"an unknown argument":         `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run","arguments":{"x":1}}}`,
			"no params":                   `{"jsonrpc":"2.0","id":1,"method":"tools/call"}`,
			"params are a list":           `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]}`,
			"a timeout":                   `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run","arguments":{"env":"bash","code":"sleep 5","timeout":2.5}}}`,
			"a modern timeout":            `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + modern + `"name":"run","arguments":{"env":"bash","code":"sleep 5","timeout":2}}}`,
			"a wrong timeout":             `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run","arguments":{"env":"bash","code":"sleep 5","timeout":"2"}}}`,
			"a timeout too large":         `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + modern + `"name":"run","arguments":{"env":"bash","code":"sleep 5","timeout":1e9}}}`,
			"read":                        `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"sandbox://s/outputs/f"}}`,
			"modern read":                 `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{` + modern + `"uri":"sandbox://s/outputs/f"}}`,
			"read of what is not there":   `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"sandbox://s/outputs/g"}}`,
			"modern read of such":         `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{` + modern + `"uri":"sandbox://s/outputs/g"}}`,
			"read of another scheme":      `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"file:///etc/hostname"}}`,
			"read of no session's name":   `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"sandbox://a.b/f"}}`,
			"read of a folder":            `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"sandbox://s/"}}`,
			"read of no session":          `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"sandbox://none/f"}}`,
			"a field twice":               `{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call","params":{"name":"walk","name":"run","arguments":{"env":"x","env":"bash","code":"echo 1"}}}`,
			"fields of another case":      `{"jsonrpc":"2.0","ID":1,"METHOD":"tools/call","Params":{"NAME":"run","Arguments":{"env":"bash","code":"echo 1"}}}`,
			"list":                        `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`,
			"list with params":            `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"x":1}}`,
			"modern list":                 `{"jsonrpc":"2.0","id":"a","method":"tools/list","params":{` + modern + `"x":1}}`,
			"list of an unknown version":  `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{` + odd + `"x":1}}`,
			"list without capabilities":   `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{` + partial + `"x":1}}`,
			"list from a wrong cursor":    `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"!"}}`,
			"list from a number":          `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":1}}`,
			"list with a list":            `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":[]}`,
			"initialize":                  `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`,
			"initialize with a later one": `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2026-07-28","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`,
			"initialize with none":        `{"jsonrpc":"2.0","id":1,"method":"initialize"}`,
			"modern initialize":           `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{` + modern + `"x":1}}`,
			"discover":                    `{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{` + modern + `"x":1}}`,
			"early discover":              `{"jsonrpc":"2.0","id":1,"method":"server/discover"}`,
			"ping":                        `{"jsonrpc":"2.0","id":1,"method":"ping"}`,
			"modern ping":                 `{"jsonrpc":"2.0","id":1,"method":"ping","params":{` + modern + `"x":1}}`,
			"resources":                   `{"jsonrpc":"2.0","id":1,"method":"resources/list"}`,
			"modern resources":            `{"jsonrpc":"2.0","id":1,"method":"resources/list","params":{` + modern + `"x":1}}`,
			"templates":                   `{"jsonrpc":"2.0","id":1,"method":"resources/templates/list"}`,
			"modern templates":            `{"jsonrpc":"2.0","id":1,"method":"resources/templates/list","params":{` + modern + `"x":1}}`,
			"prompts":                     `{"jsonrpc":"2.0","id":1,"method":"prompts/list"}`,
			"a log level":                 `{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"debug"}}`,
			"subscribe to a resource":     `{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"sandbox://s/f"}}`,
			"early subscription":          `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{}}}`,
			"a completion":                `{"jsonrpc":"2.0","id":1,"method":"completion/complete","params":{}}`,
			"a task's result":             `{"jsonrpc":"2.0","id":1,"method":"tasks/result","params":{"taskId":"x"}}`,
			"no method":                   `{"jsonrpc":"2.0","id":1}`,
			"a notification":              `{"jsonrpc":"2.0","method":"notifications/initialized"}`,
			"an unknown notification":     `{"jsonrpc":"2.0","method":"notifications/walk","params":{"x":1}}`,
			"a reply":                     `{"jsonrpc":"2.0","id":1,"result":{}}`,
			"an argument of another case": `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run","arguments":{"Env":"bash","code":"echo 1"}}}`,
		} {
			// One call has the session begin, so that all others meet the same.
			answer(t, h, `{"jsonrpc":"2.0","id":0,"method":"tools/call","params":{`+run+`}}`)
			ours := answer(t, h, message)
			mcpGo := plain(t, reference.HandleMessage(t.Context(), []byte(message)))
			theirs, _ := mcpGo["error"].(map[string]any)
			failure, _ := ours["error"].(map[string]any)
			delete(theirs, "message")
			delete(failure, "message")
			// An error about a resource has the code and the data of another test.
			if data, _ := failure["data"].(map[string]any); data["uri"] != nil {
				delete(failure, "data")
				delete(failure, "code")
				delete(theirs, "code")
			}
			if diff := cmp.Diff(mcpGo, ours); diff != "" {
				t.Errorf("%s: mcp-go's answer is -, this package's +\n%s", name, diff)
			}
		}
	})
}

// What no revision of MCP has is answered too. A reply of a client, also one that is an error, is
// not a request: ids of the two directions are separate.
func TestAnswer_OfOddMessages(t *testing.T) {
	const run = `"params":{"name":"run","arguments":{"env":"bash","code":"echo 1"}}`
	inBubble(t, func(t *testing.T, h *Handler) {
		for message, want := range map[string]string{
			`{"jsonrpc":"2.0","id":{"a":1},"method":"tools/call",` + run + `}`:   `id is {"a":1}: it must be a string or a number of 64 bits`,
			`{"jsonrpc":"2.0","id":null,"method":"ping"}`:                        `id is null: it must be a string or a number of 64 bits`,
			`{"jsonrpc":"2.0","id":false,"method":"ping"}`:                       `id is false: it must be a string or a number of 64 bits`,
			`{"jsonrpc":"2.0","id":123456789012345678901,"method":"tools/list"}`: `id is 123456789012345678901: it must be a string or a number of 64 bits`,
			`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen"}`:           `"subscriptions/listen" is a method of MCP 2026-07-28: name that version in _meta`,
			`{"jsonrpc":"2.0","id":5,"error":{"code":-1,"message":"late"}}`:      "",
			`{"jsonrpc":"2.0","id":5,"result":null}`:                             "",
			`{"jsonrpc":"2.0","id":"ask-x","error":{"code":-1,"message":"x"}}`:   "",
		} {
			failure, _ := answer(t, h, message)["error"].(map[string]any)
			if got, _ := failure["message"].(string); got != want {
				t.Errorf("%s: %q, want %q", message, got, want)
			}
		}
	})
}

// An error names the value that is wrong, whoever found it.
func TestAnswer_WordsErrors(t *testing.T) {
	inBubble(t, func(t *testing.T, h *Handler) {
		for message, want := range map[string]string{
			`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"walk"}}`:                      `there is no tool "walk": the tool is run`,
			`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":5}}`:                           `params of tools/call have another type than MCP gives them`,
			`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"!"}}`:                       `cursor "!" is none of this server's: leave it out`,
			`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"file:///etc"}}`:            `"file:///etc" is not sandbox://SESSION/PATH`,
			`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{` + modern + `"uri":"test://x"}}`: `"test://x" is not sandbox://SESSION/PATH`,
			`{"jsonrpc":"2.0","id":1,"method":"walk"}`:                                                     `there is no method "walk"`,
			`{"jsonrpc":"2.0","id":1}`:                         `there is no method ""`,
			`{"jsonrpc":"2.0","id":1,"method":7}`:              `the message is not a request of JSON-RPC 2.0`,
			`{"jsonrpc":"1.0","id":1,"method":"ping"}`:         `jsonrpc is "1.0": it must be "2.0"`,
			`{"jsonrpc":"2.0","id":1,"method":"prompts/list"}`: `there is no method "prompts/list"`,
		} {
			failure, _ := answer(t, h, message)["error"].(map[string]any)
			if failure["message"] != want {
				t.Errorf("%s: %v, want %s", message, failure, want)
			}
		}
	})
}

// What is not found has the code that the revision of the protocol gives it.
func TestAnswer_SaysThatAResourceIsNotFound(t *testing.T) {
	inBubble(t, func(t *testing.T, h *Handler) {
		answer(t, h, `{"jsonrpc":"2.0","id":0,"method":"tools/call","params":{"name":"run","arguments":{"env":"bash","code":"echo","session":"s"}}}`)
		for meta, want := range map[string]float64{"": mcp.RESOURCE_NOT_FOUND, modern: mcp.INVALID_PARAMS} {
			for uri, message := range map[string]string{
				"sandbox://none/f":         `read sandbox://none/f: there is no session "none"`,
				"sandbox://call.1/f":       "",
				"sandbox://s/":             `"sandbox://s/" does not name a file under /workspace`,
				"file:///etc/hostname":     `"file:///etc/hostname" is not sandbox://SESSION/PATH`,
				"sandbox://s/outputs/none": "",
			} {
				reply := answer(t, h, `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{`+meta+`"uri":"`+uri+`"}}`)
				failure, _ := reply["error"].(map[string]any)
				if failure["code"] != want || message != "" && failure["message"] != message {
					t.Errorf("%s: %v, want %v: %s", uri, failure, want, message)
				}
			}
		}
	})
}

// An error about a URI that leads nowhere repeats the URI, unless that is as long as code.
func TestAnswer_RepeatsAnUnknownURI(t *testing.T) {
	inBubble(t, func(t *testing.T, h *Handler) {
		for _, meta := range []string{"", modern} {
			read := func(uri string) any {
				reply := answer(t, h, `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{`+meta+`"uri":"`+uri+`"}}`)
				return reply["error"].(map[string]any)["data"]
			}
			if diff := cmp.Diff(any(map[string]any{"uri": "test://x"}), read("test://x")); diff != "" {
				t.Error(diff)
			}
			if data := read("test://" + strings.Repeat("x", longestURI)); data != nil {
				t.Errorf("%.50v", data)
			}
		}
	})
}

// Long code reaches its call whole, whatever stands around it, and a message
// that is broken elsewhere is still broken.
func TestDecode_LongCode(t *testing.T) {
	long := strings.Repeat("# a line\n", 4<<10)
	inBubble(t, func(t *testing.T, h *Handler) {
		for name, test := range map[string]struct{ arguments, params, want string }{
			"short":        {arguments: `{"env":"bash","code":"echo x"}`, want: "x\n"},
			"long":         {arguments: fmt.Sprintf(`{"env":"bash", "code" : %q}`, long+"echo x"), want: "x\n"},
			"not UTF-8":    {arguments: fmt.Sprintf(`{"env":"bash","code":"#%s\necho %s"}`, strings.Repeat("y", len(long)), "\xff"), want: "\ufffd\n"},
			"twice":        {arguments: fmt.Sprintf(`{"env":"bash","code":%q,"code":"echo last"}`, long), want: "last\n"},
			"elsewhere":    {arguments: `{"env":"bash","code":"echo here"}`, params: fmt.Sprintf(`"_meta":{"code":%q},`, long), want: "here\n"},
			"after broken": {arguments: fmt.Sprintf(`{"x":,"code":%q}`, long)},
			"broken after": {arguments: fmt.Sprintf(`{"code":%q,}`, long)},
		} {
			reply := answer(t, h, fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{%s"name":"run","arguments":%s}}`, test.params, test.arguments))
			if test.want == "" {
				if failure, _ := reply["error"].(map[string]any); failure["code"] != float64(mcp.PARSE_ERROR) {
					t.Errorf("%s: answer %.200v", name, reply)
				}
			} else if got := content(reply); got != test.want {
				t.Errorf("%s: %.100q, want %.100q", name, got, test.want)
			}
		}
	})
}

// Beyond a bound a call is refused at once; an answer that has been written frees
// its slot.
func TestAdmit_IsBounded(t *testing.T) {
	const message = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run","arguments":{"env":"bash","code":"echo 1"}}}`
	inBubble(t, func(t *testing.T, h *Handler) {
		m, _ := Decode([]byte(message))
		large, _ := Decode([]byte(strings.Replace(message, "echo 1", "echo 1 #"+strings.Repeat("x", 4<<20), 1)))
		if admitted, reply := h.Admit("", large); admitted != nil || !strings.Contains(content(plain(t, reply)), "the server is busy: 2 calls") {
			t.Error("too many bytes were admitted")
		}
		var admitted []*Call
		for range 2 {
			c, _ := h.Admit("", m)
			admitted = append(admitted, c)
		}
		if c, reply := h.Admit("", m); c != nil || !strings.Contains(content(plain(t, reply)), "the server is busy: 2 calls") {
			t.Error("too many calls were admitted")
		}
		for _, c := range admitted {
			c.Answer(t.Context(), Client{})
			if c, _ := h.Admit("", m); c != nil {
				t.Error("a call was admitted before the answer of another was written")
			}
		}
		for _, c := range admitted {
			c.Release()
		}
		if got := content(answer(t, h, message)); got != "1\n" {
			t.Errorf("after it: %q", got)
		}
		if b := h.admit.(*Bounds); b.calls != 0 || b.bytes != 0 {
			t.Errorf("%d calls and %d bytes are counted at the end", b.calls, b.bytes)
		}
	})
}

// Reads wait as calls do, and count as such.
func TestAdmit_CountsReads(t *testing.T) {
	inBubble(t, func(t *testing.T, h *Handler) {
		m, _ := Decode([]byte(`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"sandbox://s/x"}}`))
		var admitted []*Call
		for range 2 {
			c, _ := h.Admit("", m)
			admitted = append(admitted, c)
		}
		if c, reply := h.Admit("", m); c != nil || !strings.Contains(fmt.Sprint(plain(t, reply)), "the server is busy") {
			t.Error("a third read was admitted")
		}
		for _, c := range admitted {
			c.Answer(t.Context(), Client{})
			c.Release()
		}
	})
}

func TestAnswer_NotifiesOfProgress(t *testing.T) {
	inBubble(t, func(t *testing.T, h *Handler) {
		var notes []map[string]any
		for _, meta := range []string{"", `"_meta":{"progressToken":"token"},`} {
			m, _ := Decode([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + meta + `"name":"run","arguments":{"env":"bash","code":"echo one; sleep 5"}}}`))
			admitted, _ := h.Admit("", m)
			admitted.Answer(t.Context(), Client{Notify: func(note mcp.JSONRPCNotification) { notes = append(notes, plain(t, note)) }})
			admitted.Release()
		}
		want := []map[string]any{{"jsonrpc": "2.0", "method": "notifications/progress", "params": map[string]any{"progressToken": "token", "progress": 4.0, "message": "4 s: one"}}}
		if diff := cmp.Diff(want, notes); diff != "" {
			t.Error(diff)
		}
	})
}

// panicking is an Executor that panics.
type panicking struct{}

func (panicking) Answer(context.Context, call.Call) (call.Result, error) { panic("a test") }

// A panic costs its own request, and not its session's queue.
func TestAnswer_RecoversFromPanics(t *testing.T) {
	const message = `{"jsonrpc":"2.0","id":9007199254740993,"method":"tools/call","params":{"name":"run","arguments":{"env":"bash","session":"s","code":"echo 1"}}}`
	inBubble(t, func(t *testing.T, h *Handler) {
		executor := h.tool.Executor
		h.tool.Executor = panicking{}
		if failure, _ := answer(t, h, message)["error"].(map[string]any); failure["code"] != float64(mcp.INTERNAL_ERROR) {
			t.Errorf("answer %v", failure)
		}
		h.tool.Executor = executor
		if got := content(answer(t, h, message)); got != "1\n" {
			t.Errorf("after it: %q", got)
		}
	})
}

// faulty is a part of sessions that panics at one moment.
type faulty struct{ when atomic.Value }

func (f *faulty) at(moment string) {
	if f.when.Load() == moment {
		panic("a test: " + moment)
	}
}

func (f *faulty) Start(ctx context.Context, s *session.Start, next session.StartFunc) (session.Member, error) {
	f.at("start")
	m, err := next(ctx, s)
	return &faultyMember{m, f}, err
}

type faultyMember struct {
	session.Member
	*faulty
}

func (m *faultyMember) Call(ctx context.Context, c call.Call, request sandbox.Request) (call.Result, error) {
	m.at("call")
	return m.Member.Call(ctx, c, request)
}

func (m *faultyMember) Settle(ending bool) []func() { return []func(){func() { m.at("settle") }} }
func (m *faultyMember) CanSuspend() bool            { return m.when.Load() == "suspend" }
func (m *faultyMember) Suspend(context.Context) (int64, error) {
	m.at("suspend")
	return 0, nil
}

// A panic of a part at any moment costs the call that it belongs to at most, and neither the server
// nor a later call of the session.
func TestAnswer_OutlastsPanicsOfParts(t *testing.T) {
	part := &faulty{}
	inBubble(t, func(t *testing.T, h *Handler) {
		for _, when := range []string{"start", "call", "settle", "suspend"} {
			message := func(code string) string {
				return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run","arguments":{"env":"bash","session":"` + when + `","code":"` + code + `"}}}`
			}
			part.when.Store(when)
			reply := answer(t, h, message("echo 1"))
			if isAnswered := content(reply) == "1\n"; isAnswered != (when == "settle" || when == "suspend") {
				t.Errorf("%s: %v", when, reply)
			}
			time.Sleep(2 * time.Hour) // an idle session is suspended, or ends
			part.when.Store("")
			if got := content(answer(t, h, message("echo 2"))); !strings.HasPrefix(got, "2\n") {
				t.Errorf("after a panic at %s: %q", when, got)
			}
		}
	}, part)
}

func TestTraceID_TakesAWholeTraceparent(t *testing.T) {
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	for text, want := range map[string]string{
		"00-" + id + "-00f067aa0ba902b7-01":                      id,
		"01-" + id + "-00f067aa0ba902b7-01-what":                 id,
		"ff-" + id + "-00f067aa0ba902b7-01":                      "",
		"00-" + strings.ToUpper(id) + "-00f067aa0ba902b7-01":     "",
		"00-" + strings.Repeat("0", 32) + "-00f067aa0ba902b7-01": "",
		"00-" + id: "",
		"":         "",
	} {
		if got := TraceID(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
