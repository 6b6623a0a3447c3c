package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// screen is a terminal that programs draw on. It remembers which of a
// terminal's modes they switched on, for a program that was killed has
// switched none off.
type screen struct {
	w io.Writer

	mu    sync.Mutex
	state int
	// params is the beginning of a sequence, without ESC [.
	params []byte
	on     map[int]bool // private modes, by their number: on or off
	keypad bool
	drawn  bool
}

// States of a screen.
const (
	inText = iota
	inEscape
	inSequence
)

// mode is a private mode of a terminal, and how it is at rest.
type mode struct {
	number int
	rest   bool
}

// modes are those that are put back, as xterm numbers them. Other screens are
// left first.
func modes() []mode {
	return []mode{
		{1049, false}, {1047, false}, {47, false}, // other screens
		{1, false},                                                             // keys of applications
		{5, false},                                                             // reverse video
		{6, false},                                                             // lines count from a region's first
		{7, true},                                                              // lines wrap
		{25, true},                                                             // the cursor is seen
		{9, false}, {1000, false}, {1001, false}, {1002, false}, {1003, false}, // the mouse is told
		{1005, false}, {1006, false}, {1015, false}, {1016, false}, // how it is told
		{1004, false}, // focus is told
		{2004, false}, // what is pasted is marked
		{2026, false}, // changes are shown together
	}
}

func (s *screen) Write(data []byte) (int, error) {
	s.mu.Lock()
	for _, b := range data {
		s.see(b)
	}
	s.drawn = s.drawn || len(data) > 0
	s.mu.Unlock()
	return s.w.Write(data)
}

// see follows the sequences among the bytes.
func (s *screen) see(b byte) {
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

// set notes modes that were switched.
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

// leave puts back what programs changed.
func (s *screen) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.drawn {
		return
	}
	var out strings.Builder
	// Ends a sequence that was cut, then the colours and the line drawing.
	out.WriteString("\x18\x1b[0m\x1b(B\x0f")
	for _, mode := range modes() {
		if on, seen := s.on[mode.number]; seen && on != mode.rest {
			letter := 'l'
			if mode.rest {
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
