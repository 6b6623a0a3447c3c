package output

import (
	"bytes"
	"slices"
	"unicode/utf8"
)

// maxLine is the length of the longest line, in bytes, for which carriage returns take
// effect. A longer one passes unchanged.
const maxLine = 4 << 10

// An overwriter applies carriage returns as a terminal does, so that a progress bar drawn
// 2,000 times becomes one line. It keeps the last line back until it ends.
//
// The zero value is ready for use.
type overwriter struct {
	line   []byte
	cursor int  // position of the next byte, if moved
	moved  bool // the line had a carriage return
	long   bool // the line is longer than maxLine and passes unchanged
}

// add takes a program's output and calls emit with the result. emit must not keep its
// argument.
func (o *overwriter) add(p []byte, emit func([]byte)) {
	for len(p) > 0 {
		if len(o.line) == 0 && !o.moved {
			// Whole lines without a carriage return pass in one piece.
			end := len(p)
			if cr := bytes.IndexByte(p, '\r'); cr >= 0 {
				end = cr
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
		case p[end] == '\n':
			// The carriage return of a line that ends in both is part of it.
			if o.moved && o.cursor == 0 {
				o.line = append(o.line, '\r')
			}
			o.line = append(o.line, '\n')
			o.flush(emit)
		case o.long:
			emit(p[end : end+1])
		default:
			o.cursor, o.moved = 0, true
		}
		p = p[end+1:]
	}
}

// put writes a part of a line at the cursor.
func (o *overwriter) put(part []byte, emit func([]byte)) {
	if len(part) == 0 {
		return
	}
	if o.long {
		emit(part)
		return
	}
	if !o.moved {
		o.line = append(o.line, part...)
	} else {
		end := o.cursor
		if bytes.IndexByte(part, 0x1b) >= 0 {
			// Sequences that erase or colour take no column, so it is not known
			// how much of the old text remains: drop it.
			end = len(o.line)
		}
		for range utf8.RuneCount(part) {
			if end == len(o.line) {
				break
			}
			_, size := utf8.DecodeRune(o.line[end:])
			end += size
		}
		o.line = slices.Replace(o.line, o.cursor, end, part...)
		o.cursor += len(part)
	}
	if len(o.line) > maxLine {
		o.flush(emit)
		o.long = true
	}
}

// flush emits the line that was kept back.
func (o *overwriter) flush(emit func([]byte)) {
	if len(o.line) > 0 {
		emit(o.line)
	}
	o.line, o.cursor, o.moved, o.long = o.line[:0], 0, false, false
}
