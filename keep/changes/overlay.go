// Package changes has what sessions changed in the project, as patches that a user can
// inspect and apply.
//
// A sandbox whose project is an overlay writes to an upper layer in memory. [Overlay]
// compares that layer with the project after each call and writes the patch to a file;
// [Store] is the folder of these files, which outlive the server; [Apply] applies one to
// the project.
//
// What is in the layer is hostile: names of any bytes, links, devices, trees without an
// end. Package layer reads it, every number and size has a bound, and what does not fit
// is left out of the patch and named.
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
	"maps"
	"os"
	"slices"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/keep/changes/gitpatch"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/keep/changes/layer"
)

const (
	// maxEntries bounds the entries that one comparison visits.
	maxEntries = 50_000
	// earlyEntries bounds those that are visited before a call is answered.
	earlyEntries = 2000
	// maxFile is the largest file that is compared, in bytes.
	maxFile = 32 << 20
	// largeFile is the size from which on one file at a time is in memory, of all
	// sessions, in bytes.
	largeFile = 1 << 20
	// maxTime bounds one comparison. What is not compared by then is named, and
	// compared after the next call.
	maxTime = 10 * time.Second
	// checkBytes and checkFiles bound what one comparison reads of files whose times are as
	// they were: a write through a shared mapping leaves no time on a file in memory
	// (shmem of the kernel has no page_mkwrite).
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
	// Bytes are those of the files that were added or changed, as they are now.
	Bytes int64 `json:"bytes"`
	// Lines are those of the text files.
	Lines gitpatch.Lines `json:"lines"`
	// LeftOut are the first of the paths that the patch does not have, LeftOutCount is
	// the number of all.
	LeftOut      []LeftOut `json:"left_out,omitempty"`
	LeftOutCount int       `json:"left_out_count,omitempty"`
	// Incomplete says that there were too many files to visit them all.
	Incomplete bool `json:"incomplete,omitempty"`
	// Doubtful are paths of the project that changed on the host while the session
	// changed them: the patch may not be for what the sandbox saw.
	Doubtful []string `json:"doubtful,omitempty"`
}

// Files is the number of files that were changed.
func (s Summary) Files() int { return s.Added + s.Changed + s.Deleted }

func (s *Summary) count(kind string, size int64, lines gitpatch.Lines) {
	switch kind {
	case Added:
		s.Added++
	case Changed:
		s.Changed++
	case Deleted:
		s.Deleted++
	}
	s.Bytes += size
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
	originals   *os.File  // contents of the project as they were first seen; nil before
	kept        int64     // bytes in originals
	patch       *os.File  // the last one; nil before
	checked     string    // the path up to which files were checked
	began       time.Time // when the call began whose changes were compared last
	temp        func() (*os.File, error)
}

// record is a path that the session changed, or changed once.
type record struct {
	// What the project has: its mode and where its content lies in the originals. It is
	// read once, so that the patch is for what the sandbox saw.
	mode         gitpatch.Mode
	offset, size int64
	doubtful     bool
	// project is the stamp that the project's file had when it was last read.
	project layer.Stamp
	// What the upper layer had when the fragment was written; the zero stamp where it
	// hides the path.
	stamp layer.Stamp
	// after and id are the mode and the id of the content that the upper layer had.
	after gitpatch.Mode
	id    string
	// fragment is the part of the last patch for this path.
	fragment fragment
	// left is why the path is not in the patch; empty where it is. full says that it had
	// too few bytes left.
	left string
	full bool
	// fresh says that stamp, fragment and left are as the layer is.
	fresh bool
}

type fragment struct {
	offset, length int64
	kind           string // empty where the path is as the project has it
	size           int64  // of the file now
	lines          gitpatch.Lines
}

// NewOverlay returns the overlay of an upper layer over a project. The patch has at most
// maxBytes. temp makes a file without a name. The caller owns upper and base and closes
// the Overlay before them.
func NewOverlay(upper, base *layer.Tree, maxBytes int64, temp func() (*os.File, error)) *Overlay {
	return &Overlay{
		upper: upper, base: base, maxBytes: maxBytes, maxTime: maxTime, temp: temp,
		hidden: map[string]below{}, paths: map[string]*record{},
	}
}

