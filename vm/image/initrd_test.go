package image

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// entries reads names and contents of an archive, as the kernel does.
func entries(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	found := map[string]string{}
	for len(archive) > 0 {
		var length, size int
		if _, err := fmt.Sscanf(string(archive[54:62])+" "+string(archive[94:102]), "%X %X", &size, &length); err != nil {
			t.Fatal(err)
		}
		round := func(n int) int { return (n + 3) &^ 3 }
		name := string(archive[110 : 110+length-1])
		start := round(110 + length)
		if name == "TRAILER!!!" {
			return found
		}
		found[name] = string(archive[start : start+size])
		archive = archive[round(start+size):]
	}
	t.Fatal("the archive has no end")
	return nil
}

func TestInitrd_IsWhatTheKernelReads(t *testing.T) {
	write := func() []byte {
		var b bytes.Buffer
		archive := NewInitrd(&b)
		archive.Modules("/modules", []Module{{"a.ko", []byte("12345")}, {"b.ko", nil}})
		archive.File("/init", 0o755, []byte(strings.Repeat("x", 4097)))
		must.Do(t, archive.Close())
		return b.Bytes()
	}
	first := write()
	if !bytes.Equal(first, write()) {
		t.Error("two archives of the same files differ")
	}
	found := entries(t, first)
	if found["modules/a.ko"] != "12345" || len(found["init"]) != 4097 || len(found) != 6 {
		t.Errorf("the archive has %d entries: %.200q", len(found), found)
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space") }

func TestInitrd_ReportsAFullDisk(t *testing.T) {
	archive := NewInitrd(full{})
	archive.File("/init", 0o755, make([]byte, 1<<20))
	if err := archive.Close(); err == nil {
		t.Error("no error")
	}
}
