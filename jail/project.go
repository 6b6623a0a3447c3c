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

// Request is what the caller asks for with the start of a sandbox.
type Request struct {
	Project Project
	// Inbox is another folder that the sandbox sees, read-only: absolute, on the
	// host; empty where there is none.
	Inbox string
	// Workspace is the descriptor of a workspace that other sandboxes have too; 0
	// where the sandbox has its own.
	Workspace int
	// Upper is the descriptor of a socket over which the upper layer of the project's
	// overlay is sent; 0 where nobody asks for it.
	Upper int
	// devices is what the sandbox has of the machine's devices, nil where it has none.
	devices *DevicePlan
	// logs says that standard error is a log, and not the code's own.
	logs bool
	// CodeGroup is the descriptor of a control group for the code; 0 where there is none.
	CodeGroup int
	// StartFactor is how many times longer than usual an interpreter may take to load;
	// 0 is 1.
	StartFactor int
}

// ReadRequest finds what the caller asks for in environment variables, by get, each
// of which may be empty: PROJECT_DIR, PROJECT_MOUNT, PROJECT_MODE, NIX_SANDBOX_INBOX,
// NIX_SANDBOX_WORKSPACE, NIX_SANDBOX_UPPER, NIX_SANDBOX_CODE_GROUP and NIX_SANDBOX_START_FACTOR.
func (s *Spec) ReadRequest(get func(string) string) (Request, error) {
	project, err := s.readProject(get(projectVariable), get("PROJECT_MOUNT"), get("PROJECT_MODE"))
	if err != nil {
		return Request{}, err
	}
	request := Request{Project: project, Inbox: get(inboxVariable)}
	if request.Inbox != "" && s.InboxMount == "" {
		return Request{}, &Refusal{Problem: "NIX_SANDBOX_INBOX is set, and this sandbox shows no inbox", Hint: "leave it unset"}
	}
	if request.Inbox != "" {
		if request.Inbox, err = checkDir(inboxVariable, request.Inbox, "a folder of files for the code"); err != nil {
			return Request{}, err
		}
	}
	if request.Workspace, err = s.readWorkspace(get(workspaceVariable)); err != nil {
		return request, err
	}
	if request.Upper, err = readUpper(get(upperVariable), project); err != nil {
		return request, err
	}
	if request.CodeGroup, err = readCodeGroup(get(codeGroupVariable)); err != nil {
		return request, err
	}
	request.StartFactor, err = readStartFactor(get(startFactorVariable))
	return request, err
}

// The variables that name folders of the host.
const (
	projectVariable = "PROJECT_DIR"
	inboxVariable   = "NIX_SANDBOX_INBOX"
)

// Project is the folder that the caller shows to the sandbox.
type Project struct {
	Dir     string // absolute, on the host; empty where there is no project
	Mount   string // absolute, in the sandbox
	Overlay bool   // whether code may write, on a throw-away layer
}

// ProjectRules say where and how a sandbox may show a project.
type ProjectRules struct {
	// Mount is where it appears if the caller does not say.
	Mount string `json:"mount"`
	// Reserved are the paths in the sandbox where it may not appear.
	Reserved []string `json:"reserved"`
	// Overlay says that code may write into it, and NoOverlay otherwise why not.
	Overlay   bool   `json:"overlay"`
	NoOverlay string `json:"no_overlay"`
}

// readProject finds the project by the rules of the description.
func (s *Spec) readProject(dir, mount, mode string) (Project, error) {
	rules := ProjectRules{Mount: s.ProjectMount, Reserved: s.Reserved, Overlay: s.Overlay != nil, NoOverlay: s.NoOverlay}
	return rules.Read(dir, mount, mode)
}

// Read finds the project in the values of PROJECT_DIR, PROJECT_MOUNT and PROJECT_MODE,
// each of which may be empty. An error is a [Refusal].
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
			return &Refusal{Problem: "PROJECT_MODE is \"overlay\", which this sandbox has not: " + r.NoOverlay, Hint: hint}
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

// checkDir returns the absolute path of the folder that a variable names, which is
// to be a folder of this kind.
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
	// Compared as the kernel sees them, so that no link or bind mount hides
	// the root folder under another name.
	if root, err := os.Stat("/"); err != nil || os.SameFile(info, root) {
		return refuse("which is the whole file system")
	}
	if resolved, err := filepath.EvalSymlinks(absolute); err == nil && ofMachine(resolved) {
		return refuse("which shows the machine itself")
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

func (r ProjectRules) checkMount(mount string) error {
	if problem := mountpoint.Problem(mount, r.Reserved); problem != "" {
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
