package tool

import (
	"strings"
	"unicode/utf8"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

// minBinary is how many of its characters a binary stream has at least: fewer cost little context,
// and text in another encoding than UTF-8 can be guessed from them.
const minBinary = 64

// isBinary reports whether a stream is no text: at least a 32nd of its characters are NUL, as in
// programs and archives, or an eighth stand for bytes that are not UTF-8, more than the accents of a
// text in Latin-1. A model cannot read them, and 32 KB of them fill its context.
func isBinary(stream sandbox.Text) bool {
	nul, invalid, all := 0, 0, 0
	for _, text := range []string{stream.Head, stream.Tail} {
		nul += strings.Count(text, "\x00")
		invalid += strings.Count(text, string(utf8.RuneError))
		all += utf8.RuneCountInString(text)
	}
	return nul >= minBinary && nul*32 >= all || invalid >= minBinary && invalid*8 >= all
}

// readable returns the lines of a binary stream before the first one that is not text.
func readable(stream sandbox.Text) string {
	text := stream.Head
	if i := strings.IndexAny(text, "\x00"+string(utf8.RuneError)); i >= 0 {
		text = text[:i]
	}
	return text[:strings.LastIndexByte(text, '\n')+1]
}
