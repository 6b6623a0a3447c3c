package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
)

const (
	// proxyName begins the lines that the proxy of a sandbox writes to the
	// launcher's standard error.
	proxyName = "nix-sandbox-net: "
	// maxNotice is the longest line of a log that is shown, in bytes.
	maxNotice = 1 << 10
	// maxNotices bounds the notices that wait for a program to leave the screen.
	maxNotices = 16
)

// shellLog takes the log of a sandbox in which a shell runs: it hands the lines
// of its proxy to show as they come, and keeps the beginning of the others for
// the time after.
type shellLog struct {
	logHead
	show func(line string)
	line []byte // that has no end yet
}

func (l *shellLog) Write(data []byte) (int, error) {
	for rest := data; len(rest) > 0; {
		end := bytes.IndexByte(rest, '\n') + 1
		if end == 0 {
			end = len(rest)
		}
		l.line = append(l.line, rest[:min(end, maxNotice-len(l.line))]...)
		last := rest[end-1]
		if rest = rest[end:]; last != '\n' && len(l.line) < maxNotice {
			break
		}
		l.flush()
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
		_, _ = l.logHead.Write([]byte(line + "\n"))
	}
}

// notify shows a line of this program's own. While a program uses the whole
// screen, or is in the middle of a character or control sequence, the line
// waits.
func (s *screen) notify(line string) {
	s.writes.Lock()
	defer s.writes.Unlock()
	if len(s.waiting) < maxNotices {
		s.waiting = append(s.waiting, line)
	} else {
		s.omitted++
	}
	s.showWaiting()
}

// showWaiting writes the notices that wait, if they can be shown now. The
// caller has locked s.writes.
func (s *screen) showWaiting() {
	if len(s.waiting) == 0 || !s.takesLines() {
		return
	}
	text := strings.Join(s.takeWaiting(), "\r\n") + "\r\n"
	if !s.lineStart {
		text = "\r\n" + text
	}
	s.lineStart = true
	_, _ = io.WriteString(s.w, text)
}

// takeWaiting returns the notices that wait. The caller has locked s.writes, or
// nothing is written any more.
func (s *screen) takeWaiting() []string {
	lines := s.waiting
	if s.omitted > 0 {
		lines = append(lines, fmt.Sprintf("%s%d further lines are left out", proxyName, s.omitted))
	}
	s.waiting, s.omitted = nil, 0
	return lines
}

// takesLines reports whether a line can be written among those of the program
// that draws: not in the middle of a sequence or character, and not on an
// alternate screen.
func (s *screen) takesLines() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state == inText && s.unfinished == 0 && !s.on[1049] && !s.on[1047] && !s.on[47]
}

// track follows where characters and lines end. The caller has locked s.mu.
func (s *screen) track(b byte) {
	switch {
	case b&0xc0 == 0x80 && s.unfinished > 0:
		s.unfinished--
	case b >= 0xf0:
		s.unfinished = 3
	case b >= 0xe0:
		s.unfinished = 2
	case b >= 0xc0:
		s.unfinished = 1
	default:
		s.unfinished = 0
	}
	s.lineStart = b == '\n' || b == '\r'
}
