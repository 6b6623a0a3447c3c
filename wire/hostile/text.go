// Package hostile makes text from outside fit to be shown: of code in a sandbox, of tool servers,
// of files and of programs that fail. Such text may imitate the server's own words, send commands
// to a terminal, hide what it says, or have no end.
//
//	who reads it                  function     what becomes of what it hides
//	a model, in an error          Message      a space; at most 1 KiB
//	a person, in a table or log   Line         a space; at most a given length
//	a model, in a remark          Escape       an escape of Go, so that nothing is lost
//	a user who decides            Escape       the same, on lines that begin with "> " (package ask)
//	a person's terminal           Terminal     ^[ or <U+202E>; colours and moves in the line pass
//
// Other packages have rules about the same characters that are not about showing them: files whose
// change must be named (policy), lines that imitate remarks (tool), words of an event (event), the
// value of a header (jail).
package hostile

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
)

// maxMessage is the length of a Message, in bytes.
const maxMessage = 1 << 10

// Message returns the beginning of a text, at most 1 KiB, as a [Line].
func Message(text string) string { return Line(text, maxMessage) }

// Line returns the first limit bytes of a text as one line of valid UTF-8. Single spaces stand for
// spaces and for characters that hide something, unless ordinary text has them, such as the joiners of emoji.
func Line(text string, limit int) string {
	return strings.Join(strings.FieldsFunc(strings.ToValidUTF8(bounded.Head(text, limit), " "), func(r rune) bool {
		return r == ' ' || Hides(r) && !written(r)
	}), " ")
}

// Escape returns a text with an escape of Go in place of each character that is [Invisible] or that
// also names, and of each byte that is not UTF-8. also may be nil.
func Escape(text string, also func(rune) bool) string {
	var escaped strings.Builder
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		shown := text[i : i+size]
		if i += size; Invisible(r) || r == utf8.RuneError && size == 1 || also != nil && also(r) {
			shown = strconv.QuoteToASCII(shown)
			shown = shown[1 : len(shown)-1]
		}
		escaped.WriteString(shown)
	}
	return escaped.String()
}
