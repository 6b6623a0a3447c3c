package jail

import (
	"errors"
	"fmt"
	"io/fs"
	"os/exec"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/mountpoint"
)

// The values of PROJECT_MODE.
const (
	// ModeReadOnly lets code read the project.
	ModeReadOnly = "readonly"
	// ModeOverlay also lets it write, to a layer that ends with the sandbox.
	ModeOverlay = "overlay"
	// modeShared lets it write to a layer that all sandboxes with one workspace have: the
	// holder of the workspace made it, with ModeOverlay. Only the server sets it.
	modeShared = "shared"
	// modeReadWrite is an error of its own, because users try it.
	modeReadWrite = "readwrite"
)

// Project is the folder that the caller shows to the sandbox.
type Project struct {
	Dir     string // absolute, on the host; empty without a project, or if it is Shared
	Mount   string // absolute, in the sandbox
	Overlay bool   // whether code may write, to a temporary layer of the sandbox's own
	Shared  bool   // whether the holder of the workspace has it, with a layer for all its sandboxes
	// Git is git's folder of the repository of a worktree, shown read-only at GitMount, its own path. Both
	// are empty for other projects.
	Git, GitMount string
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

// projectVariable names the project's folder.
const projectVariable = "PROJECT_DIR"

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
	git := r.commonFolder(dir, mount)
	if mode == modeShared {
		return Project{Mount: mount, Shared: true, Git: git, GitMount: git}, nil
	}
	return Project{Dir: dir, Mount: mount, Overlay: mode == ModeOverlay, Git: git, GitMount: git}, nil
}

func (r ProjectRules) checkMode(mode string) error {
	const hint = "set PROJECT_MODE to readonly, or leave it unset"
	switch mode {
	case "", ModeReadOnly:
		return nil
	case ModeOverlay, modeShared:
		if !r.Overlay {
			return &Refusal{Problem: fmt.Sprintf("PROJECT_MODE is %q, which this sandbox does not support: ", mode) + r.NoOverlay, Hint: hint}
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

// inboxVariable names the operator's folder of files for the code.
const inboxVariable = "NIX_SANDBOX_INBOX"

// ReadInbox returns the absolute path of the inbox that a variable names, by get, or "".
func ReadInbox(get func(string) string) (string, error) {
	dir := get(inboxVariable)
	if dir == "" {
		return "", nil
	}
	return checkDir(inboxVariable, dir, "a folder of files for the code")
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
	absolute, problem := mountpoint.Source(dir)
	if problem != "" {
		return refuse(problem)
	}
	return absolute, nil
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
