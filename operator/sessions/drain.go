package sessions

import (
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
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
	var stat unix.Stat_t
	if unix.Fstat(int(file.Fd()), &stat) != nil {
		return
	}
	var request uint
	switch stat.Mode & unix.S_IFMT {
	case unix.S_IFIFO:
		request = unix.TIOCINQ // FIONREAD, of either end: pipe(7)
	case unix.S_IFSOCK:
		request = unix.TIOCOUTQ // SIOCOUTQ: unix(7)
	default:
		return
	}
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(drainStep) {
		if n, err := unix.IoctlGetInt(int(file.Fd()), request); err != nil || n == 0 {
			return
		}
	}
}
