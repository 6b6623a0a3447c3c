package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/vm/guest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/system"
)

const (
	home       = "/home/user"
	runtimeDir = "/run/user/1000"
	cgroups    = "/sys/fs/cgroup"
)

// newRoot leaves the initial RAM disk for a tmpfs. On the former pivot_root
// fails, which every sandbox needs.
func newRoot() error {
	const root = "/root"
	if err := system.Mount("root", root, "tmpfs", 0, "mode=0755,size=16m"); err != nil {
		return err
	}
	return system.Enter(root)
}

// setUp makes the mounts, files and cgroups of the machine, and returns the
// cgroup in which the command starts.
func setUp(request guest.Request, devices devices) (string, error) {
	const quiet = unix.MS_NOSUID | unix.MS_NODEV
	for _, m := range []struct {
		source, target, kind string
		flags                uintptr
		data                 string
	}{
		{"proc", "/proc", "proc", quiet | unix.MS_NOEXEC, ""},
		{"sys", "/sys", "sysfs", quiet | unix.MS_NOEXEC, ""},
		{"cgroup2", cgroups, "cgroup2", quiet | unix.MS_NOEXEC, ""},
		{"devpts", "/dev/pts", "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "mode=0620,ptmxmode=0666"},
		{"shm", "/dev/shm", "tmpfs", quiet, "mode=1777"},
		{"tmp", "/tmp", "tmpfs", quiet, "mode=1777"},
		{"run", "/run", "tmpfs", quiet, "mode=0755"},
		{devices.store, "/nix/store", "erofs", quiet | unix.MS_RDONLY, ""},
	} {
		if err := system.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil {
			return "", err
		}
	}
	if request.Files {
		if err := system.Mount(devices.files, "/tests", "erofs", quiet|unix.MS_RDONLY, ""); err != nil {
			return "", err
		}
	}
	// As systemd leaves them: what is mounted inside of a mount namespace of its
	// own would come out again.
	if err := unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return "", fmt.Errorf("sharing the mounts: %w", err)
	}
	if err := furnish(request); err != nil {
		return "", err
	}
	if err := loopback(); err != nil {
		return "", err
	}
	// As systemd does on each machine that it manages. Without it the machine may have
	// one open file for each 10 KB of its memory, which code in a sandbox opens within
	// seconds: where everything is emulated, that is sooner than the limit keeper, which
	// has to share the processors with the code, stops it.
	if err := os.WriteFile("/proc/sys/fs/file-max", []byte("9223372036854775807\n"), 0); err != nil {
		return "", fmt.Errorf("raising the number of open files: %w", err)
	}
	if request.GPU {
		if err := shareGPU(); err != nil {
			return "", err
		}
	}
	if request.Mode == guest.NoUserns {
		if err := os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0\n"), 0); err != nil {
			return "", fmt.Errorf("forbidding user namespaces: %w", err)
		}
	}
	if request.Mode == guest.Restricted {
		if err := restrict(request.Policy); err != nil {
			return "", err
		}
	}
	return cgroup(request.Mode)
}

// restrict loads AppArmor profiles, and has what this thread executes start under that of users.
func restrict(policy []byte) error {
	const security = "/sys/kernel/security"
	if err := system.Mount("securityfs", security, "securityfs", 0, ""); err != nil {
		return err
	}
	if err := os.WriteFile(security+"/apparmor/.load", policy, 0); err != nil {
		return fmt.Errorf("loading AppArmor profiles: %w", err)
	}
	runtime.LockOSThread()
	if err := os.WriteFile("/proc/thread-self/attr/apparmor/exec", []byte("exec "+guest.RestrictedProfile), 0); err != nil {
		return fmt.Errorf("choosing a profile: %w", err)
	}
	return nil
}

// shareGPU gives the node of the graphics card to a group, as the rules of udev do.
func shareGPU() error {
	if err := os.Chown(guest.RenderNode, 0, guest.RenderGroup); err != nil {
		return fmt.Errorf("the graphics card has no node: %w", err)
	}
	return os.Chmod(guest.RenderNode, 0o660)
}

