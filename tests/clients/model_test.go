package clients

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// model is a model on loopback that has a client run shell commands, one after the other, and then
// ends. It speaks what Claude Code, Codex, Gemini CLI and opencode speak to theirs.
type model struct {
	url string

	mu       sync.Mutex
	commands []string
	results  []string // of the commands, as the client told them
}

func startModel(t *testing.T, commands ...string) *model {
	m := &model{commands: commands}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/messages", m.anthropic)
	mux.HandleFunc("POST /v1/responses", m.responses)
	mux.HandleFunc("POST /v1/chat/completions", m.completions)
	mux.HandleFunc("POST /v1beta/models/{call}", m.gemini)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { reply(w, map[string]any{"input_tokens": 1}) })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	m.url = server.URL
	return m
}

// next takes the results so far, and returns the number of the next command, or false.
func (m *model) next(results []string) (n int, more bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(results) > len(m.results) {
		m.results = results
	}
	return len(results), len(results) < len(m.commands)
}

func (m *model) all() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.results
}

func reply(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(body)
}

// events returns a function that sends an event of a stream.
func events(w http.ResponseWriter) func(kind string, body map[string]any) {
	w.Header().Set("Content-Type", "text/event-stream")
	return func(kind string, body map[string]any) {
		if kind != "" {
			body["type"] = kind
			fmt.Fprintf(w, "event: %s\n", kind)
		}
		text, _ := json.Marshal(body) // of plain values
		fmt.Fprintf(w, "data: %s\n\n", text)
	}
}

// texts joins all texts in a value of JSON.
func texts(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case []any:
		var all []string
		for _, one := range v {
			all = append(all, texts(one))
		}
		return strings.Join(all, "\n")
	case map[string]any:
		for _, name := range []string{"text", "content", "output", "response"} {
			if one, is := v[name]; is {
				return texts(one)
			}
		}
	}
	return ""
}

// object is an object of JSON.
type object = map[string]any

func list(v any) []any { all, _ := v.([]any); return all }

// read decodes a request.
func read(r *http.Request) object {
	var body object
	_ = json.NewDecoder(r.Body).Decode(&body)
	return body
}

// offers reports whether a request has a tool of that name.
func offers(body object, name string) bool {
	text, _ := json.Marshal(body["tools"])
	return strings.Contains(string(text), `"name":"`+name+`"`)
}

func (m *model) anthropic(w http.ResponseWriter, r *http.Request) {
	body := read(r)
	var results []string
	for _, message := range list(body["messages"]) {
		content, _ := message.(object)
		for _, part := range list(content["content"]) {
			if p, _ := part.(object); p["type"] == "tool_result" {
				results = append(results, texts(p["content"]))
			}
		}
	}
	block, stop := object{"type": "text", "text": "done"}, "end_turn"
	if offers(body, "Bash") {
		if n, more := m.next(results); more {
			block = object{"type": "tool_use", "id": fmt.Sprintf("toolu_%d", n), "name": "Bash", "input": object{"command": m.commands[n], "description": "x"}}
			stop = "tool_use"
		}
	}
	message := object{
		"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []any{}, "stop_reason": nil, "stop_sequence": nil,
		"usage": object{"input_tokens": 1, "output_tokens": 1},
	}
	if body["stream"] != true {
		message["content"], message["stop_reason"] = []any{block}, stop
		reply(w, message)
		return
	}
	send := events(w)
	send("message_start", object{"message": message})
	if input, is := block["input"]; is {
		text, _ := json.Marshal(input)
		block["input"] = object{}
		send("content_block_start", object{"index": 0, "content_block": block})
		send("content_block_delta", object{"index": 0, "delta": object{"type": "input_json_delta", "partial_json": string(text)}})
	} else {
		send("content_block_start", object{"index": 0, "content_block": object{"type": "text", "text": ""}})
		send("content_block_delta", object{"index": 0, "delta": object{"type": "text_delta", "text": "done"}})
	}
	send("content_block_stop", object{"index": 0})
	send("message_delta", object{"delta": object{"stop_reason": stop, "stop_sequence": nil}, "usage": object{"output_tokens": 2}})
	send("message_stop", object{})
}

