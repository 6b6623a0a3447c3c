package filetree

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// samples has an entry of each kind, in the order of an archive.
func samples() []Entry {
	when := time.Unix(1<<32, 123456789)
	return []Entry{
		{Kind: File, Path: "empty", Mode: 0o600, ModTime: time.Unix(-1, 5)},
		{Kind: FIFO, Path: "fifo", Mode: 0o622, ModTime: when},
		{Kind: Folder, Path: "folder", Mode: 0o1777, ModTime: when},
		{Kind: File, Path: "folder/a \n\xff", Mode: 0o640, ModTime: when, Size: 5, Pieces: []Piece{{0, 5}}},
		{Kind: Folder, Path: "folder/b", ModTime: when},
		{Kind: Symlink, Path: "link", ModTime: when, Target: "/etc/../\xfe"},
		{Kind: Symlink, Path: strings.Repeat("n", MaxName), ModTime: when, Target: strings.Repeat("t/", 2000)},
		{Kind: Link, Path: "second", Mode: 0o640, ModTime: when, Target: "folder/a \n\xff"},
		{Kind: File, Path: "sparse", ModTime: when, Size: 1 << 40, Pieces: []Piece{{0, 3}, {1 << 30, 2}}},
		{Kind: File, Path: "zeros", ModTime: when, Size: 1 << 40},
	}
}

// encode makes an archive in which every byte of data is an x.
func encode(t testing.TB, entries ...Entry) []byte {
	t.Helper()
	var buffer bytes.Buffer
	archive := tar.NewWriter(&buffer)
	for _, e := range entries {
		must.Do(t, Write(archive, e))
		must.Get(io.WriteString(archive, strings.Repeat("x", int(e.Data()))))(t)
	}
	must.Do(t, archive.Close())
	return buffer.Bytes()
}

func decode(archive []byte) (entries []Entry, err error) {
	reader := NewReader(bytes.NewReader(archive))
	for {
		e, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return entries, nil
		}
		if err != nil {
			return entries, err
		}
		data, err := io.ReadAll(reader)
		if err == nil && int64(len(data)) != e.Data() {
			err = fmt.Errorf("%q has %d bytes, not %d", e.Path, len(data), e.Data())
		}
		if err != nil {
			return entries, err
		}
		entries = append(entries, e)
	}
}

func TestReader_ReturnsWhatWasWritten(t *testing.T) {
	got := must.Get(decode(encode(t, samples()...)))(t)
	if diff := cmp.Diff(samples(), got); diff != "" {
		t.Error(diff)
	}
}

// Every prefix of an archive but the whole is refused, up to the zeros at its end.
func TestReader_RefusesAPrefix(t *testing.T) {
	archive := encode(t, samples()...)
	for end := 1; end < len(archive)-1024; end += 97 {
		if got, err := decode(archive[:end]); err == nil && len(got) == len(samples()) {
			t.Errorf("the first %d of %d bytes are the archive", end, len(archive))
		}
	}
}

func TestReader_RefusesEntries(t *testing.T) {
	for name, e := range map[string]Entry{
		"set-user-ID":           {Kind: File, Path: "a", Mode: 0o4755},
		"device":                {Kind: tar.TypeChar, Path: "a"},
		"global header":         {Kind: tar.TypeXGlobalHeader, Path: "a"},
		"empty link":            {Kind: Symlink, Path: "a"},
		"long link":             {Kind: Symlink, Path: "a", Target: strings.Repeat("n", MaxPath+1)},
		"link out":              {Kind: Link, Path: "a", Target: "../a"},
		"folder with data":      {Kind: Folder, Path: "a", Size: 3, Pieces: []Piece{{0, 3}}},
		"folder with holes":     {Kind: Folder, Path: "a", Size: 3},
		"huge":                  {Kind: File, Path: "a", Size: maxSize + 1},
		"negative":              {Kind: File, Path: "a", Size: -1},
		"piece after the end":   {Kind: File, Path: "a", Size: 5, Pieces: []Piece{{3, 3}}},
		"pieces that overlap":   {Kind: File, Path: "a", Size: 9, Pieces: []Piece{{3, 3}, {5, 2}}},
		"pieces in wrong order": {Kind: File, Path: "a", Size: 9, Pieces: []Piece{{3, 3}, {0, 2}}},
		"empty piece":           {Kind: File, Path: "a", Size: 9, Pieces: []Piece{{3, 0}}},
		"many pieces":           {Kind: File, Path: "a", Size: 1 << 20, Pieces: many(MaxPieces + 1)},
	} {
		var buffer bytes.Buffer
		archive := tar.NewWriter(&buffer)
		if err := Write(archive, e); err != nil {
			continue // the library refuses it
		}
		_, _ = io.WriteString(archive, strings.Repeat("x", int(e.Data())))
		_ = archive.Close()
		if got, err := decode(buffer.Bytes()); err == nil {
			t.Errorf("%s: %+v was taken", name, got)
		}
	}
	if _, err := decode(encode(t, Entry{Kind: File, Path: "a", Size: 1 << 20, Pieces: many(MaxPieces)})); err != nil {
		t.Error(err)
	}
}