// Close drops what is kept for the next comparison.
func (o *Overlay) Close() {
	for _, file := range []*os.File{o.originals, o.patch} {
		if file != nil {
			file.Close()
		}
	}
}

// Early returns, without reading a content, how much is changed: a file counts whose
// size, time or mode is not the project's. It is false where the upper layer is empty.
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
		summary.count(kind, now.Size, gitpatch.Lines{})
	}
	for range s.deleted {
		summary.count(Deleted, 0, gitpatch.Lines{})
	}
	summary.LeftOut, summary.LeftOutCount = s.leftOut.first, s.leftOut.count
	return summary, true, nil
}

// large contains an element while a large file is in memory.
var large = make(chan struct{}, 1)

// Compare writes the patch of all that is changed to a new file without a name, unless
// nothing changed since the last time: then changed is false. began is when the call
// began whose changes are compared. The file is the Overlay's, which reads it the next
// time.
func (o *Overlay) Compare(ctx context.Context, began time.Time) (summary Summary, patch *Patch, changed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, o.maxTime)
	defer cancel()
	o.began = began
	s, err := scanLayers(o.upper, o.base, maxEntries, o.hidden)
	if errors.Is(err, layer.ErrTooMany) {
		summary.Incomplete, err = true, nil
	}
	if err != nil {
		return summary, nil, false, err
	}
	o.check(s)
	o.adopt(ctx)
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
		if r.doubtful && r.fragment.kind != "" && len(summary.Doubtful) < maxLeftOut {
			summary.Doubtful = append(summary.Doubtful, shown(name))
		}
		summary.count(r.fragment.kind, r.fragment.size, r.fragment.lines)
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

