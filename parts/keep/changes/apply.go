package changes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes/gitpatch"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes/layer"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes/policy"
)

// Refusal says why a file is not applied.
type Refusal struct{ Path, Reason string }

// ConflictError reports that no file can be applied. The project is unchanged.
type ConflictError struct{ Files []Refusal }

func (e *ConflictError) Error() string {
	if len(e.Files) == 1 {
		return "one file cannot be applied, and nothing was changed"
	}
	return fmt.Sprintf("%d files cannot be applied, and nothing was changed", len(e.Files))
}

// UnknownPathError reports a path that the patch does not change.
type UnknownPathError struct{ Path string }

func (e *UnknownPathError) Error() string {
	return fmt.Sprintf("the session did not change %s", gitpatch.Quote(e.Path))
}

// Applied is the result of [Apply].
type Applied struct {
	// Written and Deleted are the paths that were changed. Merged are those in Written
	// that had also changed on the host, and now have both changes.
	Written, Deleted, Merged []string
	// Same are paths that already were as the patch makes them.
	Same []string
	// Refused were left out because they must be named, Ignored because git ignores them, and Caches
	// because they are in folders of caches and of installed packages.
	Refused         []Refusal
	Ignored, Caches []string
	// Conflicts were left out because what the project has now is in the way.
	Conflicts []Refusal
	// Left is the number of all files that were left out, wholly or in part, without Caches.
	Left int
}

// Apply applies a patch to the project: all files that pass the policy and do not conflict with what the
// project has now, or none if one cannot be written, or if the context ends. With paths it applies these
// files, and the files below these folders if they pass. A file that is named by its own path
// need not pass. The error is a [*ConflictError] or an [*UnknownPathError] if the
// user can resolve it.
//
// A file that changed on the host since the session saw it is merged, if the project is a git
// repository that still has that version and the changes do not overlap.
//
// Each file is replaced in one step. If the process is killed, some files are as before and
// the others are as the patch makes them; applying the patch again does the rest.
func Apply(ctx context.Context, entry *Entry, paths []string) (*Applied, error) {
	return apply(ctx, entry, paths, nil, false)
}

// ApplyAll is [Apply] for a user who has looked at the whole patch: no file has to be named, and only
// what git ignores and caches are left out.
func ApplyAll(ctx context.Context, entry *Entry) (*Applied, error) {
	return apply(ctx, entry, nil, nil, true)
}

// ApplyPicked is [Apply] for a user who has looked at each of these files: it applies them whole, or of those
// with a list the hunks in it, by their places in [gitpatch.File.Hunks].
func ApplyPicked(ctx context.Context, entry *Entry, picked map[string][]int) (*Applied, error) {
	return apply(ctx, entry, slices.Sorted(maps.Keys(picked)), picked, false)
}

func apply(ctx context.Context, entry *Entry, paths []string, picked map[string][]int, all bool) (*Applied, error) {
	project, err := filepath.EvalSymlinks(entry.Project)
	if err != nil {
		return nil, fmt.Errorf("open the project: %w", err)
	}
	root, err := os.OpenRoot(project)
	if err != nil {
		return nil, fmt.Errorf("open the project: %w", err)
	}
	defer root.Close()
	tree, err := layer.Open(project)
	if err != nil {
		return nil, fmt.Errorf("open the project: %w", err)
	}
	defer tree.Close()
	unlock, err := entry.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	a := &applier{
		ctx: ctx, project: project, root: root, tree: tree, entry: entry, all: all, picked: picked, result: &Applied{},
		known: map[string]bool{}, left: map[string]bool{}, links: map[string]bool{}, removed: map[string]fs.FileMode{},
	}
	for _, name := range paths {
		name = path.Clean(filepath.ToSlash(name))
		for _, dir := range []string{entry.Project, project} {
			if rel, err := filepath.Rel(dir, name); err == nil && filepath.IsLocal(rel) {
				name = rel
			}
		}
		a.paths = append(a.paths, name)
	}
	a.git, err = newGit()
	if err == nil {
		defer a.git.close()
	} else {
		a.git, a.noGit = nil, err
	}
	if err := a.judge(); err != nil {
		return nil, err
	}
	if err := gitpatch.Read(entry.Patch(), a.plan); err != nil {
		return nil, err
	}
	if len(a.conflicts) > 0 && len(a.operations)+len(a.result.Same) == 0 {
		return nil, &ConflictError{a.conflicts}
	}
	a.result.Conflicts = a.conflicts
	a.result.Left += len(a.conflicts)
	return a.result, a.write()
}

