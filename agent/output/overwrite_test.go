package output

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// overwritten is what stays of pieces that a program wrote one after the other.
func overwritten(pieces ...string) string {
	var o overwriter
	var out bytes.Buffer
	emit := func(p []byte) { out.Write(p) }
	for _, piece := range pieces {
		o.add([]byte(piece), emit)
	}
	o.flush(emit)
	return out.String()
}

func TestOverwriter_CarriageReturns(t *testing.T) {
	bar := []string{"start\n"}
	for i := range 2000 {
		bar = append(bar, fmt.Sprintf("\r%3d%%|%s|", i/20, strings.Repeat("█", i/100)))
	}
	for _, test := range []struct {
		name   string
		pieces []string
		want   string
	}{
		{"none", []string{"a\nb"}, "a\nb"},
		{"a line written over", []string{"abc\rxyz\n"}, "xyz\n"},
		{"a shorter one leaves the end", []string{"abc\rx\n"}, "xbc\n"},
		{"in pieces", []string{"ab", "c", "\r", "x", "y", "\n", "next"}, "xyc\nnext"},
		{"at the end of a line", []string{"a\r\nb\r", "\n"}, "a\r\nb\r\n"},
		{"after the last text", []string{"abc\r"}, "abc"},
		{"characters of several bytes", []string{"äöü\rxy\n"}, "xyü\n"},
		{"over characters of several bytes", []string{"abc\räö\n"}, "äöc\n"},
		{"erased", []string{"abcdef\r\x1b[Kxy\n"}, "xy\n"},
		{"erased before", []string{"a long line here\x1b[2K\rshort\n"}, "short\n"},
		{"erased to the cursor", []string{"abcdef\rabc\x1b[1K\n"}, "    ef\n"},
		{"erased by a sequence in pieces", []string{"abcdef\r\x1b", "[", "K", "xy\n"}, "xy\n"},
		{"a colour", []string{"\x1b[32mgreen text\x1b[0m\rxyz\n"}, "xyzen text\n"},
		{"a colour of a line that stays", []string{"\x1b[32mgreen\x1b[0m\r\n"}, "\x1b[32mgreen\x1b[0m\r\n"},
		{"to the first column", []string{"Working on it\x1b[2K\x1b[1GOK", "\n"}, "OK\n"},
		{"to the first column, and no more", []string{"Working on it\x1b[1GOK\n"}, "OKrking on it\n"},
		{"to a column further on", []string{"a\r\x1b[5Gb\n"}, "a   b\n"},
		{"to one much further on", []string{"a\r\x1b[1000Gb\n"}, "a\x1b[1000Gb\n"},
		{"to and fro", []string{"abcdef\r\x1b[2Cx\x1b[2Dy\n"}, "ayxdef\n"},
		{"backspaces", []string{"safe\rrm -rf\b\b\b\b\b\bls\n"}, "rm -rf\b\b\b\b\b\bls\n"},
		{"a tab", []string{"abcdefghij\rx\ty\n"}, "xbcdefghyj\n"},
		{"a hidden cursor", []string{"abc\r\x1b[?25lx\x1b[?25h\n"}, "xbc\n"},
		{"wide characters", []string{"漢字ab\rxy\n"}, "xy字ab\n"},
		{"half of a wide character", []string{"漢字ab\rx\n"}, "x 字ab\n"},
		{"over wide characters", []string{"abcdef\r漢\n"}, "漢cdef\n"},
		{"combining characters", []string{"e\u0301a\rxb\n"}, "xb\n"},
		{"a combining character that stays", []string{"ae\u0301\rx\n"}, "xe\u0301\n"},
		{"a character in pieces", []string{"abc\r\xc3", "\xa4\n"}, "äbc\n"},
		{"a title", []string{"abc\r\x1b]0;title\x07x\n"}, "abc\r\x1b]0;title\x07x\n"},
		{"a sequence of unknown effect", []string{"abc\rx\x1b[3Ay\n", "a\rb\n"}, "xbc\r\x1b[3Ay\nb\n"},
		{"bytes that are no text", []string{"\xff\xfe\x00\n\xff"}, "\xff\xfe\x00\n\xff"},
		{"progress", bar, "start\n 99%|" + strings.Repeat("█", 19) + "|"},
		{"longer than a line that is held", []string{strings.Repeat("x", maxLine), "yz\rab\ncd\ref"}, strings.Repeat("x", maxLine) + "yz\rab\nef"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := overwritten(test.pieces...); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// What comes in pieces stays the same however it is cut. Nothing grows but by columns that are left
// empty, and what moves nowhere does not change.
func FuzzOverwriter(f *testing.F) {
	f.Add([]byte("abc\rx\r\n\ny"), uint8(1))
	f.Add([]byte("ä\r\x1b[Kö\n\r\r\n"), uint8(2))
	f.Add([]byte("漢字\r\x1b[3Gx\b\x1b[1K\xcc\x81\t\x1b[2K."), uint8(3))
	f.Add(bytes.Repeat([]byte("x"), maxLine+10), uint8(3))
	f.Fuzz(func(t *testing.T, text []byte, size uint8) {
		whole := overwritten(string(text))
		if !bytes.ContainsAny(text, "\rG") && whole != string(text) {
			t.Errorf("%q became %q", text, whole)
		}
		if len(whole) > len(text)+(maxGap+1)*bytes.Count(text, []byte("\x1b"))+8*bytes.Count(text, []byte("\t")) {
			t.Errorf("%q became the longer %q", text, whole)
		}
		var o overwriter
		var out bytes.Buffer
		emit := func(p []byte) { out.Write(p) }
		for rest := text; len(rest) > 0; {
			n := min(len(rest), int(size)+1)
			o.add(rest[:n], emit)
			rest = rest[n:]
			if held := len(o.line) + o.bytes + len(o.rest); held > maxLine+256+maxGap || len(o.cells) > 2*maxLine {
				t.Fatalf("%d bytes are held, in %d cells", held, len(o.cells))
			}
		}
		o.flush(emit)
		// A long line is noticed sooner or later.
		if len(text) <= maxLine && out.String() != whole {
			t.Errorf("in pieces of %d: %q, whole: %q", int(size)+1, out.String(), whole)
		}
	})
}
