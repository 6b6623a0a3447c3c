package server

import (
	"fmt"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/limitkeeper"
)

// room is what an interpreter at rest takes, in bytes, of a small limit a
// quarter: files that do not leave as much outlive every interpreter.
const room = 16 << 20

// crossed is called by the watch. It ends what runs in the sandbox, which the
// executor learns from the interpreter's end; or the sandbox, where files
// alone are too much and would stay so.
func (s *Server) crossed(c limitkeeper.Crossing) {
	most := c.Value << 20
	if c.Limit == limitkeeper.Memory && c.Usage.Files > most-min(room, most/4) {
		s.stop(fmt.Errorf("%v: files in /workspace, /tmp and /dev/shm have %d MB and leave no room for code", c, c.Usage.Files>>20))
	}
	s.over.Store(&c)
	s.table.KillAll()
}

// crossing returns the limit that was crossed since it was last asked, and
// keeps it for the next result. It is the end of an interpreter that asks.
func (e *executor) crossing() *limitkeeper.Crossing {
	c := e.over.Swap(nil)
	if c != nil {
		e.limit = &frame.Limit{Name: c.Limit, Value: c.Value, Used: c.Used()}
	}
	return c
}

// tooSmall is why a sandbox ends that crosses a limit before it runs code:
// its next interpreter would do so again.
func tooSmall(c limitkeeper.Crossing) error {
	return fmt.Errorf("%v before it ran code: %d MB in processes, %d MB in files, %d processes and threads",
		c, c.Usage.Processes>>20, c.Usage.Files>>20, c.Usage.Tasks)
}

// busy tells the watch whether a call runs.
func (e *executor) busy(busy bool) {
	if e.guard == nil {
		return
	}
	if busy && e.now == nil {
		e.over.Store(nil) // it ended nothing that a call could miss
	}
	e.guard.Busy(busy)
}
