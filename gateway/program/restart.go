package program

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
)

const (
	// endedFile has the names of the sessions that ended with a server, for the next one.
	endedFile = "ended-sessions.json"
	// maxEndedFile bounds it, in bytes.
	maxEndedFile = 1 << 20
)

// takeEnded takes over the names of the sessions of an earlier server, and deletes them in its
// folder.
func takeEnded(folder string, sessions *session.Manager, log *slog.Logger) {
	if folder == "" {
		return
	}
	path := filepath.Join(folder, endedFile)
	var keys []call.Key
	text, err := bounded.ReadFile(path, maxEndedFile)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err == nil {
		err = json.Unmarshal(text, &keys)
	}
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil {
		log.Warn("sessions of an earlier server are not known", "file", path, "error", err)
	}
	sessions.Remember(keys)
}

// keepEnded leaves the names of the sessions that end with this server to the next one.
func keepEnded(folder string, sessions *session.Manager, log *slog.Logger) {
	if folder == "" {
		return
	}
	path := filepath.Join(folder, endedFile)
	text, err := json.Marshal(sessions.Ended())
	if err == nil {
		err = os.WriteFile(path+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		log.Warn("the next server will not know the sessions of this one", "error", err)
	}
}
