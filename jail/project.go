package jail

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail/mountpoint"
)

// The values of PROJECT_MODE.
const (
	// ModeReadOnly lets code read the project.
	ModeReadOnly = "readonly"
	// ModeOverlay also lets it write, to a layer that ends with the sandbox.
	ModeOverlay = "overlay"
	// modeReadWrite is an error of its own, because users try it.
	modeReadWrite = "readwrite"
)

// Project is the folder that the caller shows to the sandbox.
type Project struct {
	Dir     string // absolute, on the host; empty without a project
	Mount   string // absolute, in the sandbox
	Overlay bool   // whether code may write, to a temporary layer
}

// ProjectRules say where and how a sandbox may show a project.
type ProjectRules struct {
	// Mount is its mount point in the sandbox, unless the caller chooses another.
	Mount string `json:"mount"`
	// Reserved are the paths in the sandbox that it may not cover.
	Reserved []string `json:"reserved"`
	// Overlay reports that code may write to it. If not, NoOverlay says why.
	Overlay   bool   `json:"overlay"`
	NoOverlay string `json:"no_overlay"`
}

// readProject reads the project by the rules of the description.
func (s *Spec) readProject(dir, mount, mode string) (Project, error) {
	rules := ProjectRules{Mount: s.ProjectMount, Reserved: s.Reserved, Overlay: s.Overlay != nil, NoOverlay: s.NoOverlay}
	return rules.Read(dir, mount, mode)
}

// Read reads the project from the values of PROJECT_DIR, PROJECT_MOUNT and PROJECT_MODE,
// which may be empty. An error is a [Refusal].
func (r ProjectRules) Read(dir, mount, mode string) (Project, error) {
	if mount == "" {
		mount = r.Mount
	}
	if err := r.checkMount(mount); err != nil {
		return Project{}, err
	}
	if err := r.checkMode(mode); err != nil {
		return Project{}, err
	}
	if dir == "" {
		return Project{}, nil
	}
	dir, err := checkDir(projectVariable, dir, "the project's folder")
	if err != nil {
		return Project{}, err
	}
	return Project{Dir: dir, Mount: mount, Overlay: mode == ModeOverlay}, nil
}

func (r ProjectRules) checkMode(mode string) error {
	const hint = "set PROJECT_MODE to readonly, or leave it unset"
	switch mode {
	case "", ModeReadOnly:
		return nil
	case ModeOverlay:
		if !r.Overlay {
			return &Refusal{Problem: "PROJECT_MODE is \"overlay\", which this sandbox does not support: " + r.NoOverlay, Hint: hint}
		}
		return nil
	case modeReadWrite:
		return &Refusal{
			Problem: `PROJECT_MODE is "readwrite", and code in a sandbox never changes files of the host`,
			Hint:    "set PROJECT_MODE to overlay: code can then write to a layer over the project, which ends with the sandbox",
		}
	}
	return &Refusal{
		Problem: fmt.Sprintf("PROJECT_MODE is %q", mode),
		Hint:    "set PROJECT_MODE to readonly or overlay, or leave it unset",
	}
}

// checkDir returns the absolute path of the folder that a variable names. kind says, in
// hints, what to set the variable to.
func checkDir(variable, dir, kind string) (string, error) {
	refuse := func(what string) (string, error) {
		return "", &Refusal{
			Problem: fmt.Sprintf("%s is %q, %s", variable, dir, what),
			Hint:    "set " + variable + " to " + kind + ", or leave it unset",
		}
	}
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("find %s %q: %w", variable, dir, err)
	}
	info, err := os.Stat(absolute)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return refuse("which does not exist")
	case err != nil:
		return refuse("which cannot be read: " + reason(err))
	case !info.IsDir():
		return refuse("which is not a folder")
	}
	// The kernel's identities are compared, so that no link or bind mount hides the
	// root folder under another name.
	if root, err := os.Stat("/"); err != nil || os.SameFile(info, root) {
		return refuse("which is the whole file system")
	}
	if resolved, err := filepath.EvalSymlinks(absolute); err == nil && ofMachine(resolved) {
		return refuse("which shows the machine itself")
	}
	return absolute, nil
}

// ofMachine reports whether a path leads to files of the kernel or of the host's
// services: processes, devices or sockets. Memory disks, removable disks and users' own
// files at such paths may be projects.
func ofMachine(path string) bool {
	first, rest, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch first {
	case "proc", "sys":
		return true
	case "dev":
		return !strings.HasPrefix(rest, "shm/")
	case "run":
		return !strings.HasPrefix(rest, "media/") && !(strings.HasPrefix(rest, "user/") && strings.Count(rest, "/") >= 2)
	}
	return false
}

func (r ProjectRules) checkMount(mount string) error {
	if problem := mountpoint.Problem(mount, r.Reserved); problem != "" {
		return &Refusal{
			Problem: fmt.Sprintf("PROJECT_MOUNT is %q, %s", mount, problem),
			Hint:    "set PROJECT_MOUNT to a folder of its own such as /project, or leave it unset",
		}
	}
	return nil
}

// reason returns an error's text without its path, for sentences that name the path.
func reason(err error) string {
	var (
		pathErr *fs.PathError
		execErr *exec.Error
	)
	switch {
	case errors.As(err, &pathErr):
		return pathErr.Err.Error()
	case errors.As(err, &execErr):
		return execErr.Err.Error()
	}
	return err.Error()
}
