package tool

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// remark is a sentence of the server's own about a call. The model reads it as
// a line in brackets, and every line in brackets that the server writes is
// made here. Output that imitates one is marked; see [markImitations].
type remark struct {
	// amount stands before the opening where that is about one, such as
	// "1.2 MB" or "3".
	amount  string
	opening opening
	// rest follows the opening. It may contain bytes of a sandbox.
	rest string
}

// opening is how a remark begins, and what output that imitates one is
// recognized by. A new kind of remark is a new opening.
type opening int

const (
	noOutput opening = iota
	cutHere
	newSession
	timedOut
	cancelled
	stopped
	crashed
	exitStatus
	stateLost
	sandboxEnded
	outputCut
	filesGone
	moreFiles
	hint
)

// openings are the words of each opening. None of them begins with an amount.
var openings = [...]string{
	noOutput:     "no output",
	cutHere:      "...",
	newSession:   "new session: ",
	timedOut:     "timed out after ",
	cancelled:    "cancelled",
	stopped:      "stopped",
	crashed:      "the interpreter died",
	exitStatus:   "exit status ",
	stateLost:    "the session's ",
	sandboxEnded: "the sandbox ended",
	outputCut:    "of output cut",
	filesGone:    "written and gone",
	moreFiles:    "more files in ",
	hint:         "hint: ",
}

// String returns the line, without its end.
func (r remark) String() string {
	text := openings[r.opening] + r.rest
	if r.amount != "" {
		text = r.amount + " " + text
	}
	return "[" + printable(text) + "]"
}

// printable escapes, as Go does, the characters of a text that are not
// printed: those that end a line, change its direction or its colour, or
// cannot be seen.
func printable(text string) string {
	if strings.IndexFunc(text, isHidden) < 0 {
		return text
	}
	var escaped strings.Builder
	for _, r := range text {
		if isHidden(r) {
			quoted := strconv.QuoteRuneToASCII(r)
			escaped.WriteString(quoted[1 : len(quoted)-1])
		} else {
			escaped.WriteRune(r)
		}
	}
	return escaped.String()
}

// isHidden reports whether a character is a control or format character,
// another space than U+0020, unassigned, or one that Unicode lets be ignored.
func isHidden(r rune) bool {
	return !strconv.IsPrint(r) || r >= utf8.RuneSelf && unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

// separator stands between stdout and stderr.
const separator = "--- stderr ---"

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
	for at := 0; at < len(text); at = nextLine(text, at) {
		at += blank(text[at:])
		if at == len(text) || text[at] != '[' && text[at] != '-' || !imitates(text[at:nextLine(text, at)]) {
			continue
		}
		marked.WriteString(text[written:at])
		if written = at; marks < maxMarks {
			marked.WriteString(stream + ": ")
		} else {
			marked.WriteByte('|')
			written++
		}
		marks++
	}
	if marks == 0 {
		return text
	}
	return marked.String() + text[written:]
}

// nextLine returns where the line after the one at an offset begins. Lines end
// as they do in Unicode, for a model may read them so.
func nextLine(text string, at int) int {
	for ; at < len(text); at++ {
		switch c := text[at]; {
		case '\n' <= c && c <= '\r':
			return at + 1
		case c == 0xc2 && strings.HasPrefix(text[at:], "\u0085"):
			return at + len("\u0085")
		case c == 0xe2 && (strings.HasPrefix(text[at:], "\u2028") || strings.HasPrefix(text[at:], "\u2029")):
			return at + len("\u2028")
		}
	}
	return at
}

// blank returns how many bytes at the beginning of a text show nothing: spaces,
// hidden characters, combining ones, and sequences that control a terminal.
func blank(text string) int {
	at := 0
	for at < len(text) {
		if c := text[at]; ' ' < c && c < 0x7f {
			break
		}
		r, size := utf8.DecodeRuneInString(text[at:])
		if r != ' ' && !isHidden(r) && !unicode.Is(unicode.Mn, r) {
			break
		}
		at += size
		if r == 0x9b || r == 0x1b && strings.HasPrefix(text[at:], "[") {
			at += controlSequence(text[at:])
		}
	}
	return at
}

// controlSequence returns the length of a control sequence after its
// introducer, of which the bracket is still there; see ECMA-48, 5.4.
func controlSequence(text string) int {
	at := len(text) - len(strings.TrimPrefix(text, "["))
	for at < len(text) && ' ' <= text[at] && text[at] <= '?' {
		at++
	}
	if at < len(text) && '@' <= text[at] && text[at] <= '~' {
		at++
	}
	return at
}

// longestOpening is how much of a line is compared with openings, in
// characters that are seen.
const longestOpening = 48

// imitates reports whether a line begins like a remark or the separator, to a
// reader who overlooks case and what is not seen.
func imitates(line string) bool {
	var seen strings.Builder
	for range longestOpening {
		line = line[blank(line):]
		if line == "" {
			break
		}
		r, size := utf8.DecodeRuneInString(line)
		seen.WriteRune(unicode.ToLower(r))
		line = line[size:]
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

// bareOpenings are the openings as [imitates] compares them: without spaces,
// and those that follow an amount also with its unit.
var bareOpenings = func() (bare []string) {
	for _, words := range openings {
		bare = append(bare, strings.ReplaceAll(words, " ", ""))
	}
	for _, unit := range []string{"bytes", "kb", "mb", "gb"} {
		bare = append(bare, unit+strings.ReplaceAll(openings[outputCut], " ", ""))
	}
	return bare
}()

// size words a number of bytes.
func size(bytes int64) string {
	switch {
	case bytes < 1000:
		return fmt.Sprintf("%d bytes", bytes)
	case bytes < 1000*1000:
		return fmt.Sprintf("%.1f KB", float64(bytes)/1000)
	case bytes < 1000*1000*1000:
		return fmt.Sprintf("%.1f MB", float64(bytes)/1000/1000)
	default:
		return fmt.Sprintf("%.1f GB", float64(bytes)/1000/1000/1000)
	}
}
