// Package changes records the changes of sessions to the project as patches, which a user
// can inspect and apply.
//
// If the project is an overlay, a sandbox writes to an upper layer in memory. [Overlay]
// compares that layer with the project after each call and writes the patch to a file;
// [Store] is the folder of these files, which outlive the server; [Apply] applies one to
// the project.
//
// The layer is hostile: names of any bytes, links, devices, endless trees. Package layer
// reads it, every number and size has a bound, and files that do not fit are left out of the
// patch and listed.
package changes

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path"
	"slices"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes/gitpatch"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes/layer"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes/policy"
)

const (
	// maxEntries bounds the entries that one comparison visits.
	maxEntries = 50_000
	// earlyEntries bounds the entries that are visited before a call is answered.
	earlyEntries = 2000
	// maxFile is the largest file that is compared, in bytes.
	maxFile = 32 << 20
	// Only one file of more than largeFile bytes is in memory at a time.
	largeFile = 1 << 20
	// maxTime bounds one comparison. The remaining files are listed, and compared after
	// the next call.
	maxTime = 10 * time.Second
	// One comparison reads up to checkFiles files, and checkBytes bytes, that look unchanged:
	// a write through a shared mapping does not update the times of a file in tmpfs, because
	// the kernel's shmem has no page_mkwrite.
	checkBytes = 4 << 20
	checkFiles = 256
)

// Kinds of changes.
const (
	Added   = "added"
	Changed = "changed"
	Deleted = "deleted"
)

// Summary says how much a session changed.
type Summary struct {
	Added   int `json:"added"`
	Changed int `json:"changed"`
	Deleted int `json:"deleted"`
	// Bytes is the present size of the files that were added or changed.
	Bytes int64 `json:"bytes"`
	// Lines counts the lines of text files, without those in Caches.
	Lines gitpatch.Lines `json:"lines"`
	// LeftOut are the first of the paths that the patch does not have, LeftOutCount is
	// the number of all.
	LeftOut      []LeftOut `json:"left_out,omitempty"`
	LeftOutCount int       `json:"left_out_count,omitempty"`
	// Incomplete says that there were too many files to visit them all.
	Incomplete bool `json:"incomplete,omitempty"`
	// Doubtful are the first of the paths of the project that changed on the host while
	// the session changed them: the sandbox may have seen another version.
	// DoubtfulCount is the number of all.
	Doubtful      []string `json:"doubtful,omitempty"`
	DoubtfulCount int      `json:"doubtful_count,omitempty"`
	// Caches counts the files in folders of caches and of installed packages.
	Caches int `json:"caches,omitempty"`
}

// Files is the number of files that were changed.
func (s Summary) Files() int { return s.Added + s.Changed + s.Deleted }

func (s *Summary) count(name, kind string, size int64, lines gitpatch.Lines) {
	switch kind {
	case Added:
		s.Added++
	case Changed:
		s.Changed++
	case Deleted:
		s.Deleted++
	default:
		return
	}
	s.Bytes += size
	if policy.Cache(path.Dir(name)) {
		s.Caches++
		return
	}
	s.Lines.Added += lines.Added
	s.Lines.Deleted += lines.Deleted
}

// Overlay is the overlay of one sandbox. Its methods are called by one goroutine at a
// time.
type Overlay struct {
	upper, base *layer.Tree
	maxBytes    int64 // of the patch, and of the contents of the project that are kept
	maxTime     time.Duration
	hidden      map[string]below
	paths       map[string]*record
	originals   *os.File // contents of the project as they were first seen, or nil
	kept        int64    // bytes in originals
	patch       *os.File // the last one, or nil
	began       int64    // start of the current call, in ns
	temp        func() (*os.File, error)
}

// record is a path that the session changed at some time.
type record struct {
	// The project's version is read once, because the patch must begin with the version that
	// the sandbox saw. offset is the position of its content in the originals, negative before
	// it is read. base is the stamp of the project's file at the last comparison.
	mode         gitpatch.Mode
	offset, size int64
	doubtful     bool
	base         layer.Stamp
	// stamp and id describe the upper layer's file at the last comparison. They are zero if it
	// hides the path.
	stamp    layer.Stamp
	id       string
	fragment fragment
	// left is why the path is not in the patch, or "". full says that it did not fit.
	left string
	full bool
	// fresh says that stamp, fragment and left are as the layer is.
	fresh bool
}

