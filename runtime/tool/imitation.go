package tool

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/lazyregexp"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostile"
)

// maxMarks bounds the lines of a text that a word is put before, so that the
// answer stays near its bound. In further lines a bar replaces the first
// character that is seen.
const maxMarks = 32

// markImitations puts the name of a stream before each line of it that could
// be taken for the server's own, so that a client may show an answer as one
// text. Other output is returned as it is.
func markImitations(stream, text string) string {
	var marked strings.Builder
	written, marks := 0, 0 // bytes of text, and lines
	for at, next := 0, 0; at < len(text); at = next {
		next = nextLine(text, at)
		offset, found := imitation(text[at:next])
		if !found {
			continue
		}
		marked.WriteString(text[written : at+offset])
		if written = at + offset; marks < maxMarks {
			marked.WriteString(stream + ": ")
		} else {
			marked.WriteByte('|')
			_, size := utf8.DecodeRuneInString(text[written:])
			written += size
		}
		marks++
	}
	if marks == 0 {
		return text
	}
	return marked.String() + text[written:]
}

// nextLine returns the beginning of the next line after an offset. Lines end as in Unicode, because
// a model may read them so, and where a terminal goes to another place.
func nextLine(text string, at int) int {
	for ; at < len(text); at++ {
		switch c := text[at]; {
		case '\b' <= c && c <= '\r' && c != '\t':
			return at + 1
		case c == 0x1b || c == 0xc2:
			if moved := len(move.FindString(text[at:])); moved > 0 {
				return at + moved
			}
		case c == 0xe2 && (strings.HasPrefix(text[at:], "\u2028") || strings.HasPrefix(text[at:], "\u2029")):
			return at + len("\u2028")
		}
	}
	return at
}

// move matches sequences after which a terminal goes on in another line or column.
var move = lazyregexp.New(`^(?:\x1b[DEM]|[\x{84}\x{85}\x{8d}]|(?:\x1b\[|\x{9b})[ -?]{0,32}[ABE-Hdf` + "`" + `])`)

// sequence matches sequences that control a terminal and are not shown by it: control sequences,
// strings and other escape sequences of ECMA-48. A model reads their characters, so a line is
// compared with and without them.
var sequence = lazyregexp.New(`^(?:(?:\x1b\[|\x{9b})[ -?]*[@-~]|` +
	`(?:\x1b[PX\]^_]|[\x{90}\x{98}\x{9d}-\x{9f}])[^\a\x1b\x{9c}]{0,256}(?:\a|\x1b\\|\x{9c})|\x1b[ -/]*[0-~])`)

// maxSequences bounds the sequences at the beginning of a line that are skipped;
// a line with more is marked, whatever it is.
const maxSequences = 32

// imitation finds the beginning of words in a line that could be mistaken for the server's.
func imitation(line string) (offset int, found bool) {
	at := 0
	for range maxSequences {
		control := -1 // the last control character before at
		for at < len(line) {
			if c := line[at]; ' ' < c && c < 0x7f {
				break
			}
			r, size := utf8.DecodeRuneInString(line[at:])
			if !isBlank(r) {
				return 0, false
			}
			if unicode.IsControl(r) {
				control = at
			}
			at += size
		}
		if at == len(line) {
			return 0, false
		}
		if c := line[at]; (c == '[' || c == '-') && imitates(line[at:]) {
			return at, true
		}
		if control < 0 {
			return 0, false
		}
		end := control + len(sequence.FindString(line[control:]))
		if end <= at {
			return 0, false
		}
		at = end
	}
	return 0, true
}

// isBlank reports whether a character alone is invisible.
func isBlank(r rune) bool { return r == ' ' || hostile.Invisible(r) || unicode.Is(unicode.Mn, r) }

// longestOpening is how much of a line is compared with openings, in
// characters that are seen.
const longestOpening = 48

// imitates reports whether a line begins like a remark or the separator, to a reader who overlooks
// case and invisible characters.
func imitates(line string) bool {
	if beginsLikeOurs(line) {
		return true
	}
	line = bounded.Head(line, 8*longestOpening)
	if !strings.ContainsFunc(line, unicode.IsControl) {
		return false
	}
	var shown strings.Builder
	for line != "" {
		r, size := utf8.DecodeRuneInString(line)
		if unicode.IsControl(r) {
			size = max(size, len(sequence.FindString(line)))
		} else {
			shown.WriteRune(r)
		}
		line = line[size:]
	}
	return beginsLikeOurs(shown.String())
}

func beginsLikeOurs(line string) bool {
	var seen strings.Builder
	n := 0
	for _, r := range line {
		if isBlank(r) {
			continue
		}
		if n++; n > longestOpening {
			break
		}
		seen.WriteRune(unicode.ToLower(r))
	}
	beginning := seen.String()
	if dashes, found := strings.CutPrefix(beginning, "---"); found {
		return strings.HasPrefix(strings.TrimLeft(dashes, "-"), "stderr---")
	}
	words, found := strings.CutPrefix(beginning, "[")
	if !found {
		return false
	}
	amount := strings.TrimLeft(words, "0123456789.")
	for _, opening := range bareOpenings {
		if strings.HasPrefix(words, opening) || words != amount && strings.HasPrefix(amount, opening) {
			return true
		}
	}
	return false
}

// bareOpenings are the openings in the form for comparison: without spaces, and the one after an
// amount of bytes also with its unit.
var bareOpenings = func() (bare []string) {
	for _, words := range openings {
		bare = append(bare, strings.ReplaceAll(words, " ", ""))
	}
	for _, unit := range []string{"bytes", "kb", "mb", "gb"} {
		bare = append(bare, unit+strings.ReplaceAll(openings[outputCut], " ", ""))
	}
	return bare
}()
