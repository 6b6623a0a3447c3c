package main

import (
	"bytes"
	"fmt"
	"io"
	"unicode/utf8"
)

// maxSequence is the longest control sequence that is passed on, in bytes.
const maxSequence = 32

// visible is w for bytes that code wrote. Where w is a terminal, colours and
// moves within the line pass, and all that could ask the terminal to type,
// to change its settings or to overwrite what others wrote is shown instead,
// as ^[ and the like. Characters pass whole or not at all: the two streams of a
// program could write the halves of one that is a control.
func visible(w io.Writer) io.Writer {
	if !isTerminal(w) {
		return w
	}
	return &filter{w: w}
}

// filter is a writer that lets text and harmless sequences through.
type filter struct {
	w io.Writer
	// held is the beginning of a sequence or a character that is not known in
	// full.
	held []byte
}

func (f *filter) Write(data []byte) (int, error) {
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
func (f *filter) add(out *bytes.Buffer, b byte) {
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
		out.Write(f.held)
		f.held = f.held[:0]
	default:
		f.release(out, "^[")
	}
}

// character writes what is held once it is a whole character, or none.
func (f *filter) character(out *bytes.Buffer) {
	if !utf8.FullRune(f.held) {
		return
	}
	switch r, size := utf8.DecodeRune(f.held); {
	case r == utf8.RuneError && size == 1:
		f.release(out, string(utf8.RuneError))
	// These are controls too, such as the one for ESC [.
	case r < 0xa0:
		fmt.Fprintf(out, "<U+%04X>", r)
		f.held = f.held[:0]
	default:
		out.Write(f.held)
		f.held = f.held[:0]
	}
}

// parameter says whether a byte stands between ESC [ and the letter.
func parameter(b byte) bool { return b >= '0' && b <= '9' || b == ';' || b == ':' }

// release writes something for the first byte that was held.
func (f *filter) release(out *bytes.Buffer, instead string) {
	held := f.held
	f.held = nil
	out.WriteString(instead)
	// What followed may begin something new.
	for _, b := range held[1:] {
		f.add(out, b)
	}
}

// show writes a byte, or what stands for it.
func show(out *bytes.Buffer, b byte) {
	switch {
	case b == '\a', b == '\b', b == '\t', b == '\n', b == '\r', b >= ' ' && b != 0x7f:
		out.WriteByte(b)
	default:
		out.Write([]byte{'^', b ^ 0x40})
	}
}
