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

	mu    sync.Mutex
	state int
	// params are the parameters of the sequence that is being read.
	params []byte
	on     map[int]bool // private modes that were set or reset, by number
	keypad bool         // the keypad sends application codes
	drawn  bool         // something was written
}

// States of the parser.
const (
	inText = iota
	inEscape
	inSequence
)

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
	s.mu.Lock()
	for _, b := range data {
		s.parse(b)
	}
	s.drawn = s.drawn || len(data) > 0
	s.mu.Unlock()
	return s.w.Write(data)
}

// parse takes the next byte of the control sequences.
func (s *screen) parse(b byte) {
	switch s.state {
	case inText:
		if b == 0x1b {
			s.state = inEscape
		}
	case inEscape:
		s.state = inText
		switch b {
		case '[':
			s.state, s.params = inSequence, s.params[:0]
		case 0x1b:
			s.state = inEscape
		case '=':
			s.keypad = true
		case '>', 'c':
			s.keypad = false
		}
	case inSequence:
		if b >= 0x20 && b < 0x40 && len(s.params) < maxSequence {
			s.params = append(s.params, b)
			return
		}
		s.state = inText
		if b == 'h' || b == 'l' {
			s.set(string(s.params), b == 'h')
		}
	}
}

// set records the modes of a "set mode" or "reset mode" sequence.
func (s *screen) set(params string, on bool) {
	list, private := strings.CutPrefix(params, "?")
	if !private {
		return
	}
	if s.on == nil {
		s.on = map[int]bool{}
	}
	for word := range strings.SplitSeq(list, ";") {
		number, err := strconv.Atoi(word)
		if err == nil && slices.ContainsFunc(modes(), func(m mode) bool { return m.number == number }) {
			s.on[number] = on
		}
	}
}

// restore resets the modes that programs left set.
func (s *screen) restore() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.drawn {
		return
	}
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
	if s.keypad {
		out.WriteString("\x1b>")
	}
	clear(s.on)
	s.keypad, s.drawn, s.state = false, false, inText
	_, _ = io.WriteString(s.w, out.String())
}
