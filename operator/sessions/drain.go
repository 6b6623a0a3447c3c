package sessions

import (
	"io"
	"os"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/host"
)

const (
	// drainTime is how long exec waits for a reader before it writes its mark.
	drainTime = time.Second
	// drainStep is the time between two looks, and what a reader has to store what it has read.
	drainStep = time.Millisecond
)

// drain waits until the reader of out has read what is in it, for at most a limit. Clients read the
// two outputs of a command side by side, put them together as they come, and cut the middle of what
// is long: what is written to the other output before that may be lost. Only pipes and Unix sockets
// can tell what waits in them; for anything else it returns at once.
func drain(out io.Writer, limit time.Duration) {
	file, ok := out.(*os.File)
	if !ok {
		return
	}
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(drainStep) {
		if host.Unread(file) == 0 {
			return
		}
	}
}
