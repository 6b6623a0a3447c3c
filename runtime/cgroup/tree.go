// Package cgroup enforces limits by control groups (version 2), if the server may make some: in a
// subtree that was delegated to it, in one that it has systemd delegate when it starts, or as root.
//
// It promises that a sandbox is inside its group from its first instruction on; that a group has
// all requested limits or is not made; and that [Group.Close] leaves neither a process nor a group.
// If no group can be made, [Find] says why and what to do; a nil [Tree] makes nil groups, and every
// method of these does nothing. The agent's limit keeper then acts alone.
package cgroup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// supervisor is the group that the server itself lives in, as systemd's
	// DelegateSubgroup= names it: a group with limits for its subgroups may
	// contain no process of its own.
	supervisor = "supervisor"
	// prefix starts the names of sandboxes' groups; the server's process
	// number and a random number follow. A sandbox may find out its group's name, and
	// a count would tell of other sandboxes.
	prefix = "sandbox-"
	// maxFile bounds how much of a group's file is read, in bytes.
	maxFile = 64 << 10
	// maxMoved bounds the processes that are moved to the supervisor's group.
	maxMoved = 1024
)

// needed lists the controllers that every group needs; cpu is used if available.
var needed = []string{"memory", "pids"}

// Unavailable says why no group can be made, and what to do about it.
type Unavailable struct {
	Problem string
	Hint    string
	reason  error
}

func (u *Unavailable) Error() string { return u.Problem }

func (u *Unavailable) Unwrap() error { return u.reason }

// Tree is the group above the groups of the server's sandboxes.
type Tree struct {
	folder string
	cpu    bool

	mu     sync.Mutex
	owners map[string]*ownerGroup // that have a sandbox
}

// enable is the text for cgroup.subtree_control.
func (t *Tree) enable() string {
	if t.cpu {
		return "+memory +pids +cpu"
	}
	return "+memory +pids"
}

// Paths are the kernel's files about groups and about this process's own group.
type Paths struct {
	Groups string // /sys/fs/cgroup
	Own    string // /proc/self/cgroup
	// Manager is the socket of the service manager that can delegate a group to this process. If no
	// manager listens there, groups are used as they are.
	Manager string
}

// System are the paths of a running system, without a service manager.
var System = Paths{Groups: "/sys/fs/cgroup", Own: "/proc/self/cgroup"}

// Managed are the paths of a running system, with the systemd that manages this
// user's services: the system's for root.
func Managed() Paths {
	paths := System
	paths.Manager = managerSocket()
	return paths
}

// candidate is a group that may become a [Tree].
type candidate struct {
	folder string
	// move says that the processes in it have to move into a group below it.
	move bool
	cpu  bool
	// shared says that it is the system's root group, which root may write to, and which was not
	// delegated.
	shared bool
}

// Find prepares the group for sandboxes' groups. If no group was delegated to this process, Find
// asks the service manager to move this process to one, for at most 5 s. It may move this process,
// and others in its group, one level down.
func Find(ctx context.Context, paths Paths) (*Tree, error) {
	f, err := paths.choose(os.Geteuid())
	if paths.canAsk(f, err) {
		if asked := joinScope(ctx, paths.Manager); asked == nil {
			f, err = paths.choose(os.Geteuid())
		} else if err != nil {
			err = &Unavailable{Problem: fmt.Sprintf("%v, and systemd made no scope for it: %v", err, asked), Hint: delegate()}
		}
	}
	if err != nil {
		return nil, err
	}
	if f.move {
		if err := moveDown(f.folder); err != nil {
			return nil, err
		}
	}
	tree := &Tree{folder: f.folder, cpu: f.cpu, owners: map[string]*ownerGroup{}}
	if err := write(f.folder, "cgroup.subtree_control", tree.enable()); err != nil {
		return nil, &Unavailable{
			Problem: fmt.Sprintf("limits cannot be passed on in %s: %v", f.folder, err),
			Hint:    delegate(),
		}
	}
	tree.sweep()
	return tree, nil
}

