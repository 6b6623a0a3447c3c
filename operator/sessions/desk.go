package sessions

import (
	"os"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
)

// running returns the servers of this user that run, the newest first. It returns an error if there
// are none.
func running() ([]desk.Server, error) {
	found, err := find()
	if err == nil && len(found) == 0 {
		err = &config.Error{
			Problem: "no server of this user runs, or has answered its client yet",
			Hint:    "start a client that uses it; both need the same XDG_RUNTIME_DIR, or HOME",
		}
	}
	return found, err
}

// find returns the servers of this user that run. It returns an error if it cannot look for them.
func find() ([]desk.Server, error) {
	folders := config.DeskFolders(os.Getenv)
	if err := desk.Unseen(folders); err != nil {
		return nil, &config.Error{Problem: "running servers cannot be looked for: " + err.Error(), Hint: "set HOME or XDG_RUNTIME_DIR to a folder of this user alone"}
	}
	return desk.Find(folders), nil
}
