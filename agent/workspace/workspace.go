// Package workspace reads and writes files under the sandbox's workspace on
// behalf of the runtime, while the code that owns the workspace runs.
//
// The kernel resolves every path beneath the root (openat2 with RESOLVE_BENEATH
// and RESOLVE_NO_MAGICLINKS): a link that leads out, or that replaces a folder
// during the call, is an error and not a way out. Only regular files are read:
// to open anything else could block or have effects.
package workspace

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// Bounds of one answer.
const (
	MaxRead    = 8 << 20 // bytes of a file in one frame
	MaxEntries = 1000    // files in one answer
	maxDepth   = 8       // of folders below outputs
	// maxVisits bounds the entries below outputs that Changed asks for, folders and
	// links among them: 225,000 folders took 5 s at the end of each call.
	maxVisits = 4 * MaxEntries
	// maxNames bounds the names of changed files together, in bytes. JSON may
	// write each byte as six, and all of them are in one frame, for which the
	// runtime has a limit.
	maxNames = 64 << 10
)

// Root is a workspace.
type Root struct {
	// Path is absolute: /workspace.
	Path string
	// seen has the files that Changed found last.
	seen map[string]stamp
	// last is of outputs when Changed last walked through it, or nil if that says nothing for certain.
	last *record
}

// stamp changes if a file changes.
type stamp struct {
	inode, size   uint64
	mtime, change int64 // ns
	linked        bool  // it has another name
}

// open opens a path beneath the root.
func (r *Root) open(name string, flags int, mode uint32, resolve uint64) (*os.File, error) {
	rel, err := r.relative(name)
	if err != nil {
		return nil, err
	}
	root, err := unix.Open(r.Path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: r.Path, Err: err}
	}
	defer unix.Close(root)
	return openAt(root, rel, flags, mode, resolve)
}

func openAt(dir int, rel string, flags int, mode uint32, resolve uint64) (*os.File, error) {
	fd, err := openFD(dir, rel, flags, mode, resolve)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), rel), nil
}

// openFD is openAt for a descriptor without an [os.File].
func openFD(dir int, rel string, flags int, mode uint32, resolve uint64) (int, error) {
	flags |= unix.O_CLOEXEC
	if flags&unix.O_PATH == 0 { // openat2 refuses flags without an effect
		// Without O_NONBLOCK, opening a FIFO would wait for its other end.
		flags |= unix.O_NONBLOCK | unix.O_NOCTTY
	}
	how := unix.OpenHow{
		Flags:   uint64(flags),
		Mode:    uint64(mode),
		Resolve: resolve | unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	}
	// EAGAIN: something was renamed while the kernel resolved the path (openat2(2)).
	for range 8 {
		fd, err := unix.Openat2(dir, rel, &how)
		if err == nil {
			return fd, nil
		}
		if err != unix.EAGAIN && err != unix.EINTR {
			return -1, &fs.PathError{Op: "open", Path: rel, Err: err}
		}
	}
	return -1, &fs.PathError{Op: "open", Path: rel, Err: unix.EAGAIN}
}

// relative turns a path of a request into one that openat2 takes.
func (r *Root) relative(name string) (string, error) {
	if strings.IndexByte(name, 0) >= 0 {
		return "", fmt.Errorf("path %q contains a NUL byte", name)
	}
	if path.IsAbs(name) {
		rel, err := filepath.Rel(r.Path, path.Clean(name))
		if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
			return "", fmt.Errorf("path %q is not under %s", name, r.Path)
		}
		return rel, nil
	}
	return name, nil
}

// outside makes a sentence of an error of open.
func (r *Root) outside(name string, err error) error {
	if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.ELOOP) {
		return fmt.Errorf("%s leads out of %s", name, r.Path)
	}
	var p *fs.PathError
	if errors.As(err, &p) {
		return fmt.Errorf("%s: %w", name, p.Err)
	}
	return err
}

