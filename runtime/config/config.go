// Package config reads the server's environment variables.
//
// A value that does not parse is an error at start-up, with the variable, the value and a hint. It
// never becomes a default.
package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/mountpoint"
)

// Defaults of variables without a field in the metadata.
const (
	defaultSessions = 64
	// manySessions is the default of a server over HTTP.
	manySessions = 1024
	defaultStart = 10 * time.Second
)

// Overlay is the project mode in which code writes to a layer above the project, which is thrown
// away with the sandbox.
const Overlay = "overlay"

// Write is the value of PROJECT_MODE for an overlay whose changes are written into the project, as
// far as its policy allows.
const Write = "write"

// Bounds of the settings.
const (
	maxSeconds  = 365 * 24 * 3600
	maxSessions = 10000
	maxStart    = 600 // seconds
)

// Error is a wrong setting: one sentence, and a hint at what to do.
type Error struct {
	Problem string
	Hint    string
}

func (e *Error) Error() string { return e.Problem }

// Config has the settings of this start of the server.
type Config struct {
	// Metadata is JSON, or the path of a file of it.
	Metadata string
	// Folders have further environments.
	Folders registry.Folders
	// Packages is the folder of environments with packages that calls added, or empty.
	Packages string
	// Builder is the socket of the process that builds Folders.Builds and Packages, or "".
	Builder string

	// ProjectDir is absolute and exists; empty if there is no project.
	ProjectDir string
	// NoProject is the folder in which the server was started and that is the home folder or /, so that it
	// is no project although PROJECT_DIR is relative; else empty.
	NoProject    string
	ProjectMount string
	// ProjectMode is one of the metadata's modes.
	ProjectMode string
	// Inbox is absolute and exists; empty if not set.
	Inbox string
	// Outputs is absolute and exists; empty if outputs are not copied.
	Outputs string

	SessionIdle     time.Duration
	SessionLifetime time.Duration
	SessionMax      int
	// SessionMaxOfMany is SessionMax for a server over HTTP.
	SessionMaxOfMany int
	// Keep is "1" if files of sessions are kept, in KeepFolder and at most KeepBytes together.
	// Otherwise it is empty.
	Keep       string
	KeepFolder string
	KeepBytes  int64
	// MustKeep says that SESSION_KEEP_FILES asked for it, and not the configuration alone.
	MustKeep bool

	// Audit is the absolute path of the audit log; empty if unset.
	Audit string
	// Metrics is the address of metrics: ADDRESS:PORT or unix:PATH; empty if unset.
	Metrics string

	// StartWithin is the time for a sandbox to start.
	StartWithin time.Duration

	// HTTP is the address for many clients, TokenFile the file of their tokens. If they are
	// empty, the metadata has them.
	HTTP      string
	TokenFile string
	// Hosts are names of the server for clients over HTTP, besides those in the metadata.
	Hosts []string
}

// KeptSessions returns the folder of kept files; empty if unset.
func KeptSessions(get func(string) string) string { return stateFolder(get, "sessions") }

// ChangesFolder returns the folder of patches of projects; empty if unset.
func ChangesFolder(get func(string) string) string { return stateFolder(get, "changes") }

// ServerLink returns the path of a link that keeps a server in the store of Nix; empty if unset.
func ServerLink(get func(string) string) string { return stateFolder(get, "server") }

// SuspendedFolder returns the folder of suspended sessions; empty if unset.
func SuspendedFolder(get func(string) string) string {
	return stateFolder(get, filepath.Join("vm", "sessions"))
}

// stateFolder returns a folder in the user's folder for state (XDG Base Directory Specification).
func stateFolder(get func(string) string, name string) string {
	state := get("XDG_STATE_HOME")
	if home := get("HOME"); !filepath.IsAbs(state) && filepath.IsAbs(home) {
		state = filepath.Join(home, ".local", "state")
	}
	if !filepath.IsAbs(state) {
		return ""
	}
	return filepath.Join(state, "nix-sandbox-mcp", name)
}

// DeskFolders returns the folders for the sockets by which the user's commands find servers; a server
// uses the first that it can. Clients often start servers without XDG_RUNTIME_DIR: the folder that systemd
// makes for each user who is logged in (pam_systemd(8)) is known without it. Where there is neither,
// as in containers and for cron, it is one in the user's folder for state. The list may be empty.
func DeskFolders(get func(string) string) (folders []string) {
	runtime := get("XDG_RUNTIME_DIR")
	if !filepath.IsAbs(runtime) {
		runtime = filepath.Join("/run/user", strconv.Itoa(os.Geteuid()))
		if _, err := os.Stat(runtime); err != nil {
			runtime = ""
		}
	}
	if runtime != "" {
		folders = append(folders, filepath.Join(runtime, "nix-sandbox-mcp"))
	}
	if state := stateFolder(get, "run"); state != "" {
		folders = append(folders, state)
	}
	return folders
}

