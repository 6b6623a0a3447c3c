package changes

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/keep/changes/gitpatch"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/keep/changes/layer"
)

// Kinds of reasons why a file is not applied.
const (
	// Obeyed says that a program of the host would execute or obey the file.
	Obeyed = "obeyed"
	// Leaves says that it is a link that leads out of the project.
	Leaves = "leaves"
	// Differs says that the project's file is not what the sandbox saw, and that both
	// cannot be merged.
	Differs = "differs"
	// Doubted says that the file changed on the host while the session changed it.
	Doubted = "doubted"
)

// Refusal says why a file is not applied.
type Refusal struct{ Path, Kind, Reason string }

// RefusedError reports a patch of which nothing was applied.
type RefusedError struct{ Files []Refusal }

func (e *RefusedError) Error() string {
	if len(e.Files) == 1 {
		return "one file cannot be applied, and nothing was changed"
	}
	return fmt.Sprintf("%d files cannot be applied, and nothing was changed", len(e.Files))
}

// Applied says what [Apply] did.
type Applied struct {
	// Written and Deleted are the paths that were changed. Merged are those of Written
	// that had changed on the host, and have both changes now.
	Written, Deleted, Merged []string
	// Same are paths that were as the patch makes them already. Skipped were left out
	// because they are refused unless they are named.
	Same    []string
	Skipped []Refusal
	// Recovered says that an earlier apply had been killed, and was undone first.
	Recovered bool
}

// obeyed are the names of files and folders that programs of the host execute or obey:
// shells, editors, clients of language models, git and Nix. A name with a slash is that of
// the last folders. Names are compared without case.
var obeyed = []string{
	".git", ".envrc", ".mcp.json", ".claude", "claude.md", "agents.md", "gemini.md", ".gemini", ".codex", ".cursorrules", ".cursor",
	".windsurfrules", ".vscode", ".idea", ".zed", ".devcontainer", ".github/workflows", ".github/copilot-instructions.md", "flake.nix",
	".githooks", ".husky", ".pre-commit-config.yaml", ".gitmodules", ".git/hooks",
}

// isObeyed reports whether a program of the host would execute or obey a file. hooks is
// the folder of the project's git hooks; empty where that is git's own.
func isObeyed(name, hooks string) bool {
	if hooks != "" && (name == hooks || strings.HasPrefix(name, hooks+"/")) {
		return true
	}
	whole := "/" + strings.ToLower(name) + "/"
	return slices.ContainsFunc(obeyed, func(part string) bool { return strings.Contains(whole, "/"+part+"/") })
}

// leaves reports whether a link of a name leads out of the folder that the name is
// relative to.
func leaves(name, target string) bool {
	if path.IsAbs(target) {
		return true
	}
	to := path.Join(path.Dir(name), target)
	return to == ".." || strings.HasPrefix(to, "../")
}

// operation is a change to one path of the project.
type operation struct {
	name          string
	before, after gitpatch.State
	merged        bool
}

// Apply applies a patch to the project, all of it or nothing, also where the context
// ends meanwhile. With paths, it applies to
// these files and folders alone. What a program of the host would execute or obey, and a
// link that leads out of the project, is refused unless its own path is among them; in a
// folder that is among them it is skipped. The error is a [*RefusedError] where files
// cannot be applied.
//
// A file that is not what the sandbox saw is merged where the project is a git repository
// that has what the sandbox saw, and where git can merge both.
func Apply(ctx context.Context, entry *Entry, paths []string) (*Applied, error) {
	root, err := os.OpenRoot(entry.Project)
	if err != nil {
		return nil, fmt.Errorf("open the project: %w", err)
	}
	defer root.Close()
	tree, err := layer.Open(entry.Project)
	if err != nil {
		return nil, fmt.Errorf("open the project: %w", err)
	}
	defer tree.Close()
	a := &applier{ctx: ctx, root: root, tree: tree, entry: entry, git: newRepository(ctx, entry.Project), chosen: map[string]bool{}, links: map[string]bool{}, result: &Applied{}}
	unlock, err := a.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := a.recover(); err != nil {
		return nil, fmt.Errorf("undo an earlier apply that was killed: %w", err)
	}
	for _, name := range paths {
		name = path.Clean(filepath.ToSlash(name))
		if rel, err := filepath.Rel(entry.Project, name); err == nil && path.IsAbs(name) {
			name = rel
		}
		a.paths = append(a.paths, name)
	}
	if err := gitpatch.Read(entry.Patch(), a.plan); err != nil {
		return nil, err
	}
	for _, name := range a.paths {
		if !a.chosen[name] {
			return nil, &UnknownPathError{name}
		}
	}
	if len(a.refused) > 0 {
		return nil, &RefusedError{a.refused}
	}
	return a.result, a.write()
}

