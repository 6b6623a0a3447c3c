package changes

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes/gitpatch"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes/layer"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/store"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/host"
)

const (
	// keepTime is how long a patch is there after its last change.
	keepTime = 30 * 24 * time.Hour
	// maxStored and maxStoredBytes bound the patches of a folder; the oldest go first.
	maxStored      = 1000
	maxStoredBytes = 2 << 30
	// maxHead bounds the first lines of a file, in bytes.
	maxHead = 256 << 10
	// maxShown bounds a path that a head names, in bytes.
	maxShown = 512
	// maxRemembered bounds the sessions that [Store.Read] knows.
	maxRemembered = 4096

	suffix = ".patch"
	// shownSuffix ends the name of a file that has the sum of the patch that a user saw.
	shownSuffix = ".shown"
	// partial is the beginning of the name of a file that is being written.
	partial = ".new-"
	// magic is the first line of a file. Git ignores what is before a patch.
	magic = "nix-sandbox-mcp changes 1\n"
)

// Key names a session.
type Key struct {
	Principal string `json:"principal,omitempty"`
	Session   string `json:"session"`
}

// Head describes a patch. It is in the file before the patch.
type Head struct {
	Key
	// Env names the environments of the session's sandboxes that have the layer.
	Env string `json:"env"`
	// Project is the folder on the host, Mount its path in the sandbox.
	Project string    `json:"project"`
	Mount   string    `json:"mount"`
	Began   time.Time `json:"began"`
	Updated time.Time `json:"updated"`
	Summary Summary   `json:"summary"`
	// Size is that of the patch, in bytes, Sum its SHA-256.
	Size int64  `json:"size"`
	Sum  string `json:"sha256"`
}

// Store is the folder of patches of a user's sessions. Several servers share it. Its methods
// may be called concurrently.
type Store struct {
	folder string
	log    *slog.Logger
	// maxFiles and maxBytes bound the patches of all servers.
	maxFiles int
	maxBytes int64

	mu     sync.Mutex
	latest map[Key]string // the files of this process's sessions
	order  []Key          // of latest, oldest first
}

// Open returns the Store in a folder, which it makes, and removes patches that are too
// old or too many.
func Open(folder string, log *slog.Logger) (*Store, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of changes: %w", err)
	}
	if err := os.Chmod(folder, 0o700); err != nil {
		return nil, fmt.Errorf("keep others out of the folder of changes: %w", err)
	}
	s := &Store{folder: folder, log: log, maxFiles: maxStored, maxBytes: maxStoredBytes, latest: map[Key]string{}}
	s.prune()
	return s, nil
}

// stored is a patch in the folder.
type stored struct {
	name, principal string
	size            int64
	used            time.Time
}

// prune removes patches that are too old or too many, and incomplete files of servers that
// were killed. If there are too many, the principal with the most loses its oldest.
func (s *Store) prune() {
	entries, err := os.ReadDir(s.folder)
	if err != nil {
		s.log.Warn("the folder of changes cannot be read", "error", err)
	}
	remove := func(name, why string) {
		if os.Remove(filepath.Join(s.folder, name)) == nil {
			s.log.Info("changes of a session removed", "file", name, "because", why)
		}
	}
	var files []stored
	total := int64(0)
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		switch age := time.Since(info.ModTime()); {
		case strings.HasPrefix(entry.Name(), partial) && age > time.Hour:
			remove(entry.Name(), "it was never whole")
		case !strings.HasSuffix(entry.Name(), suffix) && !strings.HasSuffix(entry.Name(), shownSuffix):
		case age > keepTime:
			remove(entry.Name(), "it is older than 30 days")
		case strings.HasSuffix(entry.Name(), suffix):
			files = append(files, stored{name: entry.Name(), size: info.Size(), used: info.ModTime()})
			total += info.Size()
		}
	}
	if len(files) <= s.maxFiles && total <= s.maxBytes {
		return
	}
	slices.SortFunc(files, func(a, b stored) int { return a.used.Compare(b.used) })
	has := map[string]int64{} // by principal: files, or bytes if these are too many
	for i := range files {
		if entry, err := open(filepath.Join(s.folder, files[i].name)); err == nil {
			files[i].principal = entry.Principal
			entry.Close()
		}
	}
	for len(files) > s.maxFiles || total > s.maxBytes {
		clear(has)
		for _, f := range files {
			has[f.principal]++
			if total > s.maxBytes {
				has[f.principal] += f.size
			}
		}
		most := slices.Max(slices.Collect(maps.Values(has)))
		first := slices.IndexFunc(files, func(f stored) bool { return has[f.principal] == most })
		remove(files[first].name, "there are too many")
		total -= files[first].size
		files = slices.Delete(files, first, first+1)
	}
}