// completeKeep decides whether the files of sessions are kept.
func (c *Config) completeKeep(session registry.Session) error {
	c.MustKeep = c.Keep == "1"
	if c.Keep == "" && session.KeepFiles {
		c.Keep = "1"
	}
	switch {
	case c.Keep != "1":
		c.Keep, c.KeepFolder = "", ""
	case c.KeepFolder == "" && c.MustKeep:
		return &Error{"SESSION_KEEP_FILES is 1, and there is no folder to keep files in", "set XDG_STATE_HOME or HOME to an absolute path"}
	default:
		c.KeepBytes = session.KeepBytes
	}
	return nil
}

// Read reads only the variables; [Config.Complete] adds the metadata. Get is os.Getenv or a
// stand-in. An empty variable counts as unset.
func Read(get func(string) string) (Config, error) {
	if get("NIX_SANDBOX_METADATA") == "" {
		return Config{}, &Error{
			"NIX_SANDBOX_METADATA is not set",
			"start the server that Nix built (result/bin/nix-sandbox-mcp), which sets it, or set it to the metadata's JSON or its path",
		}
	}
	var wrong error // the first that was found
	number := func(name, unit string, most int) int {
		text := get(name)
		value, err := strconv.Atoi(text)
		if text != "" && wrong == nil && (err != nil || value < 1 || value > most) {
			wrong = &Error{
				fmt.Sprintf("%s is %q", name, text),
				fmt.Sprintf("set it to a whole number of %s from 1 to %d, or leave it unset", unit, most),
			}
		}
		return value
	}
	seconds := func(name string, most int) time.Duration {
		return time.Duration(number(name, "seconds", most)) * time.Second
	}
	choice := func(name, what string) string {
		value := get(name)
		if value != "" && value != "0" && value != "1" && wrong == nil {
			wrong = &Error{fmt.Sprintf("%s is %q", name, value), "set it to 1 to " + what + ", or to 0 not to, or leave it unset"}
		}
		return value
	}
	if path := get("NIX_SANDBOX_AUDIT"); path != "" && !filepath.IsAbs(path) {
		wrong = cmp.Or(wrong, error(&Error{
			fmt.Sprintf("NIX_SANDBOX_AUDIT is %q", path),
			"set it to the absolute path of a file, or leave it unset to keep no audit log",
		}))
	}
	hosts, err := hosts(get("NIX_SANDBOX_HOSTS"))
	wrong = cmp.Or(wrong, err)
	config := Config{
		Metadata:        get("NIX_SANDBOX_METADATA"),
		Folders:         registry.Folders{Folders: folders(get), Builds: get("NIX_SANDBOX_BUILDS")},
		Packages:        get("NIX_SANDBOX_PACKAGES"),
		ProjectDir:      get("PROJECT_DIR"),
		ProjectMount:    get("PROJECT_MOUNT"),
		ProjectMode:     get("PROJECT_MODE"),
		Inbox:           get("NIX_SANDBOX_INBOX"),
		Outputs:         get("NIX_SANDBOX_OUTPUTS"),
		SessionIdle:     seconds("SESSION_IDLE_TIMEOUT", maxSeconds),
		SessionLifetime: seconds("SESSION_MAX_LIFETIME", maxSeconds),
		SessionMax:      number("SESSION_MAX", "sessions", maxSessions),
		Keep:            choice("SESSION_KEEP_FILES", "keep the files of sessions"),
		KeepFolder:      KeptSessions(get),
		Audit:           get("NIX_SANDBOX_AUDIT"),
		Metrics:         get("NIX_SANDBOX_METRICS"),
		StartWithin:     cmp.Or(seconds("NIX_SANDBOX_START_SECONDS", maxStart), defaultStart),
		Builder:         get("NIX_SANDBOX_BUILDER"),
		HTTP:            get("NIX_SANDBOX_HTTP"),
		TokenFile:       get("NIX_SANDBOX_TOKENS"),
		Hosts:           hosts,
	}
	if wrong != nil {
		return Config{}, wrong
	}
	return config, nil
}

// hosts returns the names in a list with commas between them. A name with a scheme, a port or a
// path would never be that of a request.
func hosts(list string) ([]string, error) {
	var names []string
	for name := range strings.SplitSeq(list, ",") {
		name = strings.TrimSpace(name)
		_, err := netip.ParseAddr(name)
		if err != nil && strings.ContainsAny(name, ":/*[] \t") {
			return nil, &Error{
				fmt.Sprintf("NIX_SANDBOX_HOSTS has %.80q, which is not the name of a host", name),
				"use names or addresses with commas between them, without a scheme or a port, such as sandbox.example,192.0.2.1",
			}
		}
		if name != "" {
			names = append(names, name)
		}
	}
	return names, nil
}

