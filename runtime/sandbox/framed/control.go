package framed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostile"
)

const (
	// controlVariable names the descriptor of a socket for requests to an artifact's program that
	// are not frames, and fromVariable a folder with the state of a suspended sandbox
	// (docs/contracts.md, C1).
	controlVariable = "NIX_SANDBOX_CONTROL"
	fromVariable    = "NIX_SANDBOX_FROM"
	// maxControl bounds an answer on that socket, in bytes.
	maxControl = 16 << 10
	// quietTimeout bounds the wait for frames on their way to the agent, and suspendTimeout the
	// time to write the state of a sandbox.
	quietTimeout   = 5 * time.Second
	suspendTimeout = 10 * time.Second
)

// control sends requests to the program of a sandbox. That is not part of the sandbox, and the
// frames go elsewhere, but its answers are bounded in the same way.
type control struct {
	mu     sync.Mutex // of one exchange
	socket *os.File
}

func (c *control) close() {
	if c != nil {
		c.socket.Close()
	}
}

// saved is a program's answer to the request to save a sandbox.
type saved struct {
	Did   string `json:"did"`
	Error string `json:"error"`
	Bytes int64  `json:"bytes"`
}

// save has the program save the sandbox.
func (c *control) save(folder string, keep bool, timeout time.Duration) (answer saved, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.socket.SetDeadline(time.Now().Add(timeout)); err != nil {
		return answer, err
	}
	err = json.NewEncoder(c.socket).Encode(map[string]any{"do": "save", "to": folder, "keep": keep})
	if err == nil {
		err = json.NewDecoder(io.LimitReader(c.socket, maxControl)).Decode(&answer)
	}
	if err == nil && (answer.Did != "save" || answer.Bytes < 0) {
		err = fmt.Errorf("its launcher answers %.20q, and not save", answer.Did)
	}
	return answer, err
}

var errUncontrolled = errors.New("the sandbox cannot be suspended")

// Suspend implements [sandbox.Suspender].
func (s *Sandbox) Suspend(ctx context.Context, folder string, keep bool) (int64, error) {
	if s.control == nil {
		return 0, errUncontrolled
	}
	// When the answer has come, nothing else is on its way in either direction. It comes late if
	// the interpreter is being started.
	if _, err := s.request(ctx, frame.Request{Type: frame.Ping}, frame.Pong, quietTimeout); err != nil {
		return 0, err
	}
	s.mu.Lock()
	waiting := len(s.pending)
	s.mu.Unlock()
	if waiting > 0 {
		return 0, fmt.Errorf("%d requests to the sandbox wait for their answers", waiting)
	}
	answer, err := s.control.save(folder, keep, s.within(suspendTimeout))
	if err != nil {
		s.fail("it was not suspended: %v", err)
		return 0, s.death()
	}
	if answer.Error != "" {
		return 0, errors.New(hostile.Message(answer.Error))
	}
	if !keep {
		s.Kill()
		<-s.reaped
	}
	return answer.Bytes, nil
}
