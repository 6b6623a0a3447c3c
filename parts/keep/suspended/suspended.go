// Package suspended keeps suspended sessions on disk, so that they can be resumed by this
// server or a later one. It does not know what the state of a session is: whoever runs the
// session writes a folder (package store).
package suspended

import (
	"log/slog"
	"slices"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/store"
)

// MaxAge is how long a session stays suspended before it is deleted.
const MaxAge = 7 * 24 * time.Hour

// NewStore returns a store of at most limit bytes. It makes its folder for the first session.
func NewStore(folder string, limit int64, log *slog.Logger) *store.Store {
	return store.New(store.Options{Folder: folder, Limit: limit, Option: "suspend_mb", MaxAge: MaxAge, Log: log})
}

// List returns the suspended sessions of the store in a folder, which may not exist, beginning with
// the last suspended.
func List(folder string) ([]store.Session, error) {
	sessions, err := store.List(folder)
	return slices.DeleteFunc(sessions, func(s store.Session) bool { return s.Head == nil || s.Head.Data == "" }), err
}
