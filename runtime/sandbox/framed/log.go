package framed

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"strings"
	"sync"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostile"
)

// logLine is the key under which the server's log has a line of a sandbox's own log.
const logLine = "line"

// Lines returns a handler that shows the lines of a sandbox's own log alone. show is called by one goroutine at a time
// for each sandbox.
func Lines(show func(line string)) slog.Handler { return lines{show} }

type lines struct{ show func(string) }

func (l lines) Enabled(context.Context, slog.Level) bool { return true }
func (l lines) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l lines) WithGroup(string) slog.Handler            { return l }

func (l lines) Handle(_ context.Context, record slog.Record) error {
	record.Attrs(func(a slog.Attr) bool {
		if a.Key == logLine {
			l.show(a.Value.String())
		}
		return true
	})
	return nil
}

const (
	// logTailBytes is how much of the end of a sandbox's log is stored to explain its end.
	logTailBytes = 1 << 10
	logLineBytes = 512
	// maxLogLines is how many lines of one sandbox reach the server's log.
	maxLogLines = 100
	// maxLog bounds the log of a sandbox, in bytes. An agent logs one line for each mishap, so a
	// larger log does not come from an agent.
	maxLog = 4 << 20
)

// logTail follows a sandbox's standard error: its first lines go to the
// server's log, its last ones are kept.
type logTail struct {
	mu    sync.Mutex
	lines []string
	size  int
	// failure is the reason why Go's runtime ended the agent, or "". The stack trace after it would
	// not help the reader of the error.
	failure string
}

// follow reads r to its end, and returns false if that is beyond maxLog.
func (t *logTail) follow(r io.Reader, log *slog.Logger) bool {
	reader := bufio.NewReaderSize(r, logLineBytes)
	count, total := 0, 0
	for {
		chunk, err := reader.ReadSlice('\n')
		if total += len(chunk); total > maxLog {
			return false
		}
		line := hostile.Message(strings.TrimSpace(string(chunk)))
		if line != "" {
			t.add(line)
			switch count++; {
			case count <= maxLogLines:
				log.Info("sandbox log", logLine, line)
			case count == maxLogLines+1:
				log.Warn("sandbox logs too much; the rest is left out", "lines", maxLogLines)
			}
		}
		if err != nil && err != bufio.ErrBufferFull {
			return true
		}
	}
}

func (t *logTail) add(line string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failure == "" {
		t.failure = goFailure(line)
	}
	t.lines = append(t.lines, line)
	t.size += len(line)
	for t.size > logTailBytes && len(t.lines) > 1 {
		t.size -= len(t.lines[0])
		t.lines = t.lines[1:]
	}
}

// goFailure returns the reason in a line with which Go's runtime ends a program, and "" for other
// lines.
func goFailure(line string) string {
	cause, ok := strings.CutPrefix(line, "runtime: ")
	if !ok {
		if cause, ok = strings.CutPrefix(line, "fatal error: "); !ok {
			return ""
		}
	}
	// proc/sys/fs/epoll/max_user_watches counts for each user of the host.
	if strings.HasPrefix(cause, "epoll") && strings.HasSuffix(cause, " failed with 28") {
		cause += ": this user's programs watch as many files as fs.epoll.max_user_watches allows;" +
			" end those that do, or run the server as a user of its own"
	}
	return "the agent could not go on: " + cause
}

// String returns the last lines, or why Go's runtime ended the agent.
func (t *logTail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failure != "" {
		return t.failure
	}
	return strings.Join(t.lines, sandbox.LogSeparator)
}
