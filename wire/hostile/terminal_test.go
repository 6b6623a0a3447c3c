package hostile

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
)

// Text, colours and moves within the line pass, however the text is divided into
// writes. Everything else is made visible.
func TestFilter_PassesText(t *testing.T) {
	for in, want := range map[string]string{
		"text\tand\r\nlines\b\a":                     "text\tand\r\nlines\b\a",
		"\x1b[1;31mred\x1b[0m":                       "\x1b[1;31mred\x1b[0m",
		"\x1b[38:2::1:2:3mrgb\x1b[m":                 "\x1b[38:2::1:2:3mrgb\x1b[m",
		"\r\x1b[K50 %\x1b[3D":                        "\r\x1b[K50 %\x1b[3D",
		"\x1b[c":                                     "^[[c",
		"\x1b[6n\x1b[2J\x1b[1;1H":                    "^[[6n^[[2J^[[1;1H",
		"\x1b]52;c;aGk=\a":                           "^[]52;c;aGk=\a",
		"\x1bP$q q\x1b\\":                            "^[P$q q^[\\",
		"\x1b[?1049h\x1bc\x05\x7f":                   "^[[?1049h^[c^E^?",
		"é ü \u00a0":                                 "é ü \u00a0",
		"\xc2\x9b6n":                                 "<U+009B>6n",
		"\xc2x\xc2\x1b[c":                            "\ufffdx\ufffd^[[c",
		"\x9b6n\xc2\xc2\x9b\xe2\x82\xf0\x9f\x98\x80": "\ufffd6n\ufffd<U+009B>\ufffd\ufffd😀",
		"a\u202eb\u200bc\ufeff\U000e0041\u2028":      "a<U+202E>b<U+200B>c<U+FEFF><U+E0041><U+2028>",
		"می\u200cخواهم 👩\u200d💻 \u0601":              "می\u200cخواهم 👩\u200d💻 \u0601",
		"a\u3164b\u115fc\u034f\uffa0\U000e0100":      "a<U+3164>b<U+115F>c<U+034F><U+FFA0><U+E0100>",
		"❤\ufe0f ⠁\u2800⠂ \u3000":                    "❤\ufe0f ⠁\u2800⠂ \u3000",
		"\x1b\x1b[31mred":                            "^[\x1b[31mred",
		"\x1b[" + strings.Repeat("1", 40) + "m":      "^[[" + strings.Repeat("1", 40) + "m",
	} {
		for size := 1; size <= len(in); size++ {
			var out bytes.Buffer
			f := Terminal(&out, false)
			for rest := in; rest != ""; {
				n := min(size, len(rest))
				if wrote, err := f.Write([]byte(rest[:n])); wrote != n || err != nil {
					t.Fatal(wrote, err)
				}
				// Another stream may write to the terminal between two writes, and
				// must not complete a character that this stream began.
				if !utf8.Valid(out.Bytes()) {
					t.Errorf("%q in writes of %d leaves %q", in, size, &out)
				}
				rest = rest[n:]
			}
			if out.String() != want {
				t.Errorf("%q in writes of %d became %q, want %q", in, size, &out, want)
			}
		}
	}
}

// No input makes the filter write the start of any other sequence.
func FuzzFilter(f *testing.F) {
	f.Add([]byte("a\x1b[1mb\x1b\x1b[[c\xc2\x9b\xc2"), 3)
	f.Fuzz(func(t *testing.T, in []byte, size int) {
		var out bytes.Buffer
		w := Terminal(&out, false)
		size = max(1, size)
		for rest := in; len(rest) > 0; {
			n := min(size, len(rest))
			_, _ = w.Write(rest[:n])
			rest = rest[n:]
		}
		text := out.Bytes()
		for i, b := range text {
			if b == 0x1b {
				end := bytes.IndexFunc(text[i:], func(r rune) bool { return r >= '@' && r != '[' })
				if end < 0 || !strings.ContainsRune("mKCDG", rune(text[i+end])) {
					t.Errorf("%q became %q", in, text)
				}
			}
			if b == 0xc2 && i+1 < len(text) && text[i+1] >= 0x80 && text[i+1] < 0xa0 {
				t.Errorf("%q became %q", in, text)
			}
		}
		if !utf8.Valid(text) {
			t.Errorf("%q became %q", in, text)
		}
	})
}

// Colours and hidden text that code leaves set end with it.
func TestFilter_EndsColours(t *testing.T) {
	for in, want := range map[string]string{
		"text":                         "",
		"\x1b[8mhidden":                "\x1b[0m",
		"\x1b[31mred\x1b[0m":           "",
		"\x1b[31mred\x1b[m":            "",
		"\x1b[0m\x1b[30;40mblack\x1b[": "\x1b[0m",
		"\x1b[0;8mhidden":              "\x1b[0m",
	} {
		var out bytes.Buffer
		w := Terminal(&out, false)
		_, _ = w.Write([]byte(in))
		before := out.Len()
		w.Reset()
		w.Reset()
		if got := out.String()[before:]; got != want {
			t.Errorf("after %q it wrote %q, want %q", in, got, want)
		}
	}
}