func (m *model) responses(w http.ResponseWriter, r *http.Request) {
	body := read(r)
	var results []string
	for _, item := range list(body["input"]) {
		if i, _ := item.(object); strings.HasSuffix(fmt.Sprint(i["type"]), "_output") {
			results = append(results, texts(i["output"]))
		}
	}
	item := object{"type": "message", "id": "msg_1", "role": "assistant", "content": []any{object{"type": "output_text", "text": "done"}}}
	if n, more := m.next(results); more {
		arguments, _ := json.Marshal(object{"cmd": m.commands[n], "yield_time_ms": 30000})
		item = object{"type": "function_call", "id": fmt.Sprintf("fc_%d", n), "call_id": fmt.Sprintf("call_%d", n), "name": "exec_command", "arguments": string(arguments)}
	}
	send := events(w)
	send("response.created", object{"response": object{"id": "resp_1"}})
	send("response.output_item.done", object{"output_index": 0, "item": item})
	send("response.completed", object{"response": object{"id": "resp_1", "usage": object{
		"input_tokens": 1, "output_tokens": 1, "total_tokens": 2, "input_tokens_details": nil, "output_tokens_details": nil,
	}}})
}

func (m *model) gemini(w http.ResponseWriter, r *http.Request) {
	body := read(r)
	var results []string
	for _, content := range list(body["contents"]) {
		c, _ := content.(object)
		for _, part := range list(c["parts"]) {
			p, _ := part.(object)
			if answer, is := p["functionResponse"].(object); is {
				results = append(results, texts(answer["response"]))
			}
		}
	}
	part := object{"text": "done"}
	if offers(body, "run_shell_command") {
		if n, more := m.next(results); more {
			part = object{"functionCall": object{"id": fmt.Sprintf("call_%d", n), "name": "run_shell_command", "args": object{"command": m.commands[n]}}}
		}
	}
	answer := object{
		"candidates":    []any{object{"content": object{"role": "model", "parts": []any{part}}, "finishReason": "STOP", "index": 0}},
		"usageMetadata": object{"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2},
	}
	if strings.Contains(r.PathValue("call"), "stream") {
		events(w)("", answer)
		return
	}
	reply(w, answer)
}

func (m *model) completions(w http.ResponseWriter, r *http.Request) {
	body := read(r)
	var results []string
	for _, message := range list(body["messages"]) {
		if one, _ := message.(object); one["role"] == "tool" {
			results = append(results, texts(one["content"]))
		}
	}
	delta, why := object{"role": "assistant", "content": "done"}, "stop"
	if offers(body, "bash") {
		if n, more := m.next(results); more {
			arguments, _ := json.Marshal(object{"command": m.commands[n], "description": "x"})
			delta = object{"role": "assistant", "tool_calls": []any{object{
				"index": 0, "id": fmt.Sprintf("call_%d", n), "type": "function", "function": object{"name": "bash", "arguments": string(arguments)},
			}}}
			why = "tool_calls"
		}
	}
	send := events(w)
	for _, choice := range []object{{"index": 0, "delta": delta, "finish_reason": nil}, {"index": 0, "delta": object{}, "finish_reason": why}} {
		send("", object{"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []any{choice}})
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}

// The model asks for its commands in order, and keeps their results.
func TestModel(t *testing.T) {
	m := startModel(t, "one", "two")
	for n, want := range []string{`\"command\":\"one\"`, `\"command\":\"two\"`, "end_turn"} {
		messages := []any{}
		for i := range n {
			messages = append(messages, object{"role": "user", "content": []any{object{"type": "tool_result", "content": fmt.Sprint("result ", i)}}})
		}
		text := must.Get(json.Marshal(object{"stream": true, "messages": messages, "tools": []any{object{"name": "Bash"}}}))(t)
		answer := must.Get(http.Post(m.url+"/v1/messages", "application/json", strings.NewReader(string(text))))(t)
		var got strings.Builder
		must.Get(fmt.Fprint(&got, must.Get(readAll(answer.Body))(t)))(t)
		answer.Body.Close()
		if !strings.Contains(got.String(), want) {
			t.Errorf("after %d results: %s", n, got.String())
		}
	}
	if got := fmt.Sprint(m.all()); got != "[result 0 result 1]" {
		t.Errorf("results %s", got)
	}
}
