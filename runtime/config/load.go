package config

import (
	"os"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

// Load reads the variables of this process, and the set that the server was built with.
func Load() (Config, *registry.Set, error) {
	settings, err := Read(os.Getenv)
	if err != nil {
		return settings, nil, err
	}
	base, err := registry.Read(settings.Metadata)
	if err != nil {
		return settings, nil, &Error{
			Problem: err.Error(),
			Hint:    "unset NIX_SANDBOX_METADATA to serve what the server was built with, or build the server again",
		}
	}
	settings, err = settings.Complete(base.Session, base.Project)
	return settings, base, err
}

// Survey is Load with the environments that the sandbox folders have at this moment.
func Survey() (Config, *registry.Set, error) {
	settings, base, err := Load()
	if err != nil {
		return settings, nil, err
	}
	set, _ := base.With(settings.Folders) // Set.Unread has the error
	return settings, set, nil
}

// HostFolders returns the folders that every sandbox shows.
func (c Config) HostFolders() sandbox.HostFolders {
	folders := sandbox.HostFolders{Inbox: c.Inbox}
	if c.ProjectDir != "" {
		folders.Project = sandbox.Project{Dir: c.ProjectDir, Mount: c.ProjectMount, Mode: c.ProjectMode}
	}
	return folders
}

// Shown returns the folders of the host that sandboxes may show.
func (c Config) Shown() (folders []string) {
	for _, folder := range []string{c.ProjectDir, c.Inbox} {
		if folder != "" {
			folders = append(folders, folder)
		}
	}
	return folders
}

// Inherited returns the variables of this process that code is to have, by their names.
func Inherited(names ...string) map[string]string {
	variables := map[string]string{}
	for _, name := range names {
		if value, ok := os.LookupEnv(name); ok {
			variables[name] = value
		}
	}
	return variables
}
