// Package suspended keeps sessions that were put to disk with all that runs in them, so
// that they go on when they are called again, in this server or in a later one.
//
// It promises that a session's saved state is the old one or the new one, and never a
// part of one, whenever a process ends; that one process at a time has it; and that all
// of them together are bounded, in size and in age. It does not know what a state is:
// whoever runs the session writes a folder.
//
// A [Store] is a folder with a folder for each session, which has a lock, a head that
// names the state, and the state. Only its owner can read it.
package suspended

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/keep/lockedfolder"
)

// MaxAge is how long a session sleeps before it is deleted.
const MaxAge = 7 * 24 * time.Hour

// Names in a session's folder.
const (
	headName    = "head"
	newHeadName = "head.new"
	statePrefix = "state-"
)

// lockTimeout is how long a process waits for another that has a session.
const lockTimeout = 200 * time.Millisecond

// maxHead bounds a head, in bytes.
const maxHead = 64 << 10

// Key names a session: whose it is, what it is called and of which environment, and the
// folder of the project that it shows. Principal and Project may be empty.
type Key struct {
	Principal string `json:"principal,omitempty"`
	Session   string `json:"session"`
	Env       string `json:"env"`
	Project   string `json:"project,omitempty"`
}

// Head describes a session that sleeps.
type Head struct {
	Key
	// Suspended is when it fell asleep.
	Suspended time.Time `json:"suspended"`
	// Bytes is what its state takes on disk.
	Bytes int64 `json:"bytes"`
	// State is the name of the folder with the state.
	State string `json:"state"`
	// Boot is the host's boot id, and Synced says that the state is on disk whatever
	// happens to the host: before that, it counts until the host restarts.
	Boot   string `json:"boot"`
	Synced bool   `json:"synced"`
}

// counts reports whether a session can be woken.
func (h *Head) counts() bool {
	return time.Since(h.Suspended) <= MaxAge && (h.Synced || h.Boot == bootID())
}

func bootID() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id))
}

// InUseError reports a session whose state another process has.
type InUseError struct{ Key Key }

func (e *InUseError) Error() string {
	return fmt.Sprintf("another server has session %q, which sleeps", e.Key.Session)
}

// Store keeps sessions in a folder, which is made when the first one falls asleep. Its
// methods may be called at the same time, by several processes too.
type Store struct {
	folder string
	limit  int64 // bytes
	log    *slog.Logger
}

// New returns the Store in a folder, of at most limit bytes.
func New(folder string, limit int64, log *slog.Logger) *Store {
	return &Store{folder, limit, log}
}

// Fits reports whether a state of so many bytes could be kept.
func (s *Store) Fits(bytes int64) bool { return bytes <= s.limit }

// Has reports whether a session sleeps, as far as can be told without acquiring it.
func (s *Store) Has(key Key) bool {
	head, err := readHead(filepath.Join(s.folder, lockedfolder.Name(key)))
	return err == nil && head.Key == key && head.counts()
}

// State is the state of a session, which the process has alone that acquired it. Its
// owner calls Close.
type State struct {
	store  *Store
	key    Key
	folder string
	lock   *os.File
	// head describes what sleeps; nil where nothing does.
	head *Head
	// next is the name of the folder that is being written.
	next string
}

// Find acquires the state of a session that sleeps. It returns nil where none does, and
// an [*InUseError] where another process has it.
func (s *Store) Find(key Key) (*State, error) {
	if !s.Has(key) {
		return nil, nil
	}
	state, err := s.Acquire(key)
	if err != nil {
		return nil, err
	}
	if state.head == nil { // since
		return nil, state.Remove()
	}
	return state, nil
}

// Acquire acquires the state of a session, whether it sleeps or not. The error is an
// [*InUseError] where another process has it.
func (s *Store) Acquire(key Key) (*State, error) {
	if err := os.MkdirAll(s.folder, 0o700); err != nil {
		return nil, err
	}
	folder := filepath.Join(s.folder, lockedfolder.Name(key))
	lock, err := lockedfolder.Make(folder)
	// Who counts the sessions has each of them for a moment.
	for deadline := time.Now().Add(lockTimeout); errors.Is(err, lockedfolder.ErrInUse) && time.Now().Before(deadline); {
		time.Sleep(lockTimeout / 20)
		lock, err = lockedfolder.Make(folder)
	}
	if errors.Is(err, lockedfolder.ErrInUse) {
		return nil, &InUseError{key}
	}
	if err != nil {
		return nil, err
	}
	state := &State{store: s, key: key, folder: folder, lock: lock}
	if head, err := readHead(folder); err == nil && head.Key == key {
		state.head = head
	}
	state.clean()
	return state, nil
}

func readHead(folder string) (*Head, error) {
	data, err := bounded.ReadFile(filepath.Join(folder, headName), maxHead)
	if err != nil {
		return nil, err
	}
	var head Head
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, err
	}
	if !strings.HasPrefix(head.State, statePrefix) || filepath.Base(head.State) != head.State {
		return nil, errors.New("its head names no state")
	}
	return &head, nil
}

// clean deletes what is in the folder and belongs to no state.
func (s *State) clean() {
	entries, err := os.ReadDir(s.folder)
	if err != nil {
		return
	}
	for _, e := range entries {
		if name := e.Name(); name != lockedfolder.LockName && (s.head == nil || name != headName && name != s.head.State) && name != s.next {
			os.RemoveAll(filepath.Join(s.folder, name))
		}
	}
}

// Folder is where the state lies; empty where nothing sleeps.
func (s *State) Folder() string {
	if s.head == nil {
		return ""
	}
	return filepath.Join(s.folder, s.head.State)
}

// Suspended is when the session fell asleep.
func (s *State) Suspended() time.Time { return s.head.Suspended }

