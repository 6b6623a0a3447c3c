// Package layer reads trees of files that hostile code writes to: the upper layer of
// an overlay, and the project beneath it.
//
// Every path is resolved beneath the root ([host.OpenBeneath]): no link is followed, even if
// one replaces a folder at this moment, and no mount is entered. Only regular files
// and folders are opened, and no open waits. Every walk and every read has a bound.
package layer

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/host"
)

// Kind is the type of a path.
type Kind int

const (
	File Kind = iota
	Link
	Folder
	Whiteout // hides a path of the layer beneath; only in an upper layer
	Other    // a FIFO, a socket or a device
)

// Entry is a path of a tree.
type Entry struct {
	// Path is relative to the root and clean, with slashes. It has any bytes but zero.
	Path string
	Kind Kind
	// Opaque says that a folder of an upper layer hides all that is beneath it.
	Opaque bool
	// Executable says that its owner may execute a file; SetID that the file has a
	// set-user-id or set-group-id bit.
	Executable, SetID bool
	Size              int64 // bytes
	Stamp             Stamp
	// Unread is why a folder could not be read; nil otherwise.
	Unread error
}

// Stamp changes when a file changes, unless it is in tmpfs and written through a shared
// mapping, because that does not update its times.
type Stamp struct {
	Inode         uint64
	Size          int64
	Mode          uint32
	Modified, New int64 // ns; st_mtim and st_ctim
}

// Tree is a tree of files.
type Tree struct {
	root *os.File
	// upper says that the tree is the upper layer of an overlay.
	upper bool
}

// ClockTick is the longest time in which two changes can leave the same times on a file.
const ClockTick = 20 * time.Millisecond

// IsSettled reports whether a change that comes now leaves another stamp.
func (s Stamp) IsSettled() bool { return time.Since(time.Unix(0, s.New)) > ClockTick }

// Upper returns the upper layer of an overlay with this root. The caller closes it.
func Upper(root *os.File) *Tree { return &Tree{root: root, upper: true} }

// Open returns the tree of a folder. The caller closes it.
func Open(name string) (*Tree, error) {
	root, err := os.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return &Tree{root: root}, nil
}

// Close closes the root.
func (t *Tree) Close() error { return t.root.Close() }

// MaxDepth and MaxPath bound the paths of a tree, in folders and in bytes. The kernel takes
// no longer path in one system call.
const (
	MaxDepth = 256
	MaxPath  = 4000
)

