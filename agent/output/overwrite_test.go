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
		{"erased", []string{"abcdef\r\x1b[Kxy\n"}, "\x1b[Kxy\n"},
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

// What comes in pieces stays the same however it is cut, no more comes out than
// went in, and without a carriage return nothing changes.
func FuzzOverwriter(f *testing.F) {
	f.Add([]byte("abc\rx\r\n\ny"), uint8(1))
	f.Add([]byte("ä\r\x1b[Kö\n\r\r\n"), uint8(2))
	f.Add(bytes.Repeat([]byte("x"), maxLine+10), uint8(3))
	f.Fuzz(func(t *testing.T, text []byte, size uint8) {
		whole := overwritten(string(text))
		if !bytes.Contains(text, []byte("\r")) && whole != string(text) {
			t.Errorf("%q became %q", text, whole)
		}
		if len(whole) > len(text) {
			t.Errorf("%q became the longer %q", text, whole)
		}
		var o overwriter
		var out bytes.Buffer
		emit := func(p []byte) { out.Write(p) }
		for rest := text; len(rest) > 0; {
			n := min(len(rest), int(size)+1)
			o.add(rest[:n], emit)
			rest = rest[n:]
			if len(o.line) > maxLine+256 {
				t.Fatalf("%d bytes are held", len(o.line))
			}
		}
		o.flush(emit)
		// A character that is cut in two counts as several where it is written
		// over, and a long line is noticed sooner or later.
		if ascii(text) && len(text) <= maxLine && out.String() != whole {
			t.Errorf("in pieces of %d: %q, whole: %q", int(size)+1, out.String(), whole)
		}
	})
}

func ascii(text []byte) bool {
	for _, b := range text {
		if b >= 0x80 || b == 0x1b {
			return false
		}
	}
	return true
}
