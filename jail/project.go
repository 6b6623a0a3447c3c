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

// What a sandbox may do with the project's folder, as PROJECT_MODE says it.
const (
	// ModeReadOnly lets it read.
	ModeReadOnly = "readonly"
	// ModeOverlay lets it write too, on a layer that is thrown away with the
	// sandbox.
	ModeOverlay = "overlay"
	// modeReadWrite is refused with a sentence of its own.
	modeReadWrite = "readwrite"
)

// Project is the folder that the caller shows to the sandbox.
type Project struct {
	Dir     string // absolute, on the host; empty where there is no project
	Mount   string // absolute, in the sandbox
	Overlay bool   // whether code may write, on a throw-away layer
}

// ReadProject finds the project in the values of PROJECT_DIR, PROJECT_MOUNT
// and PROJECT_MODE, each of which may be empty.
func (s *Spec) ReadProject(dir, mount, mode string) (Project, error) {
	if mount == "" {
		mount = s.ProjectMount
	}
	if err := s.checkMount(mount); err != nil {
		return Project{}, err
	}
	if err := s.checkMode(mode); err != nil {
		return Project{}, err
	}
	if dir == "" {
		return Project{}, nil
	}
	dir, err := checkDir(dir)
	if err != nil {
		return Project{}, err
	}
	return Project{Dir: dir, Mount: mount, Overlay: mode == ModeOverlay}, nil
}

func (s *Spec) checkMode(mode string) error {
	const hint = "set PROJECT_MODE to readonly, or leave it unset"
	switch mode {
	case "", ModeReadOnly:
		return nil
	case ModeOverlay:
		if s.Overlay == nil {
			return &Refusal{Problem: "PROJECT_MODE is \"overlay\", which this sandbox has not: " + s.NoOverlay, Hint: hint}
		}
		return nil
	case modeReadWrite:
		return &Refusal{
			Problem: `PROJECT_MODE is "readwrite", and code in a sandbox never changes files of the host`,
			Hint:    "set PROJECT_MODE to overlay: code can write into the project, and what it wrote is thrown away with the sandbox",
		}
	}
	return &Refusal{
		Problem: fmt.Sprintf("PROJECT_MODE is %q", mode),
		Hint:    "set PROJECT_MODE to readonly or overlay, or leave it unset",
	}
}

func checkDir(dir string) (string, error) {
	refuse := func(what string) (string, error) {
		return "", &Refusal{
			Problem: fmt.Sprintf("PROJECT_DIR is %q, %s", dir, what),
			Hint:    "set PROJECT_DIR to the project's folder, or leave it unset",
		}
	}
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("find PROJECT_DIR %q: %w", dir, err)
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
	// Compared as the kernel sees them, so that no link or bind mount hides
	// the root folder under another name.
	if root, err := os.Stat("/"); err != nil || os.SameFile(info, root) {
		return refuse("which is the whole file system")
	}
	if resolved, err := filepath.EvalSymlinks(absolute); err == nil && ofMachine(resolved) {
		return refuse("which shows the machine and not a project")
	}
	return absolute, nil
}

// ofMachine reports whether a path is one where the kernel and the services of
// the host show themselves: their processes, devices and sockets. Memory disks,
// removable disks and what programs keep for a user are there too, and may be
// projects.
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

func (s *Spec) checkMount(mount string) error {
	if problem := mountpoint.Problem(mount, s.Reserved); problem != "" {
		return &Refusal{
			Problem: fmt.Sprintf("PROJECT_MOUNT is %q, %s", mount, problem),
			Hint:    "set PROJECT_MOUNT to a folder of its own such as /project, or leave it unset",
		}
	}
	return nil
}

// reason is the error without the path, which the sentence has named.
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