// canAsk reports whether a service manager may delegate a better group to this process than
// [Paths.choose] found.
func (p Paths) canAsk(f candidate, err error) bool {
	if p.Manager == "" || err != nil && !errors.Is(err, errNotDelegated) || err == nil && !f.shared {
		return false
	}
	_, err = os.Stat(p.Manager)
	return err == nil
}

// Check returns the error that [Find] would, without changing anything. It assumes that a service
// manager, if one is there, makes a scope.
func Check(paths Paths) error {
	f, err := paths.choose(os.Geteuid())
	if err != nil && paths.canAsk(f, err) {
		return nil
	}
	return err
}

// errNotDelegated is the reason of an [Unavailable] that a delegation would remove.
var errNotDelegated = errors.New("not delegated")

// delegate returns the hint at how a process gets a group. A pod has no service manager to ask.
func delegate() string {
	if os.Getenv("KUBERNETES_SERVICE_HOST") != "" {
		return "nothing needs to be done in a pod: resources.limits of its container bound all of its sandboxes together"
	}
	return "start the server with: systemd-run --user --scope -p Delegate=yes nix-sandbox-mcp --stdio; " +
		"a system service says Delegate=cpu memory pids and DelegateSubgroup=" + supervisor
}

// startKernel begins the hint at a parameter of the kernel, which cannot be set in a container.
const startKernel = "start the kernel, which for a container is its host's, with "

// choose decides which group to use, without changing anything.
func (p Paths) choose(uid int) (candidate, error) {
	if _, err := os.Stat(p.Groups); err != nil {
		return candidate{}, &Unavailable{
			Problem: fmt.Sprintf("no control groups: %v", err),
			Hint:    "mount them: mount -t cgroup2 none " + p.Groups,
		}
	}
	rootControllers, err := readFields(p.Groups, "cgroup.controllers")
	if err != nil {
		return candidate{}, &Unavailable{
			Problem: p.Groups + " is not version 2 of control groups, or not it alone",
			Hint:    startKernel + "systemd.unified_cgroup_hierarchy=1",
		}
	}
	if missing := missingController(rootControllers); missing != "" {
		return candidate{}, &Unavailable{
			Problem: "this system's control groups have no controller " + missing,
			Hint:    startKernel + "cgroup_enable=" + missing + ", or leave that controller to version 2",
		}
	}
	own, err := p.ownGroup()
	if err != nil {
		return candidate{}, err
	}
	// Use the group above if the server was started one level down.
	if filepath.Base(own) == supervisor && own != p.Groups {
		if f, ok := usable(filepath.Dir(own)); ok {
			return f, nil
		}
	}
	if f, ok := usable(own); ok && own != p.Groups && delegated(own, uid) {
		f.move = true
		return f, nil
	}
	if uid == 0 {
		if f, ok := usable(p.Groups); ok {
			// The topmost group of a container is a group like others,
			// that of the system alone may contain processes of its own.
			_, err := os.Stat(filepath.Join(p.Groups, "cgroup.type"))
			f.move = err == nil && own == p.Groups
			f.shared = err != nil
			return f, nil
		}
	}
	return candidate{}, &Unavailable{
		Problem: "no control group was delegated to this process: it is in " + own,
		Hint:    delegate(),
		reason:  errNotDelegated,
	}
}

func (p Paths) ownGroup() (string, error) {
	text, err := os.ReadFile(p.Own)
	if err != nil {
		return "", fmt.Errorf("read this process's control group: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if path, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok {
			// The path of a group outside the mounted tree begins with "/..".
			if !filepath.IsLocal(strings.TrimPrefix(path, "/")) && path != "/" {
				break
			}
			return filepath.Join(p.Groups, path), nil
		}
	}
	return "", &Unavailable{
		Problem: "this process's control group is not shown in " + p.Groups,
		Hint:    "start the server on the host, or in a container with a control group namespace of its own",
	}
}