type applier struct {
	ctx     context.Context
	project string // without links
	root    *os.Root
	tree    *layer.Tree
	entry   *Entry
	git     *git  // nil if it is not installed
	noGit   error // why
	paths   []string
	all     bool // none has to be named
	picked  map[string][]int
	known   map[string]bool // the elements of paths that the patch changes

	left       map[string]bool // files that are refused, ignored or not asked for
	links      map[string]bool // links that the patch deletes
	operations []operation
	conflicts  []Refusal
	result     *Applied

	made    []string               // folders that did not exist
	removed map[string]fs.FileMode // folders that did
}

// operation is a change to one path of the project.
type operation struct {
	name          string
	before, after gitpatch.State
	merged        bool
}

// judge finds out which files of the patch are left out.
func (a *applier) judge() error {
	aliases := a.aliases()
	reasons := map[string]string{}
	var names []string
	err := gitpatch.Read(a.entry.Patch(), func(file gitpatch.File) error {
		chosen := len(a.paths) == 0
		for _, path := range a.paths {
			if path == file.Name {
				a.known[path] = true
				return nil
			}
			if path == "." || strings.HasPrefix(file.Name, path+"/") {
				chosen, a.known[path] = true, true
			}
		}
		if !chosen {
			a.leave(file.Name)
			return nil
		}
		if _, second := reasons[file.Name]; !second {
			names = append(names, file.Name)
		}
		reasons[file.Name] = cmp.Or(reasons[file.Name], review(file), aliases.reason(file.Name))
		return nil
	})
	if err != nil {
		return err
	}
	for _, path := range a.paths {
		if !a.known[path] {
			return &UnknownPathError{path}
		}
	}
	if err := a.ignore(names); err != nil {
		return err
	}
	for _, name := range names {
		switch {
		case policy.Cache(path.Dir(name)):
			a.leave(name)
			a.result.Caches = append(a.result.Caches, name)
		case a.left[name]:
			a.result.Left++
			a.result.Ignored = append(a.result.Ignored, name)
		case reasons[name] != "" && !a.all:
			a.leave(name)
			a.result.Refused = append(a.result.Refused, Refusal{name, reasons[name]})
		}
	}
	return nil
}

// leave leaves a file out.
func (a *applier) leave(name string) {
	if !a.left[name] && !policy.Cache(path.Dir(name)) {
		a.result.Left++
	}
	a.left[name] = true
}

// review returns the reason why a file must be named, or "".
func review(file gitpatch.File) string {
	for _, mode := range []gitpatch.Mode{file.Before, file.After} {
		switch mode {
		case gitpatch.Link:
			return "it is a link"
		case gitpatch.Executable:
			return policy.Executable
		}
	}
	if reason := policy.Name(file.Name); reason != "" {
		return reason
	}
	if !file.IsText() {
		return policy.Binary
	}
	for line := range file.NewLines() {
		if reason := policy.Line(line); reason != "" {
			return reason
		}
	}
	return ""
}

// aliases are the files and folders of the project that links lead to, with these links.
type aliases map[string]string

// aliases finds the links that must be named. A program that obeys such a link obeys the
// file it leads to.
func (a *applier) aliases() aliases {
	found, budget := aliases{}, 4*maxEntries
	// If there are more entries, the links among the first of them count.
	_ = a.tree.Walk(".", &budget, func(entry layer.Entry) bool {
		if entry.Kind != layer.Link {
			return path.Base(entry.Path) != ".git" && policy.Folder(entry.Path) != policy.Installed
		}
		real, err := filepath.EvalSymlinks(filepath.Join(a.project, entry.Path))
		if err != nil {
			return false
		}
		target, err := filepath.Rel(a.project, real)
		if err != nil || !filepath.IsLocal(target) || target == "." {
			return false
		}
		judge := policy.Name
		if at, err := a.tree.Find(target); err == nil && at.Kind == layer.Folder {
			judge = policy.Folder
		}
		if judge(entry.Path) != "" {
			found[target] = entry.Path
		}
		return false
	})
	return found
}

