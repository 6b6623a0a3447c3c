package terminal

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/lazyregexp"
)

// resetTerminal resets the modes that programs leave set if they are killed. It moves nothing on
// the screen, and leaves modes alone whose default differs between terminals (67, 1007). The numbers
// are xterm's
// (https://invisible-island.net/xterm/ctlseqs/ctlseqs.html).
const resetTerminal = "\x18" + // cancels an unfinished sequence
	"\x1b<" + // VT52's mode, in which a terminal reads none of what follows
	"\x1b7\x1b[?1049l\x1b[?1047;47l" + // the normal screen, with the cursor where it was
	"\x1b[!p" + // soft reset (DECSTR), which some terminals lack
	"\x1b7\x1b[r\x1b8" + // the whole screen scrolls
	"\x1b[0m\x1b(B\x0f" + // colours and character sets
	"\x1b>\x1b[4l\x1b[2l\x1b[12h\x1b[20l" + // keypad, insertion, keyboard lock, echo, line feeds
	"\x1b[?1;5l\x1b[?7;25h" + // cursor keys, reverse video, auto-wrap, visible cursor
	"\x1b[?9;1000;1001;1002;1003;1004;1005;1006;1015;1016l" + // mouse and focus reports
	"\x1b[?2004;2026l" + // bracketed paste, synchronized output
	"\x1b[?69;1042;2031;2048;5522;9001l" + // margins, bell; reports of colours, size, clipboard and keys
	"\x1b[4i\x1b[?4i" + // what is written to a printer
	"\x1b[<99u\x1b[>1m\x1b[>2m\x1b[>4m" + // encodings of keys, of kitty and xterm
	"\x1b[0 q" // shape of the cursor

var alternateScreen = lazyregexp.New(`\x1b\[\?(?:\d+;)*(?:47|1047|1049)(?:;\d+)*([hl])`)

const (
	// maxSplit is the length of the longest sequence that is recognized in two pieces, in bytes.
	maxSplit = 32
	// maxNotices bounds the notices that wait for the end of the shell.
	maxNotices = 16
)

// Screen passes on what programs write to a terminal, and shows notices between their lines.
type Screen struct {
	w io.Writer

	mu        sync.Mutex
	last      []byte // written to w
	drawn     bool   // something was written since the last restore
	begun     byte   // ESC, or the first byte of a control in UTF-8, which is not written yet
	inString  bool   // a control string has begun
	alternate bool   // a program uses the whole screen
	Waiting   []string
	omitted   int // notices
}

func (s *Screen) Write(data []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	shown := s.filter(data)
	recent := append(s.last[max(0, len(s.last)-maxSplit):], shown...)
	if found := alternateScreen.Get().FindAllSubmatch(recent, -1); found != nil {
		s.alternate = string(found[len(found)-1][1]) == "h"
	}
	s.drawn = s.drawn || len(data) > 0
	s.last = bytes.Clone(recent[max(0, len(recent)-maxSplit):])
	if _, err := s.w.Write(shown); err != nil {
		return 0, err
	}
	return len(data), nil
}

const (
	escape = 0x1b
	// control is the first byte of U+0080 to U+009F in UTF-8. Each is short for ESC and the character
	// 0x40 before it.
	control = 0xc2
	// controlStrings begin control strings after ESC (ECMA-48): OSC, DCS, SOS, PM and APC.
	controlStrings = "]PX^_"
)

// filter returns what of a program's output a terminal gets: control strings are left out, which set titles
// and colours, but also write the clipboard or files, or raise alarms on the desktop. It takes them apart as
// terminals do.
func (s *Screen) filter(data []byte) (shown []byte) {
	for _, b := range data {
		if s.inString {
			isC1 := s.begun == control && b == 0x9c
			s.inString = !isC1 && b != '\a' && b != 0x18 && b != 0x1a && b != escape
			s.begun = 0
			if b == escape || s.inString {
				s.begun = b // ESC begins what follows the string
			}
			continue
		}
		begun := s.begun
		s.begun = 0
		kind := b
		if begun == control {
			kind = b - 0x40
		}
		switch {
		case begun == escape && (b < ' ' && b != 0x18 && b != 0x1a && b != escape || b == 0x7f):
			shown, s.begun = append(shown, b), escape // is obeyed within the sequence
		case begun == control && b >= 0xa0, begun == 0, strings.IndexByte(controlStrings, kind) < 0:
			if begun != 0 && (begun != escape || b != escape) {
				shown = append(shown, begun)
			}
			if b == escape || b == control {
				s.begun = b
			} else {
				shown = append(shown, b)
			}
		default:
			s.inString = true
		}
	}
	return shown
}

// Notify shows a line of this program's own, or keeps it for the end of the shell while a
// program uses the whole screen.
func (s *Screen) Notify(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.alternate:
		if len(s.last) > 0 && s.last[len(s.last)-1] != '\n' {
			line = "\r\n" + line
		}
		s.last = []byte("\n")
		_, _ = io.WriteString(s.w, line+"\r\n")
	case len(s.Waiting) < maxNotices:
		s.Waiting = append(s.Waiting, line)
	default:
		s.omitted++
	}
}

// takeWaiting returns the notices that were not shown.
func (s *Screen) takeWaiting() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	lines := s.Waiting
	if s.omitted > 0 {
		lines = append(lines, fmt.Sprintf("%s%d further lines are left out", proxyName, s.omitted))
	}
	s.Waiting, s.omitted = nil, 0
	return lines
}

// restore resets what programs may have left set, and reports whether they wrote anything.
func (s *Screen) restore() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.drawn {
		return false
	}
	s.drawn, s.alternate, s.last = false, false, nil
	s.begun, s.inString = 0, false
	_, _ = io.WriteString(s.w, resetTerminal)
	return true
}
