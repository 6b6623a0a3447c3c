package jail

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// Several sandboxes can share one /workspace. It is a file system in memory with a size,
// so a process has to make it: the holder, in namespaces of its own, where only it may
// mount. It hands out the workspace as descriptors of detached mounts. A sandbox that is
// started with one has an outer namespace. The launcher attaches that mount there before
// it becomes the sandbox's bubblewrap. The workspace lives as long as the holder
// or one of the sandboxes.

// WorkspaceName is the name of the program of an artifact that becomes a holder.
const WorkspaceName = "workspace"

// These arguments make the launcher hand out the workspace, in the holder's namespaces,
// or attach it, in the outer namespace of a sandbox.
const (
	HandOut = "--hand-out"
	Join    = "--join"
)

// workspaceUser returns the user of the host that owns a workspace.
func workspaceUser(fd int) (int, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return 0, fmt.Errorf("find the owner of the workspace: %w", err)
	}
	return int(stat.Uid), nil
}

// join returns the first words of a command line that attaches a workspace in the outer
// namespace. From now on, processes inherit the descriptor of the workspace.
func (w *Workspace) join(fd int) ([]string, error) {
	launcher, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	return []string{launcher, Join, strconv.Itoa(fd), w.At}, inherit(fd)
}

// StartWorkspace replaces this process by the holder of a workspace. Standard input is a
// socket: see [RunHandOut]. It returns only if that fails.
func (s *Spec) StartWorkspace() error {
	parent := unix.Getppid()
	if s.Workspace == nil {
		return errors.New("the description has no workspace")
	}
	if err := closeOnExec(); err != nil {
		return err
	}
	if err := unix.Access(s.Bubblewrap, unix.X_OK); err != nil {
		return s.notStarted(err.Error())
	}
	runtime.LockOSThread() // see [Spec.Start]
	defer runtime.UnlockOSThread()
	s.yieldToHost()
	if _, err := dropRoot(Request{}, false); err != nil {
		return err
	}
	if err := namespacesAllowed(s.Bubblewrap); err != nil {
		return err
	}
	if err := newKeyring(); err != nil {
		return err
	}
	launcher, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	flags, err := memfile("flags", terminated(s.Workspace.Holder))
	if err != nil {
		return err
	}
	return become(parent, []string{
		s.Bubblewrap, "--args", strconv.Itoa(flags), "--", launcher, HandOut, s.Workspace.Mount,
	})
}

// RunHandOut hands out the file system at a path. Its standard input is a socket. It
// answers each message there with one that has a descriptor of a mount of the file
// system, and returns when the other end is closed.
func RunHandOut(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("%s takes one path, and was given %q", HandOut, args)
	}
	var message [1]byte
	for {
		n, _, err := unix.Recvfrom(unix.Stdin, message[:], 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("wait for a request: %w", err)
		case n == 0:
			return nil
		}
		tree, err := unix.OpenTree(unix.AT_FDCWD, args[0], unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			return &Refusal{
				Problem: fmt.Sprintf("this kernel cannot share a workspace between sandboxes: mount %s once more: %v", args[0], err),
				Hint:    "turn shared_files off, or use Linux 5.2 or later",
			}
		}
		err = unix.Sendmsg(unix.Stdin, message[:], unix.UnixRights(tree), nil, unix.MSG_NOSIGNAL)
		unix.Close(tree)
		if err != nil {
			return fmt.Errorf("hand out the workspace: %w", err)
		}
	}
}

// RunJoin attaches a detached mount at a path of this namespace, gives up the capability
// that this takes, and becomes a program. Its arguments are FD PATH PROGRAM ARGUMENT...
func RunJoin(args []string) error {
	if len(args) < 3 {
		return fmt.Errorf("%s takes a descriptor, a path and a program, and was given %q", Join, args)
	}
	fd, err := strconv.Atoi(args[0])
	if err != nil {
		return fmt.Errorf("%s: %w", Join, err)
	}
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, args[1], unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount the workspace: %w", err)
	}
	unix.Close(fd)
	// execve drops capabilities that are not ambient.
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_LOWER, unix.CAP_SYS_ADMIN, 0, 0); err != nil {
		return fmt.Errorf("give up CAP_SYS_ADMIN: %w", err)
	}
	return fmt.Errorf("start %s: %w", args[2], unix.Exec(args[2], args[2:], nil))
}