// Read returns a part of a regular file, at most [MaxRead] bytes, and the
// file's size. A length of 0 asks for as much as there may be.
func (r *Root) Read(name string, offset, length int64) (contents []byte, size int64, err error) {
	if offset < 0 || length < 0 {
		return nil, 0, fmt.Errorf("offset %d and length %d must not be negative", offset, length)
	}
	f, err := r.open(name, unix.O_RDONLY, 0, 0)
	if err != nil {
		return nil, 0, r.outside(name, err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, 0, fmt.Errorf("%s: %w", name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, 0, fmt.Errorf("%s is not a regular file", name)
	}
	if length == 0 || length > MaxRead {
		length = MaxRead
	}
	contents = make([]byte, min(length, max(st.Size-offset, 0)))
	n, err := f.ReadAt(contents, offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, 0, fmt.Errorf("read %s: %w", name, err)
	}
	return contents[:n], st.Size, nil
}

// Write writes a regular file at a path relative to the workspace, and makes its folders. Links are
// not followed; what else is there is an error.
func (r *Root) Write(name string, contents []byte) error {
	for at, char := range name {
		if char != '/' {
			continue
		}
		parent, err := r.folder(path.Dir(name[:at]), unix.O_PATH)
		if err != nil {
			return r.outside(name, err)
		}
		err = unix.Mkdirat(int(parent.Fd()), path.Base(name[:at]), 0o755)
		parent.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("make a folder for %s: %w", name, err)
		}
	}
	f, err := r.open(name, unix.O_WRONLY|unix.O_CREAT, 0o644, unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		return r.outside(name, err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return fmt.Errorf("%s is not a regular file", name)
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = f.Write(contents)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// Changed returns the regular files under outputs that are new or have changed
// since the last time, as many as fit into a frame. Links are not followed.
func (r *Root) Changed() []frame.File {
	outputs := path.Join(r.Path, "outputs")
	if r.last.isStill(outputs) {
		return nil
	}
	r.last = nil
	began := coarse()
	dir, err := r.open("outputs", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0, unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		if r.seen != nil && errors.Is(err, unix.ENOENT) {
			// Code that empties the workspace takes it away, and the next call relies on it.
			_ = os.Mkdir(outputs, 0o755) // a link of this name is the code's own
			clear(r.seen)
			return nil
		}
		r.seen = nil
		return nil
	}
	w := walk{files: map[string]stamp{}, at: len(outputs) + 1, began: began, left: maxVisits}
	var st unix.Stat_t
	if unix.Fstat(int(dir.Fd()), &st) == nil {
		w.record.root = w.stamp(&st)
	}
	w.folder(dir, outputs, 0)
	var files []frame.File
	for name, s := range w.files {
		if r.seen[name] != s {
			files = append(files, frame.File{Path: name, Size: int64(s.size), Linked: s.linked})
		}
	}
	if !w.isPartial {
		r.last = &w.record
	}
	r.seen = w.files
	// In the order in which the code wrote them.
	slices.SortFunc(files, func(a, b frame.File) int {
		return cmp.Or(cmp.Compare(r.seen[a.Path].mtime, r.seen[b.Path].mtime), strings.Compare(a.Path, b.Path))
	})
	names := 0
	for i, file := range files {
		if names += len(file.Path); names > maxNames {
			return files[:i]
		}
	}
	return files
}

// walk finds the regular files of a folder.
type walk struct {
	files map[string]stamp
	left  int // how many more entries it may ask for
	// record is of the folder, and the paths of its entries begin at a byte of the paths of files. isPartial says that it
	// is not whole, or that an entry may have changed since the walk began without another stamp.
	record    record
	at        int
	began     int64 // by coarse
	isPartial bool
}

func (w *walk) stamp(st *unix.Stat_t) uint64 {
	w.isPartial = w.isPartial || st.Ctim.Nano() >= w.began
	return statStamp(st)
}

// folder adds the files of a folder by its path, and closes it.
func (w *walk) folder(dir *os.File, at string, depth int) {
	defer dir.Close()
	names, _ := dir.Readdirnames(MaxEntries)
	w.isPartial = w.isPartial || len(names) == MaxEntries
	for _, name := range names {
		if len(w.files) >= MaxEntries || w.left == 0 {
			w.isPartial = true
			return
		}
		w.left--
		var st unix.Stat_t
		if unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			w.isPartial = true
			continue
		}
		name := path.Join(at, name)
		w.record.entries = append(w.record.entries, entry{path: name[w.at:], stamp: w.stamp(&st)})
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			w.files[name] = stamp{
				inode: st.Ino, size: uint64(st.Size),
				mtime: st.Mtim.Nano(), change: st.Ctim.Nano(), linked: st.Nlink > 1,
			}
		case unix.S_IFDIR:
			if depth+1 >= maxDepth {
				continue
			}
			sub, err := openAt(int(dir.Fd()), path.Base(name), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0, unix.RESOLVE_NO_SYMLINKS)
			if err == nil {
				w.folder(sub, name, depth+1)
			}
		}
	}
}
