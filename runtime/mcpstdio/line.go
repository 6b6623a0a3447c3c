package mcpstdio

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"

	"github.com/tidwall/gjson"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/guard"
)

// prefixBytes is how much of an overlong line is stored, to find its id.
const prefixBytes = 4 << 10

// line is one line of input without the space around it.
type line struct {
	text []byte
	long bool // text is the beginning of a line longer than allowed
	err  error
}

// read sends the lines of in and closes the channel when in ends. It also returns
// when ctx ends, but not from a read that blocks: that read lasts as long as the
// process.
func read(ctx context.Context, in io.Reader, longest int, lines chan<- line) {
	defer close(lines)
	defer guard.Recover(nil)
	reader := bufio.NewReaderSize(in, 64<<10)
	for {
		l, err := next(reader, longest)
		if err != nil && !errors.Is(err, io.EOF) {
			l.err = err
		}
		if len(l.text) > 0 || l.err != nil {
			select {
			case lines <- l:
			case <-ctx.Done():
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// next reads one line. Bytes beyond longest are skipped.
func next(reader *bufio.Reader, longest int) (line, error) {
	var l line
	for {
		part, err := reader.ReadSlice('\n')
		if !l.long {
			// append would grow a long text by a quarter at a time.
			if len(l.text)+len(part) > cap(l.text) {
				l.text = slices.Grow(l.text, max(len(l.text), len(part)))
			}
			l.text = append(l.text, part...)
			if len(l.text) > longest {
				l.long = true
				l.text = bytes.Clone(l.text[:min(prefixBytes, longest)])
			}
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		l.text = bytes.TrimSpace(l.text)
		return l, err
	}
}

// prefixID returns the id in the beginning of a request, or nil.
func prefixID(prefix []byte) json.RawMessage {
	// gjson reads JSON that is cut off.
	id := gjson.GetBytes(prefix, "id")
	if id.Type != gjson.Number && id.Type != gjson.String || !json.Valid([]byte(id.Raw)) {
		return nil
	}
	return json.RawMessage(id.Raw)
}
