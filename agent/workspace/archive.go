package workspace

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// archive is the folder of outputs that did not fit into an answer.
const archive = ".outputs"

// Archive has all output of one stream of a call, as much as fits. Its writes
// never fail: output that does not fit is left out.
type Archive struct {
	Path   string
	Stored int64 // bytes that the file has
	file   *os.File
	limit  int64 // bytes that the file may have
}

// Archive makes the file for a stream of a call. The file may use a quarter of
// the workspace's free space; older files are removed until all of them together
// use at most a quarter of the workspace.
//
// The folder belongs to the code, which may have replaced it by a link or
// anything else: no link is followed, and anything unusable is an error.
func (r *Root) Archive(call uint64, stream string) (*Archive, error) {
	dir, err := r.archives()
	if err != nil {
		return nil, fmt.Errorf("folder %s of the workspace: %w", archive, err)
	}
	defer dir.Close()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &st); err != nil {
		return nil, fmt.Errorf("folder %s of the workspace: %w", archive, err)
	}
	block := int64(st.Bsize)
	r.expire(dir, int64(st.Blocks)*block/4)
	if err := unix.Fstatfs(int(dir.Fd()), &st); err != nil {
		return nil, err
	}
	name := fmt.Sprintf("%d.%s", call, stream)
	_ = unix.Unlinkat(int(dir.Fd()), name, 0)
	f, err := openAt(int(dir.Fd()), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o644, unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		return nil, err
	}
	return &Archive{
		Path:  path.Join(r.Path, archive, name),
		file:  f,
		limit: int64(st.Bavail) * block / 4,
	}, nil
}

// archives opens the folder, after making it if it does not exist.
func (r *Root) archives() (*os.File, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW
	dir, err := r.open(archive, flags, 0, unix.RESOLVE_NO_SYMLINKS)
	if !errors.Is(err, unix.ENOENT) {
		return dir, err
	}
	root, err := unix.Open(r.Path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	err = unix.Mkdirat(root, archive, 0o755)
	unix.Close(root)
	if err != nil && err != unix.EEXIST {
		return nil, err
	}
	return r.open(archive, flags, 0, unix.RESOLVE_NO_SYMLINKS)
}

// expire removes the oldest archives until the rest uses at most limit bytes.
func (r *Root) expire(dir *os.File, limit int64) {
	type old struct {
		name string
		call uint64
		size int64
	}
	var all []old
	names, _ := dir.Readdirnames(MaxEntries)
	for _, name := range names {
		number, _, _ := strings.Cut(name, ".")
		call, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			continue
		}
		var st unix.Stat_t
		if unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
			all = append(all, old{name, call, st.Blocks * 512})
		}
	}
	// The newest first: whatever does not fit after them is removed.
	slices.SortFunc(all, func(a, b old) int {
		return cmp.Or(cmp.Compare(b.call, a.call), strings.Compare(a.name, b.name))
	})
	for _, o := range all {
		if limit -= o.size; limit < 0 {
			_ = unix.Unlinkat(int(dir.Fd()), o.name, 0)
		}
	}
}

// Write stores as much as the limit and the file system allow.
func (a *Archive) Write(p []byte) (int, error) {
	if n := min(int64(len(p)), a.limit-a.Stored); n > 0 {
		m, err := a.file.Write(p[:n])
		a.Stored += int64(max(m, 0))
		if err != nil {
			a.limit = a.Stored
		}
	}
	return len(p), nil
}

// Close closes the file.
func (a *Archive) Close() error { return a.file.Close() }