// Record records the changes of one sandbox to the project. Its methods may be called
// concurrently.
type Record struct {
	store *Store
	name  string // of the file
	head  Head

	mu      sync.Mutex
	overlay *Overlay // nil after Close
	written bool     // there is a patch
	linked  bool
	applied string // the sum of the last patch that Apply took; its caller locks
	told    map[Refusal]bool
	problem string // of the last save
}

// maxTold bounds the files that a Record remembers to have returned.
const maxTold = 1000

// Begin returns a Record of the sandbox with this upper layer. It takes ownership of the
// layer even if it fails. Head has the session, the environment and the project.
func (s *Store) Begin(head Head, upper *os.File) (*Record, error) {
	base, err := layer.Open(head.Project)
	if err != nil {
		upper.Close()
		return nil, fmt.Errorf("open the project: %w", err)
	}
	// The layer has as many bytes as the environment's workspace_mb allows.
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(upper.Fd()), &fs); err != nil {
		upper.Close()
		base.Close()
		return nil, fmt.Errorf("measure the upper layer: %w", err)
	}
	head.Began = time.Now()
	r := &Record{store: s, head: head, told: map[Refusal]bool{}, name: head.Session + "-" + rand.Text()[:8] + suffix}
	r.overlay = NewOverlay(layer.Upper(upper), base, int64(fs.Blocks)*int64(fs.Bsize), func() (*os.File, error) { return host.Unnamed(s.folder) })
	return r, nil
}

// AddEnv adds the environment of a further sandbox with the layer to the head.
func (r *Record) AddEnv(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if names := strings.Split(r.head.Env, ", "); !slices.Contains(names, name) {
		r.head.Env = strings.Join(append(names, name), ", ")
	}
}

// Early returns how much is changed, as far as names and times show it, and whether this
// is the first answer with changes that are more than caches. summary is nil if there are no changes. unsaved says
// that the patch may be out of date.
func (r *Record) Early() (summary *Summary, first, unsaved bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.overlay == nil {
		return nil, false, false
	}
	found, used, err := r.overlay.Early()
	if err != nil {
		r.store.log.Warn("what a session changed in the project cannot be found", "session", r.head.Session, "error", err)
	}
	if !used || found.Files() == 0 {
		return nil, false, used || r.written
	}
	first = found.Files() > found.Caches && !r.linked
	r.linked = r.linked || first
	return &found, first, true
}

// IsEmpty reports whether the session has changed no file.
func (r *Record) IsEmpty() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.overlay == nil {
		return true
	}
	empty, err := r.overlay.upper.IsEmpty()
	return err == nil && empty
}

// Save updates the patch after the call that began at this time.
func (r *Record) Save(ctx context.Context, began time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.overlay == nil {
		return
	}
	err := r.save(ctx, began)
	r.problem = ""
	if err != nil {
		r.problem = store.Reason(err)
		r.store.log.Warn("what a session changed in the project is not saved", "session", r.head.Session, "error", err)
	}
}

// Problem says why the last save failed; empty if it did not.
func (r *Record) Problem() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.problem
}

// Release has the sandbox see what the user made of files since the session's versions were applied.
func (r *Record) Release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.overlay != nil {
		r.overlay.Release()
	}
}

// Apply writes what the policy allows into the project, as the function [Apply] does, and returns what
// it did not write and has not returned before. An unchanged patch is not looked at again. One goroutine
// at a time calls it.
func (r *Record) Apply(ctx context.Context) (left []Refusal, err error) {
	left, err = r.apply(ctx)
	var news []Refusal
	for _, one := range left {
		if !r.told[one] && len(r.told) < maxTold {
			r.told[one] = true
			news = append(news, one)
		}
	}
	return news, err
}

func (r *Record) apply(ctx context.Context) (left []Refusal, err error) {
	r.mu.Lock()
	path, written, sum, doubtful := filepath.Join(r.store.folder, r.name), r.written, r.head.Sum, r.head.Summary.Doubtful
	r.mu.Unlock()
	if !written || sum == r.applied {
		return nil, nil
	}
	if len(doubtful) > 0 {
		r.applied = sum
		for _, name := range doubtful {
			left = append(left, Refusal{name, "it was changed outside of the sandbox at the same time, so nothing is written until the user has looked"})
		}
		return left, nil
	}
	entry, err := open(path)
	if err != nil {
		return nil, err
	}
	defer entry.Close()
	applied, err := Apply(ctx, entry, nil)
	r.applied = sum
	var conflict *ConflictError
	switch {
	case errors.As(err, &conflict):
		return conflict.Files, nil
	case err != nil:
		return nil, err
	}
	r.Save(ctx, time.Now()) // the project has these now
	r.mu.Lock()
	r.applied = r.head.Sum // of what is left
	r.mu.Unlock()
	return append(applied.Conflicts, applied.Refused...), nil
}

