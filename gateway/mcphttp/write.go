package mcphttp

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/rpc"
)

// pieceBytes is how much of a response is written at a time.
const pieceBytes = 64 << 10

// encoded is an answer that is ready to be written. release gives its memory back.
type encoded struct {
	reply   mcp.JSONRPCMessage // the error, or nil if the answer is a result
	text    []byte
	release func()
}

// charged charges a principal for the answer of a call, which is encoded. If it cannot be charged
// for too long, because clients have not read others, it is dropped, and the answer says so.
func (s *Server) charged(principal string, id json.RawMessage, reply mcp.JSONRPCMessage, text []byte) encoded {
	answer := encoded{text: text, release: func() {}}
	if failure, ok := reply.(mcp.JSONRPCError); ok {
		answer.reply = failure
	}
	if release := s.chargeAnswer(principal, int64(len(text))); release != nil {
		answer.release = release
	} else {
		const sentence = "the answer was dropped, because clients have not read other large ones yet: read those, and call again; code that ran has had its effect"
		s.o.Log.Warn("answer dropped", "principal", principal, "bytes", len(text))
		return encoded{reply: rpc.Failure(id, mcp.INTERNAL_ERROR, sentence), text: encode(rpc.Failure(id, mcp.INTERNAL_ERROR, sentence)), release: func() {}}
	}
	return answer
}

// chargeAnswer charges a principal for an answer. It returns nil if that took too long.
func (s *Server) chargeAnswer(principal string, n int64) (release func()) {
	bytes := s.o.Book.Bytes
	if release, err := bytes.Try(principal, n); err == nil {
		return release
	}
	wait, err := s.answers.Try(principal, n)
	if err != nil {
		return nil
	}
	defer wait()
	within := answerWait
	if bytes.Held(principal) <= n {
		within = othersAnswerWait
	}
	ctx, cancel := context.WithTimeout(s.ctx, within)
	defer cancel()
	release, _ = bytes.Take(ctx, principal, n)
	return release
}

// encode returns a message as JSON, without the escapes that only browsers need.
func encode(message any) []byte {
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	// Every answer of this server can be encoded.
	if err := encoder.Encode(message); err != nil {
		return encode(rpc.Failure(nil, mcp.INTERNAL_ERROR, "the server failed to encode its answer"))
	}
	return bytes.TrimSuffix(buffer.Bytes(), []byte("\n"))
}

// accept answers a message that needs no reply.
func (x *exchange) accept() {
	x.status = http.StatusAccepted
	x.w.WriteHeader(x.status)
}

// fail answers with an error. id is nil if it is not known.
func (x *exchange) fail(status int, id json.RawMessage, code int, text string) {
	x.write(status, rpc.Failure(id, code, text))
}

func (x *exchange) write(status int, message any) { x.writeText(status, encode(message)) }

func (x *exchange) writeText(status int, text []byte) {
	x.status = status
	h := x.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(text)))
	h.Set("Cache-Control", "no-store")
	x.w.WriteHeader(status)
	x.put(text)
}

// event writes a message as an event. The response becomes a stream if it is not one yet.
func (x *exchange) event(message any) { x.eventText(encode(message)) }

func (x *exchange) eventText(text []byte) {
	x.beginStream()
	x.put([]byte("event: message\ndata: "), text, []byte("\n\n"))
}

// comment writes an event that clients skip. It keeps proxies from closing the stream.
func (x *exchange) comment() {
	x.beginStream()
	x.put([]byte(":\n\n"))
}

func (x *exchange) beginStream() {
	if x.isStream {
		return
	}
	x.isStream = true
	h := x.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	// nginx would collect events (ngx_http_proxy_module, proxy_buffering).
	h.Set("X-Accel-Buffering", "no")
	x.w.WriteHeader(http.StatusOK)
}

// put writes and flushes texts. It gives up if the client reads too slowly.
func (x *exchange) put(texts ...[]byte) {
	total := 0
	for _, text := range texts {
		total += len(text)
	}
	end := time.Now().Add(writeTimeout + time.Duration(total)*time.Second/slowestRead)
	deadline := func() {
		at := time.Now().Add(writeTimeout)
		if at.After(end) {
			at = end
		}
		_ = x.out.SetWriteDeadline(at)
	}
	defer func() { _ = x.out.SetWriteDeadline(time.Time{}) }()
	for _, text := range texts {
		for len(text) > 0 && !x.isBroken {
			piece := text[:min(len(text), pieceBytes)]
			deadline()
			_, err := x.w.Write(piece)
			x.isBroken = err != nil
			text = text[len(piece):]
		}
	}
	if !x.isBroken {
		deadline()
		x.isBroken = x.out.Flush() != nil
	}
}
