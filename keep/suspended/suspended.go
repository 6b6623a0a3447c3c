// Package suspended keeps suspended sessions on disk, so that they can be resumed by this
// server or a later one. It does not know what the state of a session is: whoever runs the
// session writes a folder (package store).
package suspended

import (
	"log/slog"
	"slices"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/keep/store"
)

// MaxAge is how long a session stays suspended before it is deleted.
const MaxAge = 7 * 24 * time.Hour

// Key names a session, its environment and the project that it shows.
type Key = store.Key

// InUseError reports a session whose state another process has.
type InUseError = store.InUseError

// Store keeps suspended sessions.
type Store struct{ *store.Store }

// New returns a Store of at most limit bytes. It makes its folder for the first session.
func New(folder string, limit int64, log *slog.Logger) *Store {
	return &Store{store.New(store.Options{Folder: folder, Limit: limit, Option: "suspend_mb", MaxAge: MaxAge, Log: log})}
}

// Fits reports whether a state of so many bytes could be kept.
func (s *Store) Fits(bytes int64) bool { return bytes <= s.Limit }

// State is the state of a session, which only this process has.
type State struct{ *store.Slot }

// Find acquires the state of a session, or returns nil if the session is not suspended.
// The error is an [*InUseError] if another process has it.
func (s *Store) Find(key Key) (*State, error) {
	if !s.Has(key) {
		return nil, nil
	}
	state, err := s.Acquire(key)
	if err != nil {
		return nil, err
	}
	if state.Folder() == "" { // it was resumed meanwhile
		return nil, state.Remove()
	}
	return state, nil
}

// Acquire acquires the state of a session, suspended or not. The error is an [*InUseError]
// if another process has it. The caller calls Close or Remove.
func (s *Store) Acquire(key Key) (*State, error) {
	slot, err := s.Store.Acquire(key)
	if err != nil {
		return nil, err
	}
	return &State{slot}, nil
}

// Folder is the folder with the state, or "" if the session is not suspended.
func (s *State) Folder() string { return s.Path() }

// Suspended is when the session was suspended.
func (s *State) Suspended() time.Time {
	if head, _ := s.Head(); head != nil {
		return head.Saved
	}
	return time.Time{}
}

// Commit makes the folder that was written at the last Next the state of the session,
// which takes so many bytes.
func (s *State) Commit(bytes int64) error { return s.CommitEarly(store.Head{Bytes: bytes}) }

// List returns the suspended sessions of the store in a folder, which may not exist, beginning with
// the last suspended.
func List(folder string) ([]store.Session, error) {
	sessions, err := store.List(folder)
	return slices.DeleteFunc(sessions, func(s store.Session) bool { return s.Head == nil || s.Head.Data == "" }), err
}