func (r *Record) save(ctx context.Context, began time.Time) error {
	if empty, err := r.overlay.upper.IsEmpty(); err != nil || empty && !r.written {
		return err
	}
	started := time.Now()
	summary, patch, changed, err := r.overlay.Compare(ctx, began)
	if err != nil || !changed {
		return err
	}
	path := filepath.Join(r.store.folder, r.name)
	if summary.Files() == 0 && !summary.isPartial() {
		if r.written {
			r.written = false
			if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		return nil
	}
	r.head.Summary, r.head.Size, r.head.Sum = summary, patch.Size, hex.EncodeToString(patch.Sum)
	r.head.Updated = time.Now()
	if err := r.store.write(path, r.head, patch); err != nil {
		return err
	}
	r.written = true
	r.store.prune()
	r.store.remember(r.head.Key, path)
	r.store.log.Debug("changes of a session saved", "session", r.head.Session, "files", summary.Files(), "bytes", patch.Size, "ms", time.Since(started).Milliseconds())
	return nil
}

// isPartial reports whether something is left out that is not git's own.
func (s Summary) isPartial() bool {
	return s.Incomplete || s.LeftOutCount > len(s.LeftOut) || slices.ContainsFunc(s.LeftOut, func(l LeftOut) bool { return l.Reason != GitsOwn })
}

// Close ends the record when a save that runs is done. The patch stays.
func (r *Record) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.overlay == nil {
		return
	}
	r.overlay.Close()
	r.overlay = nil
}

// write writes a file, which replaces an earlier one when it is whole.
func (s *Store) write(path string, head Head, patch *Patch) (err error) {
	text, err := json.Marshal(head)
	if err != nil {
		return err
	}
	file, err := os.CreateTemp(s.folder, partial+"*") // 0600
	if err != nil {
		return fmt.Errorf("make a file: %w", err)
	}
	defer func() {
		file.Close()
		if err != nil {
			os.Remove(file.Name())
		}
	}()
	if _, err := fmt.Fprintf(file, "%s%s\n\n", magic, text); err != nil {
		return err
	}
	if _, err := patch.File.Seek(0, io.SeekStart); err != nil {
		return err
	}
	// The kernel copies between two files (copy_file_range(2)).
	if n, err := io.CopyN(file, patch.File, patch.Size); err != nil {
		return fmt.Errorf("write %d of %d bytes: %w", n, patch.Size, err)
	}
	return os.Rename(file.Name(), path)
}

// shown is how a path is written in a head: as git quotes it, and not too long.
func shown(path string) string { return bounded.Head(gitpatch.Quote(path), maxShown) }

// remember makes the file of a session readable by its name.
func (s *Store) remember(key Key, path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.order = append(slices.DeleteFunc(s.order, func(k Key) bool { return k == key }), key)
	s.latest[key] = path
	if len(s.order) > maxRemembered {
		delete(s.latest, s.order[0])
		s.order = s.order[1:]
	}
}

// Read returns the patch of a session of this process. The error is [ErrNone] if it changed
// no file, and a [*layer.TooLargeError] if the patch has more than limit bytes.
func (s *Store) Read(key Key, limit int64) ([]byte, error) {
	s.mu.Lock()
	path := s.latest[key]
	s.mu.Unlock()
	if path == "" {
		return nil, ErrNone
	}
	entry, err := read(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, err
	}
	defer entry.Close()
	if entry.Size > limit {
		return nil, &layer.TooLargeError{Size: entry.Size, Limit: limit}
	}
	return io.ReadAll(entry.Patch())
}

// ErrNone reports a session that has changed no file of the project.
var ErrNone = errors.New("the session has changed nothing in the project")

// Entry is a patch in a folder. Its owner closes it.
type Entry struct {
	Head
	// ID is different for each sandbox.
	ID     string
	file   *os.File
	offset int64
}

// Patch returns a reader of the patch.
func (e *Entry) Patch() io.Reader { return io.NewSectionReader(e.file, e.offset, e.Size) }

// Close closes the file.
func (e *Entry) Close() error { return e.file.Close() }

// DamagedError reports a file with another content than was written.
type DamagedError struct{ Path, Reason string }

