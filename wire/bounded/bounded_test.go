package bounded_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
)

func TestReadFile_RefusesMoreThanItsLimit(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	must.Do(t, os.WriteFile(name, []byte("12345"), 0o600))
	for _, limit := range []int64{5, 6, 1 << 40} {
		if got, err := bounded.ReadFile(name, limit); err != nil || string(got) != "12345" {
			t.Errorf("limit %d: %q, %v", limit, got, err)
		}
	}
	for _, limit := range []int64{0, 4} {
		got, err := bounded.ReadFile(name, limit)
		if !errors.Is(err, bounded.ErrTooLarge) || len(got) > 0 || !strings.Contains(err.Error(), name) {
			t.Errorf("limit %d: %q, error %v, want one that names the file", limit, got, err)
		}
	}
	// A file without an end.
	if _, err := bounded.ReadFile("/dev/zero", 1<<20); !errors.Is(err, bounded.ErrTooLarge) {
		t.Errorf("/dev/zero: error %v", err)
	}
}

func TestHead_KeepsCharactersWhole(t *testing.T) {
	for _, text := range []string{"", "abc", "aé€😀z", "€€", "\x80\x80\x80\x80\x80\x80", "a\xff\xfe"} {
		for limit := range len(text) + 2 {
			head := bounded.Head(text, limit)
			if !strings.HasPrefix(text, head) || len(head) > limit || len(head) < min(limit, len(text))-utf8.UTFMax {
				t.Errorf("%q, %d: head %q", text, limit, head)
			}
			if utf8.ValidString(text) && !utf8.ValidString(head) {
				t.Errorf("%q, %d: head %q cuts a character", text, limit, head)
			}
		}
	}
}