// reason returns the reason why a file must be named, or "".
func (a aliases) reason(name string) string {
	for target := name; target != "."; target = path.Dir(target) {
		if link, found := a[target]; found {
			return "the project's link " + gitpatch.Quote(link) + " leads to it"
		}
	}
	return ""
}

// ignore leaves out files that git ignores.
func (a *applier) ignore(names []string) error {
	inside := map[string]map[string]string{} // by the roots of the repositories and the paths there
	for _, name := range names {
		top := topOf(a.project, name)
		rel, err := filepath.Rel(top, filepath.Join(a.project, name))
		// Git takes no path beyond a link; neither does the plan.
		if top == "" || err != nil || a.linkAbove(name) != "" {
			continue
		}
		if inside[top] == nil {
			inside[top] = map[string]string{}
		}
		inside[top][rel] = name
	}
	for top, paths := range inside {
		if a.git == nil {
			return fmt.Errorf("find out which files git ignores: %w", a.noGit)
		}
		ignored, err := a.git.ignored(a.ctx, top, slices.Sorted(maps.Keys(paths)))
		if err != nil {
			return err
		}
		for _, path := range ignored {
			a.left[paths[path]] = true
		}
	}
	return nil
}

// plan adds the operation for a file.
func (a *applier) plan(file gitpatch.File) error {
	if a.left[file.Name] {
		return nil
	}
	whole, hunks := file, a.picked[file.Name]
	if hunks != nil && file.IsText() {
		count := len(file.Hunks())
		if slices.ContainsFunc(hunks, func(i int) bool { return i < 0 || i >= count }) {
			a.conflicts = append(a.conflicts, Refusal{file.Name, fmt.Sprintf("it has %d hunks", count)})
			return nil
		}
		if len(hunks) < count {
			a.result.Left++
		}
		file = file.Only(hunks)
	}
	conflict := func(reason string) error {
		a.conflicts = append(a.conflicts, Refusal{file.Name, reason})
		// Neither is the first half of a link that becomes a file applied.
		a.operations = slices.DeleteFunc(a.operations, func(o operation) bool { return o.name == file.Name })
		return nil
	}
	if !a.known[file.Name] && a.entry.Summary.isDoubtful(file) {
		return conflict("it changed on this machine while the session changed it; name it to apply it all the same")
	}
	if file.Before == gitpatch.Link && file.After == gitpatch.Absent {
		a.links[file.Name] = true
	}
	// A link that becomes a file is a deletion followed by a creation. The creation begins
	// with the result of the deletion.
	var now gitpatch.State
	var first *operation
	if n := len(a.operations); n > 0 && a.operations[n-1].name == file.Name {
		first = &a.operations[n-1]
		now = first.after
	} else {
		var err error
		if now, err = a.now(file.Name); err != nil {
			return conflict(err.Error())
		}
	}
	switch {
	case now.Mode == file.Before && now.ID() == file.BeforeID:
	case now.Mode == file.After && now.ID() == file.AfterID:
		a.result.Same = append(a.result.Same, file.Name)
		return nil
	default:
		if before, have, ok := undo(whole, now); ok { // an earlier time has applied some of its hunks
			if hunks == nil {
				for i := range whole.Hunks() {
					hunks = append(hunks, i)
				}
			}
			wanted := slices.Sorted(slices.Values(slices.Concat(have, hunks)))
			content, err := whole.Only(slices.Compact(wanted)).Apply(before)
			if err != nil {
				return err
			}
			return a.merged(file, now, content)
		}
		return a.merge(file, now, conflict)
	}
	content, err := file.Apply(now.Content)
	if err != nil {
		return err
	}
	after := gitpatch.State{Mode: file.After, Content: content}
	if first != nil {
		first.after = after
	} else {
		a.operations = append(a.operations, operation{file.Name, now, after, false})
	}
	return nil
}

