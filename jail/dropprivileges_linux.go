package jail

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail/pathowner"
)

// Root mounts folders of the host below handedOver for bubblewrap. Every sysfs has this
// folder, all users may pass through it, it contains no project, and neither bubblewrap
// nor a device needs the files that the mount covers. Only this process and bubblewrap
// see these mounts.
//
// If no sysfs is mounted, the mounts are below its empty mount point.
const (
	handedOver             = "/sys/kernel"
	handedOverWithoutSysfs = "/sys"
)

// dropRoot changes this thread's user, if it is root, to an ordinary user of the sandbox's
// own. It returns the request with its folders at the paths where that user finds them.
// Otherwise the code would be root to the host's files: it could change the modes of
// device files and read root's files, and the kernel's limits for users would not hold.
//
// In the sandbox, files of a folder's owner belong to that user, so that code can read the
// same files there as the owner.
//
// The caller has locked its goroutine to its thread, and calls execve on it unless stays
// is true.
func dropRoot(request Request, stays bool) (Request, error) {
	user, err := hostUser(os.Getpid())
	if err != nil || user == 0 {
		return request, err
	}
	// Sandboxes that share files run as one user, the holder's, and no other sandbox has
	// that user while the holder lives.
	if request.Workspace != 0 {
		if user, err = workspaceUser(request.Workspace); err != nil {
			return request, err
		}
		if !isSandboxUser(user) {
			return request, fmt.Errorf("the workspace belongs to user %d, who is not a sandbox's user", user)
		}
	}
	given := request
	var folders []handOver
	for _, folder := range []handOver{{&request.Project.Dir, "project"}, {&request.Project.Git, "git"}, {&request.Inbox, "inbox"}} {
		if *folder.path != "" {
			folders = append(folders, folder)
		}
	}
	// If the kernel or the file system cannot do this, or another user decides where the
	// path of a folder leads, the sandbox sees it as any other user does.
	if err := handOverAll(folders, user); err != nil {
		return request, err
	}
	if err := setUser(user, request.ownGroups(), stays); err != nil {
		return request, err
	}
	for _, folder := range []struct{ variable, given, path string }{
		{projectVariable, given.Project.Dir, request.Project.Dir}, {inboxVariable, given.Inbox, request.Inbox},
	} {
		if folder.given != "" && unix.Faccessat(unix.AT_FDCWD, folder.path, unix.R_OK|unix.X_OK, unix.AT_EACCESS) != nil {
			return request, &Refusal{
				Problem: fmt.Sprintf("%s is %q, which only some users may read, and root starts sandboxes as another user", folder.variable, folder.given),
				Hint:    "let others read it (chmod o+rx, on the folders above it too), or start the server as its owner",
			}
		}
	}
	if git := &request.Project.Git; *git != "" && unix.Faccessat(unix.AT_FDCWD, *git, unix.R_OK|unix.X_OK, unix.AT_EACCESS) != nil {
		*git = "" // the project is of use without it
	}
	return request, nil
}

// handOver is a folder of the host that root shows to the sandbox's user as its owner sees
// it.
type handOver struct {
	path *string // becomes the path for the sandbox's user
	name string  // of its mount
}

// handOverAll mounts folders below [handedOver], in a mount namespace of this thread's own,
// except folders that cannot be mounted so. After an error this process cannot start a
// sandbox.
func handOverAll(folders []handOver, user int) error {
	trees := map[string]int{}
	defer func() {
		for _, tree := range trees {
			unix.Close(tree)
		}
	}()
	for _, folder := range folders {
		if tree, err := mappedTree(*folder.path, user); err == nil {
			trees[folder.name] = tree
		}
	}
	if len(trees) == 0 {
		return nil
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return nil // and nothing is mounted
	}
	// Mounts do not propagate to the host. If the host unmounts something later, it is
	// unmounted here too, so that the sandbox does not keep it busy.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("keep the sandbox's mounts from the host: %w", err)
	}
	mount := func(at string) error {
		return unix.Mount("handed-over", at, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=755,size=64k")
	}
	at := handedOver
	err := mount(at)
	if errors.Is(err, unix.ENOENT) {
		at = handedOverWithoutSysfs
		err = mount(at)
	}
	if err != nil {
		return nil
	}
	for _, folder := range folders {
		tree, found := trees[folder.name]
		path := at + "/" + folder.name
		if !found || unix.Mkdir(path, 0o755) != nil {
			continue
		}
		if unix.MoveMount(tree, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH) == nil {
			*folder.path = path
		}
	}
	return nil
}

// hostUser returns the user as which root starts a sandbox from the process with this id,
// or 0 if the sandbox runs as this process's user. It returns an error if root cannot
// start it so.
func hostUser(pid int) (int, error) {
	if unix.Geteuid() != 0 {
		return 0, nil
	}
	users, err := readMap("/proc/self/uid_map")
	if err != nil {
		return 0, err
	}
	groups, err := readMap("/proc/self/gid_map")
	if err != nil {
		return 0, err
	}
	user, err := sandboxUser(users, groups, pid)
	if err != nil || user == 0 {
		return 0, err
	}
	return user, capable()
}

func readMap(name string) ([]span, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("find a user for the sandbox: %w", err)
	}
	spans, err := parseMap(text)
	if err != nil {
		return nil, fmt.Errorf("find a user for the sandbox in %s: %w", name, err)
	}
	return spans, nil
}

