package jail

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

func TestReadProject(t *testing.T) {
	spec := valid()
	folder := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	must.Do(t, os.Symlink(folder, link))
	for name, test := range map[string]struct {
		dir, mount string
		want       Project
	}{
		"none":              {"", "", Project{}},
		"a mount alone":     {"", "/here", Project{}},
		"usual mount":       {folder, "", Project{Dir: folder, Mount: "/project"}},
		"another mount":     {folder, "/src/app", Project{Dir: folder, Mount: "/src/app"}},
		"like a reserved":   {folder, "/nixos", Project{Dir: folder, Mount: "/nixos"}},
		"through a link":    {link, "", Project{Dir: link, Mount: "/project"}},
		"a slash at end":    {folder + "/", "", Project{Dir: folder, Mount: "/project"}},
		"not a plain path":  {folder + "/../" + filepath.Base(folder), "", Project{Dir: folder, Mount: "/project"}},
		"dots in its name":  {folder, "/..a", Project{Dir: folder, Mount: "/..a"}},
		"spaces in a mount": {folder, "/my project", Project{Dir: folder, Mount: "/my project"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := must.Get(spec.readProject(test.dir, test.mount, ""))(t)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The repository of a worktree is shown if each names the other. A project that names a folder which
// does not know it, or one of the sandbox's own, is shown without.
func TestReadProject_FindsTheRepositoryOfAWorktree(t *testing.T) {
	root := must.Get(os.MkdirTemp("/var/tmp", "worktree"))(t)
	t.Cleanup(func() { os.RemoveAll(root) })
	project, common := filepath.Join(root, "tree"), filepath.Join(root, "main", ".git")
	private := filepath.Join(common, "worktrees", "tree")
	must.Do(t, os.MkdirAll(project, 0o700))
	must.Do(t, os.MkdirAll(private, 0o700))
	for name, test := range map[string]struct{ pointer, back, want string }{
		"a worktree":            {"gitdir: " + private + "\n", filepath.Join(project, ".git") + "\n", common},
		"relative paths":        {"gitdir: ../main/.git/worktrees/tree\n", "../../../../tree/.git\n", common},
		"one that is not known": {"gitdir: " + private + "\n", "/nowhere/.git\n", ""},
		"another's":             {"gitdir: " + private + "\n", "/etc/passwd\n", ""},
		"no worktree's folder":  {"gitdir: " + common + "\n", filepath.Join(project, ".git") + "\n", ""},
		"a sandbox's own":       {"gitdir: /proc/worktrees/self\n", filepath.Join(project, ".git") + "\n", ""},
		"the root":              {"gitdir: /worktrees/x\n", filepath.Join(project, ".git") + "\n", ""},
		"no pointer":            {"something else", filepath.Join(project, ".git") + "\n", ""},
		"long":                  {"gitdir: " + strings.Repeat("/x", 4<<10), filepath.Join(project, ".git") + "\n", ""},
	} {
		must.Write(t, filepath.Join(project, ".git"), test.pointer, 0o600)
		must.Write(t, filepath.Join(private, "gitdir"), test.back, 0o600)
		spec := valid()
		for _, mode := range []string{ModeReadOnly, ModeOverlay, modeShared} {
			if got := must.Get(spec.readProject(project, project, mode))(t); got.Git != test.want {
				t.Errorf("%s, %s: %q, want %q", name, mode, got.Git, test.want)
			}
		}
	}
	must.Do(t, os.Remove(filepath.Join(project, ".git")))
	must.Do(t, syscall.Mkfifo(filepath.Join(project, ".git"), 0o600))
	spec := valid()
	if got := must.Get(spec.readProject(project, project, ""))(t); got.Git != "" {
		t.Errorf("a pipe: %q", got.Git)
	}
}

func TestReadProjectRelative(t *testing.T) {
	folder := must.Get(filepath.EvalSymlinks(t.TempDir()))(t)
	t.Chdir(folder)
	spec := valid()
	got, err := spec.readProject(".", "", ModeReadOnly)
	if err != nil || got.Dir != folder {
		t.Errorf("project %+v, error %v, want %s", got, err, folder)
	}
}

func TestReadProjectRefuses(t *testing.T) {
	spec := valid()
	folder := t.TempDir()
	file := filepath.Join(folder, "file")
	must.Do(t, os.WriteFile(file, nil, 0o600))
	root := filepath.Join(folder, "root")
	must.Do(t, os.Symlink("/", root))
	sys := filepath.Join(folder, "sys")
	must.Do(t, os.Symlink("/sys/kernel", sys))
	for name, test := range map[string]struct {
		dir, mount string
		want       string
	}{
		"missing":                    {folder + "/none", "", "does not exist"},
		"a file":                     {file, "", "not a folder"},
		"inside a file":              {file + "/x", "", "cannot be read"},
		"the root":                   {"/", "", "whole file system"},
		"a link to the root":         {root, "", "whole file system"},
		"up to the root":             {"/../..", "", "whole file system"},
		"processes":                  {"/proc", "", "shows the machine"},
		"a process":                  {"/proc/self", "", "shows the machine"},
		"a link to the kernel":       {sys, "", "shows the machine"},
		"devices":                    {"/dev", "", "shows the machine"},
		"terminals":                  {"/dev/pts", "", "shows the machine"},
		"services":                   {"/run", "", "shows the machine"},
		"relative mount":             {folder, "project", "plain absolute path"},
		"mount with dots":            {folder, "/a/../nix", "plain absolute path"},
		"mount with a slash at end":  {folder, "/project/", "plain absolute path"},
		"mount at the root":          {folder, "/", "overlaps"},
		"mount at a reserved place":  {folder, "/nix", "overlaps the sandbox's own /nix"},
		"mount in a reserved place":  {folder, "/proc/1", "overlaps the sandbox's own /proc"},
		"mount over the working dir": {folder, "/workspace", "overlaps"},
		"bad mount, no project":      {"", "/nix", "overlaps"},
	} {
		t.Run(name, func(t *testing.T) {
			project, err := spec.readProject(test.dir, test.mount, "")
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("project %+v, error %v, want one with %q", project, err, test.want)
			}
			if HintOf(err) == "" {
				t.Error("no hint")
			}
		})
	}
}

// The inbox is refused for what a project is refused for.
func TestReadRequest_ChecksTheInbox(t *testing.T) {
	spec := valid()
	folder := t.TempDir()
	file := filepath.Join(folder, "file")
	must.Do(t, os.WriteFile(file, nil, 0o600))
	read := func(inbox, mount string) (Request, error) {
		variables := map[string]string{"NIX_SANDBOX_INBOX": inbox, "PROJECT_DIR": folder, "PROJECT_MOUNT": mount}
		return spec.ReadRequest(func(name string) string { return variables[name] })
	}
	for _, inbox := range []string{"", folder} {
		request := must.Get(read(inbox, ""))(t)
		if request.Inbox != inbox || request.Project.Dir != folder {
			t.Errorf("inbox %q: request %+v", inbox, request)
		}
	}
	for inbox, want := range map[string]string{
		folder + "/none": "which does not exist",
		file:             "which is not a folder",
		"/":              "which is the whole file system",
		"/proc":          "which shows the machine itself",
		"/run":           "which shows the machine itself",
	} {
		_, err := read(inbox, "")
		if err == nil || err.Error() != fmt.Sprintf("NIX_SANDBOX_INBOX is %q, %s", inbox, want) || !strings.Contains(HintOf(err), "set NIX_SANDBOX_INBOX") {
			t.Errorf("%s: error %v with hint %q, want %q", inbox, err, HintOf(err), want)
		}
	}
	if _, err := read(folder, "/inbox"); err == nil || !strings.Contains(err.Error(), "overlaps the sandbox's own /inbox") {
		t.Errorf("a project at the inbox: error %v", err)
	}
}

func TestProjectModes(t *testing.T) {
	folder := t.TempDir()
	with, without := valid(), valid()
	without.Overlay, without.NoOverlay = nil, "its bubblewrap is too old"
	for mode, overlay := range map[string]bool{"": false, ModeReadOnly: false, ModeOverlay: true} {
		project, err := with.readProject(folder, "", mode)
		if err != nil || project.Overlay != overlay {
			t.Errorf("mode %q: project %+v, error %v", mode, project, err)
		}
		// Without a project there is nothing to lay anything over.
		if project, err := with.readProject("", "", mode); err != nil || project != (Project{}) {
			t.Errorf("mode %q without a project: %+v, error %v", mode, project, err)
		}
	}
	for mode, test := range map[string]struct {
		spec Spec
		want string
	}{
		"readwrite": {with, "never changes files of the host"},
		"rw":        {with, `PROJECT_MODE is "rw"`},
		"overlay":   {without, "its bubblewrap is too old"},
	} {
		project, err := test.spec.readProject(folder, "", mode)
		if err == nil || !strings.Contains(err.Error(), test.want) || HintOf(err) == "" {
			t.Errorf("mode %q: project %+v, error %v, want one with %q", mode, project, err, test.want)
		}
	}
}
