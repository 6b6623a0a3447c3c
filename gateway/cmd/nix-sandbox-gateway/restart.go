package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
)

const (
	// endedFile has the names of the sessions that ended with a server, for the next one.
	endedFile = "ended-sessions.json"
	// maxEndedFile bounds it, in bytes.
	maxEndedFile = 1 << 20
)

// takeEnded takes over the names of the sessions of an earlier server.
func takeEnded(folder string, sessions *session.Manager, log *slog.Logger) {
	if folder == "" {
		return
	}
	keys, err := readEnded(folder)
	if err != nil {
		log.Warn("sessions of an earlier server are not known", "error", err)
	}
	sessions.Remember(keys)
}

// keepEnded leaves the names of the sessions that end with this server to the next one.
func keepEnded(folder string, sessions *session.Manager, log *slog.Logger) {
	if folder == "" {
		return
	}
	if err := writeEnded(folder, sessions.Ended()); err != nil {
		log.Warn("the next server will not know the sessions of this one", "error", err)
	}
}

// writeEnded writes the names of sessions to a folder.
func writeEnded(folder string, keys []call.Key) error {
	text, err := json.Marshal(keys)
	if err != nil {
		return err
	}
	path := filepath.Join(folder, endedFile)
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return fmt.Errorf("keep the names of sessions: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("keep the names of sessions: %w", err)
	}
	return nil
}

// readEnded returns the names that a server wrote to a folder, and deletes them there.
func readEnded(folder string) ([]call.Key, error) {
	path := filepath.Join(folder, endedFile)
	text, err := bounded.ReadFile(path, maxEndedFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the names of earlier sessions: %w", err)
	}
	var keys []call.Key
	if err := json.Unmarshal(text, &keys); err != nil {
		return nil, fmt.Errorf("read the names of earlier sessions: %s: %w", path, err)
	}
	return keys, os.Remove(path)
}
