package desk

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// asOther calls f in a thread with another user, which ends with it.
func asOther(t *testing.T, f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocks it
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); errno != 0 {
			t.Error(errno)
		}
		result <- f()
	}()
	return <-result
}