// undo is [gitpatch.File.Undo] of a file that is changed, and has been.
func undo(file gitpatch.File, now gitpatch.State) (before []byte, have []int, ok bool) {
	isFile := func(mode gitpatch.Mode) bool { return mode == gitpatch.Regular || mode == gitpatch.Executable }
	if !file.IsText() || !isFile(file.Before) || !isFile(file.After) || !isFile(now.Mode) {
		return nil, nil, false
	}
	return file.Undo(now.Content)
}

// isDoubtful reports whether a file changed on the host while the session changed it. If
// there were more such files than a summary names, every file that existed may be one.
func (s *Summary) isDoubtful(file gitpatch.File) bool {
	return slices.Contains(s.Doubtful, shown(file.Name)) || s.DoubtfulCount > len(s.Doubtful) && file.Before != gitpatch.Absent
}

// linkAbove returns a folder above a path that is a link in the project, and that the patch
// does not delete; or "".
func (a *applier) linkAbove(name string) string {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if entry, err := a.tree.Find(dir); err == nil && entry.Kind == layer.Link && !a.links[dir] {
			return dir
		}
	}
	return ""
}

// now returns the state of a path in the project.
func (a *applier) now(name string) (gitpatch.State, error) {
	if link := a.linkAbove(name); link != "" {
		return gitpatch.State{}, fmt.Errorf("%s is a link in the project", gitpatch.Quote(link))
	}
	entry, err := a.tree.Find(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return gitpatch.State{}, nil
	case err != nil:
		return gitpatch.State{}, err
	case entry.Kind == layer.Folder:
		// The patch may empty it. Otherwise writing the file fails.
		return gitpatch.State{}, nil
	case entry.Kind != layer.File && entry.Kind != layer.Link:
		return gitpatch.State{}, errors.New("it is neither a file nor a link in the project")
	}
	content, _, err := a.tree.Read(name, maxFile)
	return gitpatch.State{Mode: modeOf(entry), Content: content}, err
}

// merge merges the change to a file with the project's version, which the session did not
// see.
func (a *applier) merge(file gitpatch.File, now gitpatch.State, conflict func(string) error) error {
	const changed = "it has changed in the project since the session saw it"
	top := topOf(a.project, file.Name)
	switch {
	case file.Before == gitpatch.Absent:
		return conflict("the project has another file of that name now")
	case now.Mode == gitpatch.Absent:
		return conflict("the project does not have it any more")
	case file.After == gitpatch.Absent:
		return conflict(changed + ", and the session deleted it")
	case file.Before == gitpatch.Link || file.After == gitpatch.Link || now.Mode == gitpatch.Link:
		return conflict(changed)
	case now.ID() == file.BeforeID: // only its mode is another one
		content, err := file.Apply(now.Content)
		if err != nil {
			return err
		}
		return a.merged(file, now, content)
	case !file.IsText():
		return conflict(changed)
	case a.git == nil || top == "":
		return conflict(changed + ", and only in a git repository both can be merged")
	}
	before, err := a.git.blob(a.ctx, top, file.BeforeID)
	if err != nil {
		return conflict(changed + ", and git does not have what the session saw")
	}
	after, err := file.Apply(before)
	if err != nil {
		return err
	}
	content, err := a.git.merge(a.ctx, now.Content, before, after)
	if err != nil {
		return conflict(changed + ", in the same lines")
	}
	return a.merged(file, now, content)
}

// merged adds the operation that gives a file of the project a merged content.
func (a *applier) merged(file gitpatch.File, now gitpatch.State, content []byte) error {
	mode := now.Mode
	if file.Before != file.After {
		mode = file.After
	}
	after := gitpatch.State{Mode: mode, Content: content}
	if now.Equal(after) {
		a.result.Same = append(a.result.Same, file.Name)
		return nil
	}
	a.operations = append(a.operations, operation{file.Name, now, after, true})
	return nil
}