// usable reports whether this process may make groups with limits in a folder.
func usable(folder string) (candidate, bool) {
	controllers, err := readFields(folder, "cgroup.controllers")
	if err != nil || missingController(controllers) != "" {
		return candidate{}, false
	}
	for _, name := range []string{"", "cgroup.procs", "cgroup.subtree_control"} {
		if unix.Access(filepath.Join(folder, name), unix.W_OK) != nil {
			return candidate{}, false
		}
	}
	return candidate{folder: folder, cpu: slices.Contains(controllers, "cpu")}, true
}

// delegated reports whether a group was delegated to this process. Root may write to every group,
// so systemd marks delegated ones by an extended attribute (see systemd.resource-control(5),
// Delegate=).
func delegated(folder string, uid int) bool {
	var mark [8]byte
	for _, name := range []string{"user.delegate", "trusted.delegate"} {
		if n, err := unix.Getxattr(folder, name, mark[:]); err == nil && string(mark[:n]) == "1" {
			return true
		}
	}
	var stat unix.Stat_t
	return uid != 0 && unix.Stat(folder, &stat) == nil && int(stat.Uid) == uid
}

// missingController returns a needed controller that is not among these.
func missingController(controllers []string) string {
	for _, name := range needed {
		if !slices.Contains(controllers, name) {
			return name
		}
	}
	return ""
}

// moveDown moves every process of a group into a group below it.
func moveDown(folder string) error {
	below := filepath.Join(folder, supervisor)
	if err := os.Mkdir(below, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make the server's own control group: %w", err)
	}
	if err := moveAll(folder, below); err != nil {
		return fmt.Errorf("make the server's own control group: %w", err)
	}
	return nil
}

// moveAll moves every process of a group to another one. A process may start another one
// while it is moved.
func moveAll(from, to string) error {
	for range maxMoved {
		pids, err := readFields(from, "cgroup.procs")
		if err != nil {
			return err
		}
		if len(pids) == 0 {
			return nil
		}
		if err := write(to, "cgroup.procs", pids[0]); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("move process %s to control group %s: %w", pids[0], to, err)
		}
	}
	return fmt.Errorf("control group %s still contains processes after %d were moved to %s", from, maxMoved, to)
}

// sweep removes groups that servers left behind when they were killed: their
// processes have ended, the groups stay.
func (t *Tree) sweep() {
	entries, err := os.ReadDir(t.folder)
	if err != nil {
		return
	}
	for _, entry := range entries {
		rest, ofSandbox := strings.CutPrefix(entry.Name(), prefix)
		rest, ofOwner := strings.CutPrefix(rest, ownerPrefix)
		if !ofSandbox && !ofOwner {
			continue
		}
		server, _, _ := strings.Cut(rest, "-")
		pid, err := strconv.Atoi(server)
		if err != nil || unix.Kill(pid, 0) != unix.ESRCH {
			continue
		}
		// A group that still contains a process is not known to be this server's.
		folder := filepath.Join(t.folder, entry.Name())
		if ofOwner {
			sweepOwner(folder)
			continue
		}
		_ = unix.Rmdir(folder)
	}
}

// fresh returns a name for a group that no other one has.
func fresh(prefix string) string {
	return fmt.Sprintf("%s%d-%016x", prefix, os.Getpid(), rand.Uint64())
}

// readFields reads the words of a group's file.
func readFields(folder, name string) ([]string, error) {
	text, err := read(folder, name)
	return strings.Fields(text), err
}

func read(folder, name string) (string, error) {
	file, err := os.Open(filepath.Join(folder, name))
	if err != nil {
		return "", err
	}
	defer file.Close()
	// The kernel makes the whole file anew for each read(2).
	buf := make([]byte, maxFile)
	n, err := file.Read(buf)
	if errors.Is(err, io.EOF) { // it is empty
		err = nil
	}
	return string(bytes.TrimSpace(buf[:n])), err
}

// write writes a group's file, in one write as the kernel wants it.
func write(folder, name, value string) error {
	file, err := os.OpenFile(filepath.Join(folder, name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(value)
	return errors.Join(err, file.Close())
}
