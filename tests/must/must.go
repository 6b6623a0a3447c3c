// Package must ends a test whose preparations fail: what a test is not about has
// to work.
package must

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// Do ends the test where err is an error.
func Do(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Get returns a function that returns value, and ends the test where err is an
// error:
//
//	text := must.Get(os.ReadFile(path))(t)
func Get[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		Do(t, err)
		return value
	}
}

// Write writes a file, and the folders that lead to it. A program can be started at
// once: no child that is forked meanwhile has the file open for writing, with which
// the kernel would refuse the program (ETXTBSY).
func Write(t testing.TB, path, text string, mode os.FileMode) {
	t.Helper()
	Do(t, os.MkdirAll(filepath.Dir(path), 0o755))
	syscall.ForkLock.RLock()
	err := os.WriteFile(path, []byte(text), mode)
	syscall.ForkLock.RUnlock()
	Do(t, err)
}
