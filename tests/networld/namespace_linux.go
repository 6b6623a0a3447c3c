package networld

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ErrImpossible says that this process may make no world: it lacks a capability, or
// the kernel a module.
var ErrImpossible = errors.New("no world can be made here")

// enteredVariable names the variable that Again sets for the second process.
const enteredVariable = "NIX_SANDBOX_NETWORLD"

// Again gives a test the capabilities that a world takes. Root has them. For an ordinary
// user, Again runs the test a second time, in a user namespace in which the user keeps
// its number and has these capabilities, and reports false: the caller returns.
//
// The names of subtests that the second process prints become part of this one's output;
// its failure is the test's.
func Again(t *testing.T) bool {
	t.Helper()
	if os.Geteuid() == 0 || Entered() {
		return true
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The other process says where it hangs, before this one has to end.
	timeout := time.Duration(0) // none
	if deadline, limited := t.Deadline(); limited {
		timeout = max(time.Until(deadline)-10*time.Second, time.Second)
	}
	arguments := []string{"-test.run=^" + t.Name() + "$", "-test.v", "-test.timeout=" + timeout.String()}
	if testing.Short() {
		arguments = append(arguments, "-test.short")
	}
	cmd := exec.CommandContext(t.Context(), self, arguments...)
	cmd.Env = append(os.Environ(), enteredVariable+"=entered")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}},
		// Root of a namespace has all capabilities when it executes a program; another
		// user keeps the ambient ones.
		AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_NET_BIND_SERVICE},
		Pdeathsig:   syscall.SIGKILL,
	}
	// Pdeathsig is sent when the thread that started the process ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	switch err := cmd.Run(); {
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EINVAL):
		t.Skipf("no user namespace can be made: %v", err)
	case err != nil:
		t.Errorf("the test failed in its user namespace: %v", err)
	}
	return false
}

// Entered reports whether this process is the one that [Again] has started.
func Entered() bool { return os.Getenv(enteredVariable) != "" }

// Unprivileged runs f on a thread of its own. Programs that f starts do not inherit the
// capabilities that [Again] has given to this process.
func Unprivileged(f func() error) error {
	return onThread(func() error {
		if err := dropAmbient(); err != nil {
			return err
		}
		return f()
	})
}

// dropAmbient clears the calling thread's capabilities for programs that it starts.
func dropAmbient() error {
	return unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
}

// onThread runs f on a thread of its own, which ends with f: what f does to the thread's
// namespaces concerns nobody else.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the runtime ends the thread
		done <- f()
	}()
	return <-done
}

// newNamespace moves the calling thread to a new network namespace, whose loopback is
// up, and returns the namespace's descriptor.
func newNamespace() (*os.File, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("%w: make a network namespace: %w", ErrImpossible, err)
	}
	file, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	if err := rtnetlink(func(n *netlink) error { return n.up("lo") }); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

func enterNamespace(file *os.File) error {
	if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter a network namespace: %w", err)
	}
	return nil
}

// firstMounts is the mount namespace in which this process has started.
var firstMounts, _ = os.Readlink("/proc/self/ns/mnt")

// privateFiles gives the calling thread a mount namespace in which the files of /etc
// that dir has copies of are those copies.
func privateFiles(dir string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	// What follows must never reach the machine's own files.
	own, err := os.Readlink("/proc/thread-self/ns/mnt")
	if err != nil {
		return err
	}
	if own == firstMounts {
		return errors.New("the thread is still in the mount namespace of its process")
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for _, name := range etcFiles {
		// On some machines the file is a link into a folder that is made at boot.
		target, err := filepath.EvalSymlinks(filepath.Join("/etc", name))
		if err != nil {
			if name == "resolv.conf" {
				return fmt.Errorf("%w: %w", ErrImpossible, err)
			}
			continue
		}
		if err := unix.Mount(filepath.Join(dir, name), target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind %s: %w", target, err)
		}
	}
	return nil
}