// UnknownPathError reports a path that the patch does not change.
type UnknownPathError struct{ Path string }

func (e *UnknownPathError) Error() string {
	return fmt.Sprintf("the session did not change %s", gitpatch.Quote(e.Path))
}

type applier struct {
	ctx    context.Context
	root   *os.Root
	tree   *layer.Tree
	entry  *Entry
	git    *repository // nil where the project is none
	paths  []string
	chosen map[string]bool // those of paths that the patch changes

	// links are the links that the patch deletes.
	links      map[string]bool
	operations []operation
	refused    []Refusal
	result     *Applied
}

// chooses reports whether a file is to be applied, and whether its own path was named.
func (a *applier) chooses(name string) (chosen, named bool) {
	for _, path := range a.paths {
		if path == name || path == "." || strings.HasPrefix(name, path+"/") {
			chosen, a.chosen[path] = true, true
			named = named || path == name || isObeyed(path, a.git.hooksFolder())
		}
	}
	return chosen || len(a.paths) == 0, named
}

// plan finds what is to be done for a file.
func (a *applier) plan(file gitpatch.File) error {
	chosen, named := a.chooses(file.Name)
	if !chosen {
		return nil
	}
	if file.Before == gitpatch.Link && file.After == gitpatch.Absent {
		a.links[file.Name] = true
	}
	if kind, reason := a.risk(file); kind != "" && !named {
		a.refuse(Refusal{file.Name, kind, reason})
		return nil
	}
	// The second of two changes of a path, a deletion and a creation, begins where the
	// first one ends.
	var before *operation
	if n := len(a.operations); n > 0 && a.operations[n-1].name == file.Name {
		before = &a.operations[n-1]
	}
	differs := func(reason string) error {
		a.refuse(Refusal{file.Name, Differs, reason})
		return nil
	}
	var now gitpatch.State
	if before != nil {
		now = before.after
	} else {
		var err error
		if now, err = a.now(file.Name); err != nil {
			return differs(err.Error())
		}
	}
	switch {
	case now.Mode == file.Before && (now.Mode == gitpatch.Absent || now.ID() == file.BeforeID):
	case now.Mode == file.After && (now.Mode == gitpatch.Absent || now.ID() == file.AfterID):
		a.result.Same = append(a.result.Same, file.Name)
		return nil
	default:
		return a.merge(file, now, differs)
	}
	content, err := file.Apply(now.Content)
	if err != nil {
		return err
	}
	after := gitpatch.State{Mode: file.After, Content: content}
	if file.After == gitpatch.Link && !named && leaves(file.Name, string(content)) {
		a.refuse(Refusal{file.Name, Leaves, "it is a link to " + gitpatch.Quote(string(content))})
		return nil
	}
	if before != nil {
		before.after = after
	} else {
		a.operations = append(a.operations, operation{file.Name, now, after, false})
	}
	return nil
}

// refuse refuses a file. In a folder that was named, a file that only its own path would
// have applied is skipped.
func (a *applier) refuse(file Refusal) {
	if len(a.paths) > 0 && (file.Kind == Obeyed || file.Kind == Leaves) {
		a.result.Skipped = append(a.result.Skipped, file)
	} else {
		a.refused = append(a.refused, file)
	}
}

// risk says why a file is not to be applied unasked.
func (a *applier) risk(file gitpatch.File) (kind, reason string) {
	switch {
	case isObeyed(file.Name, a.git.hooksFolder()):
		return Obeyed, "a program of this machine would execute or obey it"
	case slices.Contains(a.entry.Summary.Doubtful, shown(file.Name)):
		return Doubted, "it changed on this machine while the session changed it"
	}
	return "", ""
}

// now returns what the project has at a path.
func (a *applier) now(name string) (gitpatch.State, error) {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if entry, err := a.tree.Find(dir); err == nil && entry.Kind == layer.Link && !a.links[dir] {
			return gitpatch.State{}, fmt.Errorf("%s is a link in the project", gitpatch.Quote(dir))
		}
	}
	entry, err := a.tree.Find(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return gitpatch.State{}, nil
	case err != nil:
		return gitpatch.State{}, err
	case entry.Kind == layer.Folder:
		// It may be one that the patch empties; otherwise the write fails, and is undone.
		return gitpatch.State{}, nil
	case entry.Kind != layer.File && entry.Kind != layer.Link:
		return gitpatch.State{}, errors.New("it is neither a file nor a link in the project")
	}
	content, _, err := a.tree.Read(name, maxFile)
	return gitpatch.State{Mode: modeOf(entry), Content: content}, err
}

