package tool

import (
	"strings"
	"unicode/utf8"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

// minBinary is how many of its characters a binary stream has at least: fewer cost little context,
// and text in another encoding than UTF-8 can be guessed from them.
const minBinary = 64

// isBinary reports whether a stream is no text: more than an eighth of its characters are NUL or
// stand for bytes that are not UTF-8. A model cannot read them, and 32 KB of them fill its context.
func isBinary(stream sandbox.Text) bool {
	binary, all := 0, 0
	for _, text := range []string{stream.Head, stream.Tail} {
		binary += strings.Count(text, "\x00") + strings.Count(text, string(utf8.RuneError))
		all += utf8.RuneCountInString(text)
	}
	return binary >= minBinary && binary*8 > all
}

// readable returns the lines of a binary stream before the first one that is not text.
func readable(stream sandbox.Text) string {
	text := stream.Head
	if i := strings.IndexAny(text, "\x00"+string(utf8.RuneError)); i >= 0 {
		text = text[:i]
	}
	return text[:strings.LastIndexByte(text, '\n')+1]
}
