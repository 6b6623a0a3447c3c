package tool

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// Marks are all that changes: valid text stays valid, without them it is as it
// was, and no line is left that would be marked.
func FuzzMarkImitations(f *testing.F) {
	for _, seed := range []string{"a\n[hint: x]\r--- stderr ---", "\x1b[1m[\x1b[0mexit status 0]", strings.Repeat("[...\n", 40), strings.Repeat("\x1b[1m", 40) + "é"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.ToValidUTF8(text, "")
		marked := markImitations("stdout", text)
		if !utf8.ValidString(marked) {
			t.Fatalf("%q is %q, which is not UTF-8", text, marked)
		}
		if strings.Count(marked, "|") == strings.Count(text, "|") && strings.ReplaceAll(marked, "stdout: ", "") != strings.ReplaceAll(text, "stdout: ", "") {
			t.Fatalf("%q is %q", text, marked)
		}
		if again := markImitations("stdout", marked); again != marked {
			t.Fatalf("%q is %q, and that %q", text, marked, again)
		}
	})
}
