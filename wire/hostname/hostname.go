// Package hostname defines the one form in which host names are compared.
//
// A name comes from an operator, a DNS query, a TLS handshake or an HTTP request, and its author
// may hope that two programs read it differently. So this package refuses every name that it would
// have to repair, and the packages beside it compare only strings that it returned.
package hostname

import (
	"errors"
	"strings"
)

// MaxLength is the longest name, in bytes without the dot at its end, and
// maxLabel the longest part of one between two dots (RFC 1035, section 2.3.4).
const (
	MaxLength = 253
	maxLabel  = 63
)

// ErrMalformed is the error for every text that is not the name of a host.
var ErrMalformed = errors.New("it is not the name of a host: use labels of a-z, 0-9, - and _ with dots between them")

// Canonical returns the canonical form of a name: ASCII letters in lower case
// and no dot at the end. International names have to be written as their
// "xn--" form. Everything else is [ErrMalformed]: addresses, spaces, NUL bytes,
// empty labels, and a last label that begins with a digit, because such names
// (127.1, 0x7f.1) are addresses to the inet_aton of C libraries.
func Canonical(name string) (string, error) {
	name = strings.TrimSuffix(name, ".")
	if name == "" || len(name) > MaxLength {
		return "", ErrMalformed
	}
	upper := false
	label := 0 // where the current label begins
	for i := range len(name) {
		c := name[i]
		switch {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '_':
		case 'A' <= c && c <= 'Z':
			upper = true
		case c == '-' && i > label:
		case c == '.' && i > label && name[i-1] != '-':
			label = i + 1
			continue
		default:
			return "", ErrMalformed
		}
		if i-label >= maxLabel {
			return "", ErrMalformed
		}
	}
	if label == len(name) || name[len(name)-1] == '-' || '0' <= name[label] && name[label] <= '9' {
		return "", ErrMalformed
	}
	if upper {
		// Only ASCII is left here, so no other letter can become one of a-z.
		name = strings.ToLower(name)
	}
	return name, nil
}

// IsCanonical reports whether a text is a name in its canonical form.
func IsCanonical(name string) bool {
	canonical, err := Canonical(name)
	return err == nil && canonical == name
}