// Complete adds the settings that the variables left open from the metadata, which has all
// defaults, and checks the result.
func (c Config) Complete(session registry.Session, project registry.Project) (Config, error) {
	c.SessionIdle = cmp.Or(c.SessionIdle, session.Idle)
	c.SessionLifetime = cmp.Or(c.SessionLifetime, session.Lifetime)
	c.SessionMaxOfMany = cmp.Or(c.SessionMax, manySessions)
	c.SessionMax = cmp.Or(c.SessionMax, defaultSessions)
	if err := c.completeKeep(session); err != nil {
		return Config{}, err
	}
	c.ProjectMount = cmp.Or(c.ProjectMount, project.Mount)
	c.ProjectMode = cmp.Or(c.ProjectMode, project.Mode)
	setting, hint := "PROJECT_DIR", "set PROJECT_DIR to an existing folder, or leave it unset to serve no project"
	if c.ProjectDir == "" {
		c.ProjectDir = project.Path
		setting, hint = "the configuration's project path", "make that folder, or set PROJECT_DIR to the project's"
	}
	if err := checkMode(c.ProjectMode, project); err != nil {
		return Config{}, err
	}
	if problem := mountpoint.Problem(c.ProjectMount, project.Reserved); problem != "" {
		return Config{}, &Error{
			fmt.Sprintf("PROJECT_MOUNT is %q, %s", c.ProjectMount, problem),
			`set it to an absolute path of its own, without ".." or a trailing slash, such as /project`,
		}
	}
	var err error
	isHere := !filepath.IsAbs(c.ProjectDir)
	if c.ProjectDir, err = Folder(c.ProjectDir); err != nil {
		return Config{}, &Error{fmt.Sprintf("%s is %v", setting, err), hint}
	}
	// The user named no folder, and started a client there.
	if home, _ := os.UserHomeDir(); isHere && (c.ProjectDir == "/" || c.ProjectDir == filepath.Clean(home)) {
		c.ProjectDir, c.NoProject = "", c.ProjectDir
	}
	if c.Inbox, err = Folder(c.Inbox); err != nil {
		return Config{}, &Error{
			fmt.Sprintf("NIX_SANDBOX_INBOX is %v", err),
			"set NIX_SANDBOX_INBOX to an existing folder, or leave it unset to give the code no files",
		}
	}
	setting = "NIX_SANDBOX_OUTPUTS"
	if c.Outputs == "" {
		c.Outputs, setting = session.Outputs, "the configuration's outputs"
	}
	if c.Outputs, err = Folder(c.Outputs); err != nil {
		return Config{}, &Error{fmt.Sprintf("%s is %v", setting, err), "make that folder, or set NIX_SANDBOX_OUTPUTS to an existing one"}
	}
	return c, nil
}

// folders returns the folders in NIX_SANDBOX_DIR. If it is unset, they are the user's folder and
// the machine's.
func folders(get func(string) string) []string {
	if dir := get("NIX_SANDBOX_DIR"); dir != "" {
		return slices.DeleteFunc(filepath.SplitList(dir), func(one string) bool { return one == "" })
	}
	var dirs []string
	if user := userFolder(get); user != "" {
		dirs = append(dirs, filepath.Join(user, "sandboxes"))
	}
	return append(dirs, "/etc/nix-sandbox-mcp/sandboxes")
}

// userFolder returns the folder of the user's configuration; empty if unset.
func userFolder(get func(string) string) string {
	user := get("XDG_CONFIG_HOME")
	if home := get("HOME"); user == "" && home != "" {
		user = filepath.Join(home, ".config")
	}
	if !filepath.IsAbs(user) {
		return ""
	}
	return filepath.Join(user, "nix-sandbox-mcp")
}

// UserFile returns the user's configuration, which adds to the default server and may be missing; empty if unset.
func UserFile(get func(string) string) string {
	folder := userFolder(get)
	if folder == "" {
		return ""
	}
	return filepath.Join(folder, "config.toml")
}

// Folder returns the absolute path of a folder that sandboxes are to show, and "" for "". The error continues a sentence
// that begins "SETTING is".
func Folder(dir string) (string, error) {
	if dir == "" {
		return "", nil
	}
	absolute, problem := mountpoint.Source(dir)
	if problem != "" {
		return "", fmt.Errorf("%s, %s", absolute, problem)
	}
	return absolute, nil
}

// checkMode returns an error unless the metadata has the mode.
func checkMode(mode string, project registry.Project) error {
	if slices.Contains(project.Modes, mode) {
		return nil
	}
	problem := fmt.Sprintf("PROJECT_MODE is %q", mode)
	if reason := project.RefusedModes[mode]; reason != "" {
		problem += ", " + reason
	}
	return &Error{problem, "set it to " + strings.Join(project.Modes, " or ") + ", or leave it unset"}
}
