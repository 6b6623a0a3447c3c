package hostile

import (
	"bytes"
	"fmt"
	"io"
	"unicode/utf8"
)

// maxSequence is the length of the longest control sequence that passes, in bytes.
const maxSequence = 32

// Terminal returns a writer to a terminal for the output of code. Text, colours and moves within the
// line pass. Any other control sequence could make the terminal send input, change its settings or
// overwrite older output, so it is shown, as ^[ and the like. With all, invisible characters of
// ordinary text are shown too. Characters pass whole or not at all: otherwise the two streams of a
// program could each write one half of a control character.
func Terminal(w io.Writer, all bool) *Filter { return &Filter{w: w, showsAll: all} }

// Filter is a writer that passes text and harmless sequences.
type Filter struct {
	w io.Writer
	// showsAll has all invisible characters shown, also those of ordinary text.
	showsAll bool
	// held is an unfinished sequence or character.
	held []byte
	// coloured says that a colour was set and not reset.
	coloured bool
}

// Reset ends colours and hidden text that code left set, before others write.
func (f *Filter) Reset() {
	if f.coloured {
		f.held, f.coloured = nil, false
		_, _ = io.WriteString(f.w, "\x1b[0m")
	}
}

// Write implements [io.Writer].
func (f *Filter) Write(data []byte) (int, error) {
	var out bytes.Buffer
	for _, b := range data {
		f.add(&out, b)
	}
	if _, err := f.w.Write(out.Bytes()); err != nil {
		return 0, err
	}
	return len(data), nil
}

// add takes one byte.
func (f *Filter) add(out *bytes.Buffer, b byte) {
	if len(f.held) == 0 && b != 0x1b && b < utf8.RuneSelf {
		show(out, b)
		return
	}
	f.held = append(f.held, b)
	switch {
	case f.held[0] >= utf8.RuneSelf:
		f.character(out)
	case len(f.held) == 1:
	case len(f.held) == 2 && b == '[', len(f.held) > 2 && len(f.held) < maxSequence && parameter(b):
	case len(f.held) > 2 && bytes.IndexByte([]byte("mKCDG"), b) >= 0:
		if b == 'm' {
			f.coloured = string(f.held) != "\x1b[m" && string(f.held) != "\x1b[0m"
		}
		out.Write(f.held)
		f.held = f.held[:0]
	default:
		f.release(out, "^[")
	}
}

// character writes the held bytes when they are a whole character or can no
// longer become one.
func (f *Filter) character(out *bytes.Buffer) {
	if !utf8.FullRune(f.held) {
		return
	}
	switch r, size := utf8.DecodeRune(f.held); {
	case r == utf8.RuneError && size == 1:
		f.release(out, string(utf8.RuneError))
	// U+0080 to U+009F are control characters too: U+009B means ESC [. Format
	// characters are invisible, and some show text in another order.
	case Hides(r) && !written(r), f.showsAll && Invisible(r):
		fmt.Fprintf(out, "<U+%04X>", r)
		f.held = f.held[:0]
	default:
		out.Write(f.held)
		f.held = f.held[:0]
	}
}

// parameter reports whether a byte may be between ESC [ and the final letter.
func parameter(b byte) bool { return b >= '0' && b <= '9' || b == ';' || b == ':' }

// release writes a text instead of the first held byte, and takes the other bytes again.
func (f *Filter) release(out *bytes.Buffer, instead string) {
	held := f.held
	f.held = nil
	out.WriteString(instead)
	// They may begin a new sequence.
	for _, b := range held[1:] {
		f.add(out, b)
	}
}

// show writes a byte, or its visible form if it is a control.
func show(out *bytes.Buffer, b byte) {
	switch {
	case b == '\a', b == '\b', b == '\t', b == '\n', b == '\r', b >= ' ' && b != 0x7f:
		out.WriteByte(b)
	default:
		out.Write([]byte{'^', b ^ 0x40})
	}
}
