package workspace

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/filetree"
)

// Tracker copies the files of a workspace out of the sandbox if they have changed since
// the last copy.
//
// It compares stamps of entries. Only a write through a shared mapping may leave one as it is: on a tmpfs, the kernel notices the first write to a page at most.
// While a process maps a file of the workspace in this way, the files count as changed. A
// mapping that is made, read, written and removed within one call stays unnoticed; its
// writes are in the next copy.
type Tracker struct {
	Root Root
	// copied is what there was at the time of the last copy, or nil if it is not known.
	copied *record
	// mapped says that a process had such a mapping when that was looked for last.
	mapped bool
}

// tickTime is longer than a tick of the file system's clock, of at most 10 ms.
const tickTime = 20 * time.Millisecond

// largeWorkspace is how many entries take about as long to look at as a tick.
const largeWorkspace = 1000

// look returns a record of the workspace, which no later change can leave as it is. It returns nil if
// there are changes all the time.
func (t *Tracker) look() (*record, error) {
	if t.copied.isStill(t.Root.Path) {
		return t.copied, nil
	}
	// What changed in this tick of the clock is looked at again after it. If there is much to look at, the
	// next tick comes first.
	last := coarse()
	isLarge := t.copied != nil && len(t.copied.entries) > largeWorkspace
	for began, tries := time.Now(), 0; ; time.Sleep(tickTime / 40) {
		now := coarse()
		if isLarge && now == last && time.Since(began) < tickTime {
			continue
		}
		isRecent := false
		tries++
		stamp := func(st *unix.Stat_t) uint64 {
			isRecent = isRecent || st.Ctim.Nano() >= now
			return statStamp(st)
		}
		var all record
		var root unix.Stat_t
		if err := unix.Stat(t.Root.Path, &root); err != nil {
			return nil, err
		}
		all.root = stamp(&root)
		err := t.Root.scan(func(f found) error {
			one := entry{path: f.path, stamp: stamp(&f.stat), isFolder: f.stat.Mode&unix.S_IFMT == unix.S_IFDIR}
			if f.stat.Mode&unix.S_IFMT == unix.S_IFREG {
				one.size = min(f.stat.Size, f.stat.Blocks*512) / max(int64(f.stat.Nlink), 1)
			}
			all.entries = append(all.entries, one)
			return nil
		})
		switch {
		case err != nil:
			return nil, err
		case !isRecent:
			return &all, nil
		case time.Since(began) > tickTime && tries > 1:
			return nil, nil
		}
	}
}

// Settle takes the present files for copied.
func (t *Tracker) Settle() (err error) {
	t.mapped = t.Root.isMapped()
	t.copied, err = t.look()
	return err
}

// Copy is an archive of the workspace while it is being read.
type Copy struct {
	*io.PipeReader
	tracker *Tracker
	copied  *record
}

// Copy begins a copy of all files. It returns nil if they have not changed since the last
// copy, unless full is true. With changes, the copy may have just what has changed, after
// [filetree.ChangesMark]; no other agent has made a copy since the last one then. The caller reads the copy up to its end, calls Done then, and
// closes it in any case. No second copy may be made meanwhile.
func (t *Tracker) Copy(full, changes bool, logf func(format string, args ...any)) (*Copy, error) {
	now, err := t.look()
	if err != nil {
		return nil, err
	}
	wasMapped := t.mapped
	t.mapped = now.hasData() && t.Root.isMapped()
	write := func(w *archiver) error { return w.all(now) }
	if !full && now != nil && t.copied != nil && !wasMapped && !t.mapped {
		changed := compare(t.copied, now)
		switch {
		// Somebody else may have copied a file that has come and gone: only the folder tells.
		case len(changed) == 0 && (changes || now.root == t.copied.root):
			return nil, nil
		// Of two archives, the reader has more to do than of one.
		case changes && 2*len(changed) < len(now.entries):
			write = func(w *archiver) error { return w.changes(changed, now.entries) }
		}
	}
	reader, writer := io.Pipe()
	go func() { writer.CloseWithError(t.Root.archiveTo(writer, write, logf)) }()
	return &Copy{reader, t, now}, nil
}

// Done takes the files that the copy has for copied.
func (c *Copy) Done() { c.tracker.copied = c.copied }

// change is a path whose entry is another one, or gone.
type change struct {
	path   string
	isGone bool
}

