package escape

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sysv makes a shared memory segment, a message queue and a semaphore with
// one key; the first two hold the secret.
func sysv(s *scene) error {
	key := ipcKey()
	const size, flags = 4096, unix.IPC_CREAT | unix.IPC_EXCL | 0o666
	memory, err := unix.SysvShmGet(key, size, flags)
	if err != nil {
		return errLacking("no System V IPC: " + err.Error())
	}
	s.closers = append(s.closers, func() { _, _ = unix.SysvShmCtl(memory, unix.IPC_RMID, nil) })
	shared, err := unix.SysvShmAttach(memory, 0, 0)
	if err != nil {
		return os.NewSyscallError("shmat", err)
	}
	copy(shared, s.secret)
	if err := unix.SysvShmDetach(shared); err != nil {
		return os.NewSyscallError("shmdt", err)
	}

	// Package unix has no functions for queues and semaphores.
	queue, _, errno := unix.Syscall(unix.SYS_MSGGET, uintptr(key), flags, 0)
	if errno != 0 {
		return os.NewSyscallError("msgget", errno)
	}
	s.closers = append(s.closers, func() { _, _, _ = unix.Syscall(unix.SYS_MSGCTL, queue, unix.IPC_RMID, 0) })
	message := struct {
		kind int64
		text [32]byte
	}{kind: 1}
	copy(message.text[:], s.secret)
	_, _, errno = unix.Syscall6(unix.SYS_MSGSND, queue, uintptr(unsafe.Pointer(&message)), uintptr(len(s.secret)), 0, 0, 0)
	if errno != 0 {
		return os.NewSyscallError("msgsnd", errno)
	}

	semaphore, _, errno := unix.Syscall(unix.SYS_SEMGET, uintptr(key), 1, flags)
	if errno != 0 {
		return os.NewSyscallError("semget", errno)
	}
	s.closers = append(s.closers, func() { _, _, _ = unix.Syscall6(unix.SYS_SEMCTL, semaphore, 0, unix.IPC_RMID, 0, 0, 0) })
	s.vars["KEY"] = key
	return nil
}

// mqueue makes a POSIX message queue that holds the secret.
func mqueue(s *scene) error {
	name, err := unix.BytePtrFromString(s.mark)
	if err != nil {
		return err
	}
	queue, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(name)),
		unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o666, 0, 0, 0)
	if errno != 0 {
		return errLacking("no POSIX message queues: " + errno.Error())
	}
	s.closers = append(s.closers, func() {
		_ = unix.Close(int(queue))
		_, _, _ = unix.Syscall(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(name)), 0, 0)
	})
	text := []byte(s.secret)
	_, _, errno = unix.Syscall6(unix.SYS_MQ_TIMEDSEND, queue, uintptr(unsafe.Pointer(&text[0])), uintptr(len(text)), 0, 0, 0)
	if errno != 0 {
		return os.NewSyscallError("mq_timedsend", errno)
	}
	s.vars["QUEUE"] = s.mark
	return nil
}

// keyOpen lets the possessor of a key and its user do everything with it; the
// bits are KEY_POS_ALL and KEY_USR_ALL of <linux/key.h>.
const keyOpen = 0x3f3f0000

// keyring gives this thread, and with it what is started from it, a session
// keyring of its own, and puts a key with the secret into it and into the
// user's. The attempt's goroutine is bound to its thread, and the session
// keyring ends with that.
func keyring(s *scene) error {
	runtime.LockOSThread()
	if _, err := unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0); err != nil {
		return errLacking("no keyrings: " + err.Error())
	}
	key, err := unix.AddKey("user", s.mark, []byte(s.secret), unix.KEY_SPEC_SESSION_KEYRING)
	if err != nil {
		return os.NewSyscallError("add_key", err)
	}
	permitted := unix.KeyctlSetperm(key, keyOpen)
	_, linked := unix.KeyctlInt(unix.KEYCTL_LINK, key, unix.KEY_SPEC_USER_KEYRING, 0, 0)
	s.closers = append(s.closers, func() {
		_, _ = unix.KeyctlInt(unix.KEYCTL_UNLINK, key, unix.KEY_SPEC_USER_KEYRING, 0, 0)
	})
	if err := errors.Join(permitted, linked); err != nil {
		return fmt.Errorf("keyctl: %w", err)
	}
	s.checks = append(s.checks, func() string {
		if _, err := unix.KeyctlSearch(unix.KEY_SPEC_SESSION_KEYRING, "user", s.mark+"-planted", 0); err != nil {
			return ""
		}
		return "a key is in the session keyring of the host"
	})
	s.vars["KEYNAME"] = s.mark
	return nil
}
