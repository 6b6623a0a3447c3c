package filetree

import (
	"archive/tar"
	"cmp"
	"errors"
	"hash/maphash"
	"io"
	"strings"
)

// ChangesMark begins an archive of changes, and no other one: a name has no NUL, and an empty archive only
// zeros. What follows it, up to a newline, is what there is with the changes: the number of entries, a space,
// and the bytes of their data.
const ChangesMark = "\x00changes "

// Gone is the kind of a path that has no entry any longer, and none beneath it. Only archives of changes
// have it. Beside what has changed, they have the folders that lead to it.
const Gone = 'R'

// NewChangesReader returns a Reader of an archive of changes, without the line that begins it.
func NewChangesReader(from io.Reader) *Reader {
	r := NewReader(from)
	r.changes = true
	return r
}

// Compare compares two paths by their places in an archive.
func Compare(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	switch {
	case n == len(a) || n == len(b):
		return cmp.Compare(len(a), len(b))
	case a[n] == '/':
		return -1
	case b[n] == '/':
		return 1
	}
	return cmp.Compare(a[n], b[n])
}

// Merged reads an archive with changes to it. Read returns the data of the last entry.
type Merged struct {
	io.Reader
	// Entries and Size count the entries so far, and the bytes of their data.
	Entries, Size int64
	sources       []*source
	// files has a hash of the path of each file, for links to name.
	files map[uint64]struct{}
	seed  maphash.Seed
}

// source is an archive of which one entry is known.
type source struct {
	*Reader
	entry   Entry
	isKnown bool
	isOver  bool
	hidden  string // what this begins with has gone
}

// Merge returns a reader of an archive with changes to it, of which the oldest come first.
func Merge(archive *Reader, changes ...*Reader) *Merged {
	m := &Merged{sources: []*source{{Reader: archive}}, files: map[uint64]struct{}{}, seed: maphash.MakeSeed()}
	for _, change := range changes {
		m.sources = append(m.sources, &source{Reader: change})
	}
	return m
}

// Next returns the next entry. At the end of all archives the error is [io.EOF].
func (m *Merged) Next() (Entry, error) {
	for {
		newest := -1
		for i, s := range m.sources {
			switch err := s.know(); {
			case err != nil:
				return Entry{}, err
			case !s.isOver && (newest < 0 || Compare(s.entry.Path, m.sources[newest].entry.Path) <= 0):
				newest = i
			}
		}
		if newest < 0 {
			return Entry{}, io.EOF
		}
		e := m.sources[newest].entry
		for i, s := range m.sources[:newest+1] {
			if s.isOver || s.entry.Path != e.Path {
				continue
			}
			s.isKnown = false
			if s.entry.Kind != Folder {
				for _, older := range m.sources[:i] {
					older.hidden = e.Path + "/"
				}
			}
		}
		hash := maphash.String(m.seed, e.Path)
		switch e.Kind {
		case Gone:
			continue
		case File:
			m.files[hash] = struct{}{}
		case Link:
			// A program in the background may have removed the file while it was copied.
			if _, found := m.files[maphash.String(m.seed, e.Target)]; !found {
				continue
			}
		}
		m.Reader = m.sources[newest].Reader
		m.Entries, m.Size = m.Entries+1, m.Size+e.Data()
		return e, nil
	}
}

// know reads the next entry that is not hidden, if the last one was used.
func (s *source) know() (err error) {
	for !s.isOver && (!s.isKnown || s.hidden != "" && strings.HasPrefix(s.entry.Path, s.hidden)) {
		s.entry, err = s.Reader.Next()
		s.isKnown = err == nil
		if errors.Is(err, io.EOF) {
			s.isOver = true
		} else if err != nil {
			return err
		}
	}
	return nil
}

// Copy writes what is left of all archives as one.
func (m *Merged) Copy(to io.Writer) error {
	archive := tar.NewWriter(to)
	buffer := make([]byte, 64<<10)
	for {
		e, err := m.Next()
		if errors.Is(err, io.EOF) {
			return archive.Close()
		}
		if err == nil {
			err = Write(archive, e)
		}
		if err == nil {
			_, err = io.CopyBuffer(archive, m.Reader, buffer)
		}
		if err != nil {
			return err
		}
	}
}
