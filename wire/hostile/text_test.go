package hostile

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestLine(t *testing.T) {
	for text, want := range map[string]string{
		"":                           "",
		" a  b\r\nc\t":               "a b c",
		"\x1b[31mred\x1b[0m":         "[31mred [0m",
		"a\u202eb\u2028c\u200b\x00d": "a b c d",
		"é 👩\u200d💻":                 "é 👩\u200d💻",
		"a\xffb":                     "a b",
	} {
		if got := Line(text, 1<<20); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got := Line("123456789é", 10); got != "123456789" {
		t.Errorf("a cut line: %q", got)
	}
	if got := Message(strings.Repeat("é", 1<<10)); len(got) != maxMessage {
		t.Errorf("a message has %d bytes", len(got))
	}
}

func TestEscape(t *testing.T) {
	for text, want := range map[string]string{
		"":                     "",
		"a b é \"":             "a b é \"",
		"a\nb\x1b\u202e\u00a0": `a\nb\x1b\u202e\u00a0`,
		"\xff\ufffd\U000e0041": `\xff` + "\ufffd" + `\U000e0041`,
		"x":                    `\u0078`,
	} {
		also := func(r rune) bool { return r == 'x' }
		if text == "x" {
			want = "x" // a character of ASCII is its own escape
		}
		if got := Escape(text, also); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got := Escape("\u05d0\ufffd", func(r rune) bool { return r == 0x5d0 || r == utf8.RuneError }); got != `\u05d0\ufffd` {
		t.Errorf("also: %q", got)
	}
}

// Whatever comes, a line is one line of valid UTF-8 that hides nothing, and an escaped text has no
// character that a reader does not see.
func FuzzText(f *testing.F) {
	f.Add("a\x1b[8m\u202e\xff\u200d\n b")
	f.Fuzz(func(t *testing.T, text string) {
		line := Line(text, 100)
		if len(line) > 100 || !utf8.ValidString(line) || strings.ContainsAny(line, "\n\r\x1b\u202e\u2028\x00\u009b") {
			t.Errorf("%q: %q", text, line)
		}
		if escaped := Escape(text, nil); !utf8.ValidString(escaped) || strings.ContainsFunc(escaped, Invisible) {
			t.Errorf("%q: %q", text, escaped)
		}
	})
}
