// Package bounded reads at most a given number of bytes. Files and streams with more are
// refused, and text is cut between two characters.
package bounded

import (
	"errors"
	"fmt"
	"io"
	"os"
	"unicode/utf8"
)

// ErrTooLarge reports a file or a stream that has more bytes than its limit.
var ErrTooLarge = errors.New("larger than its limit")

// Read reads a stream of at most limit bytes up to its end.
func Read(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("%w of %d bytes", ErrTooLarge, limit)
	}
	if err != nil {
		return nil, err
	}
	return data, nil
}

// ReadFile reads a file of at most limit bytes. Its error is an [os.PathError],
// which names the file.
func ReadFile(name string, limit int64) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := Read(file, limit)
	if errors.Is(err, ErrTooLarge) {
		err = &os.PathError{Op: "read", Path: name, Err: err}
	}
	return data, err
}

// Head returns at most limit bytes from the beginning of a text, without an incomplete
// character at its end.
func Head[T ~string | ~[]byte](text T, limit int) T {
	if len(text) <= limit {
		return text
	}
	end := limit
	for end > 0 && limit-end < utf8.UTFMax && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end]
}
