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

// Wait is the argument with which the launcher waits for the sandbox that it started as a
// child, in namespaces of its own. It is followed by the process that it waits for, and whose status it passes on.
const Wait = "--wait"

// smallAfter is how long the launcher of a sandbox that it waits for stays as it is. Then it
// executes itself anew, with nothing but the wait, which takes 1 ms of processor time that
// the start of the sandbox needs more urgently, and that short ones never pay, not even where
// other programs keep the processors busy.
const smallAfter = time.Second

// oneProcessor has a program written in Go start fewer threads, which takes it 0.1 ms less.
var oneProcessor = []string{"GOMAXPROCS=1"}

// inNetwork returns the attributes of a process in a user namespace and a network namespace
// of its own, with the two capabilities for the step that makes the network. The user keeps
// its number: in the sandbox, bubblewrap gives it another one.
func inNetwork(user, group int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: user, HostID: user, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: group, HostID: group, Size: 1}},
		AmbientCaps: []uintptr{unix.CAP_NET_ADMIN, unix.CAP_NET_BIND_SERVICE},
		Pdeathsig:   syscall.SIGKILL,
	}
}

// startAndWait starts a command line, which begins with the step, in namespaces that the
// kernel makes with the process, and waits for its end. It returns only if that fails. A
// bubblewrap that made the same namespaces took 2 to 3 ms more of a start; and in its place
// this process could not become the sandbox, because a program with threads cannot change
// its own user namespace.
func (s *step) startAndWait(parent int, args []string) error {
	if err := endWith(parent); err != nil {
		return err
	}
	// After a change of user, the maps of a child would be root's files.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become dumpable: %w", err)
	}
	pidfd := -1
	attributes := inNetwork(os.Geteuid(), os.Getegid())
	attributes.PidFD = &pidfd
	child, err := syscall.ForkExec(args[0], args, &syscall.ProcAttr{Dir: "/", Env: oneProcessor, Files: []uintptr{0, 1, 2}, Sys: attributes})
	if err != nil {
		return networkRefused(args[0], appArmorProfile(), fmt.Errorf("make its namespaces: %w", err))
	}
	// The proxy waits for the end of this stream.
	_ = unix.Close(s.proxy)
	return waitFor(s.launcher, child, pidfd)
}

// endWith has this process end with its parent, by a signal that nothing can ignore.
func endWith(parent int) error {
	if err := resetSignals(); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("end with the parent: %w", err)
	}
	if unix.Getppid() != parent {
		return errors.New("whoever started the sandbox has ended")
	}
	return nil
}

// waitFor waits for the end of a sandbox that is a child of this process, and ends this
// process with its status. It returns only if that fails.
func waitFor(launcher string, child, pidfd int) error {
	if !ends(pidfd, smallAfter) {
		// What this process read, opened and inherited is gone then, secrets too.
		if err := closeOnExec(); err != nil {
			return err
		}
		err := unix.Exec(launcher, []string{launcher, Wait, strconv.Itoa(child)}, oneProcessor)
		return fmt.Errorf("start %s: %w", launcher, err)
	}
	return passOn(child)
}

// ends returns whether the process of a pidfd ends within a time. It may return false before
// that, and does where there is no pidfd.
func ends(pidfd int, within time.Duration) bool {
	poll := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(poll, int(within.Milliseconds()))
	return err == nil && n > 0
}

// RunWait does what follows [Wait] in the arguments: it waits for the end of a child, and
// returns only if that fails.
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

// passOn waits for the end of a child and ends this process with its status, as bubblewrap
// does. It returns only if that fails.
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
