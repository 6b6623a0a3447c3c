package host

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Flags of open(2) and kinds of locks.
const (
	// OpenPath opens a folder only to name its entries: without a flag of its own, it must be readable.
	OpenPath = 0
	// LockSet and LockGet are of open files and not of processes. Their numbers are in bsd/sys/fcntl.h of xnu.
	LockSet, LockGet = 90, 92
	// ReceiveClosed has received descriptors closed on exec: there is no such flag.
	ReceiveClosed = 0
)

// Descriptors is the folder with this process's descriptors, as files. To open one is to duplicate it.
const Descriptors = "/dev/fd/"

// OpenedFolder returns a name of a folder that was opened by a path.
func OpenedFolder(fd int, path string) string { return path }

func pair(kind int) (ends [2]int, err error) {
	// So that no program is started between the two calls.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	ends, err = unix.Socketpair(unix.AF_UNIX, kind, 0)
	if err == nil {
		unix.CloseOnExec(ends[0])
		unix.CloseOnExec(ends[1])
	}
	return ends, err
}

func unnamed(string) (*os.File, error) { return nil, nil }

// Memory returns the memory of this computer, in bytes, or 0 if it is not known.
func Memory() int64 {
	size, err := unix.SysctlUint64("hw.memsize")
	if err != nil {
		return 0
	}
	return int64(size)
}

// BootID names the time since this computer started.
func BootID() (string, error) { return unix.Sysctl("kern.bootsessionuuid") }

// CloseInherited marks all descriptors but the standard streams to be closed on exec.
func CloseInherited() {
	entries, _ := os.ReadDir("/dev/fd") // without it, what was inherited stays
	for _, entry := range entries {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
}

// RenameNew renames a file in a folder. The error is fs.ErrExist if the new name is taken.
func RenameNew(folder int, from, to string) error {
	return unix.RenameatxNp(folder, from, folder, to, unix.RENAME_EXCL)
}

// FlushInput discards keys that were typed at a terminal and not read yet.
func FlushInput(terminal int) error {
	const input = 1 // FREAD of sys/fcntl.h
	return unix.IoctlSetPointerInt(terminal, unix.TIOCFLUSH, input)
}

// IsOwn reports whether the process at the other end of a connection has this process's user.
func IsOwn(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	own := false
	err = raw.Control(func(fd uintptr) {
		peer, err := unix.GetsockoptXucred(int(fd), unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
		own = err == nil && int(peer.Uid) == os.Geteuid()
	})
	return err == nil && own
}

// WaitEnd waits until a child has ended, and leaves it to be waited for.
func WaitEnd(pid int) error {
	queue, err := unix.Kqueue()
	if err != nil {
		return err
	}
	defer unix.Close(queue)
	end := []unix.Kevent_t{{Ident: uint64(pid), Filter: unix.EVFILT_PROC, Flags: unix.EV_ADD | unix.EV_ONESHOT, Fflags: unix.NOTE_EXIT}}
	for {
		_, err := unix.Kevent(queue, end, make([]unix.Kevent_t, 1), nil)
		switch err {
		case unix.EINTR:
		case unix.ESRCH:
			return nil // it has ended
		default:
			return err
		}
	}
}

// PunchHole has a part of a file read as zeros and take no space. at and size are multiples of 4096 bytes.
func PunchHole(file *os.File, at, size int64) error {
	// It begins as struct fpunchhole of sys/fcntl.h does, flags and padding that are 0, and is longer.
	return unix.FcntlFstore(file.Fd(), unix.F_PUNCHHOLE, &unix.Fstore_t{Offset: at, Length: size})
}

// maxSocket is the longest name of a socket, in bytes (sockaddr_un of sys/un.h).
const maxSocket = 103

// ShortSocket calls f with a name of a socket that fits into an address.
func ShortSocket(socket string, f func(name string) error) error {
	if len(socket) > maxSocket {
		return fmt.Errorf("the path of the socket %s takes %d bytes, and macOS allows %d: set XDG_RUNTIME_DIR to a shorter folder",
			filepath.Base(socket), len(socket), maxSocket)
	}
	return f(socket)
}

// StartInGroup leaves attr as it is: macOS has no control groups, so that no caller has one.
func StartInGroup(*syscall.SysProcAttr, int) {}

// Unread is 0: the end that writes cannot find out.
func Unread(*os.File) int { return 0 }

// Clone returns an unnamed copy of a file in a folder of the same file system that shares its blocks, or nil if the
// file system has no such copies. The caller closes it.
func Clone(from *os.File, folder string) (*os.File, error) {
	inside, err := os.MkdirTemp(folder, "nix-sandbox-mcp-") // fclonefileat(2) makes the file
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(inside)
	name := filepath.Join(inside, "clone")
	if unix.Fclonefileat(int(from.Fd()), unix.AT_FDCWD, name, 0) != nil || os.Chmod(name, 0o600) != nil {
		return nil, nil
	}
	return os.OpenFile(name, os.O_RDWR, 0)
}
