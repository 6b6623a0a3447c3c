package jail

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// call makes a child with system calls, and returns its status.
func call(t *testing.T, calls *childCalls) (status int, failed error) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	child, pidfd, failed, err := forkAndCall(0, calls)
	if err != nil {
		t.Fatal(err)
	}
	if failed != nil {
		return 0, failed
	}
	defer unix.Close(pidfd)
	var ended unix.WaitStatus
	for {
		if _, err := unix.Wait4(child, &ended, 0, nil); !errors.Is(err, unix.EINTR) {
			return ended.ExitStatus(), err
		}
	}
}

func TestForkAndCall_BecomesAProgram(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	calls := &childCalls{}
	calls.add(unix.SYS_OPENAT, here, file, unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	calls.add(unix.SYS_WRITE, opened, "text", 4)
	calls.add(unix.SYS_CLOSE, opened)
	calls.add(unix.SYS_EXECVE, "/bin/sh", []string{"sh", "-c", "exit $1", "sh", "7"}, []string{})
	if status, err := call(t, calls); status != 7 || err != nil {
		t.Errorf("status %d, %v, want 7", status, err)
	}
	if text, err := os.ReadFile(file); string(text) != "text" {
		t.Errorf("the child has written %q, %v", text, err)
	}
}

// A call that fails is the last one.
func TestForkAndCall_ReturnsTheErrorOfACall(t *testing.T) {
	dir := t.TempDir()
	calls := &childCalls{}
	calls.add(unix.SYS_MKDIRAT, here, dir+"/made", 0o700)
	calls.add(unix.SYS_MKDIRAT, here, dir+"/missing/folder", 0o700)
	calls.add(unix.SYS_MKDIRAT, here, dir+"/later", 0o700)
	calls.add(unix.SYS_EXECVE, "/bin/sh", []string{"sh", "-c", "exit 0"}, []string{})
	if _, err := call(t, calls); !errors.Is(err, unix.ENOENT) {
		t.Errorf("%v, want ENOENT", err)
	}
	if _, err := os.Stat(dir + "/made"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir + "/later"); err == nil {
		t.Error("the child has gone on after the error")
	}
}

func TestChildCalls_RefuseZeroBytes(t *testing.T) {
	calls := &childCalls{}
	calls.add(unix.SYS_MKDIRAT, here, "a\x00b", 0o700)
	if calls.err == nil {
		t.Error("a path with a zero byte was taken")
	}
}