// fragment is the part of the last patch for one path.
type fragment struct {
	offset, length int64
	kind           string // "" if the path is as the project has it
	size           int64  // of the file now
	lines          gitpatch.Lines
}

// NewOverlay returns the overlay of an upper layer over a project, which it owns. The patch has at
// most maxBytes. temp makes a file without a name.
func NewOverlay(upper, base *layer.Tree, maxBytes int64, temp func() (*os.File, error)) *Overlay {
	return &Overlay{
		upper: upper, base: base, maxBytes: maxBytes, maxTime: maxTime, temp: temp,
		hidden: map[string]below{}, paths: map[string]*record{},
	}
}

// Close closes the layers, and the files for the next comparison.
func (o *Overlay) Close() {
	o.upper.Close()
	o.base.Close()
	for _, file := range []*os.File{o.originals, o.patch} {
		if file != nil {
			file.Close()
		}
	}
}

// Early estimates the changes without reading contents: a file counts if its size, time or
// mode differs from the project's. used is false if the upper layer is empty.
func (o *Overlay) Early() (summary Summary, used bool, err error) {
	s, err := scanLayers(o.upper, o.base, earlyEntries, o.hidden)
	if errors.Is(err, layer.ErrTooMany) {
		summary.Incomplete, err = true, nil
	}
	if err != nil || s.isEmpty {
		return Summary{}, !s.isEmpty, err
	}
	for name, now := range s.present {
		kind := Changed
		switch was := o.hidden[name].entry; {
		case was == nil:
			kind = Added
		case was.Kind == now.Kind && was.Size == now.Size && was.Executable == now.Executable && was.Stamp.Modified == now.Stamp.Modified:
			continue
		}
		summary.count(name, kind, now.Size, gitpatch.Lines{})
	}
	for name := range s.deleted {
		summary.count(name, Deleted, 0, gitpatch.Lines{})
	}
	summary.LeftOut, summary.LeftOutCount = s.leftOut.first, s.leftOut.count
	return summary, true, nil
}

// large contains an element while a large file is in memory.
var large = make(chan struct{}, 1)

// Compare writes the patch of all changes to a new unnamed file. changed is false, and patch
// is nil, if it would be the same as the last one. began is the start of the call. The
// Overlay owns the file, because it copies unchanged parts to the next patch.
func (o *Overlay) Compare(ctx context.Context, began time.Time) (summary Summary, patch *Patch, changed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, o.maxTime)
	defer cancel()
	o.began = began.UnixNano()
	s, err := scanLayers(o.upper, o.base, maxEntries, o.hidden)
	if errors.Is(err, layer.ErrTooMany) {
		summary.Incomplete, err = true, nil
	}
	if err != nil {
		return summary, nil, false, err
	}
	if !o.stale(s) {
		return summary, nil, false, nil
	}
	names := slices.Sorted(maps.Keys(o.paths))
	out, err := o.newPatch()
	if err != nil {
		return summary, nil, false, err
	}
	left := s.leftOut
	for _, name := range names {
		r := o.paths[name]
		if !r.fresh || r.full {
			if ctx.Err() != nil {
				r.fresh, r.left = false, "there was no time to compare it"
			} else {
				entry, found := s.present[name]
				r.compare(o, out, name, entry, found)
			}
		} else if r.left == "" && r.fragment.length > 0 {
			r.fragment.offset, err = out.copy(o.patch, r.fragment)
		}
		if err != nil {
			break
		}
		if r.left != "" {
			left.add(name, r.left)
			continue
		}
		if r.doubtful && r.fragment.kind != "" {
			summary.DoubtfulCount++
			if len(summary.Doubtful) < maxLeftOut {
				summary.Doubtful = append(summary.Doubtful, shown(name))
			}
		}
		summary.count(name, r.fragment.kind, r.fragment.size, r.fragment.lines)
	}
	if err == nil {
		err = out.flush()
	}
	if err != nil {
		out.file.Close()
		return summary, nil, false, err
	}
	if o.patch != nil {
		o.patch.Close()
	}
	o.patch = out.file
	summary.LeftOut, summary.LeftOutCount = left.first, left.count
	return summary, &Patch{out.file, out.size, out.hash.Sum(nil)}, true, nil
}

