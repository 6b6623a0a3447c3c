package server

import (
	"fmt"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/limitkeeper"
)

// interpreterMemory is what an interpreter at rest needs, in bytes; of a small
// limit it is a quarter. Files that do not leave as much of the limit would
// have every further interpreter killed.
const interpreterMemory = 16 << 20

// crossed is called by the limit keeper. It kills what runs in the sandbox,
// which the executor learns from the interpreter's end. Where files alone are
// too much, and so would stay too much, it ends the sandbox.
func (s *Server) crossed(c limitkeeper.Crossing) {
	limit := c.Value << 20
	if c.Name == frame.Memory && c.Usage.Files > limit-min(interpreterMemory, limit/4) {
		s.stop(fmt.Errorf("%v: files in /workspace, /tmp and /dev/shm have %d MB and leave no memory for code", c, c.Usage.Files>>20))
	}
	s.crossing.Store(&c)
	s.table.KillAll()
}

// takeCrossing returns the limit that was crossed since it was last asked, which is
// why the interpreter has ended, and keeps it for the next result.
func (e *executor) takeCrossing() *limitkeeper.Crossing {
	e.keeper.Report(func(c limitkeeper.Crossing) { e.crossing.Store(&c) })
	c := e.crossing.Swap(nil)
	if c != nil {
		e.limit = &c.Limit
	}
	return c
}

// tooSmall is why a sandbox ends whose interpreter crosses a limit before it
// runs code: the next interpreter would do so again.
func tooSmall(c limitkeeper.Crossing) error {
	return fmt.Errorf("%v before it ran code: %d MB in processes, %d MB in files, %d processes and threads",
		c, c.Usage.Processes>>20, c.Usage.Files>>20, c.Usage.Tasks)
}

// busy informs the limit keeper whether a call runs. It does not hear of one that is
// rehearsed, as of no other code of a driver, and so does not come with a scan in the
// middle of the first call, which would be a third of that call's time.
func (e *executor) busy(c *call, busy bool) {
	if e.keeper == nil || c.rehearsed {
		return
	}
	if busy && e.phase == absent {
		e.crossing.Store(nil) // what it ended is not part of any call
	}
	e.keeper.Busy(busy)
}