// many returns pieces of a byte.
func many(n int) (pieces []Piece) {
	for i := range n {
		pieces = append(pieces, Piece{int64(2 * i), 1})
	}
	return pieces
}

func TestReader_RefusesPathsThatLeaveTheFolder(t *testing.T) {
	for _, path := range []string{
		"", "/", "/etc/passwd", ".", "..", "../x", "a/../b", "a/..", "a//b", "./a", "a\x00b",
		strings.Repeat("n", MaxName+1), strings.Repeat("n/", MaxPath/2) + "nnn",
	} {
		if err := CheckPath(path); err == nil {
			t.Errorf("%.50q was taken", path)
		}
	}
}

func TestReader_RefusesWhatIsNoTree(t *testing.T) {
	file := func(path string) Entry { return Entry{Kind: File, Path: path} }
	folder := func(path string) Entry { return Entry{Kind: Folder, Path: path} }
	link := func(path, target string) Entry { return Entry{Kind: Link, Path: path, Target: target} }
	for name, entries := range map[string][]Entry{
		"no folder":             {file("a/b")},
		"a file for a folder":   {file("a"), file("a/b")},
		"a link for a folder":   {{Kind: Symlink, Path: "a", Target: "/etc"}, file("a/passwd")},
		"twice":                 {file("a"), file("a")},
		"a folder twice":        {folder("a"), file("a/b"), folder("a")},
		"a link to nothing":     {link("a", "b")},
		"a link to a later one": {link("a", "b"), file("b")},
		"a link to a folder":    {folder("a"), link("b", "a")},
		"a link to a link":      {{Kind: Symlink, Path: "a", Target: "/etc/passwd"}, link("b", "a")},
		"a link through a link": {{Kind: Symlink, Path: "a", Target: "/etc"}, link("b", "a/passwd")},
		"wrong order":           {file("b"), file("a")},
		"a folder that is over": {folder("a"), folder("b"), file("a/c")},
	} {
		if got, err := decode(encode(t, entries...)); err == nil {
			t.Errorf("%s: %+v was taken", name, got)
		}
	}
	var all []Entry
	for i := range MaxEntries + 1 {
		all = append(all, file(fmt.Sprintf("%06d", i)))
	}
	if got, err := decode(encode(t, all...)); len(got) != MaxEntries || err == nil {
		t.Errorf("%d entries were taken, error %v", len(got), err)
	}
}

// Whatever an archive is, its entries form a tree, and written again they are the same.
func FuzzReader(f *testing.F) {
	f.Add(encode(f, samples()...))
	for _, e := range samples() {
		f.Add(encode(f, e))
	}
	f.Fuzz(func(t *testing.T, archive []byte) {
		got, err := decode(archive)
		if err != nil {
			return
		}
		folders, files := map[string]bool{"": true}, map[string]bool{}
		for _, e := range got {
			parent := e.Path[:max(strings.LastIndexByte(e.Path, '/'), 0)]
			if !folders[parent] || folders[e.Path] || files[e.Path] || e.Kind == Link && !files[e.Target] {
				t.Errorf("%+v has no place in %v", e, got)
			}
			folders[e.Path] = e.Kind == Folder
			files[e.Path] = e.Kind == File
		}
		again := must.Get(decode(encode(t, got...)))(t)
		if diff := cmp.Diff(got, again); diff != "" {
			t.Error(diff)
		}
	})
}
