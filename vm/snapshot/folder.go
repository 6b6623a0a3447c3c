package snapshot

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/image"
)

// partialSuffix is after the name of a folder that is not whole.
const partialSuffix = ".partial"

// Draft is a machine that is about to be saved in a folder. Its owner fills the files
// (State is open only for writing) and calls Commit and Close.
type Draft struct {
	Memory, State *os.File
	project       *os.File // or nil
	size          int64    // of the image in it
	digest        image.Digest
	folder        string
}

// Create begins to save a machine in a new folder, the parent of which exists.
func Create(folder string) (*Draft, error) {
	if _, err := os.Lstat(folder); !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s exists already", folder)
	}
	return newDraft(folder)
}

// newDraft begins to save a machine beside a folder.
func newDraft(folder string) (_ *Draft, err error) {
	d := &Draft{folder: folder}
	if err := os.RemoveAll(d.partial()); err != nil { // of a process that was killed
		return nil, err
	}
	if err := os.Mkdir(d.partial(), 0o700); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	if d.Memory, err = d.create(memoryFile, os.O_RDWR); err != nil {
		return nil, err
	}
	d.State, err = d.create(stateFile, os.O_WRONLY)
	return d, err
}

func (d *Draft) create(name string, access int) (*os.File, error) {
	return os.OpenFile(filepath.Join(d.partial(), name), access|os.O_CREATE|os.O_EXCL, 0o600)
}

func (d *Draft) partial() string { return d.folder + partialSuffix }

// Bytes returns the space that the files take on disk.
func (d *Draft) Bytes() (bytes int64, err error) {
	for _, file := range []*os.File{d.Memory, d.State, d.project} {
		if file == nil {
			continue
		}
		var status unix.Stat_t
		if err := unix.Fstat(int(file.Fd()), &status); err != nil {
			return 0, err
		}
		bytes += status.Blocks * 512
	}
	return bytes, nil
}

// AddProject copies the image of the machine's project: size bytes, which are at the
// beginning of a disk, with a digest.
func (d *Draft) AddProject(disk *os.File, size int64, digest image.Digest) (err error) {
	if d.project, err = d.create(projectFile, os.O_RDWR); err != nil {
		return err
	}
	d.size, d.digest = size, digest
	if _, err := io.Copy(d.project, io.NewSectionReader(disk, 0, size)); err != nil {
		return err
	}
	info, err := disk.Stat()
	if err != nil {
		return err
	}
	return d.project.Truncate(info.Size())
}

// Commit writes the description and gives the folder its name, as the last thing.
func (d *Draft) Commit(meta Meta) error {
	meta.Project, meta.ProjectDigest = d.size, d.digest
	if err := finish(d.partial(), d.Memory, meta); err != nil {
		return err
	}
	return os.Rename(d.partial(), d.folder)
}

// Close closes the files, and deletes them unless they were committed.
func (d *Draft) Close() {
	d.Memory.Close() // on nil too, which only returns an error
	d.State.Close()
	d.project.Close()
	os.RemoveAll(d.partial())
}

// OpenFolder opens a machine that was saved in a folder of its own. The folder is complete, and
// only its description says which machine it contains. It leaves a mark in the folder, so that a
// second machine that begins there is told that it is not the first.
func OpenFolder(folder string) (*Snapshot, error) {
	snapshot, err := openFiles(folder)
	if err != nil {
		return nil, err
	}
	mark, err := os.OpenFile(filepath.Join(folder, openedFile), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o400)
	switch {
	case err == nil:
		mark.Close()
	case errors.Is(err, fs.ErrExist):
		snapshot.Again = true
	default:
		snapshot.Close()
		return nil, err
	}
	// QEMU's own user, if it has one, reopens the file through a descriptor. The folder admits no
	// other user.
	if os.Geteuid() == 0 {
		if err := snapshot.Memory.Chmod(0o444); err != nil {
			snapshot.Close()
			return nil, err
		}
	}
	return snapshot, nil
}