func (e *DamagedError) Error() string { return e.Path + " is damaged: " + e.Reason }

// open opens a file and reads its head.
func open(path string) (_ *Entry, err error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			file.Close()
		}
	}()
	damaged := func(reason string) (*Entry, error) { return nil, &DamagedError{path, reason} }
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return damaged("it is not a regular file")
	}
	lines := bufio.NewReader(io.LimitReader(file, maxHead))
	first, _ := lines.ReadBytes('\n')
	text, lineErr := lines.ReadBytes('\n')
	blank, _ := lines.ReadBytes('\n')
	if string(first) != magic || lineErr != nil || !bytes.Equal(blank, []byte("\n")) {
		return damaged("it does not begin as such a file does")
	}
	entry := &Entry{ID: strings.TrimSuffix(filepath.Base(path), suffix), file: file, offset: int64(len(first) + len(text) + len(blank))}
	if err := json.Unmarshal(text, &entry.Head); err != nil {
		return damaged("its head is not JSON")
	}
	if entry.Size != info.Size()-entry.offset {
		return damaged(fmt.Sprintf("it has %d bytes after its head, not %d", info.Size()-entry.offset, entry.Size))
	}
	return entry, nil
}

// read opens a file and checks all of it.
func read(path string) (*Entry, error) {
	entry, err := open(path)
	if err != nil {
		return nil, err
	}
	sum := sha256.New()
	_, err = io.Copy(sum, entry.Patch())
	if err == nil && hex.EncodeToString(sum.Sum(nil)) != entry.Sum {
		err = &DamagedError{path, "its sum is another one than when it was written"}
	}
	if err != nil {
		entry.Close()
		return nil, err
	}
	return entry, nil
}

// Shown returns the sum of the patch of this sandbox that the user saw or applied last, or "" if
// the user has seen none.
func (e *Entry) Shown() string {
	text, _ := readSmall(e.shownFile())
	sum, _, _ := strings.Cut(string(text), " ")
	return sum
}

// IsApplied reports whether the user has applied all of this patch, and IsDiscarded whether the user does
// not want it.
func (e *Entry) IsApplied() bool   { return e.isMarked(appliedMark) }
func (e *Entry) IsDiscarded() bool { return e.isMarked(discardedMark) }

// IsDone reports whether the user has decided about all of this patch.
func (e *Entry) IsDone() bool { return e.IsApplied() || e.IsDiscarded() }

// MarkShown notes that a user has seen the patch, MarkApplied that it is applied, and MarkDiscarded that it is
// not wanted.
func (e *Entry) MarkShown() error {
	if e.IsDone() {
		return nil
	}
	return e.setMark("")
}

func (e *Entry) MarkApplied() error   { return e.setMark(appliedMark) }
func (e *Entry) MarkDiscarded() error { return e.setMark(discardedMark) }

// These follow the sum of a patch that the user has decided about.
const (
	appliedMark   = " applied"
	discardedMark = " discarded"
)

func (e *Entry) setMark(mark string) error {
	return os.WriteFile(e.shownFile(), []byte(e.Sum+mark), 0o600)
}

func (e *Entry) isMarked(mark string) bool {
	text, _ := readSmall(e.shownFile())
	return string(text) == e.Sum+mark
}

func (e *Entry) shownFile() string { return strings.TrimSuffix(e.file.Name(), suffix) + shownSuffix }

// lock lets one process at a time apply patches of the folder. The lock is not in the project,
// where code could hold it.
func (e *Entry) lock() (unlock func(), err error) {
	file, err := os.OpenFile(filepath.Join(filepath.Dir(e.file.Name()), "lock"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the folder of changes: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		file.Close()
		return nil, fmt.Errorf("another process applies changes (%w): try again when it is done", err)
	}
	return func() { file.Close() }, nil
}

// List returns the patches in a folder, the newest first, and an error for each file that
// cannot be read. The caller closes the entries.
func List(folder string) (entries []*Entry, broken []error) {
	files, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, []error{err}
	}
	for _, file := range files {
		if !strings.HasSuffix(file.Name(), suffix) {
			continue
		}
		entry, err := read(filepath.Join(folder, file.Name()))
		if err != nil {
			if !errors.Is(err, os.ErrNotExist) { // a server removes it at this moment
				broken = append(broken, err)
			}
			continue
		}
		entries = append(entries, entry)
	}
	slices.SortFunc(entries, func(a, b *Entry) int { return cmp.Or(b.Updated.Compare(a.Updated), strings.Compare(a.ID, b.ID)) })
	return entries, broken
}
