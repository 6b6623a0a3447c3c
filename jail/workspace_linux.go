package jail

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// Several sandboxes can have one /workspace. The file system is in memory and has a
// size, so a process has to make it: the holder, in namespaces of its own, where it
// is the only one that may mount. It hands out the workspace as descriptors of mounts
// that are nowhere yet. A sandbox that is started with one has an outer namespace, in
// which this program puts that mount before it becomes the bubblewrap of the sandbox.
// The workspace lives as long as the holder or one of the sandboxes.

// WorkspaceName is the name of the program of an artifact that becomes a holder.
const WorkspaceName = "workspace"

// The arguments with which this program does its part: of the holder, in the holder's
// namespaces; and between the two bubblewraps of a sandbox, in the outer namespace.
const (
	HandOut = "--hand-out"
	Join    = "--join"
)

// workspaceVariable has the number of the descriptor of the workspace.
const workspaceVariable = "NIX_SANDBOX_WORKSPACE"

// readWorkspace finds the workspace in the value of its variable; 0 where that is
// empty.
func (s *Spec) readWorkspace(value string) (int, error) {
	if value == "" {
		return 0, nil
	}
	fd, err := strconv.Atoi(value)
	var stat unix.Stat_t
	if err != nil || fd < firstExtra || unix.Fstat(fd, &stat) != nil || stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		return 0, &Refusal{
			Problem: fmt.Sprintf("%s is %q, which is not the number of a descriptor of a workspace", workspaceVariable, value),
			Hint:    "leave it unset: only the server sets it",
		}
	}
	if s.Workspace == nil {
		return 0, &Refusal{
			Problem: "this sandbox cannot share its workspace",
			Hint:    "build the sandbox again with mkSandbox",
		}
	}
	return fd, nil
}

// workspaceUser returns the user of the host who owns a workspace.
func workspaceUser(fd int) (int, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return 0, fmt.Errorf("find the owner of the workspace: %w", err)
	}
	return int(stat.Uid), nil
}

// join returns the command that puts a workspace into the outer namespace, without
// the program that follows it. Processes that are started from now on have the
// descriptor of the workspace too.
func (w *Workspace) join(fd int) ([]string, error) {
	launcher, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
		return nil, fmt.Errorf("keep the workspace open: %w", err)
	}
	return []string{launcher, Join, strconv.Itoa(fd), w.At}, nil
}

// StartWorkspace replaces this process by the holder of a workspace, whose standard
// input is a socket: see [RunHandOut]. It returns only if that fails.
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

// RunHandOut hands out the file system at a path: for each message on standard input,
// a socket, it sends one that has a descriptor of a mount of it. It returns when the
// other end of the socket is closed.
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
				Problem: fmt.Sprintf("this kernel shares no workspace between sandboxes: mount %s once more: %v", args[0], err),
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

// RunJoin puts the mount of a descriptor at a path of this namespace, gives up the
// capability for that alone, and becomes a program: FD PATH PROGRAM ARGUMENT...
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
	// What is not ambient is lost with execve.
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_LOWER, unix.CAP_SYS_ADMIN, 0, 0); err != nil {
		return fmt.Errorf("give up CAP_SYS_ADMIN: %w", err)
	}
	return fmt.Errorf("start %s: %w", args[2], unix.Exec(args[2], args[2:], nil))
}
