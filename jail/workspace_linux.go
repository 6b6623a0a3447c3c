package jail

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// Several sandboxes can share one /workspace. It is a file system in memory with a size,
// so a process has to make it: the holder, in namespaces of its own, where only it may
// mount. It hands out the workspace as descriptors of detached mounts. A sandbox that is
// started with one has an outer namespace. The launcher attaches that mount there before
// it becomes the sandbox's bubblewrap. The workspace lives as long as the holder
// or one of the sandboxes.
//
// If the project is an overlay, the holder has it too, and hands it out beside the
// workspace: two overlays with one upper layer would be undefined. Sandboxes get the
// overlay and neither of its layers. The server gets the upper layer.

// WorkspaceName is the name of the program of an artifact that becomes a holder.
const WorkspaceName = "workspace"

// HandOut is the argument that has the launcher hand out the workspace, in the holder's
// namespaces.
const HandOut = "--hand-out"

// workspaceUser returns the user of the host that owns a workspace.
func workspaceUser(fd int) (int, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return 0, fmt.Errorf("find the owner of the workspace: %w", err)
	}
	return int(stat.Uid), nil
}

// mounts returns the detached mounts that a request has, and where the outer namespace has them.
func (w *Workspace) mounts(request Request) []place {
	mounts := []place{{request.Workspace, w.At}}
	if request.Overlay != 0 {
		mounts = append(mounts, place{request.Overlay, w.Project})
	}
	return mounts
}

// StartWorkspace replaces this process by the holder of a workspace, and of the project if
// that is an overlay. Standard input is a socket: see [RunHandOut]. It returns only if that
// fails.
func (s *Spec) StartWorkspace(project Project) error {
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
	var request Request
	if project.Overlay {
		request.Project = project
	}
	request, err := dropRoot(request, false)
	if err != nil {
		return err
	}
	if err := s.namespacesAllowed(); err != nil {
		return err
	}
	if err := newKeyring(); err != nil {
		return err
	}
	launcher, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	flags, step := slices.Clone(s.Workspace.Holder), []string{launcher, HandOut, s.Workspace.Mount}
	if project.Overlay {
		if err := overlayAllowed(s.Bubblewrap); err != nil {
			return err
		}
		flags = slices.Concat(flags, s.Workspace.Layer, []string{"--ro-bind", request.Project.Dir, s.Workspace.Project})
		step = append(step, s.Workspace.Project, s.Overlay.Upper, s.Overlay.Work)
	}
	args, err := memfile("flags", terminated(slices.Concat(flags, s.Seal)))
	if err != nil {
		return err
	}
	return become(parent, slices.Concat([]string{s.Bubblewrap, "--args", strconv.Itoa(args), "--"}, step))
}

// refresh is the message that asks for no descriptors.
const refresh = 2

// RunHandOut hands out the file system at a path. Its standard input is a socket. It
// answers each message there with one that has a descriptor of a mount of the file
// system, and returns when the other end is closed.
//
// With three further paths, PROJECT UPPER WORK, it mounts an overlay over PROJECT, and its
// messages have two further descriptors: of a mount of the overlay, and of UPPER. It answers the
// message 2 without any, when the overlay has forgotten names that it remembered: what others have
// replaced or removed in the project would be seen as it was. Remounting has the kernel drop them
// (shrink_dcache_sb in reconfigure_super of fs/super.c).
func RunHandOut(args []string) error {
	if len(args) != 1 && len(args) != 4 {
		return fmt.Errorf("%s takes one path or four, and was given %q", HandOut, args)
	}
	paths := args[:1]
	if len(args) == 4 {
		project, upper, work := args[1], args[2], args[3]
		options := "lowerdir=" + project + ",upperdir=" + upper + ",workdir=" + work + ",userxattr"
		if err := unix.Mount("overlay", project, "overlay", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
			return fmt.Errorf("mount the overlay of the project: %w", err)
		}
		paths = args[:2]
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
		if message[0] == refresh && len(args) == 4 {
			if err := unix.Mount("overlay", args[1], "overlay", unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
				return fmt.Errorf("refresh the overlay of the project: %w", err)
			}
			if err := unix.Sendmsg(unix.Stdin, message[:], nil, nil, unix.MSG_NOSIGNAL); err != nil {
				return fmt.Errorf("say that the overlay is refreshed: %w", err)
			}
			continue
		}
		var out []int
		for _, path := range paths {
			tree, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
			if err != nil {
				return &Refusal{
					Problem: fmt.Sprintf("a workspace cannot be shared between sandboxes here: mount %s once more: %v", path, err),
					Hint:    "turn shared_files off, or have the filter of this container allow open_tree(2)",
				}
			}
			out = append(out, tree)
		}
		if len(args) == 4 {
			upper, err := unix.Open(args[2], unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
			if err != nil {
				return fmt.Errorf("open the upper layer %s: %w", args[2], err)
			}
			out = append(out, upper)
		}
		err = unix.Sendmsg(unix.Stdin, message[:], unix.UnixRights(out...), nil, unix.MSG_NOSIGNAL)
		for _, fd := range out {
			unix.Close(fd)
		}
		if err != nil {
			return fmt.Errorf("hand out the workspace: %w", err)
		}
	}
}
