package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// screen passes on what programs write to a terminal, and remembers which of the
// terminal's modes they set, because a program that is killed resets none.
type screen struct {
	w io.Writer

	// writes is locked by what writes to w while a program draws.
	writes    sync.Mutex
	waiting   []string // notices; see notify
	omitted   int      // notices
	lineStart bool     // the cursor is at the beginning of a line

	mu         sync.Mutex
	state      int
	unfinished int  // bytes that the last character lacks
	c2         bool // the last byte was 0xC2, the first of a control of 8 bits in UTF-8
	// params are the parameters and intermediate bytes of the sequence that is
	// being read.
	params []byte
	on     map[int]bool    // private modes that were set or reset, by number
	used   map[string]bool // other settings that were changed, by their reset
	drawn  bool            // something was written
}

// States of the parser.
const (
	inText = iota
	inEscape
	inSequence
	inString // of an operating system command (OSC)
)

// maxParams bounds what is kept of a sequence's parameters, in bytes.
const maxParams = 256

// Resets of settings that are not private modes. A cursor that a reset moves is
// put back.
const (
	resetKeypad     = "\x1b>"
	resetInsert     = "\x1b[4l"          // replace mode (IRM)
	resetLock       = "\x1b[2l"          // keyboard action mode (KAM)
	resetEcho       = "\x1b[12h"         // no local echo (SRM)
	resetNewline    = "\x1b[20l"         // line feed mode (LNM)
	resetMargins    = "\x1b7\x1b[r\x1b8" // the whole screen scrolls (DECSTBM)
	resetKeys       = "\x1b[<99u"        // kitty's encodings of keys
	resetModifiers  = "\x1b[>4m"         // xterm's modifyOtherKeys
	resetCursor     = "\x1b[0 q"         // shape of the cursor (DECSCUSR)
	resetPalette    = "\x1b]104\a"
	resetForeground = "\x1b]110\a"
	resetBackground = "\x1b]111\a"
	resetCursorTint = "\x1b]112\a"
)

// resets lists them in the order in which they are written.
func resets() []string {
	return []string{
		resetKeypad, resetInsert, resetLock, resetEcho, resetNewline, resetMargins, resetKeys, resetModifiers,
		resetCursor, resetPalette, resetForeground, resetBackground, resetCursorTint,
	}
}

// mode is a private mode of a terminal, and its normal value.
type mode struct {
	number int
	normal bool
}

// modes are the private modes that are restored, with xterm's numbers
// (https://invisible-island.net/xterm/ctlseqs/ctlseqs.html). Alternate screens
// come first, so that the other modes are restored on the normal screen.
func modes() []mode {
	return []mode{
		{1049, false}, {1047, false}, {47, false}, // alternate screens
		{1, false},                                                             // application cursor keys
		{5, false},                                                             // reverse video
		{6, false},                                                             // origin mode
		{7, true},                                                              // auto-wrap
		{25, true},                                                             // visible cursor
		{9, false}, {1000, false}, {1001, false}, {1002, false}, {1003, false}, // mouse reports
		{1005, false}, {1006, false}, {1015, false}, {1016, false}, // formats of mouse reports
		{1004, false}, // focus reports
		{2004, false}, // bracketed paste
		{2026, false}, // synchronized output
	}
}

func (s *screen) Write(data []byte) (int, error) {
	s.writes.Lock()
	defer s.writes.Unlock()
	s.mu.Lock()
	for _, b := range data {
		s.parse(b)
		s.track(b)
	}
	s.drawn = s.drawn || len(data) > 0
	s.mu.Unlock()
	n, err := s.w.Write(data)
	if err == nil {
		s.showWaiting()
	}
	return n, err
}

