package framed

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/guard"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// Bounds of what the code of one call asks. An agent that crosses one breaks a rule.
const (
	maxAsking   = 64        // questions at a time
	maxQuestion = 512 << 10 // bytes of each
	maxAskTotal = 1 << 20   // frames
	// answerPart is the largest part of an answer that a frame has, in bytes.
	answerPart = 256 << 10
	// maxWaiting bounds the answers that wait for the agent, in bytes. One of any size may wait alone.
	maxWaiting = 64 << 20
)

// failed takes the place of an answer whose making panicked.
const failed = `{"error":{"kind":"error","message":"the server failed to handle this question; its log says more"}}`

// tooMuch takes the place of an answer that would wait beside too many bytes of others.
const tooMuch = `{"error":{"kind":"unavailable","message":"64 MiB of answers of other tools wait to be read, and this one is lost: its tool may have done its work; read the others first"}}`

// noRoom takes the place of an answer for which the server has no memory.
const noRoom = `{"error":{"kind":"unavailable","message":"too many bytes of answers of tools wait to be read in all sessions, and this one is lost: its tool may have done its work; read the others first, or have it answer less"}}`

// codeCalls are the questions that the code of a running call asks the server.
type codeCalls struct {
	answer sandbox.Ask
	box    sandbox.Sandbox
	hold   func(bytes int64) (release func(), err error)
	tell   func(frame.Request)
	ctx    context.Context
	end    context.CancelFunc

	mu      sync.Mutex
	frames  int
	open    map[uint64]*codeCall
	left    int // of open: given up, and still worked on
	telling int // messages that the agent has not read yet
	waiting int // bytes of answers in open
}

// codeCall is a question. Its answer waits here until the agent has taken all of it.
type codeCall struct {
	question []byte
	asked    bool   // the question is complete
	working  bool   // the server works on its answer
	left     bool   // the code has given it up
	answer   []byte // what the agent has not taken yet; nil before there is one
	held     int    // bytes of memory that answer keeps
	release  func() // of what the answer is charged for
	forget   context.CancelFunc
}

// newCodeCalls begins the questions of a call. When ctx ends, when the call's time is over, and at its
// end, they are given up and get no answer.
func newCodeCalls(ctx context.Context, box sandbox.Sandbox, request sandbox.Request, tell func(frame.Request)) *codeCalls {
	a := &codeCalls{answer: request.Ask, box: box, hold: request.Hold, tell: tell, open: map[uint64]*codeCall{}}
	a.ctx, a.end = context.WithTimeout(ctx, request.Clock.AtMost(request.Timeout))
	return a
}

// take takes a frame of the agent. It does not wait. The error is a rule that the frame breaks.
func (a *codeCalls) take(reply frame.Reply) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.frames++; a.frames > maxAskTotal {
		return errors.New("its code asked more than it may")
	}
	if a.telling > 2*maxAsking {
		return errors.New("it does not take answers")
	}
	one := a.open[reply.Ask]
	switch {
	case one == nil && len(reply.Contents) == 0:
		return nil // of a question that has just been answered
	case one == nil:
		// What is given up keeps its memory until its work has ended.
		if len(a.open)-a.left == maxAsking || a.left == maxAsking {
			return errors.New("its code asks more at a time than it may")
		}
		one = &codeCall{release: func() {}}
		a.open[reply.Ask] = one
	case one.asked && reply.More && one.answer != nil:
		a.pass(reply, one)
		return nil
	case one.asked && reply.More:
		return errors.New("it wants more of an answer that there is not yet")
	case one.left:
		return nil
	case one.asked:
		one.forget()
		if one.working {
			one.left = true
			a.left++
			return nil
		}
		a.waiting -= len(one.answer)
		a.drop(reply.Ask, one)
		return nil
	}
	if len(one.question)+len(reply.Contents) > maxQuestion {
		return errors.New("its code asked with more bytes than it may")
	}
	one.question = append(one.question, reply.Contents...)
	if reply.More {
		return nil
	}
	one.asked, one.working = true, true
	var ctx context.Context
	ctx, one.forget = context.WithCancel(a.ctx)
	go func() {
		defer one.forget()
		answer := []byte(failed)
		_ = guard.Run(func() { answer = a.answer(ctx, a.box, one.question) }) // is logged
		a.mu.Lock()
		defer a.mu.Unlock()
		one.question, one.working = nil, false
		if one.left {
			a.left--
			delete(a.open, reply.Ask)
			return
		}
		// The agent is about to end the code. An answer could be faster, and code that fails
		// with it would look as if it had not run out of time.
		if a.ctx.Err() != nil {
			return
		}
		if a.waiting > 0 && a.waiting+len(answer) > maxWaiting {
			answer = []byte(tooMuch)
		}
		if a.hold != nil {
			if release, err := a.hold(int64(len(answer))); err == nil {
				one.release = release
			} else {
				answer = []byte(noRoom)
			}
		}
		one.answer, one.held = answer, len(answer)
		a.waiting += len(answer)
		a.pass(reply, one)
	}()
	return nil
}

// drop forgets a question.
func (a *codeCalls) drop(id uint64, one *codeCall) {
	one.release()
	delete(a.open, id)
}

// close ends the questions with their call. There may be none.
func (a *codeCalls) close() {
	if a == nil {
		return
	}
	a.end()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, one := range a.open {
		one.release()
	}
}

// pass sends the next part of an answer, and forgets the question with the last one.
func (a *codeCalls) pass(to frame.Reply, one *codeCall) {
	message := frame.Request{Type: frame.Called, ID: to.ID, Ask: to.Ask, Length: int64(len(one.answer))}
	message.Contents = one.answer[:min(answerPart, len(one.answer))]
	one.answer = one.answer[len(message.Contents):]
	// Code may leave the last byte of each answer unread: the rest keeps no more than twice its size.
	if len(one.answer) < one.held/2 {
		one.answer, one.held = bytes.Clone(one.answer), len(one.answer)
	}
	a.waiting -= len(message.Contents)
	if message.More = len(one.answer) > 0; !message.More {
		a.drop(to.Ask, one)
	}
	a.telling++
	go func() { // the agent may be busy sending
		_ = guard.Run(func() { a.tell(message) }) // is logged
		a.mu.Lock()
		defer a.mu.Unlock()
		a.telling--
	}()
}

// tell sends a message that has no answer. If the agent does not read it, the sandbox is ended:
// a message that waits behind another one gives that one no more time.
func (s *Sandbox) tell(message frame.Request) {
	s.telling.Lock()
	defer s.telling.Unlock()
	s.stdin.SetWriteDeadline(time.Now().Add(s.within(readTimeout)))
	if err := s.frames.Write(message); err != nil {
		s.fail("it does not take answers: %v", err)
	}
}
