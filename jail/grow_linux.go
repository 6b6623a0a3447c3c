package jail

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
)

// A sandbox that runs can get the store of a further environment. A child of the launcher, in
// namespaces of its own, makes a read-only overlay of the stores that the sandbox has and of the
// new one. The launcher then enters the sandbox's mount namespace and attaches it over /nix: what runs
// there keeps what it has open, and finds the new paths. The user who started the sandbox may do so,
// because the namespace's owner is that user (user_namespaces(7)); the sandbox itself takes no part.

// GrowName is the name of the program of an artifact that adds its store to a sandbox.
const GrowName = "grow"

// Merge is the argument that has the launcher make an overlay of folders, in namespaces of its own.
const Merge = "--merge"

const (
	// intoVariable names the process that the sandbox was started as.
	intoVariable = "NIX_SANDBOX_INTO"
	// besideVariable names the programs with the descriptions of the environments that the sandbox has,
	// the one that it was started with first, with colons between them.
	besideVariable = "NIX_SANDBOX_BESIDE"
	// storeMount is where a sandbox has its store.
	storeMount = "/nix"
	// maxGrown bounds the environments of one sandbox: the paths of their stores have to fit into the page
	// that mount(2) takes.
	maxGrown = 60
	// maxSearched bounds the processes among which the agent is looked for.
	maxSearched = 1000
)

// Grow adds the store of this description to a sandbox, and writes the variables of its environment
// as a JSON object.
func (s *Spec) Grow(get func(string) string, out io.Writer) error {
	top, err := strconv.Atoi(get(intoVariable))
	if err != nil || top <= 0 {
		return fmt.Errorf("%s is %q, want the number of a process", intoVariable, get(intoVariable))
	}
	beside := strings.Split(get(besideVariable), ":")
	if len(beside) > maxGrown {
		return fmt.Errorf("the sandbox has %d environments, and at most %d fit into one", len(beside), maxGrown)
	}
	if s.Variables != "" {
		return errors.New("an environment with the variables of a shell takes a sandbox of its own")
	}
	added, err := s.store()
	if err != nil {
		return err
	}
	program := ""
	var stores []string
	for _, name := range beside {
		one, err := ReadSpec(name)
		if err != nil {
			return err
		}
		store, err := one.store()
		if err != nil {
			return err
		}
		program = cmp.Or(program, one.Command[0])
		if !slices.Contains(stores, store) {
			stores = append(stores, store)
		}
	}
	if !slices.Contains(stores, added) {
		if err := grow(top, program, append([]string{added}, stores...)); err != nil {
			return err
		}
	}
	variables := map[string]string{}
	for i, flag := range s.Flags {
		if flag == "--setenv" && i+2 < len(s.Flags) {
			variables[s.Flags[i+1]] = s.Flags[i+2]
		}
	}
	return json.NewEncoder(out).Encode(variables)
}

// store returns the folder that the sandbox has as its store.
func (s *Spec) store() (string, error) {
	if s.Devices != nil {
		return "", errors.New("a sandbox with devices has a store of its own making")
	}
	for i, flag := range s.Flags {
		if flag == "--ro-bind" && i+2 < len(s.Flags) && s.Flags[i+2] == storeMount {
			return s.Flags[i+1], nil
		}
	}
	return "", fmt.Errorf("the description shows nothing at %s", storeMount)
}

// grow attaches an overlay of stores in the sandbox that was started as a process, and whose first
// process is a program.
func grow(top int, program string, stores []string) error {
	mounts, err := namespaceOf(top, program)
	if err != nil {
		return err
	}
	defer mounts.Close()
	user, err := unix.IoctlRetInt(int(mounts.Fd()), unix.NS_GET_USERNS)
	if err != nil {
		return fmt.Errorf("find the user namespace of the sandbox: %w", err)
	}
	defer unix.Close(user)
	merged, err := merge(stores)
	if err != nil {
		return err
	}
	defer unix.Close(merged)
	return attach(user, int(mounts.Fd()), merged, storeMount)
}

