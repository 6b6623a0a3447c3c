package workspace

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/filetree"
)

// Restorer writes a copy of files, part by part, into an empty workspace. Records
// come in an order in which each folder is before what is in it, and a file before its
// other names. Every path is resolved beneath the workspace and follows no link, so
// that nothing is written elsewhere, whatever a copy says.
type Restorer struct {
	Root    Root
	folders []filetree.Record // whose modes and times are set at the end
	file    *os.File          // whose pieces come; nil after another record
	current filetree.Record   // of that file
	parent  *os.File          // of the last entry
	at      string            // the path of parent
}

// Write restores the records of a part. After an error the workspace has some of the
// files.
func (r *Restorer) Write(part []byte) error {
	for record, err := range filetree.Records(part) {
		if err != nil {
			return err
		}
		if err := r.record(record); err != nil {
			name := record.Path
			if record.Kind == filetree.Data {
				name = r.current.Path
			}
			return fmt.Errorf("write %.200q: %w", name, err)
		}
	}
	return nil
}

func (r *Restorer) record(record filetree.Record) error {
	if record.Kind == filetree.Data {
		if r.file == nil || record.Offset+int64(len(record.Data)) > r.current.Size {
			return errors.New("a piece of no file")
		}
		_, err := r.file.WriteAt(record.Data, record.Offset)
		return err
	}
	if err := r.endFile(); err != nil {
		return err
	}
	dir, err := r.folder(path.Dir(record.Path))
	if err != nil {
		return err
	}
	name := path.Base(record.Path)
	switch record.Kind {
	case filetree.Folder:
		r.folders = append(r.folders, record)
		err := unix.Mkdirat(int(dir.Fd()), name, 0o700)
		if errors.Is(err, unix.EEXIST) { // the sandbox began with it
			return nil
		}
		return err
	case filetree.File:
		file, err := openAt(int(dir.Fd()), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600, unix.RESOLVE_NO_SYMLINKS)
		if err != nil {
			return err
		}
		r.file, r.current = file, record
		return file.Truncate(record.Size)
	case filetree.Symlink:
		return unix.Symlinkat(record.Target, int(dir.Fd()), name)
	case filetree.Link:
		target, err := r.Root.open(path.Join(r.Root.Path, path.Dir(record.Target)), unix.O_PATH|unix.O_DIRECTORY, 0, unix.RESOLVE_NO_SYMLINKS)
		if err != nil {
			return err
		}
		defer target.Close()
		return unix.Linkat(int(target.Fd()), path.Base(record.Target), int(dir.Fd()), name, 0)
	case filetree.FIFO:
		if err := unix.Mkfifoat(int(dir.Fd()), name, 0o600); err != nil {
			return err
		}
		return unix.Fchmodat(int(dir.Fd()), name, record.Mode, 0)
	}
	return fmt.Errorf("a record of the kind %q", byte(record.Kind))
}

// endFile closes the file whose pieces have come.
func (r *Restorer) endFile() error {
	if r.file == nil {
		return nil
	}
	defer func() { r.file = nil }()
	return errors.Join(stampFile(r.file, r.current), r.file.Close())
}

// stampFile gives an open file or folder the mode and the time of its record.
func stampFile(file *os.File, record filetree.Record) error {
	when := unix.NsecToTimespec(record.ModTime)
	// AT_EMPTY_PATH names the file of the descriptor itself (utimensat(2)), from Linux 5.8 on;
	// without a folder's permission to be searched, "." would not.
	err := unix.UtimesNanoAt(int(file.Fd()), "", []unix.Timespec{when, when}, unix.AT_EMPTY_PATH)
	if errors.Is(err, unix.EINVAL) {
		err = unix.Futimes(int(file.Fd()), []unix.Timeval{unix.NsecToTimeval(record.ModTime), unix.NsecToTimeval(record.ModTime)})
	}
	return errors.Join(err, unix.Fchmod(int(file.Fd()), record.Mode))
}

// folder opens the folder of an entry. It belongs to the Restorer.
func (r *Restorer) folder(name string) (*os.File, error) {
	if r.parent != nil && r.at == name {
		return r.parent, nil
	}
	dir, err := r.Root.open(path.Join(r.Root.Path, name), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0, unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		return nil, err
	}
	r.closeFolder()
	r.parent, r.at = dir, name
	return dir, nil
}

func (r *Restorer) closeFolder() {
	if r.parent != nil {
		r.parent.Close()
		r.parent = nil
	}
}

// End sets the modes and times of the folders, which were writable until now.
func (r *Restorer) End() error {
	err := r.endFile()
	// What is deeper comes first: a folder may not be searchable afterwards.
	for _, record := range slices.Backward(r.folders) {
		if err != nil {
			break
		}
		var dir *os.File
		dir, err = r.Root.open(path.Join(r.Root.Path, record.Path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0, unix.RESOLVE_NO_SYMLINKS)
		if err != nil {
			break
		}
		err = errors.Join(stampFile(dir, record), dir.Close())
	}
	r.Close()
	return err
}

// Close gives up what the Restorer has open.
func (r *Restorer) Close() {
	if r.file != nil {
		r.file.Close()
		r.file = nil
	}
	r.closeFolder()
}