// furnish makes the files that programs expect of any Linux system.
func furnish(request guest.Request) error {
	for link, target := range map[string]string{
		"/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0",
		"/dev/stdout": "/proc/self/fd/1", "/dev/stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(target, link); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	for _, folder := range []string{"/etc", "/bin", "/boot", "/usr/bin", "/var", "/home", filepath.Dir(runtimeDir)} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
	}
	if err := os.Symlink("/tmp", "/var/tmp"); err != nil {
		return err
	}
	for _, folder := range []string{home, runtimeDir} {
		if err := os.Mkdir(folder, 0o700); err != nil {
			return err
		}
		if err := os.Chown(folder, guest.ID, guest.ID); err != nil {
			return err
		}
	}
	// One program each that scripts name by its full path.
	for name, link := range map[string]string{"sh": "/bin/sh", "env": "/usr/bin/env"} {
		if program, err := lookUp(request.Path, name); err == nil {
			if err := os.Symlink(program, link); err != nil {
				return err
			}
		}
	}
	for path, text := range map[string]string{
		// With those of services that every system has.
		"/etc/passwd": "root:x:0:0:root:/:/bin/sh\ndaemon:x:1:1:daemon:/:/bin/false\nbin:x:2:2:bin:/:/bin/false\nmail:x:8:8:mail:/:/bin/false\n" +
			"nobody:x:65534:65534:nobody:/:/bin/false\nuser:x:1000:1000:user:" + home + ":/bin/sh\n",
		"/etc/group":    "root:x:0:\ndaemon:x:1:\nbin:x:2:\nmail:x:8:\nnogroup:x:65534:\nrender:x:109:user\nuser:x:1000:\n",
		"/etc/hosts":    "127.0.0.1 localhost machine\n",
		"/etc/hostname": "machine\n",
		// Nobody answers; tests that make an internet lay their own over it.
		"/etc/resolv.conf": "nameserver 127.0.0.1\n",
		// A file that a sandbox must not be able to read.
		"/etc/shadow": "root:!:1::::::\nuser:!:1::::::\n",
	} {
		mode := os.FileMode(0o644)
		if path == "/etc/shadow" {
			mode = 0o600
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			return err
		}
	}
	return unix.Sethostname([]byte("machine"))
}

// loopback switches the interface lo on.
func loopback() error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening a socket for the interface lo: %w", err)
	}
	defer unix.Close(socket)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("switching the interface lo on: %w", err)
	}
	return nil
}

// cgroup makes the cgroups of the mode and returns the one in which the command
// starts.
//
// With delegation that is a leaf of the user's own subtree, as with systemd's
// DelegateSubgroup=supervisor, so that the user can make groups beside it: a group
// with processes cannot give controllers to its children.
func cgroup(mode guest.Mode) (string, error) {
	const controllers = "+cpu +memory +pids"
	if err := os.WriteFile(cgroups+"/cgroup.subtree_control", []byte(controllers), 0); err != nil {
		return "", fmt.Errorf("switching on the controllers %s: %w", controllers, err)
	}
	if mode != guest.Delegate {
		group := cgroups + "/session"
		return group, os.Mkdir(group, 0o755)
	}
	subtree, leaf := cgroups+"/user", cgroups+"/user/supervisor"
	for _, group := range []string{subtree, leaf} {
		if err := os.Mkdir(group, 0o755); err != nil {
			return "", err
		}
		if group == subtree {
			// systemd's mark.
			if err := unix.Setxattr(group, "user.delegate", []byte("1"), 0); err != nil {
				return "", fmt.Errorf("marking %s as delegated: %w", group, err)
			}
			if err := os.WriteFile(group+"/cgroup.subtree_control", []byte(controllers), 0); err != nil {
				return "", fmt.Errorf("switching on the controllers %s of %s: %w", controllers, group, err)
			}
		}
		if err := delegate(group); err != nil {
			return "", err
		}
	}
	return leaf, nil
}

// delegate hands a cgroup to the user: its folder and the files that the kernel
// itself names as those to hand over. Its own limits stay root's.
func delegate(group string) error {
	names, err := os.ReadFile("/sys/kernel/cgroup/delegate")
	if err != nil {
		return err
	}
	for _, name := range append([]string{"."}, strings.Fields(string(names))...) {
		err := os.Chown(filepath.Join(group, name), guest.ID, guest.ID)
		// The list names files of controllers that this kernel may lack.
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}