// capable returns an error if root lacks a capability that it needs to start a sandbox as
// another user or, later, to end it.
func capable() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("read this process's capabilities: %w", err)
	}
	var missing []string
	for _, needed := range []struct {
		name   string
		number int
	}{{"CAP_KILL", unix.CAP_KILL}, {"CAP_SETGID", unix.CAP_SETGID}, {"CAP_SETUID", unix.CAP_SETUID}} {
		if data[0].Effective&(1<<needed.number) == 0 {
			missing = append(missing, needed.name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return &Refusal{
		Problem: "root starts sandboxes as an ordinary user, and lacks " + strings.Join(missing, " and ") + " here for it",
		Hint:    "give the container these capabilities, or start the server as an ordinary user",
	}
}

// mappedTree returns the descriptor of a detached, read-only mount of a folder. The files of
// the folder's owner and group belong to user there.
func mappedTree(path string, user int) (tree int, err error) {
	folder, owned, err := OpenProject(path)
	if err != nil {
		return 0, err
	}
	defer unix.Close(folder)
	if !owned {
		return 0, errors.New("other users than the folder's owner can make its path lead elsewhere")
	}
	var stat unix.Stat_t
	if err := unix.Fstat(folder, &stat); err != nil {
		return 0, err
	}
	mapping, err := mapOwner(int(stat.Uid), int(stat.Gid), user)
	if err != nil {
		return 0, err
	}
	defer unix.Close(mapping)
	tree, err = unix.OpenTree(folder, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE)
	if err != nil {
		return 0, err
	}
	err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{
		Attr_set:  unix.MOUNT_ATTR_IDMAP | unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV,
		Userns_fd: uint64(mapping),
	})
	if err != nil {
		unix.Close(tree)
		return 0, err
	}
	return tree, nil
}

// OpenProject opens a folder and reports whether only root and the folder's owner can make
// its path lead elsewhere. Otherwise root would lend the owner's rights to a user who
// replaces a part of the path. The caller closes the descriptor, which is for the path
// alone (O_PATH).
func OpenProject(path string) (folder int, owned bool, err error) {
	folder, deciders, err := pathowner.Open(path)
	if err != nil {
		return 0, false, err
	}
	var stat unix.Stat_t
	if err := unix.Fstat(folder, &stat); err != nil {
		unix.Close(folder)
		return 0, false, err
	}
	delete(deciders, stat.Uid)
	return folder, len(deciders) == 0, nil
}

// mapOwner returns the descriptor of a user namespace that maps an owner and a group of
// files to the user and the group with the number user.
func mapOwner(owner, group, user int) (int, error) {
	hold := exec.Command("/proc/self/exe", Hold)
	hold.Env = []string{}
	hold.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: owner, HostID: user, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: group, HostID: user, Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
	}
	input, err := hold.StdinPipe()
	if err != nil {
		return 0, err
	}
	if err := hold.Start(); err != nil {
		return 0, err
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/user", hold.Process.Pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	input.Close()
	_ = hold.Wait() // the descriptor keeps the namespace
	return fd, err
}

// setUser changes the user of this thread for good, its group to the one of the same
// number, and its other groups to groups. The thread then calls execve, which ends all
// others; but if this process stays, every thread changes.
//
// To change all threads, Go stops them for each of the three calls and spins meanwhile.
// Beside other programs this took half of the launcher's processor time, and a tenth of
// the time to start a sandbox.
func setUser(user int, groups []int, stays bool) error {
	fail := func(what string, err error) error {
		return fmt.Errorf("start the sandbox as user %d: %s: %w", user, what, err)
	}
	for fd := range firstExtra {
		if err := giveAway(fd, user); err != nil {
			return fail("hand over a standard descriptor", err)
		}
	}
	setGroups, setGroup, setUser := setThreadGroups, setThreadGroup, setThreadUser
	if stays {
		setGroups = unix.Setgroups
		setGroup = func(id int) error { return unix.Setresgid(id, id, id) }
		setUser = func(id int) error { return unix.Setresuid(id, id, id) }
	}
	if err := setGroups(groups); err != nil {
		return fail("leave root's groups", err)
	}
	if err := setGroup(user); err != nil {
		return fail("change the group", err)
	}
	if err := setUser(user); err != nil {
		return fail("change the user", err)
	}
	// The user may have no access to the current folder.
	return unix.Chdir("/")
}

func setThreadGroups(groups []int) error {
	list := make([]uint32, len(groups)+1) // never empty, for its address
	for i, group := range groups {
		list[i] = uint32(group)
	}
	_, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&list[0])), 0)
	return errorOf(errno)
}

func setThreadGroup(id int) error {
	_, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(id), uintptr(id), uintptr(id))
	return errorOf(errno)
}

func setThreadUser(id int) error {
	_, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(id), uintptr(id), uintptr(id))
	return errorOf(errno)
}

func errorOf(errno unix.Errno) error {
	if errno != 0 {
		return errno
	}
	return nil
}

// giveAway makes user the owner of a standard descriptor if it is an anonymous pipe. When
// code opens /dev/stdout or /dev/stderr, the kernel checks the owner of the pipe.
func giveAway(fd, user int) error {
	var fs unix.Statfs_t
	var stat unix.Stat_t
	if unix.Fstatfs(fd, &fs) != nil || fs.Type != unix.PIPEFS_MAGIC || unix.Fstat(fd, &stat) != nil || stat.Uid != 0 {
		return nil
	}
	return unix.Fchown(fd, user, user)
}
