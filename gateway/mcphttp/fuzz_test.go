package mcphttp

import (
	"bufio"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// lasts reports whether a message may have an answer that takes time: one that is a stream,
// and sleep in the code, which may also be written with escapes.
func lasts(message string) bool {
	return strings.Contains(message, "subscriptions") || strings.Contains(message, "sleep") || strings.Contains(message, `\`)
}

// fuzzed sends a request, and checks what every answer has.
func (s *served) fuzzed(t *testing.T, r *http.Request) {
	w := httptest.NewRecorder()
	s.http.Handler.ServeHTTP(w, r.WithContext(t.Context()))
	if w.Code < 200 || w.Code > 499 {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
	if text := w.Body.String(); text != "" && w.Header().Get("Content-Type") == "application/json" && !json.Valid([]byte(text)) {
		t.Errorf("status %d: %s", w.Code, text)
	}
}

// Whatever comes as a message, in either era, the server answers, and goes on.
func FuzzServer(f *testing.F) {
	// What is observed is for other tests, which receive it.
	s := start(f, func(o *Options) { o.Observe = nil })
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
	f.Add("POST", "application/json", "2026-07-28", "tools/list", "", "", `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{`+meta+`}}`)
	f.Add("POST", "application/json", "2026-07-28", "tools/call", "run", "", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run","arguments":{"code":"echo 1","env":"bash","session":"a"},`+meta+`}}`)
	f.Add("POST", "application/json", "2026-07-28", "resources/read", "sandbox://a/outputs/f", "", `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"sandbox://a/outputs/f",`+meta+`}}`)
	f.Add("POST", "application/json", "", "", "", "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`)
	f.Add("POST", "application/json", "2025-11-25", "", "", "begun", `{"jsonrpc":"2.0","id":9007199254740993,"method":"tools/call","params":{"name":"run","arguments":{"code":"echo 1","env":"bash"},"_meta":{"progressToken":1}}}`)
	f.Add("POST", "application/json", "2025-11-25", "", "", "begun", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	f.Add("GET", "", "", "", "", "x", "")
	f.Add("DELETE", "", "2025-11-25", "", "", "begun", "")
	f.Fuzz(func(t *testing.T, method, kind, version, name, named, session, body string) {
		if lasts(body) || (method == "" || method == http.MethodGet) && session == "begun" {
			t.Skip("it lasts")
		}
		r, err := http.NewRequest(method, "http://localhost"+Path, strings.NewReader(body))
		if err != nil {
			t.Skip(err)
		}
		if session == "begun" {
			session = s.sessions.open("fuzz", false)
		}
		r.Header = http.Header{"Authorization": {"Bearer fuzz"}, "Content-Type": {kind}, "Mcp-Protocol-Version": {version}, "Mcp-Method": {name}, "Mcp-Name": {named}, "Mcp-Session-Id": {session}}
		s.fuzzed(t, r)
	})
}

// Whatever comes as the head of a request, the server answers, and goes on.
func FuzzHead(f *testing.F) {
	s := start(f, func(o *Options) {
		o.Observe = nil
		o.Hosts = []string{"sandbox.example"}
		o.Origins = []string{"https://page.example"}
	})
	const message = `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
	const modern = "Host: localhost\r\nAuthorization: Bearer fuzz\r\nContent-Type: application/json\r\nMcp-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/list\r\n"
	f.Add("POST /mcp HTTP/1.1\r\n"+modern+"Content-Length: 170\r\n\r\n", message)
	f.Add("POST /mcp HTTP/1.1\r\n"+modern+"Transfer-Encoding: chunked\r\n\r\n", "aa\r\n"+message+"\r\n0\r\n\r\n")
	f.Add("POST /mcp HTTP/1.1\r\n"+modern+"Origin: https://page.example\r\nTraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\nAccept: text/event-stream\r\nContent-Length: 170\r\n\r\n", message)
	f.Add("OPTIONS /mcp HTTP/1.1\r\nHost: sandbox.example:8080\r\nOrigin: https://page.example\r\nAccess-Control-Request-Method: POST\r\n\r\n", "")
	f.Add("GET /mcp HTTP/1.1\r\nHost: [::1]:80\r\nAuthorization: Bearer fuzz\r\nMcp-Session-Id: x\r\nAccept: text/event-stream\r\n\r\n", "")
	f.Add("POST http://sandbox.example/mcp HTTP/1.0\r\nMcp-Method: =?base64?dG9vbHMvbGlzdA==?=\r\n\r\n", message)
	f.Fuzz(func(t *testing.T, head, body string) {
		if lasts(body) || lasts(head) {
			t.Skip("it lasts")
		}
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(head + body)))
		if err != nil {
			t.Skip(err) // net/http answers it
		}
		s.fuzzed(t, r)
	})
}