// parse takes the next byte of the control sequences, as terminals do: controls
// within a sequence do not end it, except CAN, SUB and ESC.
func (s *screen) parse(b byte) {
	c2 := s.c2
	s.c2 = b == 0xc2
	switch {
	case b == 0x1b:
		s.end()
		s.state = inEscape
		return
	case b == 0x18 || b == 0x1a:
		s.state = inText
		return
	case c2 && b == 0x9b:
		s.state, s.params = inSequence, s.params[:0]
		return
	case c2 && b == 0x9d:
		s.state, s.params = inString, s.params[:0]
		return
	}
	switch s.state {
	case inEscape:
		if b < 0x20 {
			return
		}
		s.state = inText
		switch b {
		case '[':
			s.state, s.params = inSequence, s.params[:0]
		case ']':
			s.state, s.params = inString, s.params[:0]
		case '=':
			s.use(resetKeypad)
		case '>', 'c':
			delete(s.used, resetKeypad)
		}
	case inSequence:
		switch {
		case b < 0x20:
		case b < 0x40:
			s.keep(b)
		default:
			s.state = inText
			s.sequence(b)
		}
	case inString:
		if b == '\a' || c2 && b == 0x9c {
			s.end()
			s.state = inText
			return
		}
		s.keep(b)
	}
}

func (s *screen) keep(b byte) {
	if len(s.params) < maxParams {
		s.params = append(s.params, b)
	}
}

// use records that a setting has to be reset.
func (s *screen) use(reset string) {
	if s.used == nil {
		s.used = map[string]bool{}
	}
	s.used[reset] = true
}

// sequence records what a control sequence sets, by its last byte.
func (s *screen) sequence(last byte) {
	params := string(s.params)
	switch last {
	case 'h', 'l':
		if len(params) == maxParams {
			// The rest is not known, so every mode may be set.
			for _, mode := range modes() {
				s.private(mode.number, !mode.normal)
			}
		}
		list, private := strings.CutPrefix(params, "?")
		for word := range strings.SplitSeq(list, ";") {
			number, err := strconv.Atoi(word)
			switch {
			case err != nil:
			case private:
				s.private(number, last == 'h')
			default:
				if reset, there := map[int]string{2: resetLock, 4: resetInsert, 12: resetEcho, 20: resetNewline}[number]; there {
					s.use(reset)
				}
			}
		}
	case 'r':
		s.use(resetMargins)
	case 'u':
		if strings.HasPrefix(params, ">") || strings.HasPrefix(params, "=") {
			s.use(resetKeys)
		}
	case 'm':
		if strings.HasPrefix(params, ">") {
			s.use(resetModifiers)
		}
	case 'q':
		if strings.HasSuffix(params, " ") {
			s.use(resetCursor)
		}
	}
}

func (s *screen) private(number int, on bool) {
	if s.on == nil {
		s.on = map[int]bool{}
	}
	if slices.ContainsFunc(modes(), func(m mode) bool { return m.number == number }) {
		s.on[number] = on
	}
}

// end records what the string that ends here sets.
func (s *screen) end() {
	if s.state != inString {
		return
	}
	command, _, _ := strings.Cut(string(s.params), ";")
	switch number, _ := strconv.Atoi(command); number {
	case 4, 5:
		s.use(resetPalette)
	case 10, 11, 12, 13, 14, 15, 16, 17, 18, 19:
		// One command can name several colours in a row.
		s.use(resetForeground)
		s.use(resetBackground)
		s.use(resetCursorTint)
	}
}

// restore resets what programs left set, and reports whether they wrote
// anything.
func (s *screen) restore() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.drawn {
		return false
	}
	s.end()
	var out strings.Builder
	// Cancel an unfinished sequence, then reset colours and character sets.
	out.WriteString("\x18\x1b[0m\x1b(B\x0f")
	for _, mode := range modes() {
		if on, seen := s.on[mode.number]; seen && on != mode.normal {
			letter := 'l'
			if mode.normal {
				letter = 'h'
			}
			fmt.Fprintf(&out, "\x1b[?%d%c", mode.number, letter)
		}
	}
	for _, reset := range resets() {
		if s.used[reset] {
			out.WriteString(reset)
		}
	}
	clear(s.on)
	clear(s.used)
	s.drawn, s.c2, s.state = false, false, inText
	_, _ = io.WriteString(s.w, out.String())
	return true
}