// merge merges the change of a file with what the project has, which the sandbox did not
// see.
func (a *applier) merge(file gitpatch.File, now gitpatch.State, differs func(string) error) error {
	const changed = "it has changed in the project since the session saw it"
	switch {
	case file.Before == gitpatch.Absent:
		return differs("the project has another file of that name now")
	case now.Mode == gitpatch.Absent:
		return differs("the project does not have it any more")
	case file.After == gitpatch.Absent:
		return differs(changed + ", and the session deleted it")
	case now.ID() == file.BeforeID && now.Mode != gitpatch.Link && file.Before != gitpatch.Link && file.After != gitpatch.Link:
		// The mode alone is another one.
		content, err := file.Apply(now.Content)
		if err != nil {
			return err
		}
		return a.merged(file, now, content)
	case file.Before == gitpatch.Link || file.After == gitpatch.Link || now.Mode == gitpatch.Link || !file.IsText():
		return differs(changed)
	case a.git == nil:
		return differs(changed + ", and only in a git repository both can be merged")
	}
	before, err := a.git.blob(a.ctx, file.BeforeID)
	if err != nil {
		return differs(changed + ", and git does not have what the session saw")
	}
	after, err := file.Apply(before)
	if err != nil {
		return err
	}
	merged, err := mergeFile(a.ctx, now.Content, before, after)
	if err != nil {
		return differs(changed + ", in the same lines")
	}
	return a.merged(file, now, merged)
}

// merged adds the operation that gives a file of the project a merged content.
func (a *applier) merged(file gitpatch.File, now gitpatch.State, content []byte) error {
	mode := now.Mode
	if file.Before != file.After {
		mode = file.After
	}
	a.operations = append(a.operations, operation{file.Name, now, gitpatch.State{Mode: mode, Content: content}, true})
	return nil
}

// write carries out the operations. What it replaces is moved into a folder in the
// project, from where it is moved back when an operation fails.
func (a *applier) write() (err error) {
	if len(a.operations) == 0 {
		return nil
	}
	staging := stagingPrefix + rand.Text()[:8]
	if err := a.root.Mkdir(staging, 0o700); err != nil {
		return fmt.Errorf("make a folder in the project: %w", err)
	}
	var undo []func() error
	defer func() {
		if err != nil {
			for _, step := range slices.Backward(undo) {
				if undoErr := step(); undoErr != nil {
					// The folder has what could not be moved back.
					err = fmt.Errorf("%w; and this could not be undone, the project's files are in %s: %w", err, staging, undoErr)
					return
				}
			}
		}
		_ = a.root.RemoveAll(staging)
	}()
	at := func(kind string, i int) string { return staged(staging, kind, i) }
	// All contents are on the disk before the first file is replaced.
	for i, o := range a.operations {
		if err := a.stage(at("new", i), o); err != nil {
			return fmt.Errorf("write %s: %w", gitpatch.Quote(o.name), err)
		}
	}
	if err := a.writeJournal(staging); err != nil {
		return fmt.Errorf("write the journal: %w", err)
	}
	for i, o := range a.operations {
		if err := a.ctx.Err(); err != nil {
			return err
		}
		if o.before.Mode == gitpatch.Absent {
			continue
		}
		if now, err := a.now(o.name); err != nil || !now.Equal(o.before) {
			return fmt.Errorf("%s has changed at this moment", gitpatch.Quote(o.name))
		}
		if err := a.root.Rename(o.name, at("old", i)); err != nil {
			return fmt.Errorf("replace %s: %w", gitpatch.Quote(o.name), err)
		}
		undo = append(undo, func() error { return a.root.Rename(at("old", i), o.name) })
	}
	for _, o := range a.operations {
		if o.after.Mode == gitpatch.Absent {
			undo = append(undo, a.removeEmpty(path.Dir(o.name))...)
		}
	}
	for i, o := range a.operations {
		if err := a.ctx.Err(); err != nil {
			return err
		}
		if o.after.Mode == gitpatch.Absent {
			a.result.Deleted = append(a.result.Deleted, o.name)
			continue
		}
		steps, err := a.makeFolders(path.Dir(o.name))
		undo = append(undo, steps...)
		if err != nil {
			return fmt.Errorf("make the folder of %s: %w", gitpatch.Quote(o.name), err)
		}
		undo = append(undo, a.removeFolders(o.name)...)
		if err := a.place(at("new", i), o.name); err != nil {
			return fmt.Errorf("write %s: %w", gitpatch.Quote(o.name), err)
		}
		undo = append(undo, func() error { return a.root.Remove(o.name) })
		a.result.Written = append(a.result.Written, o.name)
		if o.merged {
			a.result.Merged = append(a.result.Merged, o.name)
		}
	}
	// From here on nothing is undone.
	return a.root.Remove(staging + "/" + journalName)
}