// check finds files that have another content than their times say, at each comparison
// some of them in the order of their paths.
func (o *Overlay) check(s *scan) {
	var names []string
	for name, r := range o.paths {
		if entry, found := s.present[name]; found && r.fresh && r.id != "" && r.stamp == entry.Stamp && entry.Kind == layer.File {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	from, _ := slices.BinarySearch(names, o.checked)
	bytes := int64(checkBytes)
	for _, name := range slices.Concat(names[from:], names[:from])[:min(len(names), checkFiles)] {
		r, entry := o.paths[name], s.present[name]
		o.checked = name
		if entry.Size > bytes {
			if bytes < checkBytes {
				return // the next comparison begins with it
			}
			continue
		}
		bytes -= entry.Size
		content, _, err := o.upper.Read(name, entry.Size)
		r.fresh = err == nil && (gitpatch.State{Mode: gitpatch.Regular, Content: content}).ID() == r.id
	}
}

// adopt finds files of the project that have become what the last patch makes them,
// because the patch was applied. From now on they are what the session began with.
func (o *Overlay) adopt(ctx context.Context) {
	for name, r := range o.paths {
		if r.left != "" || r.fragment.kind == "" || ctx.Err() != nil {
			continue
		}
		entry, err := o.base.Find(name)
		absent := errors.Is(err, fs.ErrNotExist)
		if err != nil && !absent || entry.Stamp == r.project || !absent && entry.Kind != layer.File && entry.Kind != layer.Link {
			continue
		}
		r.project = entry.Stamp
		now := record{offset: -1}
		switch {
		case absent:
			now.offset = 0
		case r.fragment.size != entry.Size || r.fragment.kind == Deleted || o.keep(&now, name) != nil:
			continue
		}
		state, err := o.original(&now, name)
		if err == nil && state.Mode == r.after && (absent || state.ID() == r.id) {
			r.mode, r.offset, r.size, r.doubtful, r.fresh = now.mode, now.offset, now.size, false, false
		}
	}
}

// stale marks the records that are not as a scan found them, makes those that lack, and
// drops those of paths that are the project's again. It reports whether there are any.
func (o *Overlay) stale(s *scan) bool {
	stale := o.patch == nil && len(s.present)+len(s.deleted) > 0
	for name, r := range o.paths {
		entry, found := s.present[name]
		switch {
		case !found && !s.deleted[name]:
			delete(o.paths, name)
			stale = true
		case !r.fresh || r.stamp != entry.Stamp: // the zero stamp where it is deleted
			r.fresh, stale = false, true
		}
	}
	add := func(name string) {
		if o.paths[name] == nil {
			o.paths[name] = &record{offset: -1}
			stale = true
		}
	}
	for name := range s.present {
		add(name)
	}
	for name := range s.deleted {
		add(name)
	}
	return stale
}

// compare writes the fragment of a path.
func (r *record) compare(o *Overlay, out *writer, name string, entry layer.Entry, found bool) {
	r.after, r.id, r.left, r.full, r.fragment, r.stamp, r.fresh = gitpatch.Absent, "", "", false, fragment{}, entry.Stamp, true
	if entry.Size > largeFile || r.size > largeFile {
		large <- struct{}{}
		defer func() { <-large }()
	}
	before, err := o.original(r, name)
	if err != nil {
		r.left = "the project's cannot be compared: " + err.Error()
		return
	}
	var after gitpatch.State
	if found {
		content, stamp, err := o.upper.Read(name, maxFile)
		if err != nil {
			r.left = "it cannot be compared: " + err.Error()
			return
		}
		after = gitpatch.State{Mode: modeOf(entry), Content: content}
		r.stamp, r.after, r.id = stamp, after.Mode, after.ID()
		r.fresh = stamp.IsSettled()
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

// original returns what the project has at a path, as it was when it was first asked for.
func (o *Overlay) original(r *record, name string) (gitpatch.State, error) {
	if r.offset < 0 {
		if err := o.keep(r, name); err != nil {
			return gitpatch.State{}, err
		}
	}
	if r.mode == gitpatch.Absent {
		return gitpatch.State{}, nil
	}
	state := gitpatch.State{Mode: r.mode, Content: make([]byte, r.size)}
	if r.size > 0 {
		if _, err := o.originals.ReadAt(state.Content, r.offset); err != nil {
			return state, fmt.Errorf("read what was kept of it: %w", err)
		}
	}
	return state, nil
}

// keep reads what the project has at a path into the originals.
func (o *Overlay) keep(r *record, name string) error {
	entry, err := o.base.Find(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		r.mode, r.offset = gitpatch.Absent, 0
		return nil
	case err != nil:
		return err
	case entry.Kind != layer.File && entry.Kind != layer.Link:
		r.mode, r.offset = gitpatch.Absent, 0
		return nil
	}
	content, stamp, err := o.base.Read(name, min(maxFile, o.maxBytes-o.kept))
	if err != nil {
		return err
	}
	if len(content) > 0 {
		if o.originals == nil {
			if o.originals, err = o.temp(); err != nil {
				return err
			}
		}
		if _, err := o.originals.WriteAt(content, o.kept); err != nil {
			return fmt.Errorf("keep it: %w", err)
		}
	}
	r.mode, r.offset, r.size, r.project = modeOf(entry), o.kept, int64(len(content)), stamp
	o.kept += r.size
	// The call changed it. If something on the host did too since the call began, nobody
	// knows which was first.
	r.doubtful = stamp.New > o.began.Add(-layer.ClockTick).UnixNano()
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

// Reader returns a reader of the patch.
func (p *Patch) Reader() io.Reader { return io.NewSectionReader(p.File, 0, p.Size) }

// errFull ends a fragment for which the patch has no bytes left.
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

// add writes the fragment of a path, or nothing with errFull. The fragment is made in
// memory first: it has at most some three times the bytes of the two states.
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

// copy copies a fragment of an earlier patch and returns where it is now.
func (w *writer) copy(from *os.File, f fragment) (int64, error) {
	offset := w.size
	n, err := io.Copy(w.out, io.NewSectionReader(from, f.offset, f.length))
	w.size += n
	if err == nil && n < f.length {
		err = io.ErrUnexpectedEOF
	}
	return offset, err
}