// compare returns what has changed, in the order of an archive, with the folders that lead there.
func compare(last, new *record) (changed []change) {
	if last == new {
		return nil
	}
	before, now := last.entries, new.entries
	known := map[string]bool{}
	add := func(path string, isGone bool) {
		for at := range path {
			if folder := path[:at]; path[at] == '/' && !known[folder] {
				known[folder] = true
				changed = append(changed, change{folder, false})
			}
		}
		if !known[path] {
			known[path] = true
			changed = append(changed, change{path, isGone})
		}
	}
	hidden := "/" // what begins with this has gone with its folder
	for len(before) > 0 || len(now) > 0 {
		order := 0
		switch {
		case len(before) == 0:
			order = 1
		case len(now) == 0:
			order = -1
		default:
			order = filetree.Compare(before[0].path, now[0].path)
		}
		if order < 0 {
			if !strings.HasPrefix(before[0].path, hidden) {
				hidden = before[0].path + "/"
				add(before[0].path, true)
			}
			before = before[1:]
			continue
		}
		if order > 0 || before[0] != now[0] {
			add(now[0].path, false)
		}
		if order == 0 {
			if before[0].isFolder && !now[0].isFolder {
				hidden = now[0].path + "/"
			}
			before = before[1:]
		}
		now = now[1:]
	}
	return changed
}

// archiveTo writes files to an archive. It leaves out sockets, and files that the sandbox's user may not
// read.
func (r *Root) archiveTo(to io.Writer, write func(*archiver) error, logf func(format string, args ...any)) error {
	buffer := bufio.NewWriterSize(to, filetree.MaxPart)
	w := &archiver{root: r, buffer: buffer, archive: tar.NewWriter(buffer), first: map[uint64]string{}}
	err := write(w)
	if w.leftOut > 0 {
		logf("%d files of the workspace cannot be kept, such as %.200q", w.leftOut, w.example)
	}
	return errors.Join(err, w.archive.Close(), buffer.Flush())
}

type archiver struct {
	root    *Root
	buffer  *bufio.Writer
	archive *tar.Writer
	// first has the path of each file with several names, by its inode.
	first map[uint64]string
	// leftOut counts what cannot be kept.
	leftOut int
	example string
}

// all adds everything that is in the record, or all if that is nil: what has come since then could go again
// before it is compared.
func (w *archiver) all(known *record) error {
	var entries []entry
	if known != nil {
		entries = known.entries
	}
	return w.root.scan(func(f found) error {
		if known != nil {
			for len(entries) > 0 && filetree.Compare(entries[0].path, f.path) < 0 {
				entries = entries[1:]
			}
			if len(entries) == 0 || entries[0].path != f.path {
				return nil
			}
		}
		return w.add(f)
	})
}

// changes adds what has changed. What has gone since then is left as it was before.
func (w *archiver) changes(changed []change, now []entry) error {
	size := int64(0)
	for _, one := range now {
		size += one.size
	}
	if _, err := fmt.Fprintf(w.buffer, "%s%d %d\n", filetree.ChangesMark, len(now), size); err != nil {
		return err
	}
	missing := "/"
	for _, c := range changed {
		if strings.HasPrefix(c.path, missing) {
			continue
		}
		if c.isGone {
			if filetree.CheckPath(c.path) != nil {
				continue // it was not kept
			}
			if err := filetree.Write(w.archive, filetree.Entry{Kind: filetree.Gone, Path: c.path}); err != nil {
				return err
			}
			continue
		}
		f, err := w.root.stat(c.path)
		if err != nil {
			missing = c.path + "/"
			continue
		}
		if err := w.add(f); err != nil {
			return err
		}
	}
	return nil
}

// stat returns the entry of a path, which leads over no link.
func (r *Root) stat(name string) (found, error) {
	f := found{path: name}
	file, err := r.open(path.Join(r.Path, name), unix.O_PATH|unix.O_NOFOLLOW, 0, unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		return f, err
	}
	defer file.Close()
	return f, unix.Fstat(int(file.Fd()), &f.stat)
}

// add adds an entry, or counts it as left out. The error is the archive's.
func (w *archiver) add(f found) error {
	kept, err := w.entry(f)
	if !kept {
		w.leftOut, w.example = w.leftOut+1, f.path
	}
	return err
}

// entry adds an entry. It reports whether the entry can be kept; the error is the
// archive's.
func (w *archiver) entry(f found) (kept bool, err error) {
	if filetree.CheckPath(f.path) != nil {
		return false, nil
	}
	e := filetree.Entry{Path: f.path, Mode: filetree.Mode(f.stat.Mode), ModTime: time.Unix(f.stat.Mtim.Unix())}
	switch f.stat.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		e.Kind = filetree.Folder
	case unix.S_IFIFO:
		e.Kind = filetree.FIFO
	case unix.S_IFLNK:
		e.Kind, e.Mode = filetree.Symlink, 0
		if e.Target, err = w.root.readlink(f.path); err != nil || e.Target == "" {
			return false, nil
		}
	case unix.S_IFREG:
		if e.Target = w.first[f.stat.Ino]; e.Target == "" {
			return w.file(e)
		}
		e.Kind = filetree.Link
	default:
		return false, nil
	}
	return true, filetree.Write(w.archive, e)
}