const (
	// stagingPrefix begins the name of the folder in the project in which an apply works.
	// Its files are new0, new1, ..., the contents that are not in their places yet, and
	// old0, old1, ..., what was there before.
	stagingPrefix = ".nix-sandbox-mcp-"
	// journalName is the file in it that says what belongs where. It is there while the
	// project is being changed.
	journalName = "journal"
	// maxJournal bounds it, in bytes.
	maxJournal = 64 << 20
)

func staged(staging, kind string, i int) string { return fmt.Sprintf("%s/%s%d", staging, kind, i) }

// step is an operation in the journal.
type step struct {
	Name    []byte `json:"name"` // of any bytes
	Creates bool   `json:"creates,omitempty"`
}

func (a *applier) writeJournal(staging string) error {
	var steps []step
	for _, o := range a.operations {
		steps = append(steps, step{[]byte(o.name), o.after.Mode != gitpatch.Absent})
	}
	text, err := json.Marshal(steps)
	if err != nil {
		return err
	}
	file, err := a.root.OpenFile(staging+"/.journal", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	return a.root.Rename(staging+"/.journal", staging+"/"+journalName)
}

// lock keeps others from applying to the project, or fails where one does.
func (a *applier) lock() (unlock func(), err error) {
	dir, err := a.root.Open(".")
	if err != nil {
		return nil, fmt.Errorf("open the project: %w", err)
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		dir.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.New("another program has locked the project: changes are applied to it at this moment")
		}
		return nil, fmt.Errorf("lock the project: %w", err)
	}
	return func() { dir.Close() }, nil
}

// recover undoes what an apply did that was killed.
func (a *applier) recover() error {
	dir, err := a.root.Open(".")
	if err != nil {
		return err
	}
	names, err := dir.Readdirnames(-1)
	dir.Close()
	if err != nil {
		return err
	}
	for _, staging := range names {
		if !strings.HasPrefix(staging, stagingPrefix) {
			continue
		}
		if info, err := a.root.Lstat(staging); err != nil || !info.IsDir() {
			continue
		}
		if err := a.undo(staging); err != nil {
			return err
		}
		if err := a.root.RemoveAll(staging); err != nil {
			return err
		}
	}
	return nil
}

// undo undoes what the journal of a staging folder says, in the reverse order.
func (a *applier) undo(staging string) error {
	text, _, err := a.tree.Read(staging+"/"+journalName, maxJournal)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing had begun, or all was done
	}
	var steps []step
	if err == nil {
		err = json.Unmarshal(text, &steps)
	}
	if err != nil {
		return fmt.Errorf("%s of %s: %w", journalName, staging, err)
	}
	a.result.Recovered = true
	has := func(name string) bool {
		_, err := a.root.Lstat(name)
		return err == nil
	}
	for i, s := range slices.Backward(steps) {
		if name := string(s.Name); s.Creates && !has(staged(staging, "new", i)) && has(name) {
			if err := a.root.Remove(name); err != nil {
				return err
			}
		}
	}
	for i, s := range slices.Backward(steps) {
		name := string(s.Name)
		if !has(staged(staging, "old", i)) {
			continue
		}
		if _, err := a.makeFolders(path.Dir(name)); err != nil {
			return err
		}
		a.removeFolders(name)
		if err := a.place(staged(staging, "old", i), name); err != nil {
			return fmt.Errorf("put %s back: %w", gitpatch.Quote(name), err)
		}
	}
	return nil
}

