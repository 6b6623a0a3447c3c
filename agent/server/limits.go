package server

import (
	"fmt"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/limitkeeper"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// interpreterMemory is the memory of an interpreter at rest, in bytes, or a quarter of a
// small limit. If files leave less, every further interpreter would be killed.
const interpreterMemory = 16 << 20

// crossed is called by the limit keeper. It kills all processes of the sandbox, which the
// executor notices by the interpreter's end. If files alone are too large it ends the
// sandbox, because they would remain.
func (s *Server) crossed(c limitkeeper.Crossing) {
	limit := c.Value << 20
	if c.Name == frame.Memory && c.Usage.Files > limit-min(interpreterMemory, limit/4) {
		s.stop(fmt.Errorf("%v: files in /workspace, /tmp and /dev/shm have %d MB and leave no memory for code", c, c.Usage.Files>>20))
	}
	s.crossing.Store(&c)
	s.table.KillAll()
}

// takeCrossing returns the limit that was crossed since the last call, or nil, and notes it
// for the next result.
func (e *executor) takeCrossing() *limitkeeper.Crossing {
	e.keeper.Report(func(c limitkeeper.Crossing) { e.crossing.Store(&c) })
	c := e.crossing.Swap(nil)
	if c != nil {
		e.limit = &c.Limit
	}
	return c
}

// isTooSmall reports whether the interpreter alone has crossed a limit: nothing else has run.
func (e *executor) isTooSmall() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.held && !e.beside
}

// tooSmall is the reason to end a sandbox if its interpreter crosses a limit before it runs
// code: the next interpreter would do so again.
func tooSmall(c limitkeeper.Crossing) error {
	return fmt.Errorf("%v before it ran code: %d MB in processes, %d MB in files, %d processes and threads",
		c, c.Usage.Processes>>20, c.Usage.Files>>20, c.Usage.Tasks)
}

// busy tells the limit keeper whether a call runs. Code of a driver does not count: otherwise a scan would come in the
// middle of the first call and take a third of its time.
func (e *executor) busy(busy bool) {
	if e.keeper == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if busy && e.phase == absent && !e.beside {
		e.crossing.Store(nil) // it ended no call, and no program beside them
	}
	if busy {
		e.work(1)
	} else {
		e.work(-1)
	}
}