// stale marks the records that are not as a scan found them, adds the missing ones, and
// drops paths that the session no longer changes. It reports whether there are any. Some of
// the files with the times that they had are read too, in no order.
func (o *Overlay) stale(s *scan) bool {
	stale := o.patch == nil && len(s.present)+len(s.deleted) > 0
	files, bytes := checkFiles, int64(checkBytes)
	for name, r := range o.paths {
		entry, found := s.present[name]
		base, _ := o.base.Find(name) // the zero stamp if it does not exist
		switch {
		case !found && !s.deleted[name]:
			delete(o.paths, name)
			stale = true
			continue
		case r.stamp != entry.Stamp || r.base != base.Stamp:
			r.fresh = false
		case r.fresh && r.id != "" && files > 0 && entry.Size <= bytes:
			files, bytes = files-1, bytes-entry.Size
			content, _, err := o.upper.Read(name, entry.Size)
			r.fresh = err == nil && (gitpatch.State{Mode: gitpatch.Regular, Content: content}).ID() == r.id
		}
		stale = stale || !r.fresh
	}
	for _, names := range []iter.Seq[string]{maps.Keys(s.present), maps.Keys(s.deleted)} {
		for name := range names {
			if o.paths[name] == nil {
				o.paths[name] = &record{offset: -1}
				stale = true
			}
		}
	}
	return stale
}

// Release drops the session's versions that the project had too, before the project's changed again:
// so the sandbox sees what the user makes of a file after the session's version was applied.
func (o *Overlay) Release() {
	for name, r := range o.paths {
		if r.left != "" || r.fragment.kind != "" || r.id == "" {
			continue
		}
		base, err := o.base.Find(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) || base.Stamp == r.base {
			continue
		}
		entry, err := o.upper.Find(name)
		if err != nil || entry.Stamp != r.stamp {
			continue
		}
		// Its stamp may not tell of the last change.
		content, _, err := o.upper.Read(name, maxFile)
		if err == nil && (gitpatch.State{Mode: modeOf(entry), Content: content}).ID() == r.id && o.upper.Remove(name) == nil {
			delete(o.paths, name)
		}
	}
}

// compare writes the fragment of a path.
func (r *record) compare(o *Overlay, out *writer, name string, entry layer.Entry, found bool) {
	r.id, r.left, r.full, r.fragment, r.stamp, r.fresh = "", "", false, fragment{}, entry.Stamp, true
	if entry.Size > largeFile || r.size > largeFile {
		large <- struct{}{}
		defer func() { <-large }()
	}
	var after gitpatch.State
	since := o.began
	if found {
		content, stamp, err := o.upper.Read(name, maxFile)
		if err != nil {
			r.left = "it cannot be compared: " + err.Error()
			return
		}
		after = gitpatch.State{Mode: modeOf(entry), Content: content}
		r.stamp, r.id, r.fresh = stamp, after.ID(), stamp.IsSettled()
		since = min(since, entry.Stamp.New) // a process in the background may have written it
	}
	before, err := o.original(r, name, since, after)
	if err != nil {
		r.left = "the project's cannot be compared: " + err.Error()
		return
	}
	switch {
	case before.Equal(after):
		return
	case before.Mode == gitpatch.Absent:
		r.fragment.kind = Added
	case after.Mode == gitpatch.Absent:
		r.fragment.kind = Deleted
	default:
		r.fragment.kind = Changed
	}
	r.fragment.size = int64(len(after.Content))
	r.fragment.offset = out.size
	r.fragment.lines, err = out.add(name, before, after)
	if errors.Is(err, errFull) {
		r.fragment, r.left, r.full = fragment{}, "the patch has as many bytes as it may", true
		return
	}
	r.fragment.length = out.size - r.fragment.offset
}

