package gate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Bounds of a value that a schema checks. Beyond a million digits, the numbers of math/big take
// minutes, and beyond an exponent of a million they are nil: no tool has reason to take them.
const (
	maxArgumentValues = 10_000
	maxResultValues   = 50_000
	maxSchemaValues   = 50_000
	maxNesting        = 64
	maxDigits         = 400
	maxExponent       = 400
)

var errNoJSON = errors.New("they are no JSON")

// decode reads a text of JSON as the schema library wants it: numbers keep their text. It stops
// at the first value beyond the bounds, and at a name that comes twice in one object, because
// programs disagree about which of the two counts. count is how many values there are.
func decode(text []byte, most int) (value any, count int, err error) {
	d := decoder{Decoder: json.NewDecoder(bytes.NewReader(text)), left: most, most: most}
	d.UseNumber()
	if value, err = d.value(0); err != nil {
		return nil, 0, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, 0, errNoJSON
	}
	return value, most - d.left, nil
}

type decoder struct {
	*json.Decoder
	left, most int // values
}

func (d *decoder) value(depth int) (any, error) {
	token, err := d.Token()
	if err != nil {
		return nil, errNoJSON
	}
	if d.left--; d.left < 0 {
		return nil, fmt.Errorf("they have more than %d values", d.most)
	}
	if depth == maxNesting {
		return nil, fmt.Errorf("their lists and objects are %d deep in others, or deeper", maxNesting)
	}
	switch token := token.(type) {
	case json.Number:
		if isExcessive(string(token)) {
			return nil, fmt.Errorf("the number %.40s has more than %d digits, or an exponent beyond %d", token, maxDigits, maxExponent)
		}
		return token, nil
	case json.Delim:
		if token == '[' {
			list := []any{}
			for d.More() {
				one, err := d.value(depth + 1)
				if err != nil {
					return nil, err
				}
				list = append(list, one)
			}
			return list, d.end()
		}
		object := map[string]any{}
		for d.More() {
			token, err := d.Token()
			name, isName := token.(string)
			if err != nil || !isName {
				return nil, errNoJSON
			}
			if _, twice := object[name]; twice {
				return nil, fmt.Errorf("the name %.80q comes twice in one object", name)
			}
			if object[name], err = d.value(depth + 1); err != nil {
				return nil, err
			}
		}
		return object, d.end()
	}
	return token, nil
}

func (d *decoder) end() error {
	if _, err := d.Token(); err != nil {
		return errNoJSON
	}
	return nil
}

// isExcessive reports whether a number of JSON is beyond the bounds.
func isExcessive(number string) bool {
	digits, exponent, _ := strings.Cut(strings.ToLower(number), "e")
	if len(digits) > maxDigits+len("-.") {
		return true
	}
	size := 0
	for _, c := range strings.TrimLeft(exponent, "+-") {
		if size = 10*size + int(c-'0'); size > maxExponent {
			return true
		}
	}
	return false
}

// encode writes a value with its names in order, and each character as itself if JSON allows it:
// the form in which a user reads it and a tool gets it.
func encode(value any) json.RawMessage {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(value) // was JSON
	return bytes.TrimSuffix(text.Bytes(), []byte("\n"))
}