// file adds a regular file and its data.
func (w *archiver) file(e filetree.Entry) (kept bool, err error) {
	file, err := w.root.open(path.Join(w.root.Path, e.Path), unix.O_RDONLY|unix.O_NOFOLLOW, 0, unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		return false, nil
	}
	defer file.Close()
	var st unix.Stat_t
	if unix.Fstat(int(file.Fd()), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return false, nil
	}
	if st.Nlink > 1 {
		w.first[st.Ino] = e.Path
	}
	e.Kind, e.Size, e.Pieces = filetree.File, st.Size, pieces(file, st.Size)
	if err := filetree.Write(w.archive, e); err != nil {
		return true, err
	}
	for _, piece := range e.Pieces {
		// A file that is cut short meanwhile is filled up.
		data := io.MultiReader(io.NewSectionReader(file, piece.Offset, piece.Length), filetree.Zeros)
		if _, err := io.CopyN(w.archive, data, piece.Length); err != nil {
			return true, err
		}
	}
	return true, nil
}

// pieces returns the parts of a file that are not holes.
func pieces(file *os.File, size int64) (all []filetree.Piece) {
	for at := int64(0); at < size; {
		data, err := unix.Seek(int(file.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || err == nil && data >= size {
			break // a hole up to the end
		}
		hole, holeErr := unix.Seek(int(file.Fd()), data, unix.SEEK_HOLE)
		if err != nil || holeErr != nil || len(all) == filetree.MaxPieces-1 {
			data, hole = at, size // the rest counts as data
		}
		at = min(hole, size)
		all = append(all, filetree.Piece{Offset: data, Length: at - data})
	}
	return all
}

// readlink returns the target of a symbolic link.
func (r *Root) readlink(name string) (string, error) {
	link, err := r.open(path.Join(r.Path, name), unix.O_PATH|unix.O_NOFOLLOW, 0, unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		return "", err
	}
	defer link.Close()
	buffer := make([]byte, filetree.MaxPath+1)
	n, err := unix.Readlinkat(int(link.Fd()), "", buffer)
	if err == nil && n > filetree.MaxPath {
		err = unix.ENAMETOOLONG
	}
	return string(buffer[:max(n, 0)]), err
}

// isMapped reports whether a process of this PID namespace has a shared mapping of a file
// of the workspace that it can write to.
func (r *Root) isMapped() bool {
	processes, _ := filepath.Glob("/proc/[1-9]*/maps")
	return slices.ContainsFunc(processes, func(name string) bool {
		maps, err := os.Open(name)
		if err != nil {
			return false // the process has ended
		}
		defer maps.Close()
		return hasMapping(maps, r.Path)
	})
}

// hasMapping looks for such a mapping in the lines of proc_pid_maps(5).
func hasMapping(maps io.Reader, folder string) bool {
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		// address permissions offset device inode path
		fields := strings.Fields(lines.Text())
		if len(fields) >= 6 && len(fields[1]) == 4 && fields[1][1] == 'w' && fields[1][3] == 's' && strings.HasPrefix(fields[5], folder+"/") {
			return true
		}
	}
	return false
}

// found is an entry of the workspace.
type found struct {
	path string
	stat unix.Stat_t
}

// scan calls visit for every entry of the workspace, in the order of an archive. It
// leaves out entries that disappear meanwhile, and entries of a folder that cannot be read. It
// fails if there are more than [filetree.MaxEntries].
func (r *Root) scan(visit func(found) error) error {
	root, err := unix.Open(r.Path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	s := scanner{root: root, buffer: make([]byte, 16<<10), left: filetree.MaxEntries, visit: visit}
	return s.folder(".")
}

type scanner struct {
	root   int
	buffer []byte // for the kernel's answers
	left   int    // how many entries may follow
	visit  func(found) error
}

func (s *scanner) folder(name string) error {
	entries, err := s.entries(name)
	for _, f := range entries {
		if err == nil {
			err = s.visit(f)
		}
		if err == nil && f.stat.Mode&unix.S_IFMT == unix.S_IFDIR {
			err = s.folder(f.path)
		}
	}
	return err
}

// entries returns the entries of a folder, sorted by name.
func (s *scanner) entries(folder string) ([]found, error) {
	// An os.File would take more system calls than everything else here. Opening each
	// folder by its whole path takes no more descriptors for a deep tree than for a flat one.
	fd, err := openFD(s.root, folder, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0, unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		return nil, nil
	}
	defer unix.Close(fd)
	var names []string
	for {
		n, err := unix.ReadDirent(fd, s.buffer)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			break
		}
		if _, _, names = unix.ParseDirent(s.buffer[:n], -1, names); len(names) > s.left {
			return nil, fmt.Errorf("there are more than %d files in the workspace", filetree.MaxEntries)
		}
	}
	s.left -= len(names)
	slices.Sort(names)
	prefix := folder + "/"
	if folder == "." {
		prefix = ""
	}
	all := make([]found, 0, len(names))
	for _, name := range names {
		f := found{path: prefix + name}
		if unix.Fstatat(fd, name, &f.stat, unix.AT_SYMLINK_NOFOLLOW) == nil {
			all = append(all, f)
		}
	}
	return all, nil
}
