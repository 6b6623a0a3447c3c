// Package filetree is the form in which the files below a folder travel between the
// agent and the runtime, and lie on disk: a sequence of records. A record describes an
// entry of the tree, has a piece of a file, or says that an entry is gone. Later
// records of a path replace earlier ones, so that what has changed is appended.
//
// Records come in parts. A part has whole records, and at most [MaxPart] bytes; the
// pieces of a file may be in several parts. Bytes of either end are hostile to the
// other: what [Records] returns has a path that stays beneath the folder, and a kind,
// mode and size that make sense by themselves. Whether the entries together are a tree
// is for the reader of all of them to check.
package filetree

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"strings"
)

// Bounds of records.
const (
	// MaxPath and MaxName bound a path and each name in it, as Linux does, in bytes.
	MaxPath = 4095
	MaxName = 255
	// MaxData bounds the bytes of a piece, and MaxPart those of a part.
	MaxData = 256 << 10
	MaxPart = MaxData + 64<<10
	// MaxEntries bounds the entries of a tree.
	MaxEntries = 100_000
	// MaxSize bounds the size of a file with its holes, in bytes.
	MaxSize = math.MaxInt64 >> 1
	// modes are the bits of a mode that an entry may have. Without set-user-ID and
	// set-group-ID: a sandbox has one user, and these bits mean nothing there.
	modes = 0o1777
)

// Kind says what a record is.
type Kind byte

// Kinds of records, and the fields beside Path that each has.
const (
	Folder  Kind = 'd' // Mode, ModTime
	File    Kind = 'f' // Mode, ModTime, Size
	Symlink Kind = 's' // Target, which may be any text
	Link    Kind = 'l' // Target: the path of a file of the tree that this is another name of
	FIFO    Kind = 'p' // Mode
	Gone    Kind = 'g' // the entry is not there any more
	Data    Kind = 'x' // no Path; Offset, Data: a piece of the file before it
)

// Record is one record.
type Record struct {
	Kind Kind
	// Path is relative to the folder, without "." or "..", and of any bytes but NUL.
	Path    string
	Mode    uint32 // permission bits
	ModTime int64  // nanoseconds since 1970
	// Size is a file's size in bytes. What no piece covers are zeros.
	Size   int64
	Target string
	Offset int64
	// Data belongs to the part that the record came from.
	Data []byte
}

// Append appends a record to a part. The record must be one that [Record.Check]
// accepts.
func Append(part []byte, r Record) []byte {
	part = append(part, byte(r.Kind))
	if r.Kind == Data {
		part = binary.AppendUvarint(part, uint64(r.Offset))
		part = binary.AppendUvarint(part, uint64(len(r.Data)))
		return append(part, r.Data...)
	}
	part = appendText(part, r.Path)
	switch r.Kind {
	case Folder, File, FIFO:
		part = binary.AppendUvarint(part, uint64(r.Mode))
		part = binary.AppendVarint(part, r.ModTime)
	}
	switch r.Kind {
	case File:
		part = binary.AppendUvarint(part, uint64(r.Size))
	case Symlink, Link:
		part = appendText(part, r.Target)
	}
	return part
}

func appendText(part []byte, text string) []byte {
	return append(binary.AppendUvarint(part, uint64(len(text))), text...)
}

// Records returns the records of a part, each checked, up to the first error.
func Records(part []byte) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		if len(part) > MaxPart {
			yield(Record{}, fmt.Errorf("a part of %d bytes, more than %d", len(part), MaxPart))
			return
		}
		d := decoder{rest: part}
		for len(d.rest) > 0 {
			r := d.record()
			if d.err == nil {
				d.err = r.Check()
			}
			if d.err != nil {
				yield(Record{}, d.err)
				return
			}
			if !yield(r, nil) {
				return
			}
		}
	}
}

// Check returns what is wrong with a record by itself.
func (r Record) Check() error {
	if r.Kind == Data {
		if len(r.Data) == 0 || len(r.Data) > MaxData || r.Offset < 0 || r.Offset > MaxSize-int64(len(r.Data)) {
			return fmt.Errorf("a piece of %d bytes at %d", len(r.Data), r.Offset)
		}
		return nil
	}
	if err := CheckPath(r.Path); err != nil {
		return err
	}
	switch r.Kind {
	case Folder, File, FIFO, Gone:
	case Symlink:
		if r.Target == "" || len(r.Target) > MaxPath || strings.IndexByte(r.Target, 0) >= 0 {
			return fmt.Errorf("%.200q is a symbolic link to %.200q", r.Path, r.Target)
		}
	case Link:
		if err := CheckPath(r.Target); err != nil {
			return err
		}
	default:
		return fmt.Errorf("a record of the kind %q", byte(r.Kind))
	}
	if r.Mode&^modes != 0 {
		return fmt.Errorf("%.200q has the mode %#o", r.Path, r.Mode)
	}
	if r.Size < 0 || r.Size > MaxSize {
		return fmt.Errorf("%.200q has %d bytes", r.Path, r.Size)
	}
	return nil
}

// Mode returns the bits of a mode of stat(2) that a record has.
func Mode(mode uint32) uint32 { return mode & modes }

// CheckPath returns what is wrong with a path of a record.
func CheckPath(path string) error {
	if len(path) > MaxPath || strings.IndexByte(path, 0) >= 0 {
		return fmt.Errorf("%.200q is no path in a tree", path)
	}
	for name := range strings.SplitSeq(path, "/") {
		if name == "" || name == "." || name == ".." || len(name) > MaxName {
			return fmt.Errorf("%.200q is no path in a tree", path)
		}
	}
	return nil
}

var errShort = errors.New("a record ends before its end")

// decoder takes values off a part. After an error it returns zero values.
type decoder struct {
	rest []byte
	err  error
}

func (d *decoder) record() (r Record) {
	r.Kind = Kind(d.bytes(1)[0])
	if r.Kind == Data {
		r.Offset = d.size()
		r.Data = d.bytes(d.size())
		return r
	}
	r.Path = d.text()
	switch r.Kind {
	case Folder, File, FIFO:
		mode := number(d, binary.Uvarint)
		if mode > modes {
			d.fail(fmt.Errorf("%.200q has the mode %#o", r.Path, mode))
		}
		r.Mode = uint32(mode)
		r.ModTime = number(d, binary.Varint)
	}
	switch r.Kind {
	case File:
		r.Size = d.size()
	case Symlink, Link:
		r.Target = d.text()
	}
	return r
}

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
}

// bytes returns the next n bytes, which belong to the part.
func (d *decoder) bytes(n int64) []byte {
	if d.err != nil || n > int64(len(d.rest)) {
		d.fail(errShort)
		return make([]byte, min(n, 1))
	}
	taken := d.rest[:n:n]
	d.rest = d.rest[n:]
	return taken
}

// number returns the next number, as a function of package binary reads it.
func number[T int64 | uint64](d *decoder, read func([]byte) (T, int)) T {
	value, n := read(d.rest)
	if n <= 0 {
		d.fail(errShort)
		return 0
	}
	d.rest = d.rest[n:]
	return value
}

// size returns a number that is not negative as int64.
func (d *decoder) size() int64 {
	value := number(d, binary.Uvarint)
	if value > math.MaxInt64 {
		d.fail(fmt.Errorf("a size of %d", value))
		return 0
	}
	return int64(value)
}

func (d *decoder) text() string { return string(d.bytes(d.size())) }
