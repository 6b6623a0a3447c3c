package sessions

import (
	"os"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
)

// running returns the servers of this user that run, the newest first. It returns an error if there
// are none.
func running() ([]desk.Server, error) {
	found := desk.Find(config.DeskFolders(os.Getenv))
	if len(found) == 0 {
		return nil, &config.Error{
			Problem: "no server of this user runs, or has answered its client yet",
			Hint:    "start a client that uses it; both need the same XDG_RUNTIME_DIR, or HOME",
		}
	}
	return found, nil
}
