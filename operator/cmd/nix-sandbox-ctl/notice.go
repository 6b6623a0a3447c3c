package main

import (
	"bytes"
	"strings"
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

// shellLog takes the log of a sandbox in which a shell runs. It shows the lines of the proxy
// at once, and keeps the beginning of the others.
type shellLog struct {
	show func(line string)
	line []byte // that has no end yet
	kept bytes.Buffer
}

func (l *shellLog) Write(data []byte) (int, error) {
	for line := range bytes.Lines(data) {
		l.line = append(l.line, line[:min(len(line), maxNotice-len(l.line))]...)
		if line[len(line)-1] == '\n' || len(l.line) == maxNotice {
			l.flush()
		}
	}
	return len(data), nil
}

// flush ends the line that has no end yet.
func (l *shellLog) flush() {
	line := strings.TrimSuffix(string(l.line), "\n")
	l.line = l.line[:0]
	switch {
	case line == "":
	case strings.HasPrefix(line, proxyName):
		l.show(plain(line))
	default:
		line += "\n"
		l.kept.WriteString(line[:min(len(line), maxLog-l.kept.Len())])
	}
}
