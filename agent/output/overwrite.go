package output

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/width"
)

const (
	// maxLine is the length of the longest line, in bytes and in columns, that is written over. A
	// longer one passes unchanged.
	maxLine = 4 << 10
	// maxGap is how many columns a program may leave empty with one sequence.
	maxGap = 256
	// maxSequence is the length of the longest escape sequence, in bytes.
	maxSequence = 32
)

// An overwriter does what a terminal does with a line that is written over, so that a progress bar
// drawn 2,000 times becomes one line: it obeys carriage returns, tabs and the control sequences of ECMA-48
// that move within a line or erase parts of it. Such a line loses its colours. All others pass unchanged,
// and so does the rest of one with a sequence whose effect is not known, or with a backspace, which
// hides words more often than it draws.
//
// It keeps the last line back until it ends. The zero value is ready for use.
type overwriter struct {
	line []byte // as it came, until something moves in it
	// cells are the columns of a line in which something moved: a character each, and nothing for
	// the second column of a wide one.
	cells    []string
	bytes    int // in cells
	column   int // of the next character
	rest     []byte
	moved    bool // the line is in cells, and the beginning of a character or sequence in rest
	returned bool // a carriage return came last
	long     bool // the line passes unchanged
}

// add takes a program's output and calls emit with the result. emit must not keep its
// argument.
func (o *overwriter) add(p []byte, emit func([]byte)) {
	for len(p) > 0 {
		if len(o.line) == 0 && !o.moved && !o.returned {
			// Whole lines in which nothing moves pass in one piece.
			end := len(p)
			if moves := bytes.IndexAny(p, "\r\x1b"); moves >= 0 {
				end = moves
			}
			if newline := bytes.LastIndexByte(p[:end], '\n'); newline >= 0 {
				emit(p[:newline+1])
				p = p[newline+1:]
				o.long = false
				continue
			}
		}
		end := bytes.IndexAny(p, "\r\n")
		if end < 0 {
			o.put(p, emit)
			return
		}
		o.put(p[:end], emit)
		switch {
		case o.long:
			emit(p[end : end+1])
			o.long = p[end] != '\n'
		case p[end] == '\r':
			o.returned = true
		default:
			o.render()
			// The carriage return of a line that ends in both is part of it.
			if o.returned {
				o.line = append(o.line, '\r')
			}
			o.line = append(o.line, '\n')
			o.flush(emit)
		}
		p = p[end+1:]
	}
}

// put takes a part of a line.
func (o *overwriter) put(part []byte, emit func([]byte)) {
	switch {
	case len(part) == 0:
		return
	case o.long:
		emit(part)
		return
	case o.returned && !o.moved:
		o.move(emit)
	}
	if o.returned && !o.long {
		o.returned, o.column = false, 0
		o.cut()
	}
	switch {
	case o.long:
		emit(part)
	case o.moved:
		o.draw(part, emit)
	default:
		o.line = append(o.line, part...)
		if bytes.IndexByte(part, 'G') >= 0 && movesTo(o.line) {
			o.move(emit)
		}
	}
	if !o.long && len(o.line)+o.bytes > maxLine {
		o.pass(nil, emit)
	}
}

// movesTo reports whether a line has a control sequence that moves to a column (CHA), with which some
// libraries return to the first one.
func movesTo(line []byte) bool {
	for {
		_, after, found := bytes.Cut(line, []byte("\x1b["))
		if !found {
			return false
		}
		if line = bytes.TrimLeft(after, "0123456789"); len(line) > 0 && line[0] == 'G' {
			return true
		}
	}
}

// move puts the line so far into cells.
func (o *overwriter) move(emit func([]byte)) {
	line := o.line
	o.line, o.moved = nil, true
	o.draw(line, emit)
}

// pass emits the line so far, and lets the rest of it pass unchanged, which begins with what could not
// be drawn.
func (o *overwriter) pass(undrawn []byte, emit func([]byte)) {
	back := o.moved && o.column < len(o.cells)
	o.cut()
	o.render()
	if back {
		o.line = append(o.line, '\r')
	}
	o.line = append(o.line, undrawn...)
	o.flush(emit)
	o.long = true
}

// cut gives up a character or sequence that did not end.
func (o *overwriter) cut() {
	rest := o.rest
	o.rest = nil
	if len(rest) > 0 && rest[0] != 0x1b {
		o.write(string(rest), 1)
	}
}

