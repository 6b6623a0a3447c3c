package bounded

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
)

// JSON decodes one JSON value into v. A field that v lacks is an error, and so is anything
// after the value. The error is io.EOF if text has no value.
func JSON(text []byte, v any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(v); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the JSON object")
	}
	return nil
}
