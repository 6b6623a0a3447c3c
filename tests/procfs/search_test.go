package procfs_test

import (
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
)

// A search finds each form of its text at every position, also across the bounds of what
// it reads at a time, and nothing else.
func TestSearch_FindsEveryForm(t *testing.T) {
	const text = "a secret?>~ of a test"
	reversed := []byte(text)
	slices.Reverse(reversed)
	for name, encode := range map[string]func(string) string{
		"plain":             func(s string) string { return s },
		"reversed":          func(s string) string { return string(reversed) },
		"hexadecimal":       func(s string) string { return hex.EncodeToString([]byte(s)) },
		"upper hexadecimal": func(s string) string { return strings.ToUpper(hex.EncodeToString([]byte(s))) },
		"base64":            func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) },
		"base64 for URLs":   func(s string) string { return base64.URLEncoding.EncodeToString([]byte(s)) },
	} {
		for before := range 5 {
			for _, padding := range []int{0, 1<<20 - 10, 1<<20 + 10, 3 << 20} {
				s := procfs.NewSearch(text)
				encoded := encode(strings.Repeat("x", before) + text + "yyyy")
				s.Bytes("here", []byte(strings.Repeat("-", padding)+encoded))
				if !slices.ContainsFunc(s.Found, func(found string) bool { return strings.HasPrefix(found, "here: "+name) }) {
					t.Errorf("%s after %d and %d bytes: found %q", name, before, padding, s.Found)
				}
			}
		}
	}
	s := procfs.NewSearch(text)
	s.Bytes("here", []byte(text[1:]+text[:len(text)-1]))
	if s.Found != nil {
		t.Errorf("found %q in what lacks it", s.Found)
	}
}
