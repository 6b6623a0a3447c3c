package rpc

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"sync"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/tool"
)

// retryWithin is how long after a question's end its call waits for its client.
const retryWithin = 10 * time.Second

// inputKey names the one input that an answer requires.
const inputKey = "choice"

// errState is what a retry gets that belongs to no call.
var errState = errors.New("requestState is not that of a call that waits for its user, with these arguments: it was used, has expired, or is another call's; call again without it")

// held are the calls of stateless MCP that have asked their user. Each waits for
// the request that repeats it with the answer (MCP 2026-07-28, input_required).
type held struct {
	mu    sync.Mutex
	calls map[string]*holding // by their state, which nobody else can guess
}

// holding is a call that runs while one request after the other waits for it.
type holding struct {
	first     *Call
	principal string
	digest    [sha256.Size]byte
	questions chan *inquiry
	asked     *inquiry // of the last request
	result    chan *mcp.CallToolResult
	cancel    context.CancelFunc

	mu       sync.Mutex
	progress func(seconds float64, line string) // of the request that waits; nil between two
}

// inquiry is a question to the client. Its answer is buffered.
type inquiry struct {
	call.Question
	answer chan json.RawMessage
}

// isRetry reports whether a request of a right form repeats a call of the tool with its state.
func (m Message) isRetry() bool {
	p := m.fields.Params
	return m.Method == string(mcp.MethodToolsCall) && p.Name == tool.Name && p.RequestState != nil && m.isStateless()
}

// state is the requestState of a message, or a text that is never a state.
func (m Message) state() string {
	var state string
	if json.Unmarshal(m.fields.Params.RequestState, &state) != nil || state == "" {
		return "-"
	}
	return state
}

func digestOf(arguments any) [sha256.Size]byte {
	sum := sha256.New()
	fields, _ := arguments.(map[string]any)
	if code, ok := fields["code"].(string); ok {
		// It may be long, and encoding it would take longer than all else.
		_, _ = io.WriteString(sum, code)
		fields = maps.Clone(fields)
		delete(fields, "code")
		arguments = fields
	}
	text, _ := json.Marshal(arguments) // was JSON; the names are sorted
	sum.Write(text)
	sum.Write(binary.BigEndian.AppendUint64(nil, uint64(len(text)))) // so that it ends in one way
	return [sha256.Size]byte(sum.Sum(nil))
}

// take returns the call that waits for a retry, once. The retry has the principal and the arguments
// of the call.
func (h *held) take(retry *Call) *holding {
	h.mu.Lock()
	defer h.mu.Unlock()
	one := h.calls[retry.state]
	if one == nil || one.principal != retry.principal || one.digest != retry.digest {
		return nil
	}
	delete(h.calls, retry.state)
	return one
}

// Put implements [call.Way].
func (one *holding) Put(ctx context.Context, q call.Question) (call.Choice, error) {
	asked := &inquiry{q, make(chan json.RawMessage, 1)}
	select {
	case one.questions <- asked:
	case <-ctx.Done():
		return "", ctx.Err()
	}
	select {
	case result := <-asked.answer:
		return choice(result)
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// hold runs a call whose client can be asked by a retry.
func (h *Handler) hold(ctx context.Context, c *Call, notify func(mcp.JSONRPCNotification)) mcp.JSONRPCMessage {
	one := &holding{principal: c.principal, digest: c.digest, questions: make(chan *inquiry), result: make(chan *mcp.CallToolResult, 1)}
	// The call outlives its first request.
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	one.first, one.cancel = &Call{handler: h, run: c.run, release: c.release, charge: c.charge}, cancel
	c.run, c.release, c.charge = nil, nil, func() {}
	one.first.run.SetClient(one)
	var progress func(float64, string)
	if one.progress = c.progress(notify); one.progress != nil {
		progress = func(seconds float64, line string) {
			one.mu.Lock()
			defer one.mu.Unlock()
			if one.progress != nil {
				one.progress(seconds, line)
			}
		}
	}
	go func() {
		var reply mcp.JSONRPCMessage // which a retry words
		result := mcp.NewToolResultError("the server failed to handle this request; its log says more")
		defer func() {
			one.first.charge()
			one.result <- result
		}()
		defer h.recover(c.message, &reply)
		result = one.first.run.Answer(running, progress)
	}()
	return h.follow(ctx, c, one)
}

// follow waits for the result of a call or for its next question.
func (h *Handler) follow(ctx context.Context, c *Call, one *holding) mcp.JSONRPCMessage {
	defer one.report(nil)
	stop := context.AfterFunc(ctx, one.cancel)
	select {
	case result := <-one.result:
		stop()
		one.cancel()
		// What the call holds is given back when its result has been encoded.
		retry := c.release
		c.run, c.release = one.first.run, func() {
			one.first.release()
			if retry != nil {
				retry()
			}
		}
		return h.complete(c.message, result)
	case asked := <-one.questions:
		if !stop() {
			// The client has gone, and the call ends.
			return h.follow(context.WithoutCancel(ctx), c, one)
		}
		state := rand.Text()
		h.held.mu.Lock()
		one.asked = asked
		h.held.calls[state] = one
		h.held.mu.Unlock()
		time.AfterFunc(time.Until(asked.Until)+retryWithin, func() { h.drop(state) })
		required := mcp.NewInputRequiredResult(mcp.InputRequests{inputKey: mcp.NewElicitationInputRequest(form(asked.Question))}, state)
		required.EnsureResultMeta().SetServerInfo(h.info)
		return mcp.NewJSONRPCResultResponse(mcp.NewRequestId(c.message.replyID()), required)
	}
}

// resume goes on with a call whose client has asked its user.
func (h *Handler) resume(ctx context.Context, c *Call, notify func(mcp.JSONRPCNotification)) mcp.JSONRPCMessage {
	one := h.held.take(c)
	if one == nil {
		h.Refuse(c.principal, c.message, errState)
		return h.complete(c.message, mcp.NewToolResultError(errState.Error()))
	}
	var responses map[string]json.RawMessage
	_ = json.Unmarshal(c.message.fields.Params.InputResponses, &responses) // no answer is one too
	one.asked.answer <- responses[inputKey]
	one.report(c.progress(notify))
	return h.follow(ctx, c, one)
}

// report has the call's progress go to the request that waits for it now.
func (one *holding) report(progress func(seconds float64, line string)) {
	one.mu.Lock()
	defer one.mu.Unlock()
	one.progress = progress
}

// drop ends a call that was not repeated in time.
func (h *Handler) drop(state string) {
	h.held.mu.Lock()
	one := h.held.calls[state]
	delete(h.held.calls, state)
	h.held.mu.Unlock()
	if one != nil {
		one.cancel()
		go func() {
			<-one.result
			one.first.Release()
		}()
	}
}