// Next is a folder that does not exist, for a new state.
func (s *State) Next() string {
	s.next = fmt.Sprintf("%s%d", statePrefix, time.Now().UnixNano())
	return filepath.Join(s.folder, s.next)
}

// Commit takes what was written to the last Next for the session's state, of so many
// bytes, in place of the one that it had. Other sessions are deleted where all together
// take too much: those that have slept longest.
func (s *State) Commit(bytes int64) error {
	head := &Head{Key: s.key, Suspended: time.Now().UTC(), Bytes: bytes, State: s.next, Boot: bootID()}
	if err := s.writeHead(head); err != nil {
		return err
	}
	s.head, s.next = head, ""
	s.clean()
	s.store.shrink(s.folder)
	if err := s.sync(); err != nil {
		s.store.log.Warn("a session that sleeps is lost if the computer stops now", "session", s.key.Session, "error", err)
	}
	return nil
}

func (s *State) writeHead(head *Head) error {
	text, err := json.Marshal(head)
	if err != nil {
		return err
	}
	next := filepath.Join(s.folder, newHeadName)
	if err := os.WriteFile(next, text, 0o600); err != nil {
		return err
	}
	return os.Rename(next, filepath.Join(s.folder, headName))
}

// sync has the state reach the disk, and then says so in the head.
func (s *State) sync() error {
	files, err := os.ReadDir(s.Folder())
	if err != nil {
		return err
	}
	names := []string{s.folder, s.Folder()}
	for _, file := range files {
		names = append(names, filepath.Join(s.Folder(), file.Name()))
	}
	for _, name := range names {
		file, err := os.Open(name)
		if err == nil {
			err = errors.Join(file.Sync(), file.Close())
		}
		if err != nil {
			return err
		}
	}
	head := *s.head
	head.Synced = true
	if err := s.writeHead(&head); err != nil {
		return err
	}
	s.head = &head
	return nil
}

// Close lets other processes have the state.
func (s *State) Close() { s.lock.Close() }

// Remove deletes the state and closes it.
func (s *State) Remove() error {
	defer s.lock.Close()
	// The head first: what has none does not sleep.
	err := os.Remove(filepath.Join(s.folder, headName))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, os.RemoveAll(s.folder))
}

// Session is one that sleeps.
type Session struct {
	Head
	// Folder is its folder in the store.
	Folder string
	// InUse says that a process is waking it, or putting it to sleep.
	InUse bool
}

// List returns the sessions that sleep in the store in a folder, the one that fell
// asleep last first. A folder that does not exist has none.
func List(folder string) ([]Session, error) {
	var sessions []Session
	err := each(folder, func(s Session, head *Head) {
		if head != nil {
			s.Head = *head
			sessions = append(sessions, s)
		}
	})
	slices.SortFunc(sessions, func(a, b Session) int { return b.Suspended.Compare(a.Suspended) })
	return sessions, err
}

// Remove deletes a session that [List] returned. The error is an [*InUseError] where a
// process has it.
func (s Session) Remove() error {
	lock, err := lockedfolder.Take(s.Folder)
	if errors.Is(err, fs.ErrNotExist) { // another process was killed that deleted it, or has deleted it
		lock, err = lockedfolder.Make(s.Folder)
	}
	switch {
	case errors.Is(err, lockedfolder.ErrInUse):
		return &InUseError{s.Key}
	case err != nil:
		return err
	}
	return (&State{key: s.Key, folder: s.Folder, lock: lock}).Remove()
}

// each calls visit for the folder of each session; head is nil where none sleeps there.
func each(folder string, visit func(s Session, head *Head)) error {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list the sessions that sleep: %w", err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		s := Session{Folder: filepath.Join(folder, e.Name())}
		lock, err := lockedfolder.Take(s.Folder)
		s.InUse = errors.Is(err, lockedfolder.ErrInUse)
		if err == nil {
			lock.Close()
		}
		head, err := readHead(s.Folder)
		if err != nil {
			head = nil
		}
		visit(s, head)
	}
	return nil
}

// Clean deletes what nobody can wake any more: sessions that are too old, or that another
// server had and left in part. It also has those that remain take no more than the limit.
func (s *Store) Clean() { s.shrink("") }

// shrink deletes sessions that nobody has: those that are too old, those of which a
// process that was killed left a part, and while all together take more than the limit,
// those that have slept longest. It leaves the one with the folder except.
func (s *Store) shrink(except string) {
	var sessions []Session
	err := each(s.folder, func(one Session, head *Head) {
		switch {
		case one.Folder == except && head != nil:
			one.Head = *head
			sessions = append(sessions, one)
		case one.InUse:
		case head == nil || !head.counts():
			_ = one.Remove() // the next one tries again
		default:
			one.Head = *head
			sessions = append(sessions, one)
		}
	})
	if err != nil {
		s.log.Warn("sessions that sleep are not counted", "error", err)
		return
	}
	slices.SortFunc(sessions, func(a, b Session) int {
		return cmp.Or(a.Suspended.Compare(b.Suspended), strings.Compare(a.Folder, b.Folder))
	})
	var total int64
	for _, one := range sessions {
		total += one.Bytes
	}
	for _, one := range sessions {
		if total <= s.limit {
			return
		}
		if one.Folder == except {
			continue
		}
		if err := one.Remove(); err != nil {
			s.log.Warn("a session that sleeps cannot be deleted", "session", one.Key.Session, "error", err)
			continue
		}
		total -= one.Bytes
		s.log.Info("a session that sleeps was deleted: all together take more than suspend_mb", "session", one.Key.Session,
			"env", one.Env, "suspended", one.Suspended.Format(time.DateTime), "bytes", one.Bytes)
	}
}
