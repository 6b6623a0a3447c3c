// Package config reads the server's environment variables.
//
// It promises that a value which does not parse is an error at start-up that
// names the variable, the value and what to write instead, never a silent
// default.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
)

// Defaults of what neither a variable nor the metadata sets.
const (
	defaultIdle     = 300 * time.Second
	defaultLifetime = 3600 * time.Second
	defaultSessions = 64
	defaultStart    = 10 * time.Second
	defaultMount    = "/project"
)

// What code may do with the project: read it, or write into it too, on a layer
// that is thrown away with the sandbox.
const (
	ReadOnly = "readonly"
	Overlay  = "overlay"
)

// Bounds of what may be set.
const (
	maxSeconds  = 365 * 24 * 3600
	maxSessions = 10000
	maxStart    = 600 // seconds
	// maxDescriptor is what Linux lets a process open at most (fs.nr_open).
	maxDescriptor = 1 << 30
)

// Error is a wrong setting: one sentence, and a hint at what to do.
type Error struct {
	Problem string
	Hint    string
}

func (e *Error) Error() string { return e.Problem }

// Config is what the operator set for this start of the server.
type Config struct {
	// Metadata is JSON, or the path of a file of it.
	Metadata string
	// Folders hold further environments.
	Folders registry.Folders
	// Builder is the descriptor that leads to what builds Folders.Builds, or 0.
	Builder int

	// ProjectDir is absolute and exists; empty where there is no project.
	ProjectDir   string
	ProjectMount string
	// ProjectMode is ReadOnly or Overlay.
	ProjectMode string

	SessionIdle     time.Duration
	SessionLifetime time.Duration
	SessionMax      int

	// StartWithin is what a sandbox may take to start.
	StartWithin time.Duration
}

// Read reads the variables alone; [Config.Complete] fills what they leave
// open. Get is os.Getenv or a stand-in; an empty value is an unset one.
func Read(get func(string) string) (Config, error) {
	config := Config{
		Metadata:     get("NIX_SANDBOX_METADATA"),
		Folders:      registry.Folders{Folders: folders(get), Builds: get("NIX_SANDBOX_BUILDS")},
		ProjectDir:   get("PROJECT_DIR"),
		ProjectMount: get("PROJECT_MOUNT"),
		ProjectMode:  get("PROJECT_MODE"),
	}
	if config.Metadata == "" {
		return Config{}, &Error{
			"NIX_SANDBOX_METADATA is not set",
			"start the server that Nix built (result/bin/nix-sandbox-mcp), which sets it, or set it to the metadata's JSON or its path",
		}
	}
	idle, err := number(get, "SESSION_IDLE_TIMEOUT", "seconds", maxSeconds)
	if err != nil {
		return Config{}, err
	}
	lifetime, err := number(get, "SESSION_MAX_LIFETIME", "seconds", maxSeconds)
	if err != nil {
		return Config{}, err
	}
	sessions, err := number(get, "SESSION_MAX", "sessions", maxSessions)
	if err != nil {
		return Config{}, err
	}
	start, err := number(get, "NIX_SANDBOX_START_SECONDS", "seconds", maxStart)
	if err != nil {
		return Config{}, err
	}
	if config.Builder, err = number(get, "NIX_SANDBOX_BUILDER", "a descriptor", maxDescriptor); err != nil {
		return Config{}, err
	}
	config.StartWithin = cmp.Or(time.Duration(start)*time.Second, defaultStart)
	config.SessionIdle = time.Duration(idle) * time.Second
	config.SessionLifetime = time.Duration(lifetime) * time.Second
	config.SessionMax = sessions
	return config, nil
}

