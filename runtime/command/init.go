package command

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// Init does the work of an init if this process is process 1, as in a container: it runs the program
// in a child, passes signals on, and waits for every process that the kernel gives it, until the child
// ends. Otherwise it returns at once. Each sandbox that is killed leaves its agent to process 1, and
// nothing else would wait for that: an entry in the table of processes would stay for each call.
//
// A server that waited for such processes itself would take the statuses of its own children from
// those that wait for them.
func Init() {
	if os.Getpid() != 1 {
		return
	}
	os.Exit(Report(os.Stderr, asInit()))
}

func asInit() error {
	// Before the child starts, so that none is lost. Go itself uses SIGURG.
	signals := make(chan os.Signal, 16)
	signal.Notify(signals)
	child := exec.Command("/proc/self/exe", os.Args[1:]...)
	child.Args[0] = os.Args[0]
	child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
	// Ctrl-C reaches the child once: from here, or from its terminal.
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if term.IsTerminal(0) {
		child.SysProcAttr.Foreground = true
	}
	child.ExtraFiles = socketFiles()
	if err := child.Start(); err != nil {
		return fmt.Errorf("start the server below process 1: %w", err)
	}
	for _, file := range child.ExtraFiles {
		file.Close()
	}
	go func() {
		for s := range signals {
			if s != unix.SIGCHLD && s != unix.SIGURG {
				_ = child.Process.Signal(s)
			}
		}
	}()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return fmt.Errorf("wait for the server below process 1: %w", err)
		case pid == child.Process.Pid && status.Signaled():
			os.Exit(128 + int(status.Signal()))
		case pid == child.Process.Pid:
			os.Exit(status.ExitStatus())
		}
	}
}

// socketFiles returns the sockets that a service manager has passed to process 1, for the child.
func socketFiles() (files []*os.File) {
	count := 0
	if os.Getenv("LISTEN_PID") == "1" {
		_, _ = fmt.Sscan(os.Getenv("LISTEN_FDS"), &count)
	}
	for n := range min(count, 64) {
		files = append(files, os.NewFile(uintptr(3+n), "socket"))
	}
	return files
}

// IsOwnPID reports whether a process id that is passed in the environment is that of this process, or
// of the process 1 that has started it by [Init].
func IsOwnPID(pid string) bool {
	return pid == fmt.Sprint(os.Getpid()) || pid == "1" && os.Getppid() == 1
}
