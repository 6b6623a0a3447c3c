package workspace

import (
	"errors"
	"maps"
	"path"
	"slices"

	"golang.org/x/sys/unix"
)

// maxLooked bounds the entries that a Look remembers.
const maxLooked = 20_000

var errManyFiles = errors.New("there are too many files to compare")

// Look finds the files that change between two looks at a workspace.
type Look struct {
	Root Root
	seen map[string]stamp
}

// Changes returns the absolute paths of the files that were written, made or removed since the
// last look, sorted. The first look is empty, and so is the next after an error.
func (l *Look) Changes() ([]string, error) {
	now, before := map[string]stamp{}, l.seen
	l.seen = nil
	err := l.Root.scan(func(f found) error {
		if len(now) == maxLooked {
			return errManyFiles
		}
		if f.stat.Mode&unix.S_IFMT != unix.S_IFDIR { // a folder changes with its files
			now[f.path] = stamp{inode: f.stat.Ino, size: uint64(f.stat.Size), mtime: f.stat.Mtim.Nano(), change: f.stat.Ctim.Nano()}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	l.seen = now
	if before == nil {
		return nil, nil
	}
	changed := map[string]bool{}
	for name, s := range now {
		if before[name] != s {
			changed[name] = true
		}
	}
	for name := range before {
		if _, still := now[name]; !still {
			changed[name] = true
		}
	}
	var paths []string
	for _, name := range slices.Sorted(maps.Keys(changed)) {
		paths = append(paths, path.Join(l.Root.Path, name))
	}
	return paths, nil
}
