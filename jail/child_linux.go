package jail

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// startChild starts the sandbox as a child of this process, with attributes. The child ends with the
// calling thread, so the caller has locked its goroutine to a thread that ends with the process.
//
// If root is the caller, the sandbox runs as a user that no other sandbox has, and this
// process stays root.
func (s *Spec) startChild(child Child, attributes *syscall.SysProcAttr) (*os.Process, error) {
	if err := s.namespacesAllowed(); err != nil {
		return nil, err
	}
	if err := s.checkBinds(); err != nil {
		return nil, err
	}
	stdin, null, err := child.inputs()
	if err != nil {
		return nil, err
	}
	defer null.Close()
	files := []uintptr{stdin.Fd(), null.Fd(), child.Stderr.Fd()}
	for _, file := range child.Files {
		fd := closed
		if file != nil {
			fd = file.Fd()
		}
		files = append(files, fd)
	}
	pid, err := s.spawn(os.Getpid(), files, child.Args, attributes)
	if err != nil {
		return nil, err
	}
	return os.FindProcess(pid)
}

// closed stands for a closed descriptor in a list for [syscall.ForkExec].
const closed = ^uintptr(0)

// spawn starts the sandbox as a child of this process. The child's descriptors are files, and
// args follow its command. If root is the caller, the child's user is made from id.
func (s *Spec) spawn(id int, files []uintptr, args []string, attributes *syscall.SysProcAttr) (pid int, err error) {
	user, err := hostUser(id)
	if err != nil {
		return 0, err
	}
	if user != 0 {
		attributes.Credential = &syscall.Credential{Uid: uint32(user), Gid: uint32(user)}
	}
	filter, err := s.openFilter()
	if err != nil {
		return 0, err
	}
	defer unix.Close(filter)
	_, inside := s.plan(Request{})
	flags, err := memfile("flags", terminated(inside))
	if err != nil {
		return 0, err
	}
	defer unix.Close(flags)
	unix.CloseOnExec(filter)
	unix.CloseOnExec(flags)
	// Bubblewrap closes its copies before it starts the command.
	args = slices.Concat([]string{
		s.Bubblewrap, "--args", strconv.Itoa(len(files) + 1), "--seccomp", strconv.Itoa(len(files)), "--",
	}, s.Command, args)
	files = append(files, uintptr(filter), uintptr(flags))
	// The child inherits this.
	s.yieldToHost()
	// os/exec would start another process first, to see whether the kernel has pidfds.
	pid, err = syscall.ForkExec(s.Bubblewrap, args, &syscall.ProcAttr{Dir: "/", Env: []string{}, Files: files, Sys: attributes})
	if err != nil {
		return 0, s.notStarted(err.Error())
	}
	return pid, nil
}

// openFilter opens the system call filter. The descriptor stays open across execve.
func (s *Spec) openFilter() (int, error) {
	filter, err := unix.Open(s.Seccomp, unix.O_RDONLY, 0)
	if err != nil {
		return 0, &Refusal{
			Problem: fmt.Sprintf("open the system call filter %s: %v", s.Seccomp, err),
			Hint:    rebuild,
		}
	}
	return filter, nil
}
