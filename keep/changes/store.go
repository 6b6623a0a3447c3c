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
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/keep/changes/gitpatch"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/keep/changes/layer"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/keep/tmpfile"
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
	// maxRemembered bounds the sessions whose patches are found by their names.
	maxRemembered = 4096

	suffix = ".patch"
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

// Store is the folder of the patches of a user's sessions, those of several servers. Its
// methods may be called at the same time.
type Store struct {
	folder string
	log    *slog.Logger

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
	s := &Store{folder: folder, log: log, latest: map[Key]string{}}
	s.prune()
	return s, nil
}

// prune removes patches that are too old or too many, and what a server that was killed
// left half written.
func (s *Store) prune() {
	type file struct {
		name string
		size int64
		used time.Time
	}
	var files []file
	entries, err := os.ReadDir(s.folder)
	if err != nil {
		s.log.Warn("the folder of changes cannot be read", "error", err)
	}
	remove := func(name, why string) {
		if err := os.Remove(filepath.Join(s.folder, name)); err == nil {
			s.log.Info("changes of a session removed", "file", name, "because", why)
		}
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		switch age := time.Since(info.ModTime()); {
		case strings.HasPrefix(entry.Name(), partial) && age > time.Hour:
			remove(entry.Name(), "it was never whole")
		case !strings.HasSuffix(entry.Name(), suffix):
		case age > keepTime:
			remove(entry.Name(), "it is older than 30 days")
		default:
			files = append(files, file{entry.Name(), info.Size(), info.ModTime()})
		}
	}
	slices.SortFunc(files, func(a, b file) int { return b.used.Compare(a.used) })
	bytes := int64(0)
	for i, f := range files {
		if bytes += f.size; i >= maxStored || bytes > maxStoredBytes {
			remove(f.name, "there are too many")
		}
	}
}

// Record records what one sandbox changes in the project. Its methods may be called at
// the same time.
type Record struct {
	store *Store
	name  string // of the file
	head  Head

	mu      sync.Mutex
	overlay *Overlay // nil after Close
	upper   *os.File
	base    *layer.Tree
	written bool // there is a patch
	linked  bool
}

// Begin returns a Record of a sandbox whose upper layer is open. It owns the layer, also
// where it fails. Head has the session, the environment and the project.
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
	r := &Record{store: s, head: head, upper: upper, base: base, name: head.Session + "-" + rand.Text()[:8] + suffix}
	r.overlay = NewOverlay(layer.Upper(upper), base, int64(fs.Blocks)*int64(fs.Bsize), func() (*os.File, error) { return tmpfile.File(s.folder) })
	return r, nil
}

// Early returns how much is changed, as far as names and times show it, and whether this
// is the first answer that says so. It is nil where nothing is. unsaved says that the patch
// may not be up to date.
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
	first = !r.linked
	r.linked = true
	return &found, first, true
}

// IsEmpty reports whether nothing is changed.
func (r *Record) IsEmpty() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.overlay == nil {
		return true
	}
	empty, err := r.overlay.upper.IsEmpty()
	return err == nil && empty
}

// Save brings the patch up to date with what a call that began at this time left.
func (r *Record) Save(ctx context.Context, began time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.overlay == nil {
		return
	}
	if err := r.save(ctx, began); err != nil {
		r.store.log.Warn("what a session changed in the project is not saved", "session", r.head.Session, "error", err)
	}
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
			return os.Remove(path)
		}
		return nil
	}
	r.head.Summary, r.head.Size, r.head.Sum = summary, patch.Size, hex.EncodeToString(patch.Sum)
	r.head.Updated = time.Now()
	if err := r.store.write(path, r.head, patch); err != nil {
		return err
	}
	r.written = true
	r.store.remember(r.head.Key, path)
	r.store.log.Debug("changes of a session saved", "session", r.head.Session, "files", summary.Files(), "bytes", patch.Size, "ms", time.Since(started).Milliseconds())
	return nil
}

// isPartial reports whether something is left out that is not git's own.
func (s Summary) isPartial() bool {
	return s.Incomplete || s.LeftOutCount > len(s.LeftOut) || slices.ContainsFunc(s.LeftOut, func(l LeftOut) bool { return l.Reason != gitsOwn })
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
	r.upper.Close()
	r.base.Close()
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
	if _, known := s.latest[key]; !known {
		s.order = append(s.order, key)
	}
	s.latest[key] = path
	for len(s.order) > maxRemembered {
		delete(s.latest, s.order[0])
		s.order = s.order[1:]
	}
}

// Read returns the patch of a session of this process, of at most limit bytes. The error
// is a [*layer.TooLargeError] where it has more, and [ErrNone] where there is none.
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

// ErrNone reports a session that has changed nothing.
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

// DamagedError reports a file that is not what was written.
type DamagedError struct{ Path, Reason string }

func (e *DamagedError) Error() string { return e.Path + " is damaged: " + e.Reason }

// read opens a file and checks all of it.
func read(path string) (_ *Entry, err error) {
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
	sum := sha256.New()
	if _, err := io.Copy(sum, entry.Patch()); err != nil {
		return nil, err
	}
	if hex.EncodeToString(sum.Sum(nil)) != entry.Sum {
		return damaged("its sum is another one than when it was written")
	}
	return entry, nil
}

// List returns the patches in a folder, the newest first, and the errors of those that
// cannot be read. The caller closes them.
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
