// Package script cleans up pasted code: from a web page, from a file of another system, or
// a file that names its own interpreter. It does not depend on the language.
package script

import (
	"path"
	"strings"
)

const fence = "```"

// Clean removes a byte order mark, carriage returns if every line ends with one, and the
// fence of a Markdown block around all of the code, or after it. Lines keep their numbers.
func Clean(code string) string {
	code = strings.TrimPrefix(code, "\ufeff")
	if n := strings.Count(code, "\r\n"); n > 0 && n == strings.Count(code, "\n") {
		code = strings.TrimSuffix(strings.ReplaceAll(code, "\r\n", "\n"), "\r")
	}
	if !strings.Contains(code, fence) {
		return code
	}
	text := strings.TrimSpace(code)
	before := code[:strings.Index(code, text)]
	opened := false
	if first, rest, found := strings.Cut(text, "\n"); found && isOpening(first) {
		opened, before, text = true, before+"\n", rest
	}
	body, last := "", text
	if i := strings.LastIndexByte(text, '\n'); i >= 0 {
		body, last = text[:i+1], text[i+1:]
	}
	// If the code does not begin with a fence, the last one may close another one inside.
	if strings.TrimSpace(last) == fence && (opened || !strings.Contains(body, fence)) {
		text = body
	} else if !opened {
		return code
	}
	return before + text
}

// isOpening reports whether a line opens a block: a fence, and perhaps a language.
func isOpening(line string) bool {
	name, found := strings.CutPrefix(strings.TrimSpace(line), fence)
	return found && !strings.ContainsAny(name, "` ;(")
}

// Interpreter returns the command line after #! in the first line of code, or nil if there
// is none. The program's folder is left out because it differs between systems.
func Interpreter(code string) []string {
	line, _, _ := strings.Cut(code, "\n")
	line, found := strings.CutPrefix(line, "#!")
	words := strings.Fields(line)
	if !found || len(words) == 0 {
		return nil
	}
	if path.Base(words[0]) == "env" {
		words = words[1:]
		if len(words) > 0 && words[0] == "-S" {
			words = words[1:]
		}
		if len(words) == 0 || strings.HasPrefix(words[0], "-") || strings.Contains(words[0], "=") {
			return nil
		}
	}
	words[0] = path.Base(words[0])
	return words
}
