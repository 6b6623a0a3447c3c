package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ownerPrefix begins the names of the groups above those of an owner's sandboxes; the server's
// process id and a random number follow.
const ownerPrefix = "principal-"

// Owner identifies the principal of a sandbox. The groups of an owner's sandboxes lie in one group,
// so that the kernel shares processors between owners before it shares them between the sandboxes
// of each. The zero value means no owner and no such group.
type Owner struct {
	Name string // the kernel does not get it
	// Limits apply to all sandboxes of the owner together, and include the jails' own needs.
	Limits Limits
}

// ownerGroup is the group above those of an owner's sandboxes. It exists as long as one of these
// does.
type ownerGroup struct {
	folder  string
	members int
}

// join returns the folder for the groups of an owner's sandboxes. The caller calls leave once,
// after it has removed its group there. The limits are fixed when the folder is made.
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

// Give moves the group's processes to a group with the same limits below the owner's. The group
// must have no owner yet, and no code may have run in it. After an error, the caller closes the
// group.
//
// Memory stays charged to the group that first used it ("Memory Ownership" in the kernel's
// admin-guide/cgroup-v2.rst): the memory of an interpreter that was loaded before counts neither
// for the owner nor for the new group.
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
	// Close closes both groups, whichever processes have been moved.
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

// sweepOwner removes a dead server's group above sandboxes.
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

// makeGroup makes a group with all of these settings, or fails.
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
