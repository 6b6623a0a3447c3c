package escape

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"
)

// System calls that package syscall has the numbers of and no functions for.

// unlockTerminal makes a new terminal usable and returns its number.
func unlockTerminal(master *os.File) (int, error) {
	var unlock, number int32
	conn, err := master.SyscallConn()
	if err != nil {
		return 0, err
	}
	var errno syscall.Errno
	err = conn.Control(func(fd uintptr) {
		const setLock, getNumber = 0x40045431, 0x80045430 // TIOCSPTLCK, TIOCGPTN
		_, _, errno = syscall.Syscall(syscall.SYS_IOCTL, fd, setLock, uintptr(unsafe.Pointer(&unlock)))
		if errno == 0 {
			_, _, errno = syscall.Syscall(syscall.SYS_IOCTL, fd, getNumber, uintptr(unsafe.Pointer(&number)))
		}
	})
	if err == nil && errno != 0 {
		err = os.NewSyscallError("unlock terminal", errno)
	}
	return int(number), err
}

const ipcCreate, ipcExclusive, ipcRemove = 0o1000, 0o2000, 0 // <linux/ipc.h>

// sysv makes a shared memory segment, a message queue and a semaphore with
// one key; the first two hold the secret.
func sysv(s *scene) error {
	key := uintptr(ipcKey())
	const size, flags = 4096, ipcCreate | ipcExclusive | 0o666
	memory, _, errno := syscall.Syscall(syscall.SYS_SHMGET, key, size, flags)
	if errno != 0 {
		return errLacking("no System V IPC: " + errno.Error())
	}
	s.closers = append(s.closers, func() { syscall.Syscall(syscall.SYS_SHMCTL, memory, ipcRemove, 0) })
	address, _, errno := syscall.Syscall(syscall.SYS_SHMAT, memory, 0, 0)
	if errno != 0 {
		return os.NewSyscallError("shmat", errno)
	}
	// The kernel's memory, not Go's: no collector moves it.
	copy(unsafe.Slice(*(**byte)(unsafe.Pointer(&address)), size), s.secret)
	syscall.Syscall(syscall.SYS_SHMDT, address, 0, 0)

	queue, _, errno := syscall.Syscall(syscall.SYS_MSGGET, key, flags, 0)
	if errno != 0 {
		return os.NewSyscallError("msgget", errno)
	}
	s.closers = append(s.closers, func() { syscall.Syscall(syscall.SYS_MSGCTL, queue, ipcRemove, 0) })
	message := struct {
		kind int64
		text [32]byte
	}{kind: 1}
	copy(message.text[:], s.secret)
	_, _, errno = syscall.Syscall6(syscall.SYS_MSGSND, queue, uintptr(unsafe.Pointer(&message)), uintptr(len(s.secret)), 0, 0, 0)
	if errno != 0 {
		return os.NewSyscallError("msgsnd", errno)
	}

	semaphore, _, errno := syscall.Syscall(syscall.SYS_SEMGET, key, 1, flags)
	if errno != 0 {
		return os.NewSyscallError("semget", errno)
	}
	s.closers = append(s.closers, func() { syscall.Syscall6(syscall.SYS_SEMCTL, semaphore, 0, ipcRemove, 0, 0, 0) })
	s.vars["KEY"] = int(key)
	return nil
}

// mqueue makes a POSIX message queue that holds the secret.
func mqueue(s *scene) error {
	name, err := syscall.BytePtrFromString(s.mark)
	if err != nil {
		return err
	}
	queue, _, errno := syscall.Syscall6(syscall.SYS_MQ_OPEN, uintptr(unsafe.Pointer(name)),
		syscall.O_CREAT|syscall.O_EXCL|syscall.O_WRONLY|syscall.O_CLOEXEC, 0o666, 0, 0, 0)
	if errno != 0 {
		return errLacking("no POSIX message queues: " + errno.Error())
	}
	s.closers = append(s.closers, func() {
		syscall.Close(int(queue))
		syscall.Syscall(syscall.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(name)), 0, 0)
	})
	text := []byte(s.secret)
	_, _, errno = syscall.Syscall6(syscall.SYS_MQ_TIMEDSEND, queue, uintptr(unsafe.Pointer(&text[0])), uintptr(len(text)), 0, 0, 0)
	if errno != 0 {
		return os.NewSyscallError("mq_timedsend", errno)
	}
	s.vars["QUEUE"] = s.mark
	return nil
}

// From <linux/keyctl.h>.
const (
	keyctlJoin    = 1 // KEYCTL_JOIN_SESSION_KEYRING
	keyctlSetPerm = 5
	keyctlLink    = 8
	keyctlUnlink  = 9
	keyctlSearch  = 10

	sessionKeyring = -3
	userKeyring    = -4

	// keyOpen lets the possessor and the user do everything with a key.
	keyOpen = 0x3f3f0000
)

// keyring gives this thread, and with it what is started from it, a session
// keyring of its own, and puts a key with the secret into it and into the
// user's. The attempt's goroutine is bound to its thread, and the session
// keyring ends with that.
func keyring(s *scene) error {
	runtime.LockOSThread()
	if _, _, errno := syscall.Syscall(syscall.SYS_KEYCTL, keyctlJoin, 0, 0); errno != 0 {
		return errLacking("no keyrings: " + errno.Error())
	}
	kind, err1 := syscall.BytePtrFromString("user")
	name, err2 := syscall.BytePtrFromString(s.mark)
	planted, err3 := syscall.BytePtrFromString(s.mark + "-planted")
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	text := []byte(s.secret)
	session, user := sessionKeyring, userKeyring
	key, _, errno := syscall.Syscall6(syscall.SYS_ADD_KEY, uintptr(unsafe.Pointer(kind)), uintptr(unsafe.Pointer(name)),
		uintptr(unsafe.Pointer(&text[0])), uintptr(len(text)), uintptr(session), 0)
	if errno != 0 {
		return os.NewSyscallError("add_key", errno)
	}
	_, _, errno1 := syscall.Syscall(syscall.SYS_KEYCTL, keyctlSetPerm, key, keyOpen)
	_, _, errno2 := syscall.Syscall(syscall.SYS_KEYCTL, keyctlLink, key, uintptr(user))
	s.closers = append(s.closers, func() { syscall.Syscall(syscall.SYS_KEYCTL, keyctlUnlink, key, uintptr(user)) })
	if errno1 != 0 || errno2 != 0 {
		return fmt.Errorf("keyctl: %w, %w", errno1, errno2)
	}
	s.checks = append(s.checks, func() string {
		_, _, errno := syscall.Syscall6(syscall.SYS_KEYCTL, keyctlSearch, uintptr(session),
			uintptr(unsafe.Pointer(kind)), uintptr(unsafe.Pointer(planted)), 0, 0)
		if errno != 0 {
			return ""
		}
		return "a key is in the session keyring of the host"
	})
	s.vars["KEYNAME"] = s.mark
	return nil
}