// namespaceOf returns the mount namespace of the first process of a sandbox, which has a program and
// descends from a process.
func namespaceOf(top int, program string) (*os.File, error) {
	waiting := []int{top}
	for searched := 0; len(waiting) > 0 && searched < maxSearched; searched++ {
		pid := waiting[0]
		waiting = append(waiting[1:], children(pid)...)
		if !isFirst(pid, program) {
			continue
		}
		began := startOf(pid)
		mounts, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
		if err != nil {
			return nil, fmt.Errorf("open the mount namespace of the sandbox: %w", err)
		}
		// The process may have ended meanwhile, and another one have got its number.
		if began != "" && startOf(pid) == began && isFirst(pid, program) {
			return mounts, nil
		}
		mounts.Close()
	}
	return nil, errors.New("the first process of the sandbox is gone")
}

func children(pid int) (all []int) {
	names, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, name := range names {
		text, _ := os.ReadFile(name) // the thread may be gone
		for field := range strings.FieldsSeq(string(text)) {
			if child, err := strconv.Atoi(field); err == nil {
				all = append(all, child)
			}
		}
	}
	return all
}

// isFirst reports whether a process is the first one of a PID namespace, and runs a program.
func isFirst(pid int, program string) bool {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, line, _ := strings.Cut(string(text), "\nNSpid:")
	line, _, _ = strings.Cut(line, "\n")
	numbers := strings.Fields(line)
	if len(numbers) < 2 || numbers[len(numbers)-1] != "1" {
		return false
	}
	runs, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil && runs == program
}

// startOf returns when a process began, or "" (proc_pid_stat(5)).
func startOf(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(text), ") ")
	if fields := strings.Fields(rest); len(fields) > 19 {
		return fields[19]
	}
	return ""
}

// merge returns the descriptor of a detached mount that has what several folders have.
func merge(folders []string) (int, error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return 0, err
	}
	defer ours.Close()
	launcher, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("find this program: %w", err)
	}
	cmd := exec.Command(launcher, append([]string{Merge}, folders...)...)
	cmd.Env, cmd.Dir = oneProcessor, "/"
	cmd.ExtraFiles = []*os.File{theirs}
	var problem strings.Builder
	cmd.Stderr = &problem
	// Root there, whose capabilities outlive execve(2).
	root := func(id int) []syscall.SysProcIDMap { return []syscall.SysProcIDMap{{HostID: id, Size: 1}} }
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: root(os.Getuid()), GidMappings: root(os.Getgid()),
		Pdeathsig: syscall.SIGKILL,
	}
	runtime.LockOSThread() // whose end is that of the parent
	defer runtime.UnlockOSThread()
	err = cmd.Run()
	theirs.Close()
	if err != nil {
		return 0, fmt.Errorf("join the stores of a sandbox: %w: %s", err, bounded.Head(problem.String(), maxOutput))
	}
	control := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(int(ours.Fd()), make([]byte, 1), control, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return 0, fmt.Errorf("receive the joined stores: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil || len(messages) != 1 {
		return 0, fmt.Errorf("the joined stores are %d messages: %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return 0, fmt.Errorf("the joined stores are %d descriptors: %w", len(fds), err)
	}
	return fds[0], nil
}

func socketPair() (ours, theirs *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(pair[0]), "socket"), os.NewFile(uintptr(pair[1]), "socket"), nil
}

