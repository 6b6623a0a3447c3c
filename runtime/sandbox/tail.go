package sandbox

import (
	"bufio"
	"io"
	"log/slog"
	"strings"
	"sync"
)

const (
	// tailBytes is what is kept of a sandbox's log to explain its end.
	tailBytes = 1 << 10
	// lineBytes is what is kept of one line.
	lineBytes = 512
	// maxLines is how many lines of one sandbox reach the server's log.
	maxLines = 100
	// maxLog is what one sandbox may log, in bytes; an agent logs a line a
	// mishap, so whoever writes this much is no agent.
	maxLog = 4 << 20
)

// tail follows a sandbox's standard error: its first lines go to the
// server's log, its last ones are kept.
type tail struct {
	mu    sync.Mutex
	lines []string
	size  int
}

// follow reads r to its end, and is false where that is beyond maxLog.
func (t *tail) follow(r io.Reader, log *slog.Logger) bool {
	reader := bufio.NewReaderSize(r, lineBytes)
	count, total := 0, 0
	for {
		chunk, err := reader.ReadSlice('\n')
		if total += len(chunk); total > maxLog {
			return false
		}
		line := clean(strings.TrimSpace(string(chunk)))
		if line != "" {
			t.add(line)
			switch count++; {
			case count <= maxLines:
				log.Info("sandbox log", "line", line)
			case count == maxLines+1:
				log.Warn("sandbox logs too much; the rest is left out", "lines", maxLines)
			}
		}
		if err != nil && err != bufio.ErrBufferFull {
			return true
		}
	}
}

func (t *tail) add(line string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, line)
	t.size += len(line)
	for t.size > tailBytes && len(t.lines) > 1 {
		t.size -= len(t.lines[0])
		t.lines = t.lines[1:]
	}
}

// LogSeparator stands between the lines of [DeadError.Log].
const LogSeparator = " | "

// String returns the last lines.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(t.lines, LogSeparator)
}
