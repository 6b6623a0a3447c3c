package jail

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Child holds the arguments and descriptors for [Spec.StartChild].
type Child struct {
	// Args are appended to the command of the description.
	Args []string
	// Stdin is the standard input of the command; nil means /dev/null.
	Stdin *os.File
	// Files become the command's descriptors from 3 on; nil means a closed one. The
	// caller closes its own.
	Files []*os.File
	// Stderr is the standard error of the command and of bubblewrap.
	Stderr *os.File
}

// StartChild starts the sandbox as a child of this process. The child is in the caller's
// process group, and the caller waits for it. The child ends with the calling thread, so
// the caller has locked its goroutine to a thread that ends with the process.
//
// If root is the caller, the sandbox runs as a user that no other sandbox has, and this
// process stays root.
func (s *Spec) StartChild(child Child) (*os.Process, error) {
	if err := namespacesAllowed(s.Bubblewrap); err != nil {
		return nil, err
	}
	if err := s.checkBinds(); err != nil {
		return nil, err
	}
	user, err := hostUser(os.Getpid())
	if err != nil {
		return nil, err
	}
	attributes := &syscall.SysProcAttr{}
	if user != 0 {
		if err := capable(); err != nil {
			return nil, err
		}
		attributes.Credential = &syscall.Credential{Uid: uint32(user), Gid: uint32(user)}
	}
	filter, err := os.Open(s.Seccomp)
	if err != nil {
		return nil, &Refusal{
			Problem: fmt.Sprintf("open the system call filter: %v", err),
			Hint:    rebuild,
		}
	}
	defer filter.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	stdin := null
	if child.Stdin != nil {
		stdin = child.Stdin
	}
	files := []uintptr{stdin.Fd(), null.Fd(), child.Stderr.Fd()}
	for _, file := range child.Files {
		fd := ^uintptr(0)
		if file != nil {
			fd = file.Fd()
		}
		files = append(files, fd)
	}
	// Bubblewrap closes its own two descriptors before it starts the command.
	_, inside := s.plan(Request{})
	flags, err := memfile("flags", terminated(inside))
	if err != nil {
		return nil, err
	}
	// The child gets a copy.
	defer unix.Close(flags)
	unix.CloseOnExec(flags)
	args := append([]string{
		s.Bubblewrap, "--args", strconv.Itoa(len(files) + 1), "--seccomp", strconv.Itoa(len(files)), "--",
	}, slices.Concat(s.Command, child.Args)...)
	files = append(files, filter.Fd(), uintptr(flags))
	s.yieldToHost()
	pid, err := syscall.ForkExec(s.Bubblewrap, args, &syscall.ProcAttr{Dir: "/", Env: []string{}, Files: files, Sys: attributes})
	if err != nil {
		return nil, s.notStarted(err.Error())
	}
	return os.FindProcess(pid)
}