// Complete fills what the variables left open from the metadata and the
// defaults, and checks the result.
func (c Config) Complete(session registry.Session, project registry.Project) (Config, error) {
	c.SessionIdle = cmp.Or(c.SessionIdle, time.Duration(session.IdleSeconds)*time.Second, defaultIdle)
	c.SessionLifetime = cmp.Or(c.SessionLifetime, time.Duration(session.LifetimeSeconds)*time.Second, defaultLifetime)
	c.SessionMax = cmp.Or(c.SessionMax, defaultSessions)
	c.ProjectMount = cmp.Or(c.ProjectMount, project.Mount, defaultMount)
	c.ProjectMode = cmp.Or(c.ProjectMode, project.Mode, ReadOnly)
	setting, hint := "PROJECT_DIR", "set PROJECT_DIR to an existing folder, or leave it unset to serve no project"
	if c.ProjectDir == "" {
		c.ProjectDir = project.Path
		setting, hint = "the configuration's project path", "make that folder, or set PROJECT_DIR to the project's"
	}
	if err := checkMode(c.ProjectMode); err != nil {
		return Config{}, err
	}
	if err := checkMount(c.ProjectMount); err != nil {
		return Config{}, err
	}
	if c.ProjectDir == "" {
		return c, nil
	}
	dir, err := projectDir(c.ProjectDir)
	if err != nil {
		return Config{}, &Error{fmt.Sprintf("%s is %v", setting, err), hint}
	}
	c.ProjectDir = dir
	return c, nil
}

func number(get func(string) string, name, unit string, most int) (int, error) {
	text := get(name)
	if text == "" {
		return 0, nil
	}
	value, err := strconv.Atoi(text)
	if err != nil || value < 1 || value > most {
		return 0, &Error{
			fmt.Sprintf("%s is %q", name, text),
			fmt.Sprintf("set it to a whole number of %s from 1 to %d, or leave it unset", unit, most),
		}
	}
	return value, nil
}

// folders returns the folders in NIX_SANDBOX_DIR or, where it is unset, the
// user's folder and then the machine's.
func folders(get func(string) string) []string {
	if dir := get("NIX_SANDBOX_DIR"); dir != "" {
		return slices.DeleteFunc(filepath.SplitList(dir), func(one string) bool { return one == "" })
	}
	var dirs []string
	user := get("XDG_CONFIG_HOME")
	if home := get("HOME"); user == "" && home != "" {
		user = filepath.Join(home, ".config")
	}
	if filepath.IsAbs(user) {
		dirs = append(dirs, filepath.Join(user, "nix-sandbox-mcp", "sandboxes"))
	}
	return append(dirs, "/etc/nix-sandbox-mcp/sandboxes")
}

// projectDir returns the absolute path of a folder. The error is what follows
// "is".
func projectDir(dir string) (string, error) {
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("%s: %w", dir, err)
	}
	info, err := os.Stat(absolute)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "", fmt.Errorf("%s, which does not exist", absolute)
	case err != nil:
		return "", fmt.Errorf("%s, which cannot be used: %w", absolute, err)
	case !info.IsDir():
		return "", fmt.Errorf("%s, which is not a folder", absolute)
	}
	return absolute, nil
}

// reserved are the folders of a sandbox that a project may not hide, those of
// nix/lib/reserved.nix.
func reserved() []string {
	return []string{"/bin", "/dev", "/etc", "/nix", "/proc", "/sys", "/tmp", "/usr", "/workspace"}
}

func checkMode(mode string) error {
	switch mode {
	case ReadOnly, Overlay:
		return nil
	case "readwrite":
		return &Error{
			`PROJECT_MODE is "readwrite", and code in a sandbox never changes files of the host`,
			"set it to overlay: code can write into the project, and what it wrote is thrown away with the call or session",
		}
	}
	return &Error{fmt.Sprintf("PROJECT_MODE is %q", mode), "set it to readonly or overlay, or leave it unset"}
}

func checkMount(mount string) error {
	wrong := func(why string) error {
		return &Error{
			fmt.Sprintf("PROJECT_MOUNT is %q, which %s", mount, why),
			"set it to an absolute path of its own, such as /project",
		}
	}
	switch {
	case !path.IsAbs(mount):
		return wrong("is not an absolute path")
	case path.Clean(mount) != mount:
		return wrong("is not written plainly")
	case mount == "/":
		return wrong("is the whole sandbox")
	case strings.ContainsFunc(mount, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return wrong("holds control characters")
	}
	for _, dir := range reserved() {
		if mount == dir || strings.HasPrefix(mount, dir+"/") {
			return wrong("lies in the sandbox's own " + dir)
		}
	}
	return nil
}
