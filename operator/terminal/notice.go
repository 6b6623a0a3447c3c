package terminal

import (
	"bytes"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/format"
)

const (
	// proxyName begins the lines that the proxy of a sandbox writes to the
	// launcher's standard error.
	proxyName = "nix-sandbox-net: "
	// maxNotice is the longest line of a log that is shown, in bytes.
	maxNotice = 1 << 10
	// maxLog bounds the other lines, which are printed after the shell, in bytes.
	maxLog = 4 << 10
)

// Log takes the log of a sandbox in which a shell runs. It shows the lines of the proxy
// at once, and keeps the beginning of the others.
type Log struct {
	Show func(line string)
	line []byte // that has no end yet
	Kept bytes.Buffer
}

func (l *Log) Write(data []byte) (int, error) {
	for line := range bytes.Lines(data) {
		l.line = append(l.line, line[:min(len(line), maxNotice-len(l.line))]...)
		if line[len(line)-1] == '\n' || len(l.line) == maxNotice {
			l.Flush()
		}
	}
	return len(data), nil
}

// Flush ends the line that has no end yet.
func (l *Log) Flush() {
	line := strings.TrimSuffix(string(l.line), "\n")
	l.line = l.line[:0]
	switch {
	case line == "":
	case strings.HasPrefix(line, proxyName):
		l.Show(format.Plain(line))
	default:
		line += "\n"
		l.Kept.WriteString(line[:min(len(line), maxLog-l.Kept.Len())])
	}
}