// draw writes characters and obeys sequences at the cursor.
func (o *overwriter) draw(part []byte, emit func([]byte)) {
	if len(o.rest) > 0 {
		part = append(o.rest, part...)
		o.rest = nil
	}
	for len(part) > 0 {
		size, known := 1, true
		switch b := part[0]; {
		case b == 0x1b:
			if size, known = sequence(part); size == 0 && known {
				o.rest = slices.Clone(part)
				return
			}
			known = known && o.obey(part[:size])
		case b == '\t':
			o.column = o.column/8*8 + 8
		case b < ' ' || b == 0x7f:
			known = false
		case !utf8.FullRune(part):
			o.rest = slices.Clone(part)
			return
		default:
			var r rune
			r, size = utf8.DecodeRune(part)
			o.write(string(part[:size]), columns(r))
		}
		if known {
			part = part[size:]
		}
		if !known || o.bytes > maxLine || o.column > maxLine {
			o.pass(part, emit)
			return
		}
	}
}

// columns is how many columns a character takes.
func columns(r rune) int {
	if unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf) {
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	default:
		return 1
	}
}

// sequence is the length of the control sequence (ECMA-48, 5.4) at the beginning of text: 0 if text is
// only the beginning of one. Others are not known.
func sequence(text []byte) (size int, known bool) {
	for i, b := range text {
		switch {
		case i == 0:
		case i == maxSequence, i == 1 && b != '[', b < ' ' || b > '~':
			return 0, false
		case i > 1 && b >= '@':
			return i + 1, true
		}
	}
	return 0, true
}

// obey does what a control sequence says, and reports whether that is known.
func (o *overwriter) obey(sequence []byte) bool {
	last := len(sequence) - 1
	if sequence[2] == '?' || sequence[last] == 'm' { // modes and colours
		return strings.IndexByte("hlm", sequence[last]) >= 0
	}
	n, err := strconv.ParseUint(string(sequence[2:last]), 10, 16)
	if last > 2 && err != nil {
		return false
	}
	by := max(int(n), 1)
	switch sequence[last] {
	case 'K':
		return o.erase(int(n))
	case 'G':
		o.column = by - 1
	case 'C':
		o.column += by
	case 'D':
		o.column = max(o.column-by, 0)
	default:
		return false
	}
	return o.column <= len(o.cells)+maxGap
}

// erase erases a part of the line: behind the cursor, before it, or all.
func (o *overwriter) erase(part int) bool {
	switch part {
	case 0:
		o.blank(min(o.column, len(o.cells)), len(o.cells))
		o.cells = o.cells[:min(o.column, len(o.cells))]
	case 1:
		o.blank(0, min(o.column+1, len(o.cells)))
	case 2:
		o.cells, o.bytes = o.cells[:0], 0
	default:
		return false
	}
	return true
}

// blank makes columns blank, and those of wide characters that begin or end in them.
func (o *overwriter) blank(from, to int) {
	for from > 0 && from < len(o.cells) && o.cells[from] == "" {
		from--
	}
	for to < len(o.cells) && o.cells[to] == "" {
		to++
	}
	for i := from; i < to; i++ {
		o.bytes += 1 - len(o.cells[i])
		o.cells[i] = " "
	}
}

// write writes a character at the cursor. One without a column joins the one before.
func (o *overwriter) write(character string, columns int) {
	for len(o.cells) < o.column+columns {
		o.cells = append(o.cells, " ")
		o.bytes++
	}
	if columns > 0 {
		o.blank(o.column, o.column+columns)
		o.bytes += len(character) - columns
		o.cells[o.column] = character
		for i := 1; i < columns; i++ {
			o.cells[o.column+i] = ""
		}
		o.column += columns
		return
	}
	at := o.column - 1
	for at > 0 && o.cells[at] == "" {
		at--
	}
	if at >= 0 {
		o.cells[at] += character
		o.bytes += len(character)
	}
}

// render makes a line of cells.
func (o *overwriter) render() {
	for _, cell := range o.cells {
		o.line = append(o.line, cell...)
	}
	o.line = append(o.line, o.rest...)
	o.cells, o.bytes, o.rest, o.moved = o.cells[:0], 0, nil, false
}

// flush emits the line that was kept back.
func (o *overwriter) flush(emit func([]byte)) {
	o.render()
	if len(o.line) > 0 {
		emit(o.line)
	}
	*o = overwriter{line: o.line[:0], cells: o.cells[:0]}
}
