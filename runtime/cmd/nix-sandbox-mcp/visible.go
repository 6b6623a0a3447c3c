package main

import (
	"bytes"
	"fmt"
	"io"
)

// maxSequence is the longest control sequence that is passed on, in bytes.
const maxSequence = 32

// visible is w for bytes that code wrote. Where w is a terminal, colours and
// moves within the line pass, and all that could ask the terminal to type,
// to change its settings or to overwrite what others wrote is shown instead,
// as ^[ and the like.
func visible(w io.Writer) io.Writer {
	if !isTerminal(w) {
		return w
	}
	return &filter{w: w}
}

// filter is a writer that lets text and harmless sequences through.
type filter struct {
	w io.Writer
	// held is the beginning of a sequence that is not known in full.
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
	if len(f.held) == 0 {
		if b == 0x1b || b == 0xc2 {
			f.held = append(f.held, b)
			return
		}
		show(out, b)
		return
	}
	f.held = append(f.held, b)
	switch {
	case f.held[0] == 0xc2:
		// U+0080 to U+009F are controls too, such as the one for ESC [.
		if b < 0x80 || b >= 0xa0 {
			f.release(out, nil)
		} else {
			f.release(out, fmt.Appendf(nil, "<U+%04X>", b))
		}
	case len(f.held) == 2 && b == '[', len(f.held) > 2 && len(f.held) < maxSequence && parameter(b):
	case len(f.held) > 2 && bytes.IndexByte([]byte("mKCDG"), b) >= 0:
		out.Write(f.held)
		f.held = f.held[:0]
	default:
		f.release(out, nil)
	}
}

// parameter says whether a byte stands between ESC [ and the letter.
func parameter(b byte) bool { return b >= '0' && b <= '9' || b == ';' || b == ':' }

// release writes what was held in a harmless form.
func (f *filter) release(out *bytes.Buffer, instead []byte) {
	held := f.held
	f.held = nil
	if instead != nil {
		out.Write(instead)
		return
	}
	if held[0] == 0xc2 {
		out.WriteByte(held[0])
	} else {
		show(out, held[0])
	}
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
