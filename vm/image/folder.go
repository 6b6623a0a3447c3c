package image

import (
	"archive/tar"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/filetree"
)

// Folder is a folder of the host that becomes an image for a machine.
//
// The machine's kernel decides by owners and modes which files code may read, so they are
// preserved: files of Owner and Group belong to User in the image, and all others to the user
// nobody. The contents of files that code may not read are left out, because a hole in the
// machine's kernel would expose them. So are sockets, devices and extended attributes.
type Folder struct {
	// Name is the name of the folder in the image.
	Name string
	Root *os.Root
	// Owner and Group are the host's user and group that own the code's files.
	Owner, Group uint32
	// User is the number of the code's user, and of its group.
	User int
}

// Folders are the folders of one image.
type Folders struct {
	All []Folder
	// MaxFiles bounds the entries of all together, and MaxBytes the contents of their files.
	MaxFiles int
	MaxBytes int64
}

// nobody owns the files that are not the code's.
const nobody = 65534

// maxDepth bounds how deep a folder is, which keeps one descriptor for each level.
const maxDepth = 256

// A Digest is equal for two walks if they find the same names, modes, owners, sizes and change
// times of everything that code may see. It covers no contents.
type Digest [sha256.Size]byte

// add adds an entry, independently of the order.
func (d *Digest) add(name string, info fs.FileInfo) {
	stat := info.Sys().(*syscall.Stat_t)
	size, changed := stat.Size, info.ModTime().UnixNano()
	if info.IsDir() { // what is in it has digests of its own
		size, changed = 0, 0
	}
	one := sha256.Sum256(fmt.Appendf(nil, "%q %o %d %d %d %d", name, stat.Mode, stat.Uid, stat.Gid, size, changed))
	for i := range d {
		d[i] ^= one[i]
	}
}

// A TooLargeError says which bound a folder exceeds.
type TooLargeError struct{ Reason string }

func (e *TooLargeError) Error() string { return e.Reason }

// Measure returns a [TooLargeError] if the folders exceed their bounds. It reads no file.
func (f Folders) Measure() (Digest, error) { return f.WriteTar(nil) }

// WriteTar writes the folders as a tar archive for mkfs.erofs. Files may change meanwhile: each has
// the size in the archive that it had when it was opened. If w is nil, WriteTar writes nothing.
func (f Folders) WriteTar(w io.Writer) (Digest, error) {
	walk := &folderWalk{bounds: f}
	if w != nil {
		walk.archive = tar.NewWriter(w)
		if err := walk.archive.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755}); err != nil {
			return walk.digest, err
		}
	}
	for _, folder := range f.All {
		walk.Folder = folder
		top, err := folder.Root.Lstat(".")
		if err == nil {
			err = walk.header(tar.Header{Typeflag: tar.TypeDir, Name: folder.Name + "/"}, top)
		}
		if err == nil {
			err = walk.folder(folder.Root, folder.Name, 0)
		}
		if err != nil {
			return walk.digest, err
		}
	}
	if w == nil {
		return walk.digest, nil
	}
	return walk.digest, walk.archive.Close()
}

type folderWalk struct {
	Folder  // of this part of the walk
	bounds  Folders
	archive *tar.Writer // nil if the walk only counts
	files   int
	bytes   int64
	digest  Digest
}

// folder writes the entries of a folder with the path name in the archive.
func (w *folderWalk) folder(root *os.Root, name string, depth int) error {
	if depth > maxDepth {
		return &TooLargeError{fmt.Sprintf("it has folders deeper than %d levels", maxDepth)}
	}
	file, err := root.Open(".")
	if err != nil {
		return err
	}
	defer file.Close()
	for {
		entries, err := file.ReadDir(256)
		for _, entry := range entries {
			if err := w.entry(root, entry.Name(), path.Join(name, entry.Name()), depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (w *folderWalk) entry(root *os.Root, base, name string, depth int) error {
	info, err := root.Lstat(base)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // since the folder was read
	}
	if err != nil {
		return err
	}
	if w.files++; w.files > w.bounds.MaxFiles {
		return &TooLargeError{fmt.Sprintf("it has more than %d files and folders", w.bounds.MaxFiles)}
	}
	w.digest.add(name, info)
	switch info.Mode().Type() {
	case 0:
		return w.file(root, base, name, info)
	case fs.ModeDir:
		if err := w.header(tar.Header{Typeflag: tar.TypeDir, Name: name + "/"}, info); err != nil {
			return err
		}
		if !w.allows(info, 0o5) {
			return nil
		}
		below, err := root.OpenRoot(base)
		if err != nil {
			return unlessUnreadable(err)
		}
		defer below.Close()
		return w.folder(below, name, depth+1)
	case fs.ModeSymlink:
		target, err := root.Readlink(base)
		if err != nil {
			return unlessUnreadable(err)
		}
		return w.header(tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target}, info)
	case fs.ModeNamedPipe:
		return w.header(tar.Header{Typeflag: tar.TypeFifo, Name: name}, info)
	}
	return nil
}

// file writes a file. It is empty if code may not read it.
func (w *folderWalk) file(root *os.Root, base, name string, info fs.FileInfo) error {
	header := tar.Header{Typeflag: tar.TypeReg, Name: name}
	if !w.allows(info, 0o4) {
		return w.header(header, info)
	}
	var file *os.File
	if w.archive != nil {
		var err error
		// The file may have been replaced, for example by a FIFO; opening that would wait.
		if file, err = root.OpenFile(base, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0); err != nil {
			if err := unlessUnreadable(err); err != nil {
				return err
			}
			return w.header(header, info)
		}
		defer file.Close()
		if info, err = file.Stat(); err != nil {
			return err
		}
		if !info.Mode().IsRegular() || !w.allows(info, 0o4) {
			return nil
		}
	}
	if w.bytes += info.Size(); w.bytes > w.bounds.MaxBytes {
		return &TooLargeError{fmt.Sprintf("its files have more than %d MB", w.bounds.MaxBytes>>20)}
	}
	header.Size = info.Size()
	if err := w.header(header, info); err != nil || file == nil {
		return err
	}
	// If the file has shrunk, the rest is zero.
	_, err := io.CopyN(w.archive, io.MultiReader(file, filetree.Zeros), header.Size)
	return err
}

// header writes the header of an entry.
func (w *folderWalk) header(h tar.Header, info fs.FileInfo) error {
	if w.archive == nil {
		return nil
	}
	stat := info.Sys().(*syscall.Stat_t)
	h.Uid, h.Gid = nobody, nobody
	if stat.Uid == w.Owner {
		h.Uid = w.User
	}
	if stat.Gid == w.Group {
		h.Gid = w.User
	}
	h.Mode = int64(stat.Mode & 0o777)
	h.ModTime = info.ModTime()
	h.Format = tar.FormatPAX // with times to the nanosecond, and any name
	return w.archive.WriteHeader(&h)
}

// allows reports whether the code's user has all of these rights, as in rwx.
func (w *folderWalk) allows(info fs.FileInfo, rights uint32) bool {
	stat := info.Sys().(*syscall.Stat_t)
	mode := uint32(stat.Mode)
	switch {
	case stat.Uid == w.Owner:
		mode >>= 6
	case stat.Gid == w.Group:
		mode >>= 3
	}
	return mode&rights == rights
}

// unlessUnreadable returns an error, unless the file is gone or this user may not read it: a file
// system of the host may refuse access that the mode allows.
func unlessUnreadable(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ELOOP) {
		return nil
	}
	return err
}
