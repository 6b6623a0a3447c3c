package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ownerPrefix starts the names of the groups above those of an owner's sandboxes; the
// server's process number and a random number follow.
const ownerPrefix = "principal-"

// Owner is whose a sandbox is. The groups of an owner's sandboxes lie in one group, so
// that the kernel shares out processors between owners before it shares them out between
// the sandboxes of each. The zero value is nobody, and has no such group.
type Owner struct {
	Name string // the kernel does not get it
	// Limits are of all sandboxes of the owner together, and include what the jails
	// need for themselves.
	Limits Limits
}

// ownerGroup is the group above those of an owner's sandboxes. It is there as long as
// one of these.
type ownerGroup struct {
	folder  string
	members int
}

// join returns the folder for the groups of an owner's sandboxes, and what has to be
// called once when the caller's group in there has been removed. Until then the limits
// are those with which the folder was made.
func (t *Tree) join(owner Owner) (folder string, leave func() error, err error) {
	if owner.Name == "" {
		return t.folder, func() error { return nil }, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	above := t.owners[owner.Name]
	if above == nil {
		above = &ownerGroup{folder: filepath.Join(t.folder, fresh(ownerPrefix))}
		if err := makeGroup(above.folder, append(owner.Limits.settings(), setting{file: "cgroup.subtree_control", value: t.enable()})); err != nil {
			return "", nil, fmt.Errorf("make a control group above sandboxes: %w", err)
		}
		t.owners[owner.Name] = above
	}
	above.members++
	return above.folder, func() error {
		t.mu.Lock()
		defer t.mu.Unlock()
		if above.members--; above.members > 0 {
			return nil
		}
		delete(t.owners, owner.Name)
		if err := unix.Rmdir(above.folder); err != nil {
			return fmt.Errorf("remove the control group above sandboxes %s: %w", above.folder, err)
		}
		return nil
	}, nil
}

// Give moves the group's processes to a group of the same limits below the owner's. It is
// for a group of nobody in which no code has run. After an error, the caller closes the
// group.
//
// Memory stays charged to the group in which a process first used it ("Memory Ownership"
// in the kernel's admin-guide/cgroup-v2.rst): what an interpreter has loaded by now counts
// neither for the owner nor for the new group.
func (g *Group) Give(owner Owner) error {
	if g == nil || owner.Name == "" {
		return nil
	}
	next, err := g.tree.New(g.limits, owner)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	// What is closed is both, whatever has been moved until then.
	old := g.folder
	g.handle.Close()
	g.folder, g.handle, g.leave, g.left = next.folder, next.handle, next.leave, old
	if err := moveAll(old, g.folder); err != nil {
		return fmt.Errorf("hand the sandbox's control group over: %w", err)
	}
	if err := unix.Rmdir(old); err != nil {
		return fmt.Errorf("remove the sandbox's earlier control group: %w", &os.PathError{Op: "rmdir", Path: old, Err: err})
	}
	g.left = ""
	return nil
}

// sweepOwner removes what a dead server left of a group above sandboxes.
func sweepOwner(folder string) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), prefix) {
			_ = unix.Rmdir(filepath.Join(folder, entry.Name()))
		}
	}
	_ = unix.Rmdir(folder)
}

// makeGroup makes a group with these settings, or none.
func makeGroup(folder string, settings []setting) (err error) {
	if err := os.Mkdir(folder, 0o755); err != nil {
		return err
	}
	for _, s := range settings {
		err := write(folder, s.file, s.value)
		if err != nil && !(s.optional && errors.Is(err, os.ErrNotExist)) {
			return errors.Join(fmt.Errorf("set %s to %s: %w", s.file, s.value, err), unix.Rmdir(folder))
		}
	}
	return nil
}
