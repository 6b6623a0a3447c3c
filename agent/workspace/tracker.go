package workspace

import (
	"errors"
	"fmt"
	"io"
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
// It compares what stat(2) says of each entry. On a tmpfs that stays the same when a
// page is written that a process had mapped and written before: files that
// [Tracker.FindMapped] found count as changed.
type Tracker struct {
	Root Root
	// Mapped returns the inodes of files of the workspace that processes may write by
	// mappings. It is nil where the file system knows of such writes.
	Mapped func() map[uint64]bool
	// known has the entries as they were copied last; nil before the first copy.
	known map[string]*entry
	// mapped are the inodes that Mapped returned last.
	mapped map[uint64]bool
	bytes  int64   // in the files that were copied last
	scans  uint64  // so far
	saving *saving // the copy that is being made; nil between two
}

// entry is what is known of an entry of the tree.
type entry struct {
	stamp
	mode uint32
	// target is the path of the file that this one is another name of.
	target string
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

// FindMapped finds the files that can be written by mappings from now on. It is called
// after each call, and so before the next one.
func (t *Tracker) FindMapped() {
	if t.Mapped != nil && t.bytes > 0 {
		t.mapped = t.Mapped()
	}
}

// Unchanged reports whether nothing has changed since the last copy. It answers false
// too where that takes a scan of more than most entries.
func (t *Tracker) Unchanged(most int) bool {
	if len(t.known) > most || len(t.mapped) > 0 {
		return false
	}
	count := 0
	err := t.Root.scan(most, func(f found) bool {
		count++
		known := t.known[f.path]
		return known != nil && known.same(f.stat)
	})
	return err == nil && count == len(t.known)
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
// more than most entries. What disappears meanwhile is left out.
func (r *Root) scan(most int, visit func(found) bool) error {
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
		entries, err := entriesOf(root, folder, most, buffer)
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
func entriesOf(root int, folder string, most int, buffer []byte) ([]found, error) {
	// An os.File would take more system calls than the rest.
	fd, err := openFD(root, folder, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0, unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		return nil, nil
	}
	defer unix.Close(fd)
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
	return nil
}

// IsSettled reports whether there was a copy, or something that is taken for one.
func (t *Tracker) IsSettled() bool { return t.known != nil }

func (t *Tracker) begin(full bool) error {
	t.abandon()
	if t.known == nil {
		t.known = map[string]*entry{}
	}
	t.scans++
	s := &saving{next: map[string]*entry{}, first: map[uint64]string{}}
	before := 0
	err := t.Root.scan(filetree.MaxEntries, func(f found) bool {
		if s.consider(t.known[f.path], f, full || t.mapped[f.stat.Ino], t.scans) {
			before++
		}
		return true
	})
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
	target := ""
	switch f.stat.Mode & unix.S_IFMT {
	case unix.S_IFDIR, unix.S_IFLNK, unix.S_IFIFO:
	case unix.S_IFREG:
		if f.stat.Nlink > 1 {
			if target = s.first[f.stat.Ino]; target == "" {
				s.first[f.stat.Ino] = f.path
			}
		}
		if target == "" {
			s.copied.Bytes += min(f.stat.Size, f.stat.Blocks*512)
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
	if known != nil {
		known.scan = scan
		if !any && known.same(f.stat) && known.target == target {
			return true
		}
	}
	s.next[f.path] = &entry{stamp: stampOf(f.stat), mode: f.stat.Mode, target: target}
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
	t.bytes, t.saving = t.saving.copied.Bytes, nil
}

// abandon forgets the copy that is being made.
func (t *Tracker) abandon() {
	if t.saving != nil && t.saving.file != nil {
		t.saving.file.Close()
	}
	t.saving = nil
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
