package filetree

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// samples has a record of each kind.
func samples() []Record {
	return []Record{
		{Kind: Folder, Path: "folder", Mode: 0o1777, ModTime: -1},
		{Kind: File, Path: "folder/a \n\xff", Mode: 0o640, ModTime: 1 << 60, Size: 1 << 40},
		{Kind: Data, Offset: 1 << 39, Data: []byte("piece")},
		{Kind: File, Path: "empty", Mode: 0o600},
		{Kind: Symlink, Path: "link", Target: "/etc/../\xfe"},
		{Kind: Link, Path: "second", Target: "empty"},
		{Kind: FIFO, Path: "fifo", Mode: 0o622, ModTime: 3},
		{Kind: Gone, Path: strings.Repeat("n", MaxName)},
	}
}

func encode(records ...Record) (part []byte) {
	for _, r := range records {
		part = Append(part, r)
	}
	return part
}

func decode(part []byte) (records []Record, err error) {
	for r, err := range Records(part) {
		if err != nil {
			return records, err
		}
		records = append(records, r)
	}
	return records, nil
}

func TestRecords_ReturnsWhatWasAppended(t *testing.T) {
	got, err := decode(encode(samples()...))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(samples(), got); diff != "" {
		t.Error(diff)
	}
}

func TestRecords_RefusesWhatIsCut(t *testing.T) {
	for _, r := range samples() {
		part := encode(r)
		for end := 1; end < len(part); end++ {
			if got, err := decode(part[:end]); err == nil {
				t.Errorf("%c: the first %d of %d bytes are %v", r.Kind, end, len(part), got)
			}
		}
	}
}

func TestRecords_RefusesWhatLeavesTheFolder(t *testing.T) {
	bad := []string{
		"", "/", "/etc/passwd", ".", "..", "../x", "a/../b", "a/..", "a//b", "a/", "./a", "a\x00b",
		strings.Repeat("n", MaxName+1), strings.Repeat("n/", MaxPath),
	}
	for _, path := range bad {
		for _, r := range []Record{{Kind: File, Path: path}, {Kind: Gone, Path: path}, {Kind: Link, Path: "a", Target: path}} {
			if got, err := decode(encode(r)); err == nil {
				t.Errorf("%v was taken", got)
			}
		}
	}
	for name, r := range map[string]Record{
		"set-user-ID":   {Kind: File, Path: "a", Mode: 0o4755},
		"kind":          {Kind: 'z', Path: "a"},
		"empty link":    {Kind: Symlink, Path: "a"},
		"NUL in a link": {Kind: Symlink, Path: "a", Target: "b\x00"},
		"huge":          {Kind: File, Path: "a", Size: MaxSize + 1},
		"empty piece":   {Kind: Data},
		"far piece":     {Kind: Data, Offset: MaxSize, Data: []byte("1")},
		"large piece":   {Kind: Data, Data: make([]byte, MaxData+1)},
	} {
		if _, err := decode(encode(r)); err == nil {
			t.Errorf("%s: was taken", name)
		}
	}
	if _, err := decode(make([]byte, MaxPart+1)); err == nil {
		t.Error("a part that is too large was taken")
	}
}

func FuzzRecords(f *testing.F) {
	f.Add(encode(samples()...))
	for _, r := range samples() {
		f.Add(encode(r))
	}
	f.Fuzz(func(t *testing.T, part []byte) {
		got, err := decode(part)
		if err != nil {
			return
		}
		for _, r := range got {
			if r.Kind == Data {
				continue
			}
			if strings.HasPrefix(r.Path, "/") || slices.Contains(strings.Split(r.Path, "/"), "..") {
				t.Errorf("the path %q leaves the folder", r.Path)
			}
		}
		// Numbers may be written longer than they have to be.
		again, err := decode(encode(got...))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(got, again, cmp.Comparer(bytes.Equal)); diff != "" {
			t.Error(diff)
		}
	})
}