// RunMerge takes the arguments after [Merge], folders in one folder of folders, as in the store. It sends a
// descriptor of their overlay over descriptor 3. It runs in a user and a mount namespace of its own.
func RunMerge(folders []string) error {
	if len(folders) < 2 {
		return fmt.Errorf("%s is for the launcher itself", Merge)
	}
	// mount(2) takes a page of options: the names in the store leave more of it than whole paths.
	store := filepath.Dir(filepath.Dir(folders[0]))
	var names []string
	for _, folder := range folders {
		name, err := filepath.Rel(store, folder)
		if err != nil || strings.ContainsAny(name, `:,\`) {
			return fmt.Errorf("%q is no folder of a path in %s", folder, store)
		}
		names = append(names, name)
	}
	if err := unix.Chdir(store); err != nil {
		return os.NewSyscallError("chdir", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts in this namespace: %w", err)
	}
	// Over the first folder, which is still below it.
	if err := unix.Mount("overlay", names[0], "overlay", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, "lowerdir="+strings.Join(names, ":")); err != nil {
		return fmt.Errorf("mount an overlay of %d stores: %w", len(names), err)
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, folders[0], unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("open_tree", err)
	}
	return os.NewSyscallError("sendmsg", unix.Sendmsg(firstExtra, []byte{0}, unix.UnixRights(tree), nil, unix.MSG_NOSIGNAL))
}

// attach attaches a detached mount at a path of a mount namespace, after entering the user namespace that
// owns it. Only a process with one thread may do that (setns(2)), and a Go program has several: this is a
// child that only makes system calls.
func attach(user, mounts, tree int, at string) error {
	path, err := unix.BytePtrFromString(at)
	if err != nil {
		return err
	}
	var told [2]int
	if err := unix.Pipe2(told[:], unix.O_CLOEXEC); err != nil {
		return os.NewSyscallError("pipe2", err)
	}
	defer unix.Close(told[0])
	// No handler of Go's may run in the child.
	var all, before unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &before); err != nil {
		return os.NewSyscallError("sigprocmask", err)
	}
	pid, errno := forkAndAttach(uintptr(user), uintptr(mounts), uintptr(tree), uintptr(told[1]), path, new(byte))
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil)
	unix.Close(told[1])
	if errno != 0 {
		return os.NewSyscallError("clone", errno)
	}
	var failed [2]byte
	n, err := unix.Read(told[0], failed[:])
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Read(told[0], failed[:])
	}
	for errors.Is(reap(int(pid)), unix.EINTR) {
	}
	switch {
	case err != nil:
		return os.NewSyscallError("read", err)
	case n == 0:
		return errors.New("the sandbox was not entered")
	case failed[1] != 0:
		step := []string{"enter the user namespace", "enter the mount namespace", "attach the store"}[failed[0]]
		return fmt.Errorf("%s of the sandbox: %w", step, unix.Errno(failed[1]))
	}
	return nil
}

func reap(pid int) error {
	_, err := unix.Wait4(pid, nil, 0, nil)
	return err
}

// forkAndAttach starts the child, which tells its last step and the error of it. As in package syscall, the
// child must not grow its stack or call the scheduler: all of it is system calls.
//
//go:norace
//go:nosplit
func forkAndAttach(user, mounts, tree, told uintptr, path, empty *byte) (pid uintptr, errno unix.Errno) {
	pid, _, errno = unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 || pid != 0 {
		return pid, errno
	}
	var result [2]byte
	_, _, failed := unix.RawSyscall(unix.SYS_SETNS, user, unix.CLONE_NEWUSER, 0)
	if failed == 0 {
		result[0] = 1
		_, _, failed = unix.RawSyscall(unix.SYS_SETNS, mounts, unix.CLONE_NEWNS, 0)
	}
	if failed == 0 {
		result[0] = 2
		const cwd = ^uintptr(99) // AT_FDCWD is -100
		_, _, failed = unix.RawSyscall6(unix.SYS_MOVE_MOUNT, tree, uintptr(unsafe.Pointer(empty)), cwd, uintptr(unsafe.Pointer(path)), unix.MOVE_MOUNT_F_EMPTY_PATH, 0)
	}
	result[1] = byte(failed)
	unix.RawSyscall(unix.SYS_WRITE, told, uintptr(unsafe.Pointer(&result)), 2)
	for {
		unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
}
