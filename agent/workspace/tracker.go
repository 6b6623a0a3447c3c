package workspace

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/filetree"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
)

// Tracker finds what has changed under a workspace since the last time, so that
// somebody else can have a copy of its files.
//
// It compares what stat(2) says of each entry that may have changed, of which the kernel
// tells (inotify(7)) as soon as there are files. Where the kernel watches no more for this
// user, all entries are compared.
//
// Two kinds of files may change unnoticed. Of a file that is open for writing the kernel
// does not tell when a process maps it and writes to that: such files are always
// compared. And on a tmpfs, what stat says stays the same when a page is written that
// a process had mapped and written before: files that are mapped count as changed.
// [Tracker.FindExposed] finds both.
type Tracker struct {
	Root Root
	// Exposed returns the files of the workspace that processes may write. Nil is none.
	Exposed func() Exposed
	// known has the entries as they were copied last; nil before the first copy.
	known   map[string]*entry
	bytes   int64   // in the files that were copied last
	entries int64   // that were copied last
	scans   uint64  // so far
	saving  *saving // the copy that is being made; nil between two
	// exposed is what Exposed returned last, and paths has the paths of its open files
	// that are known; nil where they have not been searched for.
	exposed Exposed
	paths   []string
	// mapped are the inodes that were mapped at some time since the last copy.
	mapped map[uint64]bool
	// watcher is nil where all entries are compared, and unwatchable why the kernel does
	// not watch.
	watcher     *watcher
	unwatchable error
}

// Exposed are the inodes of files that processes may write.
type Exposed struct {
	Open   map[uint64]bool // by descriptors
	Mapped map[uint64]bool // by mappings
}

// entry is what is known of an entry of the tree.
type entry struct {
	stamp
	mode uint32
	// target is the path of the file that this one is another name of.
	target string
	// linked says that the file has several names.
	linked bool
	bytes  int64 // that it counts for
	// scan is the last scan that found the entry.
	scan uint64
}

// saving is a copy that is being made.
type saving struct {
	found   []found           // that is to be copied
	gone    []string          // whose records are to be made
	next    map[string]*entry // of what is copied
	removed []string          // of what was known
	copied  frame.Copied
	first   map[uint64]string // by the inode of files with several names, the path that was copied
	file    *os.File          // whose pieces are not all copied; nil between two files
	at, end int64
}

// found is an entry that a scan found.
type found struct {
	path string
	stat unix.Stat_t
}

// errTooMany reports a workspace that is too large to be copied.
var errTooMany = fmt.Errorf("there are more than %d files in the workspace", filetree.MaxEntries)

// FindExposed finds the files that processes may write from now on. It is called after
// each call, and so before the next one.
func (t *Tracker) FindExposed() {
	if t.Exposed == nil || t.bytes == 0 && t.watcher == nil {
		return
	}
	if t.watcher != nil {
		// Nothing is opened or mapped without an event, but for what was open.
		if !t.watcher.touched && len(t.exposed.Mapped) == 0 {
			return
		}
		t.watcher.touched = false
	}
	t.exposed, t.paths = t.Exposed(), nil
	if t.mapped == nil {
		t.mapped = map[uint64]bool{}
	}
	maps.Copy(t.mapped, t.exposed.Mapped)
}

// exposedPaths returns the paths of the files that are open for writing.
func (t *Tracker) exposedPaths() []string {
	if t.paths == nil && len(t.exposed.Open) > 0 {
		t.paths = []string{}
		for name, known := range t.known {
			if t.exposed.Open[known.inode] {
				t.paths = append(t.paths, name)
			}
		}
	}
	return t.paths
}

// Unchanged reports whether nothing has changed since the last copy. It answers false
// too where that takes a comparison of more than most entries.
func (t *Tracker) Unchanged(most int) bool {
	if len(t.mapped) > 0 {
		return false
	}
	if t.watcher != nil {
		return t.watchedUnchanged(most)
	}
	if len(t.known) > most {
		return false
	}
	count := 0
	err := t.Root.scan(most, nil, func(f found) bool {
		count++
		known := t.known[f.path]
		return known != nil && known.same(f.stat)
	})
	return err == nil && count == len(t.known)
}

