package device

import (
	"bytes"
	"debug/elf"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The names of this machine's libraries are those that debug/elf finds.
func TestSoname_AgreesWithDebugElf(t *testing.T) {
	var paths []string
	for _, pattern := range []string{"/lib/*-linux-gnu/lib*.so.*", "/nix/store/*/lib/lib*.so.*"} {
		found, _ := filepath.Glob(pattern)
		paths = append(paths, found[:min(len(found), 100)]...)
	}
	compared := 0
	for _, path := range paths {
		file, err := elf.Open(path)
		if err != nil {
			continue
		}
		want, err := file.DynString(elf.DT_SONAME)
		file.Close()
		if err != nil || len(want) != 1 {
			continue
		}
		compared++
		if got := sonameOf(path); got != want[0] {
			t.Errorf("%s: %q, want %q", path, got, want[0])
		}
	}
	if compared == 0 {
		t.Skip("this machine has no libraries in the usual folders")
	}
}

func FuzzSoname(f *testing.F) {
	paths, _ := filepath.Glob("/lib/*-linux-gnu/libm.so.*")
	for _, path := range paths {
		if text, err := os.ReadFile(path); err == nil {
			f.Add(text[:min(len(text), 1<<16)])
		}
	}
	f.Add([]byte(elf.ELFMAG))
	f.Fuzz(func(t *testing.T, text []byte) {
		if name := readSoname(bytes.NewReader(text)); strings.ContainsAny(name, "/\n\x00") || len(name) > maxSoname {
			t.Errorf("%q is no name of a library", name)
		}
	})
}