// stage writes the new state of a path into the staging folder.
func (a *applier) stage(to string, o operation) error {
	switch o.after.Mode {
	case gitpatch.Absent:
		return nil
	case gitpatch.Link:
		return a.root.Symlink(string(o.after.Content), to)
	}
	perm := fs.FileMode(0o666) // less what the user's mask forbids
	if o.after.Mode == gitpatch.Executable {
		perm = 0o777
	}
	file, err := a.root.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	_, err = file.Write(o.after.Content)
	if err == nil && o.before.Mode != gitpatch.Absent && o.before.Mode != gitpatch.Link {
		// The permissions that git does not know stay as they are.
		if info, statErr := a.root.Lstat(o.name); statErr == nil {
			mode := info.Mode().Perm()
			if o.after.Mode != o.before.Mode {
				mode &^= 0o111
				if o.after.Mode == gitpatch.Executable {
					mode |= mode & 0o444 >> 2
				}
			}
			err = file.Chmod(mode)
		}
	}
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// place moves a staged file to its path, where there is none.
func (a *applier) place(from, to string) error {
	if _, err := a.root.Lstat(to); err == nil {
		return fs.ErrExist
	}
	return a.root.Rename(from, to)
}

// makeFolders makes a folder and those above it, and returns what undoes that.
func (a *applier) makeFolders(dir string) (undo []func() error, err error) {
	if dir == "." {
		return nil, nil
	}
	undo, err = a.makeFolders(path.Dir(dir))
	if err != nil {
		return undo, err
	}
	err = a.root.Mkdir(dir, 0o777)
	switch {
	case errors.Is(err, fs.ErrExist):
		if entry, err := a.tree.Find(dir); err != nil || entry.Kind != layer.Folder {
			return undo, fmt.Errorf("%s is not a folder", gitpatch.Quote(dir))
		}
		return undo, nil
	case err != nil:
		return undo, err
	}
	return append(undo, func() error { return a.root.Remove(dir) }), nil
}

// removeEmpty removes a folder and those above it as far as they are empty, because git
// knows no empty folders, and returns what undoes that.
func (a *applier) removeEmpty(dir string) (undo []func() error) {
	for ; dir != "."; dir = path.Dir(dir) {
		step := a.removeFolder(dir)
		if step == nil {
			break
		}
		undo = append(undo, step)
	}
	return undo
}

// removeFolders removes a folder that has nothing but folders in it, and returns what
// undoes that.
func (a *applier) removeFolders(dir string) (undo []func() error) {
	entry, err := a.tree.Find(dir)
	if err != nil || entry.Kind != layer.Folder {
		return nil
	}
	budget, onlyFolders := maxEntries, true
	folders := []string{dir}
	err = a.tree.Walk(dir, &budget, func(entry layer.Entry) bool {
		onlyFolders = onlyFolders && entry.Kind == layer.Folder
		folders = append(folders, entry.Path)
		return true
	})
	if err != nil || !onlyFolders {
		return nil
	}
	for _, folder := range slices.Backward(folders) {
		if step := a.removeFolder(folder); step != nil {
			undo = append(undo, step)
		}
	}
	return undo
}

// removeFolder removes a folder, and returns what undoes that; nil where it is not empty.
func (a *applier) removeFolder(dir string) (undo func() error) {
	info, err := a.root.Lstat(dir)
	if err != nil || !info.IsDir() || a.root.Remove(dir) != nil {
		return nil
	}
	return func() error {
		return errors.Join(a.root.Mkdir(dir, 0o700), a.root.Chmod(dir, info.Mode().Perm()))
	}
}

// gitTimeout bounds one program of git.
const gitTimeout = 20 * time.Second

// repository is the git repository that the project is in.
type repository struct {
	dir   string
	hooks string // the folder of its hooks in the project; empty where it is not there
}

// newRepository returns the repository of a folder, or nil.
func newRepository(ctx context.Context, dir string) *repository {
	if _, err := runGit(ctx, dir, "rev-parse", "--git-dir"); err != nil {
		return nil
	}
	r := &repository{dir: dir}
	if out, err := runGit(ctx, dir, "rev-parse", "--path-format=absolute", "--git-path", "hooks"); err == nil {
		hooks := strings.TrimSuffix(string(out), "\n")
		if rel, err := filepath.Rel(dir, hooks); err == nil && filepath.IsLocal(rel) {
			r.hooks = rel
		}
	}
	return r
}

func (r *repository) hooksFolder() string {
	if r == nil {
		return ""
	}
	return r.hooks
}

// blob returns the content that an id names.
func (r *repository) blob(ctx context.Context, id string) ([]byte, error) {
	return runGit(ctx, r.dir, "cat-file", "blob", id)
}

// runGit runs git in a folder, without the programs that the repository's settings name.
func runGit(ctx context.Context, dir string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, gitTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "git", append([]string{"-c", "core.fsmonitor=false"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_OPTIONAL_LOCKS=0", "LC_ALL=C")
	return cmd.Output()
}

// mergeFile merges two changes of a text, or fails where they meet.
func mergeFile(ctx context.Context, ours, base, theirs []byte) ([]byte, error) {
	if bytes.Equal(ours, theirs) {
		return ours, nil
	}
	dir, err := os.MkdirTemp("", "nix-sandbox-mcp-merge-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	for name, content := range map[string][]byte{"ours": ours, "base": base, "theirs": theirs} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return nil, err
		}
	}
	return runGit(ctx, dir, "merge-file", "-p", "ours", "base", "theirs")
}
