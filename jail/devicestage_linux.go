package jail

import (
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Bubblewrap reads the list of all mounts after each one that it makes, which takes 2 µs for
// each mount of the list. For devices with many files the launcher therefore makes the
// mounts in a mount namespace of its own, in folders that are one mount each for bubblewrap.
// Of the host that namespace has only what the sandbox shows, because the mounts of the host
// are in the list too. Where the kernel refuses a part of that, bubblewrap makes each mount.

// DeviceFolder is a folder of the sandbox that has nothing but what devices bring.
type DeviceFolder struct {
	Path string
	// Mounts and Links are below Path, and no mount is in another.
	Mounts []DeviceMount
	Links  []DeviceLink
}

// DeviceLink is a symbolic link of the sandbox.
type DeviceLink struct{ Path, Target string }

// stagedAt is where the root of the namespace is made: every Linux with /sys has it,
// everybody may pass through it, and neither bubblewrap nor a device needs what it covers.
const stagedAt = "/sys/fs"

// Paths of the namespace.
const (
	stagedFolders = "/folders"
	stagedDev     = "/dev"
)

func stagedFolder(number int) string { return stagedFolders + "/" + strconv.Itoa(number) }

// What bubblewrap makes in /dev where standard output is no terminal.
var (
	devNodes = []string{"null", "zero", "full", "random", "urandom", "tty"}
	devLinks = []DeviceLink{
		{"fd", "/proc/self/fd"}, {"stdin", "/proc/self/fd/0"}, {"stdout", "/proc/self/fd/1"}, {"stderr", "/proc/self/fd/2"},
		{"core", "/proc/kcore"}, {"ptmx", "pts/ptmx"},
	}
)

// withoutDev takes those flags of bubblewrap that make /dev, and the file systems in it, from
// the others. It returns the file systems.
func withoutDev(flags []string) (others, fileSystems []string) {
	begin := 0 // of the flags of one file system: those before it have its size and mode
	for i := 0; i < len(flags); i++ {
		switch flag := flags[i]; {
		case flag == "--perms" || flag == "--size":
			i++
			continue
		case i+1 == len(flags):
		case flag == "--dev" && flags[i+1] == "/dev":
			others = append(others, flags[begin:i]...)
			i++
			begin = i + 1
			continue
		case flag == "--tmpfs" && strings.HasPrefix(flags[i+1], "/dev/"):
			i++
			fileSystems = append(fileSystems, flags[begin:i+1]...)
			begin = i + 1
			continue
		}
		others = append(others, flags[begin:i+1]...)
		begin = i + 1
	}
	return append(others, flags[begin:]...), fileSystems
}

// lastFlags are those with which bubblewrap shows what the launcher has made. They follow
// all others, because each mount that bubblewrap makes after them takes longer.
func (p *DevicePlan) lastFlags() []string {
	flags := []string{"--dev-bind", stagedDev, "/dev"}
	for number, folder := range p.Folders {
		flags = append(flags, "--ro-bind", stagedFolder(number), folder.Path)
	}
	return flags
}

// stagesDevices reports whether the launcher makes the mounts of devices. It does not where
// there is an outer namespace, from which bubblewrap shows them.
func (r Request) stagesDevices() bool {
	if r.devices == nil || len(r.devices.Folders) == 0 || r.devices.needsStore() || r.Project.Overlay || r.Workspace != 0 {
		return false
	}
	// Of a terminal, bubblewrap makes a console.
	_, err := unix.IoctlGetTermios(unix.Stdout, unix.TCGETS)
	return err != nil
}

// stager adds system calls that make mounts. Its paths are relative to the current folder,
// which is the root of the namespace.
type stager struct {
	childCalls
	made map[string]bool // folders
}

// folder makes a folder and those on the way there, with the mode that bubblewrap gives to
// those on the way to a mount.
func (s *stager) folder(name string) {
	if name == "." || s.made[name] {
		return
	}
	s.folder(path.Dir(name))
	s.made[name] = true
	s.add(unix.SYS_MKDIRAT, here, name, 0o700)
}

// point makes a mount point.
func (s *stager) point(name string, isFolder bool) {
	if isFolder {
		s.folder(name)
		return
	}
	s.folder(path.Dir(name))
	s.add(unix.SYS_MKNODAT, here, name, unix.S_IFREG|0o444, 0)
}

func (s *stager) bind(from, name string) {
	s.add(unix.SYS_MOUNT, from, name, 0, unix.MS_BIND|unix.MS_REC)
}

func (s *stager) mount(from, name string, isFolder bool) {
	s.point(name, isFolder)
	s.bind(from, name)
}

func (s *stager) link(target, name string) {
	s.folder(path.Dir(name))
	s.add(unix.SYS_SYMLINKAT, target, here, name)
}

// restrict sets attributes of a mount, and with AT_RECURSIVE of all below it, and leaves
// their others.
func (s *stager) restrict(path string, flags int, attributes uint64) {
	s.add(unix.SYS_MOUNT_SETATTR, here, path, flags, &unix.MountAttr{Attr_set: attributes}, unix.MOUNT_ATTR_SIZE_VER0)
}

func (s *stager) write(path, text string) {
	s.add(unix.SYS_OPENAT, here, path, unix.O_WRONLY|unix.O_CLOEXEC)
	s.add(unix.SYS_WRITE, opened, text, len(text))
	s.add(unix.SYS_CLOSE, opened)
}

// here makes paths relative to the current folder. A constant would not convert.
var here = unix.AT_FDCWD

// stage returns the system calls with which a child in user and mount namespaces of its own
// makes the mounts, and becomes a program of the store.
func (p *DevicePlan) stage(user, group int, store string, args []string) *childCalls {
	s := &stager{made: map[string]bool{}}
	// After a change of user, the maps would be root's files.
	s.add(unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 1)
	s.write("/proc/self/setgroups", "deny")
	s.write("/proc/self/uid_map", fmt.Sprintf("%d %d 1", user, user))
	s.write("/proc/self/gid_map", fmt.Sprintf("%d %d 1", group, group))
	s.add(unix.SYS_MOUNT, "devices", stagedAt, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755,size=4m")
	s.add(unix.SYS_CHDIR, stagedAt)
	for number, folder := range p.Folders {
		root := relative(stagedFolder(number))
		s.folder(root)
		for _, m := range folder.Mounts {
			s.mount(m.From, root+strings.TrimPrefix(m.To, folder.Path), m.IsFolder)
		}
		for _, l := range folder.Links {
			s.link(l.Target, root+strings.TrimPrefix(l.Path, folder.Path))
		}
	}
	// Bubblewrap finds its child by /proc, has its libraries in the store, and makes the
	// root of the sandbox at /tmp.
	others := append([]DeviceMount{
		{From: "/proc", To: "/proc", IsFolder: true},
		{From: store, To: store, IsFolder: true},
	}, p.shown...)
	for _, m := range others {
		s.point(relative(m.To), m.IsFolder)
	}
	s.folder("tmp")
	dev := relative(stagedDev)
	s.folder(dev)
	s.restrict(".", unix.AT_RECURSIVE, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	for _, m := range others {
		s.bind(m.From, relative(m.To))
	}
	s.add(unix.SYS_MOUNT, "tmpfs", dev, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755")
	for _, name := range devNodes {
		s.mount("/dev/"+name, dev+"/"+name, false)
	}
	for _, l := range devLinks {
		s.link(l.Target, dev+"/"+l.Path)
	}
	s.folder(dev + "/shm")
	s.folder(dev + "/pts")
	s.add(unix.SYS_MOUNT, "devpts", dev+"/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
	for _, m := range p.Mounts {
		if name, is := inDev(m.To); is && m.IsNode {
			s.mount(m.From, dev+"/"+name, false)
		}
	}
	for _, l := range p.Links {
		if name, is := inDev(l.Path); is {
			s.link(l.Target, dev+"/"+name)
		}
	}
	s.restrict(dev, unix.AT_RECURSIVE, unix.MOUNT_ATTR_NOSUID)
	s.restrict(dev, 0, unix.MOUNT_ATTR_RDONLY) // a tmpfs without a size
	// The old root is on top of the new one then: pivot_root(2).
	s.add(unix.SYS_PIVOT_ROOT, ".", ".")
	s.add(unix.SYS_UMOUNT2, ".", unix.MNT_DETACH)
	s.add(unix.SYS_EXECVE, args[0], args, []string{})
	return &s.childCalls
}

// relative returns a path of the namespace as the stager takes it.
func relative(path string) string { return strings.TrimPrefix(path, "/") }

// startStaged starts a command line of bubblewrap where the mounts of the devices have been
// made, and waits for its end. It returns only if that fails. Where hasStarted is false,
// this system does not let this user make the mounts, and nothing has started.
func (p *DevicePlan) startStaged(parent int, store string, args []string) (hasStarted bool, err error) {
	launcher, err := os.Executable()
	if err != nil {
		return false, nil
	}
	calls := p.stage(os.Geteuid(), os.Getegid(), store, args)
	if calls.err != nil {
		return false, nil
	}
	if err := endWith(parent); err != nil {
		return true, err
	}
	// The child changes it, and it is an attribute of the memory that is this process's too.
	// After a change of user, this process may have threads that are still root's.
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err != nil {
		return true, fmt.Errorf("read whether this process is dumpable: %w", err)
	}
	child, pidfd, failed, err := forkAndCall(unix.CLONE_NEWUSER|unix.CLONE_NEWNS, calls)
	if dumpable != 1 {
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
			return true, fmt.Errorf("become undumpable again: %w", err)
		}
	}
	if err != nil || failed != nil {
		return false, nil
	}
	return true, waitFor(launcher, child, pidfd)
}
