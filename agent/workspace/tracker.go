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
// file is written through a shared mapping, so those that Mapped names count as changed.
type Tracker struct {
	Root Root
	// Mapped returns the inodes of files of the workspace that processes may write by
	// mappings. It is nil where the file system knows of such writes.
	Mapped func() map[uint64]bool
	// known has the entries as they were copied last.
	known  map[string]entry
	saving *saving // the copy that is being made; nil between two
}

// entry is what is known of an entry of the tree.
type entry struct {
	stamp
	mode  uint32
	mtime int64
	// target is the path of the file that this one is another name of.
	target string
}

// saving is a copy that is being made.
type saving struct {
	found   []found
	gone    []string
	next    map[string]entry
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

// Unchanged reports whether nothing has changed since the last copy. It answers false
// too where that takes a scan of more than most entries.
func (t *Tracker) Unchanged(most int) bool {
	if len(t.known) > most {
		return false
	}
	count, files := 0, 0
	err := t.Root.scan(most, func(f found) bool {
		count++
		if f.stat.Mode&unix.S_IFMT == unix.S_IFREG {
			files++
		}
		known, ok := t.known[f.path]
		return ok && known.same(f.stat)
	})
	return err == nil && count == len(t.known) && (files == 0 || t.Mapped == nil || len(t.Mapped()) == 0)
}

// same reports whether an entry is as it was.
func (e entry) same(st unix.Stat_t) bool {
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
	// Folders are opened by their whole path, so that a deep tree takes no more
	// descriptors than a flat one.
	folders := []string{""}
	for len(folders) > 0 {
		last := len(folders) - 1
		folder := folders[last]
		folders = folders[:last]
		entries, err := r.entries(folder, most)
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

// entries returns those of one folder, sorted. A folder that cannot be read has none.
func (r *Root) entries(folder string, most int) ([]found, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW
	dir, err := r.open(path.Join(r.Path, folder), flags, 0, unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		if folder == "" {
			return nil, err
		}
		return nil, nil
	}
	defer dir.Close()
	names, err := dir.Readdirnames(most + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil
	}
	if len(names) > most {
		return nil, errTooMany
	}
	slices.Sort(names)
	all := make([]found, 0, len(names))
	for _, name := range names {
		f := found{path: path.Join(folder, name)}
		if unix.Fstatat(int(dir.Fd()), name, &f.stat, unix.AT_SYMLINK_NOFOLLOW) == nil {
			all = append(all, f)
		}
	}
	return all, nil
}

// Begin begins a copy of what has changed since the last one, or with full of
// everything. A copy that was begun before and not finished is forgotten.
//
// A write after the scan has a later time than what the scan found, so that the next
// one finds it: where something was written in the present tick of the file system's
// clock, the scan is made once more after it.
func (t *Tracker) Begin(full bool) error {
	now := tick()
	if err := t.begin(full); err != nil {
		return err
	}
	for _, f := range t.saving.found {
		if f.stat.Ctim.Nano() >= now {
			awaitTick()
			return t.begin(full)
		}
	}
	return nil
}

// tick returns the time by the clock of the file system, in nanoseconds.
func tick() int64 {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now) // fails for no argument of ours
	return now.Nano()
}

// Settle takes what the workspace has now for what was copied last.
func (t *Tracker) Settle() error {
	if err := t.begin(true); err != nil {
		return err
	}
	t.known, t.saving = t.saving.next, nil
	return nil
}

// IsSettled reports whether there was a copy, or something that is taken for one.
func (t *Tracker) IsSettled() bool { return t.known != nil }

func (t *Tracker) begin(full bool) error {
	t.abandon()
	var mapped map[uint64]bool
	if t.Mapped != nil && !full {
		mapped = t.Mapped()
	}
	s := &saving{next: make(map[string]entry, len(t.known)), first: map[uint64]string{}}
	err := t.Root.scan(filetree.MaxEntries, func(f found) bool {
		s.consider(t.known, f, full || mapped[f.stat.Ino])
		return true
	})
	if err != nil {
		return err
	}
	for name := range t.known {
		if _, still := s.next[name]; !still && !full {
			s.gone = append(s.gone, name)
		}
	}
	slices.Sort(s.gone)
	t.saving = s
	return nil
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
func (s *saving) consider(known map[string]entry, f found, any bool) {
	if filetree.CheckPath(f.path) != nil {
		s.skip(f.path)
		return
	}
	e := entry{stamp: stampOf(f.stat), mode: f.stat.Mode, mtime: f.stat.Mtim.Nano()}
	switch f.stat.Mode & unix.S_IFMT {
	case unix.S_IFDIR, unix.S_IFLNK, unix.S_IFIFO:
	case unix.S_IFREG:
		if f.stat.Nlink > 1 {
			if e.target = s.first[f.stat.Ino]; e.target == "" {
				s.first[f.stat.Ino] = f.path
			}
		}
		if e.target == "" {
			s.copied.Bytes += min(f.stat.Size, f.stat.Blocks*512)
		}
	default:
		s.skip(f.path)
		return
	}
	s.copied.Entries++
	before, was := known[f.path]
	if !any && was && before.same(f.stat) && before.target == e.target {
		s.next[f.path] = before
		return
	}
	s.next[f.path] = e
	s.found = append(s.found, f)
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
			t.known, t.saving = s.next, nil
			return part, &s.copied, nil
		}
	}
	return part, nil, nil
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
			if _, there := s.next[target]; !there {
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
	if _, was := t.known[f.path]; was {
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
