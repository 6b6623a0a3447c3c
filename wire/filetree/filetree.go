// Package filetree defines the archive in which the files of a workspace leave a sandbox,
// lie on disk and enter the next sandbox. It is a tar archive with a fixed order: a folder
// comes before its entries, and the entries of a folder are sorted by name.
//
// Both ends treat an archive as hostile. [Reader] returns an entry only if the entries up
// to it form a tree: its path stays beneath the root, its folder came before it, no path
// occurs twice, and a hard link names a file that came before it. The memory that this
// takes depends on the depth of the tree and the number of its files, not on the length
// of their names.
//
// A file with holes has only its data in the archive. A PAX record says where the data
// belongs; see [Entry.Pieces].
package filetree

import (
	"archive/tar"
	"fmt"
	"hash/maphash"
	"io"
	"math"
	"path"
	"strconv"
	"strings"
	"time"
)

const (
	// MaxPath and MaxName are Linux's limits for a path and for a name in it, in bytes.
	MaxPath = 4095
	MaxName = 255
	// MaxPart is the largest part of an archive in one message, in bytes.
	MaxPart = 256 << 10
	// MaxEntries is the largest number of entries in an archive.
	MaxEntries = 100_000
	// MaxPieces is the largest number of pieces of a file.
	MaxPieces = 1024
	// maxSize is the largest size of a file including its holes, in bytes.
	maxSize = math.MaxInt64 >> 1
	// modes are the permission bits that an entry may have. Set-user-ID and set-group-ID
	// mean nothing in a sandbox, which has one user.
	modes = 0o1777
	// piecesKey names the PAX record of a file with holes. Its value is the size of the
	// file, followed by the offset and length of each piece.
	piecesKey = "NIXSANDBOX.pieces"
)

// Kinds of entries.
const (
	Folder  = tar.TypeDir
	File    = tar.TypeReg
	Symlink = tar.TypeSymlink
	Link    = tar.TypeLink
	FIFO    = tar.TypeFifo
)

// Entry describes a file or folder.
type Entry struct {
	Kind byte
	// Path is relative, without "." and "..", and may contain any byte except NUL.
	Path    string
	Mode    uint32 // permission bits
	ModTime time.Time
	// Target is any text for a [Symlink], and the path of an earlier [File] for a [Link].
	Target string
	// Size is the size of a [File] including its holes, in bytes.
	Size int64
	// Pieces are the parts of a [File] that are not holes, in ascending order. Their
	// bytes follow the entry.
	Pieces []Piece
}

// Piece is a part of a file, in bytes.
type Piece struct{ Offset, Length int64 }

// Data returns how many bytes follow the entry.
func (e *Entry) Data() (size int64) {
	for _, piece := range e.Pieces {
		size += piece.Length
	}
	return size
}

// Mode returns the bits of a mode from stat(2) that an entry can have.
func Mode(mode uint32) uint32 { return mode & modes }

// Write writes the header of an entry. The caller writes its data next.
func Write(to *tar.Writer, e Entry) error {
	header := &tar.Header{
		Typeflag: e.Kind, Name: e.Path, Linkname: e.Target, Mode: int64(e.Mode), ModTime: e.ModTime,
		Size: e.Data(), Format: tar.FormatPAX,
	}
	if e.Kind == Folder {
		header.Name += "/"
	}
	if header.Size != e.Size {
		text := strconv.AppendInt(nil, e.Size, 10)
		for _, piece := range e.Pieces {
			text = fmt.Appendf(text, " %d %d", piece.Offset, piece.Length)
		}
		header.PAXRecords = map[string]string{piecesKey: string(text)}
	}
	return to.WriteHeader(header)
}

// Reader reads an archive. Read returns the data of the last entry.
type Reader struct {
	*tar.Reader
	changes bool // the archive is one of changes
	entries int
	// folders leads from the root to the folder of the last entry.
	folders []folder
	// files has a hash of the path of each file, for links to name.
	files map[uint64]struct{}
	seed  maphash.Seed
}

type folder struct {
	path string
	last string // name of its last entry
}

// NewReader returns a Reader of an archive.
func NewReader(from io.Reader) *Reader {
	return &Reader{tar.NewReader(from), false, 0, []folder{{path: "."}}, map[uint64]struct{}{}, maphash.MakeSeed()}
}

// Next returns the next entry. At the end of the archive the error is [io.EOF].
func (r *Reader) Next() (Entry, error) {
	header, err := r.Reader.Next()
	if err != nil {
		return Entry{}, err
	}
	if r.entries++; r.entries > MaxEntries {
		return Entry{}, fmt.Errorf("the archive has more than %d entries", MaxEntries)
	}
	e, err := entryOf(header)
	if err == nil && e.Kind == Gone && !r.changes {
		err = fmt.Errorf("%.200q: it has gone, and the archive is not one of changes", e.Path)
	}
	if err == nil {
		err = r.place(e)
	}
	return e, err
}

