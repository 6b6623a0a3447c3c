package mcphttp

import (
	"sync"
	"time"
)

// linesPerSecond is how many lines the log has of requests that are refused: anybody can
// send such requests.
const linesPerSecond = 5

// lineLimit bounds lines of the log. Its zero value can be used.
type lineLimit struct {
	mu      sync.Mutex
	second  int64
	lines   int // of that second
	dropped int // since the last line
}

// line reports whether a line may be written, and how many were not since the one before.
func (l *lineLimit) line(now time.Time) (dropped int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if second := now.Unix(); second != l.second {
		l.second, l.lines = second, 0
	}
	if l.lines == linesPerSecond {
		l.dropped++
		return 0, false
	}
	l.lines++
	dropped, l.dropped = l.dropped, 0
	return dropped, true
}
