package frame

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Long is the size, in bytes, of the shortest text that is decoded separately from the JSON
// around it.
const Long = 16 << 10

// standIn replaces a long text for encoding/json.
const standIn = "\x00long\x00"

// unmarshal is json.Unmarshal for messages with one long text. json.Unmarshal scans its
// input twice and slowly, unmarshal scans the text once.
func unmarshal(payload []byte, v any) error {
	message, ok := v.(interface{ long() (string, *string) })
	if !ok || len(payload) < Long {
		return json.Unmarshal(payload, v)
	}
	name, field := message.long()
	rest, text, ok := Lift(payload, name, standIn)
	if !ok {
		return json.Unmarshal(payload, v)
	}
	if err := json.Unmarshal(rest, v); err != nil {
		return err
	}
	if *field != standIn { // the text is the value of another key
		return json.Unmarshal(payload, v)
	}
	*field = text
	return nil
}

// Lift replaces the first string value of a key in JSON by another string if it is long,
// and returns the JSON, otherwise unchanged and not validated, and the original string. ok
// is false if there is no such string, or encoding/json would decode it differently.
func Lift(message []byte, key, instead string) (rest []byte, text string, ok bool) {
	// Inside a string the quotes would be escaped, so this is a whole string.
	quoted := []byte(strconv.Quote(key))
	at := bytes.Index(message, quoted)
	if at < 0 {
		return nil, "", false
	}
	after := bytes.TrimLeft(message[at+len(quoted):], " \t\r\n")
	if len(after) == 0 || after[0] != ':' {
		return nil, "", false
	}
	after = bytes.TrimLeft(after[1:], " \t\r\n")
	if len(after) < Long || after[0] != '"' {
		return nil, "", false
	}
	text, size, ok := unquote(after[1:])
	if !ok || size < Long {
		return nil, "", false
	}
	other, err := json.Marshal(instead)
	if err != nil {
		return nil, "", false
	}
	begin := len(message) - len(after)
	rest = make([]byte, 0, len(message)-size+len(other))
	rest = append(append(append(rest, message[:begin]...), other...), after[1+size:]...)
	return rest, text, true
}

// unquote decodes a string up to its closing quote. size is its length in bytes, including
// that quote.
func unquote(raw []byte) (text string, size int, ok bool) {
	var out strings.Builder
	out.Grow(len(raw))
	from := 0
	for i := 0; i < len(raw); {
		switch c := raw[i]; {
		case c == '"':
			out.Write(raw[from:i])
			text = out.String()
			return text, i + 1, utf8.ValidString(text)
		case c < ' ':
			return "", 0, false
		case c != '\\':
			i++
		default:
			out.Write(raw[from:i])
			r, n := escape(raw[i:])
			if n == 0 {
				return "", 0, false
			}
			out.WriteRune(r)
			i += n
			from = i
		}
	}
	return "", 0, false
}

// escape decodes an escape sequence and returns its length, or 0 if it is not one.
func escape(raw []byte) (rune, int) {
	if len(raw) < 2 {
		return 0, 0
	}
	switch raw[1] {
	case '"', '\\', '/':
		return rune(raw[1]), 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	}
	r, ok := unit(raw)
	if !ok {
		return 0, 0
	}
	if !utf16.IsSurrogate(r) {
		return r, 6
	}
	if second, ok := unit(raw[6:]); ok {
		if pair := utf16.DecodeRune(r, second); pair != utf8.RuneError {
			return pair, 12
		}
	}
	return utf8.RuneError, 6
}

// unit decodes \uXXXX.
func unit(raw []byte) (rune, bool) {
	if len(raw) < 6 || raw[0] != '\\' || raw[1] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(raw[2:6]), 16, 16)
	return rune(n), err == nil
}
