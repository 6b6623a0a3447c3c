package rpc

import (
	"bytes"
	"errors"
)

// Bounds of a message beside its length. Each value takes up to valueBytes while it is
// decoded: a map of one entry takes 170 bytes, and mcp-go decodes most messages four
// times more.
const (
	maxValues  = 10_000
	maxDepth   = 100
	valueBytes = 900
)

// errNested reports a message of more values, or of values in more others, than any
// client of MCP has reason to send.
var errNested = errors.New("the message has more than 10000 values, or lists and objects 100 deep: send less at a time")

// Cost returns an upper bound for the memory of a message's values when it is decoded, in bytes,
// without the text of its strings. It reads the message and decodes nothing. The error says that
// [Decode] refuses it.
func Cost(text []byte) (int64, error) {
	values, depth := 0, 0
	for at := 0; at < len(text); at++ {
		switch text[at] {
		case '"':
			at += stringEnd(text[at+1:])
		case '{', '[':
			values++
			depth++
		case '}', ']':
			depth--
		case ',', ':':
			values++
		}
		if values > maxValues || depth > maxDepth {
			return 0, errNested
		}
	}
	return int64(values * valueBytes), nil
}

// stringEnd returns how many bytes there are up to and with the quote that ends a string.
func stringEnd(text []byte) int {
	for at := 0; ; at++ {
		next := bytes.IndexAny(text[at:], `"\`)
		if next < 0 {
			return len(text)
		}
		if at += next; text[at] == '"' {
			return at + 1
		}
		if at++; at >= len(text) {
			return len(text)
		}
	}
}