// watchedUnchanged is Unchanged by what the kernel says.
func (t *Tracker) watchedUnchanged(most int) bool {
	w := t.watcher
	if !w.read(earlyBytes) || w.lost {
		return false
	}
	open := t.exposedPaths()
	if len(w.dirty)+len(open) == 0 {
		return true
	}
	if len(w.dirty)+len(open) > most {
		return false
	}
	root, err := unix.Open(t.Root.Path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(root)
	same := func(name string) bool {
		var st unix.Stat_t
		err := unix.Fstatat(root, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		known := t.known[name]
		return known == nil && errors.Is(err, unix.ENOENT) || known != nil && err == nil && known.same(st)
	}
	for _, name := range open {
		if !same(name) {
			w.touched = true // what was open may be mapped now
			return false
		}
	}
	for name, changed := range w.dirty {
		if changed && t.known[name] != nil || !same(name) {
			return false
		}
	}
	clear(w.dirty)
	return true
}

// same reports whether an entry is as it was.
func (e *entry) same(st unix.Stat_t) bool {
	return e.stamp == stampOf(st) && e.mode == st.Mode
}

func stampOf(st unix.Stat_t) stamp {
	return stamp{inode: st.Ino, size: uint64(st.Size), mtime: st.Mtim.Nano(), change: st.Ctim.Nano()}
}

// errStopped ends a scan early.
var errStopped = errors.New("stopped")

// scan calls visit for every entry below the root, a folder before what is in it, in
// the order of the names. It stops where visit is false, and fails where there are
// more than most entries. What disappears meanwhile is left out. Opened may be nil; it is
// called with each folder before that is read.
func (r *Root) scan(most int, opened func(folder string, fd int), visit func(found) bool) error {
	root, err := unix.Open(r.Path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	// Folders are opened by their whole path, so that a deep tree takes no more
	// descriptors than a flat one.
	folders := []string{"."}
	buffer := make([]byte, 16<<10)
	for len(folders) > 0 {
		last := len(folders) - 1
		folder := folders[last]
		folders = folders[:last]
		entries, err := entriesOf(root, folder, most, buffer, opened)
		if err != nil {
			return err
		}
		most -= len(entries)
		for _, f := range entries {
			if !visit(f) {
				return errStopped
			}
		}
		for _, f := range slices.Backward(entries) {
			if f.stat.Mode&unix.S_IFMT == unix.S_IFDIR {
				folders = append(folders, f.path)
			}
		}
	}
	return nil
}

// entriesOf returns the entries of one folder, sorted. A folder that cannot be read has
// none. The buffer is for the kernel's answers.
func entriesOf(root int, folder string, most int, buffer []byte, opened func(folder string, fd int)) ([]found, error) {
	// An os.File would take more system calls than the rest.
	fd, err := openFD(root, folder, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0, unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		return nil, nil
	}
	defer unix.Close(fd)
	if opened != nil {
		opened(folder, fd)
	}
	var names []string
	for {
		n, err := unix.ReadDirent(fd, buffer)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			break
		}
		if _, _, names = unix.ParseDirent(buffer[:n], -1, names); len(names) > most {
			return nil, errTooMany
		}
	}
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

// Begin begins a copy of what has changed since the last one, or with full of
// everything. A copy that was begun before and not finished is forgotten.
//
// A write after the scan has a later time than what the scan found, so that the next
// one finds it: what was written in the present tick of the file system's clock is
// asked for once more after it.
func (t *Tracker) Begin(full bool) error {
	now := tick()
	t.watch()
	t.FindExposed()
	if err := t.begin(full); err != nil {
		return err
	}
	s := t.saving
	racy := func(f found) bool { return f.stat.Ctim.Nano() >= now }
	if !slices.ContainsFunc(s.found, racy) {
		return nil
	}
	awaitTick()
	root, err := unix.Open(t.Root.Path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	for i, f := range s.found {
		if !racy(f) {
			continue
		}
		// What the path leads to meanwhile is not opened. An entry of another kind is
		// found by the next scan.
		var st unix.Stat_t
		if unix.Fstatat(root, f.path, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Ino == f.stat.Ino && (st.Mode^f.stat.Mode)&unix.S_IFMT == 0 {
			s.found[i].stat = st
			s.next[f.path].stamp, s.next[f.path].mode = stampOf(st), st.Mode
		}
	}
	return nil
}

// Settle takes what the workspace has now for what was copied last.
func (t *Tracker) Settle() error {
	if err := t.begin(true); err != nil {
		return err
	}
	t.finish()
	if t.bytes == 0 || t.watcher != nil || !t.watch() {
		return nil
	}
	// There are files to watch, and what was not watched is compared again.
	return t.Settle()
}

// IsSettled reports whether there was a copy, or something that is taken for one.
func (t *Tracker) IsSettled() bool { return t.known != nil }

// Close gives up what the kernel keeps for the Tracker.
func (t *Tracker) Close() {
	if t.abandon(); t.watcher != nil {
		t.watcher.close()
		t.watcher = nil
	}
}

// watch has the kernel tell of changes from now on, and reports whether it does. The next
// scan says what is watched.
func (t *Tracker) watch() bool {
	if t.watcher == nil && t.unwatchable == nil {
		t.watcher, t.unwatchable = newWatcher()
	}
	return t.watcher != nil
}

func (t *Tracker) begin(full bool) error {
	t.abandon()
	if t.known == nil {
		t.known = map[string]*entry{}
	}
	if w := t.watcher; w != nil && !full {
		if w.read(drainBytes); !w.lost {
			if s := t.considerDirty(); s != nil {
				clear(w.dirty)
				t.saving = s
				return nil
			}
		}
	}
	return t.considerAll(full)
}

// considerAll begins a copy with a scan of the whole workspace.
func (t *Tracker) considerAll(full bool) error {
	var opened func(string, int)
	if t.watcher != nil {
		t.watcher.begin()
		opened = t.watcher.add
	}
	t.scans++
	s := &saving{next: map[string]*entry{}, first: map[uint64]string{}}
	before := 0
	err := t.Root.scan(filetree.MaxEntries, opened, func(f found) bool {
		if s.consider(t.known[f.path], f, full || t.mapped[f.stat.Ino], t.scans) {
			before++
		}
		return true
	})
	if t.watcher != nil {
		if t.unwatchable = t.watcher.end(); t.unwatchable != nil {
			t.watcher.close()
			t.watcher = nil
		} else if err != nil {
			t.watcher.lost = true
		}
	}
	if err != nil {
		return err
	}
	if before < len(t.known) {
		for name, known := range t.known {
			if known.scan != t.scans {
				s.removed = append(s.removed, name)
			}
		}
		slices.Sort(s.removed)
	}
	if !full {
		s.gone = s.removed
	}
	t.saving = s
	return nil
}

// considerDirty returns a copy of what, as the kernel reports, may have changed; nil where that
// is not enough to know what has.
func (t *Tracker) considerDirty() *saving {
	root, err := unix.Open(t.Root.Path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(root)
	names := slices.AppendSeq(slices.Clone(t.exposedPaths()), maps.Keys(t.watcher.dirty))
	if len(t.mapped) > 0 {
		for name, known := range t.known {
			if t.mapped[known.inode] {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	s := &saving{next: map[string]*entry{}, first: map[uint64]string{}}
	s.copied.Entries, s.copied.Bytes = t.entries, t.bytes
	for _, name := range slices.Compact(names) {
		known := t.known[name]
		if known != nil && known.linked {
			return nil
		}
		f := found{path: name}
		err := unix.Fstatat(root, name, &f.stat, unix.AT_SYMLINK_NOFOLLOW)
		isFolder := f.stat.Mode&unix.S_IFMT == unix.S_IFDIR
		switch {
		case err != nil && !errors.Is(err, unix.ENOENT),
			err == nil && (!isFolder && f.stat.Nlink > 1 || isFolder && known == nil),
			known != nil && (known.mode&unix.S_IFMT == unix.S_IFDIR) != (err == nil && isFolder):
			return nil // folders and further names are for a scan
		}
		if known != nil {
			s.copied.Entries--
			s.copied.Bytes -= known.bytes
			s.removed = append(s.removed, name)
		}
		if err != nil {
			continue
		}
		if s.consider(known, f, t.watcher.dirty[name] || t.mapped[f.stat.Ino], t.scans) {
			s.removed = s.removed[:len(s.removed)-1] // it is there
		}
	}
	if s.copied.Entries > filetree.MaxEntries {
		return nil
	}
	s.gone = s.removed
	return s
}

// tick returns the time by the clock of the file system, in nanoseconds.
func tick() int64 {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now) // fails for no argument of ours
	return now.Nano()
}

// awaitTick waits until the clock of the file system has moved, for at most 20 ms: a
// tick takes at most 10 ms.
func awaitTick() {
	start := tick()
	for range 40 {
		if tick() != start {
			return
		}
		time.Sleep(500 * time.Microsecond)
	}
}

// consider takes an entry into the copy, if it has changed or with any if it is there.
// It reports whether the entry was known, and marks it as found by a scan.
func (s *saving) consider(known *entry, f found, any bool, scan uint64) (was bool) {
	target, counts := "", int64(0)
	switch f.stat.Mode & unix.S_IFMT {
	case unix.S_IFDIR, unix.S_IFLNK, unix.S_IFIFO:
	case unix.S_IFREG:
		if f.stat.Nlink > 1 {
			if target = s.first[f.stat.Ino]; target == "" {
				s.first[f.stat.Ino] = f.path
			}
		}
		if target == "" {
			counts = min(f.stat.Size, f.stat.Blocks*512)
		}
	default:
		s.skip(f.path)
		return false
	}
	if known == nil && filetree.CheckPath(f.path) != nil {
		s.skip(f.path)
		return false
	}
	s.copied.Entries++
	s.copied.Bytes += counts
	linked := f.stat.Mode&unix.S_IFMT == unix.S_IFREG && f.stat.Nlink > 1
	if known != nil {
		known.scan = scan
		if !any && known.same(f.stat) && known.target == target {
			known.linked, known.bytes = linked, counts
			return true
		}
	}
	s.next[f.path] = &entry{stamp: stampOf(f.stat), mode: f.stat.Mode, target: target, linked: linked, bytes: counts}
	s.found = append(s.found, f)
	return known != nil
}

func (s *saving) skip(name string) {
	s.copied.Skipped++
	s.copied.Example = name
}

// Next returns the next part of the copy that was begun. With the last one it says
// what the whole copy has. Sockets, and what the sandbox's user may not read, are
// skipped.
func (t *Tracker) Next() (part []byte, copied *frame.Copied, err error) {
	s := t.saving
	if s == nil {
		return nil, nil, errors.New("no copy was begun")
	}
	for len(part) < filetree.MaxData {
		switch {
		case s.file != nil:
			if part, err = s.piece(part); err != nil {
				t.abandon()
				return nil, nil, err
			}
		case len(s.gone) > 0:
			part = filetree.Append(part, filetree.Record{Kind: filetree.Gone, Path: s.gone[0]})
			s.gone = s.gone[1:]
		case len(s.found) > 0:
			part = t.entry(part, s.found[0])
			s.found = s.found[1:]
		default:
			t.finish()
			return part, &s.copied, nil
		}
	}
	return part, nil, nil
}

// finish takes what was copied for known.
func (t *Tracker) finish() {
	for _, name := range t.saving.removed {
		delete(t.known, name)
	}
	for name, e := range t.saving.next {
		t.known[name] = e
	}
	// What is mapped now can be written unnoticed.
	t.mapped = maps.Clone(t.exposed.Mapped)
	t.bytes, t.entries, t.saving, t.paths = t.saving.copied.Bytes, t.saving.copied.Entries, nil, nil
}

// abandon forgets the copy that is being made.
func (t *Tracker) abandon() {
	if t.saving == nil {
		return
	}
	if t.saving.file != nil {
		t.saving.file.Close()
	}
	t.saving = nil
	if t.watcher != nil {
		t.watcher.lost = true
	}
}

// entry adds the record of an entry. The pieces of a file are for the following turns.
func (t *Tracker) entry(part []byte, f found) []byte {
	s := t.saving
	r := filetree.Record{Path: f.path, Mode: filetree.Mode(f.stat.Mode), ModTime: f.stat.Mtim.Nano()}
	switch f.stat.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		r.Kind = filetree.Folder
	case unix.S_IFIFO:
		r.Kind = filetree.FIFO
	case unix.S_IFLNK:
		target, err := t.Root.readlink(f.path)
		if err != nil || target == "" {
			return t.leaveOut(part, f)
		}
		r.Kind, r.Target, r.Mode = filetree.Symlink, target, 0
	default:
		if target := s.next[f.path].target; target != "" {
			if s.next[target] == nil && (t.known[target] == nil || t.known[target].scan != t.scans) {
				return t.leaveOut(part, f)
			}
			r.Kind, r.Target, r.Mode = filetree.Link, target, 0
			break
		}
		file, err := t.Root.open(path.Join(t.Root.Path, f.path), unix.O_RDONLY|unix.O_NOFOLLOW, 0, unix.RESOLVE_NO_SYMLINKS)
		if err != nil {
			return t.leaveOut(part, f)
		}
		var st unix.Stat_t
		if unix.Fstat(int(file.Fd()), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			file.Close()
			return t.leaveOut(part, f)
		}
		// What grows while it is copied is copied as large as it was.
		r.Kind, r.Size = filetree.File, min(f.stat.Size, st.Size)
		s.file, s.at, s.end = file, 0, r.Size
	}
	return filetree.Append(part, r)
}

// leaveOut takes an entry out of the copy that has disappeared or cannot be read.
func (t *Tracker) leaveOut(part []byte, f found) []byte {
	s := t.saving
	s.skip(f.path)
	s.copied.Entries--
	s.copied.Bytes -= s.next[f.path].bytes
	delete(s.next, f.path)
	if known := t.known[f.path]; known != nil {
		s.removed = append(s.removed, f.path)
		known.scan = 0 // it is nobody's target
		part = filetree.Append(part, filetree.Record{Kind: filetree.Gone, Path: f.path})
	}
	return part
}

// piece adds the next piece of the file that is being copied, or closes it. Holes are
// left out.
func (s *saving) piece(part []byte) ([]byte, error) {
	done := func(err error) ([]byte, error) {
		s.file.Close()
		s.file = nil
		return part, err
	}
	if s.at >= s.end {
		return done(nil)
	}
	data, err := unix.Seek(int(s.file.Fd()), s.at, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return done(nil) // a hole up to the end
	case err != nil:
		return done(fmt.Errorf("copy a file of the workspace: %w", err))
	}
	if data >= s.end {
		return done(nil)
	}
	hole, err := unix.Seek(int(s.file.Fd()), data, unix.SEEK_HOLE)
	if err != nil { // it was cut short meanwhile
		return done(nil)
	}
	size := min(hole, s.end) - data
	// The record's head and the piece stay within a part.
	size = min(size, filetree.MaxPart-int64(len(part))-64, filetree.MaxData)
	buffer := make([]byte, size)
	n, err := s.file.ReadAt(buffer, data)
	if n == 0 {
		return done(nil)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return done(fmt.Errorf("copy a file of the workspace: %w", err))
	}
	s.at = data + int64(n)
	return filetree.Append(part, filetree.Record{Kind: filetree.Data, Offset: data, Data: buffer[:n]}), nil
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
	if err != nil || n > filetree.MaxPath {
		return "", errors.Join(err, unix.ENAMETOOLONG)
	}
	return string(buffer[:n]), nil
}
