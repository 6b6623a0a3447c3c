package jail

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Wait is the argument that has the launcher wait for a sandbox that it started as its
// child, and end with its status. The child's process id follows it.
const Wait = "--wait"

// smallAfter is when a waiting launcher executes itself anew, only to wait. That frees its
// memory and costs 1 ms of processor time, which the start of a sandbox needs more
// urgently and which short calls need not pay at all.
const smallAfter = time.Second

// oneProcessor makes a Go program start fewer threads, which saves 0.1 ms.
var oneProcessor = []string{"GOMAXPROCS=1"}

// inNetwork returns the attributes of a process in new user and network namespaces, with
// the two capabilities for the step that makes the network. The user keeps its number;
// bubblewrap maps it to another one in the sandbox.
func inNetwork(user, group int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: user, HostID: user, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: group, HostID: group, Size: 1}},
		AmbientCaps: []uintptr{unix.CAP_NET_ADMIN, unix.CAP_NET_BIND_SERVICE},
		Pdeathsig:   syscall.SIGKILL,
	}
}

// startAndWait starts a command line, which begins with this launcher's step, in new namespaces
// and waits for its end. It returns only if that fails. If bubblewrap made the namespaces, a
// start would take 2 to 3 ms longer. This process cannot make them for itself, because a
// program with threads cannot change its user namespace.
func (s *networkStep) startAndWait(parent int, args []string) error {
	if err := endWith(parent); err != nil {
		return err
	}
	// Otherwise, after a change of user, root would own the files of a child's maps.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become dumpable: %w", err)
	}
	pidfd := -1
	attributes := inNetwork(os.Geteuid(), os.Getegid())
	attributes.PidFD = &pidfd
	child, err := syscall.ForkExec(args[0], args, &syscall.ProcAttr{Dir: "/", Env: oneProcessor, Files: []uintptr{0, 1, 2}, Sys: attributes})
	if err != nil {
		return s.networkRefused(appArmorProfile(), fmt.Errorf("make its namespaces: %w", err))
	}
	// The proxy waits for the end of this stream.
	_ = unix.Close(s.Proxy)
	return waitFor(args[0], child, pidfd)
}

// endWith has the kernel kill this process when its parent ends.
func endWith(parent int) error {
	if err := resetSignals(); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("end with the parent: %w", err)
	}
	if unix.Getppid() != parent {
		return errParentEnded
	}
	return nil
}

// waitFor waits for a child and ends this process with its status. It returns only if that
// fails.
func waitFor(launcher string, child, pidfd int) error {
	if !ends(pidfd, smallAfter) {
		// That also drops everything that this process read or opened, secrets included.
		if err := closeOnExec(); err != nil {
			return err
		}
		err := unix.Exec(launcher, []string{launcher, Wait, strconv.Itoa(child)}, oneProcessor)
		return fmt.Errorf("start %s: %w", launcher, err)
	}
	return passOn(child)
}

// ends reports whether the process of a pidfd ends within a time. It may return false
// earlier, and does so without a pidfd.
func ends(pidfd int, within time.Duration) bool {
	poll := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(poll, int(within.Milliseconds()))
	return err == nil && n > 0
}

// RunWait takes the arguments after [Wait]: it waits for a child and ends with its status.
// It returns only if that fails.
func RunWait(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("%s is for the launcher itself", Wait)
	}
	child, err := strconv.Atoi(args[0])
	if err != nil {
		return fmt.Errorf("%s: the process: %w", Wait, err)
	}
	if err := resetSignals(); err != nil {
		return err
	}
	return passOn(child)
}

// passOn waits for a child and ends this process with its status, as bubblewrap does. It
// returns only if that fails.
func passOn(child int) error {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil) // the proxy is a child too
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("wait for the sandbox: %w", err)
		case pid == child && status.Signaled():
			os.Exit(128 + int(status.Signal()))
		case pid == child:
			os.Exit(status.ExitStatus())
		}
	}
}