func openAt(dir *os.File, name string, flags int) (*os.File, error) {
	fd, err := host.OpenBeneath(int(dir.Fd()), name, flags)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// ErrTooMany ends a walk that met more entries than it may.
var ErrTooMany = errors.New("there are too many files")

// Walk calls visit for each path below the given one, "." for the root: in the order of
// names, a folder before its contents. It does not enter a folder if visit returns false.
// budget is the number of entries that it may still visit. If they are not enough, the walk
// ends with [ErrTooMany].
func (t *Tree) Walk(at string, budget *int, visit func(Entry) bool) error {
	dir, err := host.OpenBeneath(int(t.root.Fd()), at, unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	if at == "." {
		at = ""
	}
	return t.walk(dir, at, strings.Count(at, "/"), budget, visit)
}

// walk walks a folder, and closes it.
func (t *Tree) walk(dir int, at string, depth int, budget *int, visit func(Entry) bool) error {
	file := os.NewFile(uintptr(dir), at)
	defer file.Close()
	// One more than may be visited, so that too many are noticed.
	names, err := file.Readdirnames(*budget + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	tooMany := len(names) > *budget
	slices.Sort(names)
	for _, name := range names {
		if *budget == 0 {
			return ErrTooMany
		}
		*budget--
		entry, err := t.entry(dir, name, path.Join(at, name))
		if err != nil {
			continue // it is gone
		}
		if entry.Kind != Folder {
			visit(entry)
			continue
		}
		sub := -1
		if depth+1 >= MaxDepth || len(entry.Path) > MaxPath {
			entry.Unread = errors.New("its path is too long")
		} else if sub, err = host.OpenBeneath(dir, name, unix.O_DIRECTORY); err != nil {
			entry.Unread = reason(err)
		} else {
			entry.Opaque = t.upper && isOpaque(sub)
		}
		enter := visit(entry)
		switch {
		case sub < 0:
		case !enter:
			unix.Close(sub)
		default:
			if err := t.walk(sub, entry.Path, depth+1, budget, visit); err != nil {
				return err
			}
		}
	}
	if tooMany {
		return ErrTooMany
	}
	return nil
}

// IsEmpty reports whether the root has no entries.
func (t *Tree) IsEmpty() (bool, error) {
	// A descriptor of its own has an offset of its own.
	dir, err := openAt(t.root, ".", unix.O_DIRECTORY)
	if err != nil {
		return false, err
	}
	defer dir.Close()
	_, err = dir.Readdirnames(1)
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return false, err
}

// Find returns the entry of a path. The error is [fs.ErrNotExist] if it does not exist, or
// if a file or a link is in place of one of its folders.
func (t *Tree) Find(name string) (Entry, error) {
	dir := t.root
	if parent := path.Dir(name); parent != "." {
		var err error
		if dir, err = openAt(t.root, parent, unix.O_DIRECTORY|host.OpenPath); err != nil {
			if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EXDEV) {
				err = fs.ErrNotExist
			}
			return Entry{}, err
		}
		defer dir.Close()
	}
	return t.entry(int(dir.Fd()), path.Base(name), name)
}

// Remove removes a file or a link.
func (t *Tree) Remove(name string) error {
	dir, err := host.OpenBeneath(int(t.root.Fd()), path.Dir(name), unix.O_DIRECTORY|host.OpenPath)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return unix.Unlinkat(dir, path.Base(name), 0)
}

// entry returns the entry of a name in a folder.
func (t *Tree) entry(dir int, name, at string) (Entry, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return Entry{}, err
	}
	entry := Entry{
		Path: at, Kind: Other, Size: st.Size,
		Executable: st.Mode&unix.S_IXUSR != 0,
		SetID:      st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0,
		Stamp:      stampOf(&st),
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		entry.Kind = File
	case unix.S_IFLNK:
		entry.Kind = Link
	case unix.S_IFDIR:
		entry.Kind = Folder
	case unix.S_IFCHR:
		// Code cannot make such a device in an overlay (ovl_mknod of the kernel).
		if t.upper && st.Rdev == 0 {
			entry.Kind = Whiteout
		}
	}
	return entry, nil
}

func stampOf(st *unix.Stat_t) Stamp {
	return Stamp{Inode: st.Ino, Size: st.Size, Mode: uint32(st.Mode), Modified: st.Mtim.Nano(), New: st.Ctim.Nano()}
}

// opaqueAttribute marks the folders of an upper layer that hide the layer below, if the
// overlay was mounted in a user namespace (userxattr in
// Documentation/filesystems/overlayfs.rst).
const opaqueAttribute = "user.overlay.opaque"

func isOpaque(dir int) bool {
	var value [2]byte
	n, err := unix.Fgetxattr(dir, opaqueAttribute, value[:])
	return err == nil && n == 1 && value[0] == 'y'
}

// TooLargeError reports a file that is larger than may be read.
type TooLargeError struct{ Size, Limit int64 } // bytes

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("it has %d bytes, more than the %d that are compared", e.Size, e.Limit)
}

// Read returns the content of a regular file, or the target of a link, and the stamp that
// it had. The error is a [*TooLargeError] for more than limit bytes.
func (t *Tree) Read(name string, limit int64) ([]byte, Stamp, error) {
	entry, err := t.Find(name)
	if err != nil {
		return nil, Stamp{}, err
	}
	if entry.Kind == Link {
		target, err := t.readLink(name)
		return target, entry.Stamp, err
	}
	file, err := openAt(t.root, name, 0)
	if err != nil {
		return nil, Stamp{}, reason(err)
	}
	defer file.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return nil, Stamp{}, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, Stamp{}, errors.New("it is not a regular file")
	}
	if st.Size > limit {
		return nil, Stamp{}, &TooLargeError{st.Size, limit}
	}
	// A file that grows meanwhile is read as far as it was.
	content := make([]byte, st.Size)
	n, err := io.ReadFull(file, content)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return nil, Stamp{}, reason(err)
	}
	return content[:n], stampOf(&st), nil
}

func (t *Tree) readLink(name string) ([]byte, error) {
	dir, err := openAt(t.root, path.Dir(name), host.OpenPath|unix.O_DIRECTORY)
	if err != nil {
		return nil, reason(err)
	}
	defer dir.Close()
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(dir.Fd()), path.Base(name), target)
	if err != nil {
		return nil, err
	}
	return target[:n], nil
}

// reason is the error without the path, which a caller names.
func reason(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
