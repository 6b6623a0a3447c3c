package workspace

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/filetree"
)

// Restore writes the files of an archive into an empty workspace. The kernel resolves
// every path beneath the workspace and follows no link, so that nothing is written
// elsewhere, whatever the archive says. After an error, some of the files are there.
func (r *Root) Restore(archive io.Reader) error {
	from := filetree.NewReader(archive)
	var folders []filetree.Entry // the last entry is in the last of them
	leave := func(next string) error {
		for last := len(folders) - 1; last >= 0 && !strings.HasPrefix(next, folders[last].Path+"/"); last-- {
			if err := r.setFolderAttributes(folders[last]); err != nil {
				return fmt.Errorf("restore %.200q: %w", folders[last].Path, err)
			}
			folders = folders[:last]
		}
		return nil
	}
	for {
		e, err := from.Next()
		if errors.Is(err, io.EOF) {
			return leave("")
		}
		if err == nil {
			err = leave(e.Path)
		}
		if err != nil {
			return err
		}
		if err := r.restore(e, from); err != nil {
			return fmt.Errorf("restore %.200q: %w", e.Path, err)
		}
		// A folder's mode and time are set when its entries are there.
		if e.Kind == filetree.Folder {
			folders = append(folders, e)
		}
	}
}

// restore makes an entry. It reads the data of a file.
func (r *Root) restore(e filetree.Entry, data io.Reader) error {
	dir, err := r.folder(path.Dir(e.Path), unix.O_PATH)
	if err != nil {
		return err
	}
	defer dir.Close()
	name := path.Base(e.Path)
	switch e.Kind {
	case filetree.Folder:
		if err := unix.Mkdirat(int(dir.Fd()), name, 0o700); !errors.Is(err, unix.EEXIST) {
			return err
		}
		return nil // the sandbox began with it
	case filetree.File:
		file, err := openAt(int(dir.Fd()), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600, unix.RESOLVE_NO_SYMLINKS)
		if err != nil {
			return err
		}
		return errors.Join(fill(file, e, data), file.Close())
	case filetree.Symlink:
		return unix.Symlinkat(e.Target, int(dir.Fd()), name)
	case filetree.Link:
		target, err := r.folder(path.Dir(e.Target), unix.O_PATH)
		if err != nil {
			return err
		}
		defer target.Close()
		return unix.Linkat(int(target.Fd()), path.Base(e.Target), int(dir.Fd()), name, 0)
	case filetree.FIFO:
		if err := unix.Mkfifoat(int(dir.Fd()), name, 0o600); err != nil {
			return err
		}
		return unix.Fchmodat(int(dir.Fd()), name, e.Mode, 0)
	}
	return fmt.Errorf("an entry of the type %q", e.Kind)
}

// fill gives a new file its data, mode and time.
func fill(file *os.File, e filetree.Entry, data io.Reader) error {
	if err := file.Truncate(e.Size); err != nil {
		return err
	}
	for _, piece := range e.Pieces {
		if _, err := io.CopyN(io.NewOffsetWriter(file, piece.Offset), data, piece.Length); err != nil {
			return err
		}
	}
	return setAttributes(file, e)
}

func (r *Root) folder(name string, flags int) (*os.File, error) {
	return r.open(path.Join(r.Path, name), flags|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0, unix.RESOLVE_NO_SYMLINKS)
}

func (r *Root) setFolderAttributes(e filetree.Entry) error {
	dir, err := r.folder(e.Path, unix.O_RDONLY)
	if err != nil {
		return err
	}
	return errors.Join(setAttributes(dir, e), dir.Close())
}

// setAttributes gives an open file or folder the mode and the time of its entry.
func setAttributes(file *os.File, e filetree.Entry) error {
	when := unix.Timespec{Sec: e.ModTime.Unix(), Nsec: int64(e.ModTime.Nanosecond())}
	// AT_EMPTY_PATH names the file of the descriptor itself (utimensat(2)); "." needs
	// permission to search the folder.
	err := unix.UtimesNanoAt(int(file.Fd()), "", []unix.Timespec{when, when}, unix.AT_EMPTY_PATH)
	return errors.Join(err, unix.Fchmod(int(file.Fd()), e.Mode))
}
