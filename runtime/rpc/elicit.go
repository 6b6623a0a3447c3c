package rpc

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"strings"
	"sync"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
)

// idPrefix begins the ids of requests to clients.
const idPrefix = "ask-"

// errUnanswered says that a client was not asked, or gave no answer that counts.
var errUnanswered = errors.New("the client did not answer")

// asked are the requests to clients that have no reply yet.
type asked struct {
	mu   sync.Mutex
	open map[string]request // by id
}

type request struct {
	principal string
	reply     chan json.RawMessage // of the result; closed without one if the client refused
}

// Reply takes a client's reply to a request of this server. It reports whether the message is one;
// a reply to a question that is over, or is another principal's, is ignored.
func (h *Handler) Reply(principal string, m Message) bool {
	if !m.isReply() {
		return false
	}
	id, _ := m.replyID().(string)
	if !strings.HasPrefix(id, idPrefix) {
		return false
	}
	h.asked.mu.Lock()
	defer h.asked.mu.Unlock()
	if one, known := h.asked.open[id]; known && one.principal == principal {
		delete(h.asked.open, id)
		if m.fields.Error == nil {
			one.reply <- m.fields.Result // is buffered for the one reply
		}
		close(one.reply)
	}
	return true
}

// elicitation asks the user by a form of the client (elicitation/create, MCP 2025-06-18 and
// 2025-11-25).
type elicitation struct {
	*asked
	principal string
	send      func(message any) bool
}

// Put implements [call.Way].
func (e *elicitation) Put(ctx context.Context, q call.Question) (call.Choice, error) {
	// Another client cannot guess it.
	id, reply := idPrefix+rand.Text(), make(chan json.RawMessage, 1)
	e.mu.Lock()
	if e.open == nil {
		e.open = map[string]request{}
	}
	e.open[id] = request{e.principal, reply}
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.open, id)
	}()
	if !e.send(map[string]any{"jsonrpc": mcp.JSONRPC_VERSION, "id": id, "method": mcp.MethodElicitationCreate, "params": form(q)}) {
		return "", errUnanswered
	}
	select {
	case result := <-reply:
		return choice(result)
	case <-ctx.Done():
		e.send(map[string]any{"jsonrpc": mcp.JSONRPC_VERSION, "method": mcp.MethodNotificationCancelled, "params": map[string]any{"requestId": id}})
		return "", ctx.Err()
	}
}

// form is a question as the params of elicitation/create. It has the form of an enumeration with
// names that all revisions know.
func form(q call.Question) mcp.ElicitationParams {
	var values, names []string
	for _, one := range q.Choices {
		values, names = append(values, string(one.Choice)), append(names, one.Label)
	}
	return mcp.ElicitationParams{Message: q.Text, RequestedSchema: map[string]any{
		"type":       "object",
		"properties": map[string]any{"choice": map[string]any{"type": "string", "title": "Choice", "enum": values, "enumNames": names}},
		"required":   []string{"choice"},
	}}
}

// choice reads the result of an elicitation. Only an accepted form with a choice allows anything:
// the user declines with no, and a form that was closed is no answer.
func choice(result json.RawMessage) (call.Choice, error) {
	var given struct {
		Action  string `json:"action"`
		Content struct {
			Choice call.Choice `json:"choice"`
		} `json:"content"`
	}
	if err := json.Unmarshal(result, &given); err != nil {
		return "", errUnanswered
	}
	switch given.Action {
	case "accept":
		if given.Content.Choice != call.Nobody {
			return given.Content.Choice, nil
		}
	case "decline":
		return call.No, nil
	}
	return "", errUnanswered
}
