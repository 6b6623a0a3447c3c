package host

import (
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Flags of open(2) and kinds of locks.
const (
	// OpenPath opens a folder only to name its entries.
	OpenPath = unix.O_PATH
	// LockSet and LockGet are of open files and not of processes.
	LockSet, LockGet = unix.F_OFD_SETLK, unix.F_OFD_GETLK
	// ReceiveClosed has received descriptors closed on exec.
	ReceiveClosed = unix.MSG_CMSG_CLOEXEC
)

// Descriptors is the folder with this process's descriptors, as files.
const Descriptors = "/proc/self/fd/"

// OpenedFolder returns a name of a folder that was opened by a path.
func OpenedFolder(fd int, path string) string { return Descriptors + strconv.Itoa(fd) }

func pair(kind int) ([2]int, error) { return unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0) }

func unnamed(folder string) (*os.File, error) {
	fd, err := unix.Open(folder, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	switch {
	case err == nil:
		return os.NewFile(uintptr(fd), "unnamed"), nil
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EISDIR):
		return nil, nil // a file system without O_TMPFILE (open(2))
	}
	return nil, fmt.Errorf("make a file in %s: %w", folder, err)
}

// Memory returns the memory of this computer, in bytes, or 0 if it is not known.
func Memory() int64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return int64(info.Totalram) * int64(info.Unit)
}

// bootFile contains an identifier of the time since the host started.
var bootFile = "/proc/sys/kernel/random/boot_id"

// BootID names the time since this computer started.
func BootID() (string, error) {
	text, err := os.ReadFile(bootFile)
	id := strings.TrimSpace(string(text))
	if err == nil && id == "" {
		err = fmt.Errorf("%s is empty", bootFile)
	}
	return id, err
}

// CloseInherited marks all descriptors but the standard streams to be closed on exec. An old kernel leaves them as they are.
func CloseInherited() { _ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) }

// RenameNew renames a file in a folder. The error is fs.ErrExist if the new name is taken.
func RenameNew(folder int, from, to string) error {
	err := unix.Renameat2(folder, from, folder, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // a file system without it
		if err = unix.Linkat(folder, from, folder, to, 0); err == nil {
			_ = unix.Unlinkat(folder, from, 0)
		}
	}
	return err
}

// FlushInput discards keys that were typed at a terminal and not read yet.
func FlushInput(terminal int) error { return unix.IoctlSetInt(terminal, unix.TCFLSH, unix.TCIFLUSH) }

// IsOwn reports whether the process at the other end of a connection has this process's user and its PID namespace
// (namespaces(7)). A process that cannot be examined does not.
func IsOwn(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	own := false
	err = raw.Control(func(fd uintptr) {
		peer, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		own = err == nil && int(peer.Uid) == os.Geteuid() && isBeside(int(peer.Pid))
	})
	return err == nil && own
}

func isBeside(pid int) bool {
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err != nil {
		return false
	}
	ours, err := os.Readlink("/proc/self/ns/pid")
	return err == nil && theirs == ours
}

// WaitEnd waits until a child has ended, and leaves it to be waited for.
func WaitEnd(pid int) error {
	for {
		if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != unix.EINTR {
			return err
		}
	}
}

// PunchHole has a part of a file read as zeros and take no space. at and size are multiples of 4096 bytes.
func PunchHole(file *os.File, at, size int64) error {
	return unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, at, size)
}

// ShortSocket calls f with a name of a socket that fits into an address, which takes 107 bytes (unix(7)).
func ShortSocket(socket string, f func(name string) error) error {
	folder, err := os.OpenFile(filepath.Dir(socket), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer folder.Close()
	return f(fmt.Sprintf("/proc/self/fd/%d/%s", folder.Fd(), filepath.Base(socket)))
}

// StartInGroup has a program start in a control group, by clone3(2).
func StartInGroup(attr *syscall.SysProcAttr, group int) {
	attr.UseCgroupFD, attr.CgroupFD = true, group
}

// Unread returns how many bytes wait in a pipe or a Unix socket to be read, by the end that wrote them. It is 0 for
// other files.
func Unread(file *os.File) int {
	var stat unix.Stat_t
	if unix.Fstat(int(file.Fd()), &stat) != nil {
		return 0
	}
	var request uint
	switch stat.Mode & unix.S_IFMT {
	case unix.S_IFIFO:
		request = unix.TIOCINQ // FIONREAD, of either end: pipe(7)
	case unix.S_IFSOCK:
		request = unix.TIOCOUTQ // SIOCOUTQ: unix(7)
	default:
		return 0
	}
	n, err := unix.IoctlGetInt(int(file.Fd()), request)
	if err != nil {
		return 0
	}
	return n
}
