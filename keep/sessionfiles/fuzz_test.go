package sessionfiles

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/filetree"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/workspace"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/keep/lockedfolder"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// logOf writes a log whose saves have a part each, and returns its head.
func logOf(t testing.TB, file *os.File, parts ...[]byte) *Head {
	head := &Head{Version: headVersion, Key: key, Log: "1" + logSuffix}
	for _, part := range parts {
		w := &saveWriter{file: file, start: head.Length, limit: 1 << 30}
		must.Do(t, w.part(part))
		length, sum, err := w.end()
		must.Do(t, err)
		chain := chained(head.chain(), sum)
		head.Length, head.Raw, head.Chain = length, head.Raw+w.raw, hex.EncodeToString(chain[:])
	}
	return head
}

// recordsOf are logs that make sense, for a fuzzer to begin with.
func recordsOf(records ...filetree.Record) (part []byte) {
	for _, r := range records {
		part = filetree.Append(part, r)
	}
	return part
}

// Whatever the records of a log are, they are refused, or they are a tree: then its files
// are written beneath the workspace, and nothing is elsewhere.
func FuzzKeptRecords(f *testing.F) {
	file := filetree.Record{Kind: filetree.File, Path: "folder/file", Mode: 0o644, Size: 9}
	f.Add(recordsOf(filetree.Record{Kind: filetree.Folder, Path: "folder", Mode: 0o755}, file, filetree.Record{Kind: filetree.Data, Offset: 2, Data: []byte("data")}),
		recordsOf(filetree.Record{Kind: filetree.Link, Path: "second", Target: "folder/file"}, filetree.Record{Kind: filetree.Symlink, Path: "link", Target: "../secret"}))
	f.Add(recordsOf(filetree.Record{Kind: filetree.Symlink, Path: "folder", Target: ".."}, file), recordsOf(filetree.Record{Kind: filetree.Gone, Path: "folder"}))
	f.Add(recordsOf(filetree.Record{Kind: filetree.FIFO, Path: "p", Mode: 0o600}), recordsOf(filetree.Record{Kind: filetree.Folder, Path: "p"}, filetree.Record{Kind: filetree.FIFO, Path: "p/q"}))
	memory := "/dev/shm"
	if _, err := os.Stat(memory); err != nil {
		memory = ""
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		// A file may be as large as it says, with holes.
		if len(first) == 0 || len(second) == 0 || len(first) > filetree.MaxPart || len(second) > filetree.MaxPart {
			return
		}
		outside := must.Get(os.MkdirTemp(memory, "sessionfiles-fuzz-"))(t)
		defer os.RemoveAll(outside)
		must.Do(t, os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600))
		inside := filepath.Join(outside, "workspace")
		must.Do(t, os.Mkdir(inside, 0o700))
		log := must.Get(os.Create(filepath.Join(outside, "1"+logSuffix)))(t)
		defer log.Close()
		head := logOf(t, log, first, second)
		restorer := workspace.Restorer{Root: workspace.Root{Path: inside}}
		defer restorer.Close()
		files := Files{folder: outside, head: head}
		var damaged *DamagedError
		err := files.Restore(restorer.Write)
		switch {
		case errors.As(err, &damaged):
			if got := must.Get(os.ReadDir(inside))(t); len(got) > 0 {
				t.Errorf("%v, and half of it is restored: %v", err, got)
			}
		// What is a tree and cannot be written is too large or has too long a path.
		case err != nil && !strings.Contains(err.Error(), "file too large") && !strings.Contains(err.Error(), "name too long"):
			t.Error(err)
		case err == nil:
			must.Do(t, restorer.End())
		}
		if got := must.Get(os.ReadDir(outside))(t); len(got) != 3 {
			t.Errorf("something is outside of the workspace: %v", got)
		}
		if data := must.Get(os.ReadFile(filepath.Join(outside, "secret")))(t); string(data) != "secret" {
			t.Error("a file outside of the workspace has changed")
		}
	})
}

// Whatever bytes a log and a head have, reading them ends, and with an error unless they
// are those that were written.
func FuzzKeptBytes(f *testing.F) {
	folder := f.TempDir()
	saved(f, folder)
	log := must.Get(os.ReadFile(filepath.Join(folder, lockedfolder.Name(key), "1"+logSuffix)))(f)
	text := must.Get(os.ReadFile(filepath.Join(folder, lockedfolder.Name(key), headName)))(f)
	f.Add(log, text)
	f.Add(log[:len(log)/2], text)
	f.Add([]byte(nil), []byte("{}\n"))
	right := must.Get(decodeHead(text))(f)
	f.Fuzz(func(t *testing.T, data, head []byte) {
		if h, err := decodeHead(head); err == nil && !isLog(h.Log) {
			t.Errorf("the log is called %q", h.Log)
		}
		_, err := readTree(bytes.NewReader(data), right)
		if same := bytes.HasPrefix(data, log); same != (err == nil) {
			t.Errorf("%d bytes, those that were written: %v, error %v", len(data), same, err)
		}
	})
}
