package changes

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes/gitpatch"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes/layer"
)

// write carries out the operations, deletions first, because a file may take the place of a
// folder. If one fails, it undoes the earlier ones.
func (a *applier) write() (err error) {
	slices.SortStableFunc(a.operations, func(x, y operation) int {
		return cmp.Compare(min(x.after.Mode, 1), min(y.after.Mode, 1)) // gitpatch.Absent is 0
	})
	done := 0
	defer func() {
		if err == nil {
			return
		}
		for _, o := range slices.Backward(a.operations[:done]) {
			if undoErr := a.put(o.name, o.after, o.before); undoErr != nil {
				err = fmt.Errorf("%w; and %s could not be put back: %w", err, gitpatch.Quote(o.name), undoErr)
			}
		}
		for _, dir := range slices.Backward(a.made) {
			_ = a.root.Remove(dir) // others may have put something there
		}
		for _, dir := range slices.Sorted(maps.Keys(a.removed)) {
			err = errors.Join(err, a.makeFolders(dir))
		}
	}()
	for _, o := range a.operations {
		if err := a.ctx.Err(); err != nil {
			return err
		}
		if err := a.put(o.name, o.before, o.after); err != nil {
			return fmt.Errorf("write %s: %w", gitpatch.Quote(o.name), err)
		}
		done++
	}
	for _, o := range a.operations {
		switch {
		case o.after.Mode != gitpatch.Absent:
			a.result.Written = append(a.result.Written, o.name)
		default:
			a.result.Deleted = append(a.result.Deleted, o.name)
			// Git knows no empty folders.
			for dir := path.Dir(o.name); dir != "." && a.removeFolder(dir); dir = path.Dir(dir) {
			}
		}
		if o.merged {
			a.result.Merged = append(a.result.Merged, o.name)
		}
	}
	return nil
}

// put changes a path from one state to another. It fails if the path is in neither.
func (a *applier) put(name string, from, to gitpatch.State) error {
	if now, err := a.now(name); err != nil || !now.Equal(from) {
		return errors.Join(errors.New("it has changed at this moment"), err)
	}
	if to.Mode == gitpatch.Absent {
		return a.root.Remove(name)
	}
	if err := a.makeFolders(path.Dir(name)); err != nil {
		return err
	}
	a.removeEmpty(name)
	// The name depends on the whole patch, so that code cannot have put anything there. An
	// apply of the same patch that was killed can.
	sum := sha256.Sum256([]byte(a.entry.Sum + name))
	temp := path.Join(path.Dir(name), ".nix-sandbox-mcp-"+hex.EncodeToString(sum[:16]))
	if err := a.root.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err := a.stage(temp, name, from, to)
	if err == nil && from.Mode == gitpatch.Absent {
		if _, statErr := a.root.Lstat(name); statErr == nil {
			err = fs.ErrExist
		}
	}
	if err == nil {
		err = a.root.Rename(temp, name)
	}
	if err != nil {
		_ = a.root.Remove(temp)
	}
	return err
}

// stage writes the new state of a path to another name.
func (a *applier) stage(temp, name string, from, to gitpatch.State) error {
	if to.Mode == gitpatch.Link {
		if err := a.root.Symlink(string(to.Content), temp); err != nil {
			return err
		}
		return a.own(temp, path.Dir(name))
	}
	perm := fs.FileMode(0o666) // less the user's umask
	if to.Mode == gitpatch.Executable {
		perm = 0o777
	}
	file, err := a.root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	_, err = file.Write(to.Content)
	switch {
	case err != nil:
	case from.Mode == gitpatch.Absent || from.Mode == gitpatch.Link:
		err = a.own(temp, path.Dir(name))
	default:
		err = errors.Join(a.own(temp, name), a.copyMode(file, name, from.Mode, to.Mode))
	}
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// own gives a file to the owner of another one, if root applies the patch.
func (a *applier) own(name, like string) error {
	info, err := a.root.Lstat(like)
	if err != nil || os.Geteuid() != 0 {
		return err
	}
	owner := info.Sys().(*syscall.Stat_t)
	return a.root.Lchown(name, int(owner.Uid), int(owner.Gid))
}

// aclName is the extended attribute with a file's access control list (acl(5)).
const aclName = "system.posix_acl_access"

// copyMode gives a file the permissions of the file that it replaces. A patch has only one of
// them, the owner's execution.
func (a *applier) copyMode(file *os.File, name string, from, to gitpatch.Mode) error {
	old, err := a.root.Open(name)
	if err != nil {
		return err
	}
	defer old.Close()
	info, err := old.Stat()
	if err != nil {
		return err
	}
	mode := info.Mode().Perm()
	if from != to {
		mode &^= 0o111
		if to == gitpatch.Executable {
			mode |= mode & 0o444 >> 2
		}
	}
	acl := make([]byte, 64<<10)
	if n, err := unix.Fgetxattr(int(old.Fd()), aclName, acl); err == nil {
		if unix.Fsetxattr(int(file.Fd()), aclName, acl[:n], 0) != nil {
			mode &^= 0o070 // it is the list's mask, and would become the group's
		}
	}
	return file.Chmod(mode)
}

// makeFolders makes a folder and its parents.
func (a *applier) makeFolders(dir string) error {
	if dir == "." {
		return nil
	}
	if err := a.makeFolders(path.Dir(dir)); err != nil {
		return err
	}
	err := a.root.Mkdir(dir, 0o777)
	if errors.Is(err, fs.ErrExist) {
		if entry, err := a.tree.Find(dir); err != nil || entry.Kind != layer.Folder {
			return fmt.Errorf("%s is not a folder", gitpatch.Quote(dir))
		}
		return nil
	}
	if err != nil {
		return err
	}
	if mode, was := a.removed[dir]; was {
		err = a.root.Chmod(dir, mode)
	} else {
		a.made = append(a.made, dir)
	}
	return errors.Join(err, a.own(dir, path.Dir(dir)))
}

// removeEmpty removes a folder if it contains only empty folders.
func (a *applier) removeEmpty(dir string) {
	entry, err := a.tree.Find(dir)
	if err != nil || entry.Kind != layer.Folder {
		return
	}
	budget, onlyFolders := maxEntries, true
	folders := []string{dir}
	err = a.tree.Walk(dir, &budget, func(entry layer.Entry) bool {
		onlyFolders = onlyFolders && entry.Kind == layer.Folder
		folders = append(folders, entry.Path)
		return true
	})
	if err == nil && onlyFolders {
		for _, folder := range slices.Backward(folders) {
			a.removeFolder(folder)
		}
	}
}

// removeFolder removes a folder if it is empty, and reports whether it was.
func (a *applier) removeFolder(dir string) bool {
	info, err := a.root.Lstat(dir)
	if err != nil || !info.IsDir() || a.root.Remove(dir) != nil {
		return false
	}
	a.removed[dir] = info.Mode().Perm()
	return true
}