// original returns the project's version of a path as the sandbox saw it. If the project now
// equals the session's version, because the patch was applied, that becomes the original.
// The session changed the path at the time since, in ns, or later.
func (o *Overlay) original(r *record, name string, since int64, after gitpatch.State) (gitpatch.State, error) {
	entry, err := o.base.Find(name)
	absent := errors.Is(err, fs.ErrNotExist)
	known, changed := r.offset >= 0, r.base != entry.Stamp
	r.base = entry.Stamp
	if err != nil && !absent {
		return gitpatch.State{}, err
	}
	if !known || changed {
		var now gitpatch.State
		if err = nil; !absent && (entry.Kind == layer.File || entry.Kind == layer.Link) {
			var stamp layer.Stamp
			now.Mode = modeOf(entry)
			if now.Content, stamp, err = o.base.Read(name, min(maxFile, o.maxBytes-o.kept)); err == nil {
				r.base = stamp
			} else if !known {
				return now, err
			}
		}
		if applied := known && err == nil && now.Equal(after); applied || !known {
			// If the host changed it in that time too, either change may have been first.
			r.doubtful = !applied && r.base.New > since-int64(layer.ClockTick)
			return now, o.keep(r, now)
		}
	}
	state := gitpatch.State{Mode: r.mode, Content: make([]byte, r.size)}
	if r.size > 0 {
		if _, err := o.originals.ReadAt(state.Content, r.offset); err != nil {
			return state, fmt.Errorf("read what was kept of it: %w", err)
		}
	}
	return state, nil
}

// keep adds the project's version of a path to the originals.
func (o *Overlay) keep(r *record, state gitpatch.State) (err error) {
	if len(state.Content) > 0 {
		if o.originals == nil {
			if o.originals, err = o.temp(); err != nil {
				return err
			}
		}
		if _, err := o.originals.WriteAt(state.Content, o.kept); err != nil {
			return fmt.Errorf("keep it: %w", err)
		}
	}
	r.mode, r.offset, r.size = state.Mode, o.kept, int64(len(state.Content))
	o.kept += r.size
	return nil
}

func modeOf(entry layer.Entry) gitpatch.Mode {
	switch {
	case entry.Kind == layer.Link:
		return gitpatch.Link
	case entry.Executable:
		return gitpatch.Executable
	}
	return gitpatch.Regular
}

// Patch is a patch in a file.
type Patch struct {
	File *os.File
	Size int64 // bytes
	Sum  []byte
}

// errFull reports a fragment that exceeds the size of the patch.
var errFull = errors.New("the patch is full")

// writer writes a patch to a file, at most limit bytes.
type writer struct {
	file  *os.File
	out   *bufio.Writer
	hash  hash.Hash
	size  int64
	limit int64
}

func (o *Overlay) newPatch() (*writer, error) {
	file, err := o.temp()
	if err != nil {
		return nil, err
	}
	w := &writer{file: file, hash: sha256.New(), limit: o.maxBytes}
	w.out = bufio.NewWriterSize(io.MultiWriter(file, w.hash), 64<<10)
	return w, nil
}

func (w *writer) flush() error { return w.out.Flush() }

// add writes the fragment of a path, or returns errFull. It makes the fragment in memory,
// which takes at most three times the bytes of the two states.
func (w *writer) add(name string, before, after gitpatch.State) (gitpatch.Lines, error) {
	var text bytes.Buffer
	lines, err := gitpatch.Write(&text, name, before, after)
	if err != nil {
		return lines, err
	}
	if w.size+int64(text.Len()) > w.limit {
		return gitpatch.Lines{}, errFull
	}
	w.size += int64(text.Len())
	_, err = w.out.Write(text.Bytes())
	return lines, err
}

// copy copies a fragment of an earlier patch and returns its new offset.
func (w *writer) copy(from *os.File, f fragment) (int64, error) {
	offset := w.size
	n, err := io.Copy(w.out, io.NewSectionReader(from, f.offset, f.length))
	w.size += n
	if err == nil && n < f.length {
		err = io.ErrUnexpectedEOF
	}
	return offset, err
}