// entryOf returns the entry that a header describes, after checking it by itself.
func entryOf(h *tar.Header) (Entry, error) {
	e := Entry{Kind: h.Typeflag, Path: h.Name, Mode: uint32(h.Mode), ModTime: h.ModTime, Target: h.Linkname}
	if e.Kind == Folder {
		e.Path = strings.TrimSuffix(e.Path, "/")
	}
	if err := CheckPath(e.Path); err != nil {
		return e, err
	}
	if err := e.check(h); err != nil {
		return e, fmt.Errorf("%.200q: %w", e.Path, err)
	}
	return e, nil
}

// check checks everything but the path.
func (e *Entry) check(h *tar.Header) error {
	if h.Mode&^modes != 0 {
		return fmt.Errorf("its mode is %#o", h.Mode)
	}
	for key := range h.PAXRecords {
		if key != "path" && key != "linkpath" && key != "size" && key != "mtime" && (key != piecesKey || e.Kind != File) {
			return fmt.Errorf("it has a record %.200q", key)
		}
	}
	if e.Kind != File && h.Size != 0 {
		return fmt.Errorf("it is not a file and has %d bytes", h.Size)
	}
	switch e.Kind {
	case Folder, FIFO, Gone:
		return nil
	case File:
		return e.setPieces(h)
	case Symlink:
		if e.Target == "" || len(e.Target) > MaxPath || strings.IndexByte(e.Target, 0) >= 0 {
			return fmt.Errorf("it is a symbolic link to %.200q", e.Target)
		}
		return nil
	case Link:
		return CheckPath(e.Target)
	}
	return fmt.Errorf("its type is %q", e.Kind)
}

// setPieces sets Size and Pieces of a file.
func (e *Entry) setPieces(h *tar.Header) error {
	record, hasHoles := h.PAXRecords[piecesKey]
	if !hasHoles {
		if e.Size = h.Size; e.Size > 0 {
			e.Pieces = []Piece{{0, e.Size}}
		}
		return nil
	}
	var numbers []int64
	for text := range strings.SplitSeq(record, " ") {
		number, err := strconv.ParseInt(text, 10, 64)
		if err != nil || number < 0 || number > maxSize || len(numbers) > 2*MaxPieces {
			return fmt.Errorf("its pieces are %.200q", record)
		}
		numbers = append(numbers, number)
	}
	e.Size = numbers[0]
	for end := int64(0); len(numbers) > 2; numbers = numbers[2:] {
		piece := Piece{numbers[1], numbers[2]}
		if piece.Offset < end || piece.Length == 0 || piece.Offset+piece.Length > e.Size {
			return fmt.Errorf("its pieces are %.200q", record)
		}
		end = piece.Offset + piece.Length
		e.Pieces = append(e.Pieces, piece)
	}
	if len(numbers) != 1 || e.Data() != h.Size {
		return fmt.Errorf("its %d bytes are not those of the pieces %.200q", h.Size, record)
	}
	return nil
}

// place checks the place of an entry in the tree.
func (r *Reader) place(e Entry) error {
	parent, name := path.Dir(e.Path), path.Base(e.Path)
	for r.folders[len(r.folders)-1].path != parent {
		if len(r.folders) == 1 {
			return fmt.Errorf("%.200q does not follow its folder", e.Path)
		}
		r.folders = r.folders[:len(r.folders)-1]
	}
	last := &r.folders[len(r.folders)-1].last
	if name <= *last {
		return fmt.Errorf("%.200q follows %.200q in its folder", name, *last)
	}
	*last = name
	switch hash := maphash.String(r.seed, e.Path); e.Kind {
	case Folder:
		r.folders = append(r.folders, folder{path: e.Path})
	case File:
		r.files[hash] = struct{}{}
	case Link:
		if _, found := r.files[maphash.String(r.seed, e.Target)]; !found {
			return fmt.Errorf("%.200q is a link to %.200q, which is no earlier file", e.Path, e.Target)
		}
	}
	return nil
}

// CheckPath returns why a path cannot be the path of an entry, or nil.
func CheckPath(path string) error {
	if len(path) > MaxPath || strings.IndexByte(path, 0) >= 0 {
		return fmt.Errorf("%.200q is not a path in a tree", path)
	}
	for name := range strings.SplitSeq(path, "/") {
		if name == "" || name == "." || name == ".." || len(name) > MaxName {
			return fmt.Errorf("%.200q is not a path in a tree", path)
		}
	}
	return nil
}

// Zeros is an endless source of zeros.
var Zeros io.Reader = zeros{}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
