package main

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
)

// resetTerminal resets the modes that programs leave set if they are killed. It moves nothing on
// the screen. The numbers are xterm's
// (https://invisible-island.net/xterm/ctlseqs/ctlseqs.html).
const resetTerminal = "\x18" + // cancels an unfinished sequence
	"\x1b7\x1b[?1049l\x1b[?1047;47l" + // the normal screen, with the cursor where it was
	"\x1b[!p" + // soft reset (DECSTR), which some terminals lack
	"\x1b7\x1b[r\x1b8" + // the whole screen scrolls
	"\x1b[0m\x1b(B\x0f" + // colours and character sets
	"\x1b>\x1b[4l\x1b[2l\x1b[12h\x1b[20l" + // keypad, insertion, keyboard lock, echo, line feeds
	"\x1b[?1;5l\x1b[?7;25h" + // cursor keys, reverse video, auto-wrap, visible cursor
	"\x1b[?9;1000;1001;1002;1003;1004;1005;1006;1015;1016l" + // mouse and focus reports
	"\x1b[?2004;2026l" + // bracketed paste, synchronized output
	"\x1b[<99u\x1b[>4m" + // encodings of keys, of kitty and xterm
	"\x1b[0 q" // shape of the cursor

// resetColours resets the palette, and the colours of text, background and cursor. It is
// written only if a program may have changed one of them: users set these too.
const resetColours = "\x1b]104\a\x1b]110\a\x1b]111\a\x1b]112\a"

var (
	alternateScreen = regexp.MustCompile(`\x1b\[\?(?:\d+;)*(?:47|1047|1049)(?:;\d+)*([hl])`)
	// An operating system command other than those for titles, folders and links.
	mayColour = regexp.MustCompile(`(?:\x1b[\x00-\x1a\x1c-\x1f]*\]|\x{9d})(?:[^01278]|[01278][^;])`)
)

const (
	// maxSplit is the length of the longest sequence that is recognized in two pieces, in bytes.
	maxSplit = 32
	// maxNotices bounds the notices that wait for the end of the shell.
	maxNotices = 16
)

// screen passes on what programs write to a terminal, and shows notices between their lines.
type screen struct {
	w io.Writer

	mu        sync.Mutex
	last      []byte // written to w
	drawn     bool   // something was written since the last restore
	coloured  bool   // colours of the terminal itself may have changed
	alternate bool   // a program uses the whole screen
	waiting   []string
	omitted   int // notices
}

func (s *screen) Write(data []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	recent := append(s.last[max(0, len(s.last)-maxSplit):], data...)
	if found := alternateScreen.FindAllSubmatch(recent, -1); found != nil {
		s.alternate = string(found[len(found)-1][1]) == "h"
	}
	s.coloured = s.coloured || mayColour.Match(recent)
	s.drawn = s.drawn || len(data) > 0
	s.last = bytes.Clone(recent[max(0, len(recent)-maxSplit):])
	return s.w.Write(data)
}

// notify shows a line of this program's own, or keeps it for the end of the shell while a
// program uses the whole screen.
func (s *screen) notify(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.alternate:
		if len(s.last) > 0 && s.last[len(s.last)-1] != '\n' {
			line = "\r\n" + line
		}
		s.last = []byte("\n")
		_, _ = io.WriteString(s.w, line+"\r\n")
	case len(s.waiting) < maxNotices:
		s.waiting = append(s.waiting, line)
	default:
		s.omitted++
	}
}

// takeWaiting returns the notices that were not shown.
func (s *screen) takeWaiting() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	lines := s.waiting
	if s.omitted > 0 {
		lines = append(lines, fmt.Sprintf("%s%d further lines are left out", proxyName, s.omitted))
	}
	s.waiting, s.omitted = nil, 0
	return lines
}

// restore resets what programs may have left set, and reports whether they wrote anything.
func (s *screen) restore() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.drawn {
		return false
	}
	var reset strings.Builder
	reset.WriteString(resetTerminal)
	if s.coloured {
		reset.WriteString(resetColours)
	}
	s.drawn, s.coloured, s.alternate, s.last = false, false, false, nil
	_, _ = io.WriteString(s.w, reset.String())
	return true
}
