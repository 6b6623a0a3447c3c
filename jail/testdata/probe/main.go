// Probe is started inside a sandbox and tries what a shell cannot. It prints
// the kernel's answer to each attempt.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

func main() {
	switch {
	case len(os.Args) == 2 && os.Args[1] == "child":
		// The child of an attempt: it got as far as that.
	case len(os.Args) == 2 && os.Args[1] == "key":
		key()
	case os.Getuid() != 1000 || os.Getpid() > 1000 || exists("/home"):
		// Outside of a sandbox the attempts would succeed.
		fmt.Println("this is no sandbox")
		os.Exit(1)
	default:
		attempts()
	}
}

func attempts() {
	for name, flag := range map[string]uintptr{
		"user":  syscall.CLONE_NEWUSER,
		"mount": syscall.CLONE_NEWNS,
		"net":   syscall.CLONE_NEWNET,
		"pid":   syscall.CLONE_NEWPID,
	} {
		child := exec.Command("/proc/self/exe", "child")
		child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flag}
		say("namespace "+name, child.Run())
	}
	say("mount", syscall.Mount("none", "/tmp", "tmpfs", 0, ""))
	say("remount", syscall.Mount("", "/proc", "", syscall.MS_REMOUNT|syscall.MS_BIND, ""))
	say("setuid", syscall.Setuid(0))
	say("chroot", syscall.Chroot("/tmp"))
	say("sethostname", syscall.Sethostname([]byte("probe")))
}

// key looks for a key that the test has put into its own keyring.
func key() {
	_, err := unix.KeyctlSearch(unix.KEY_SPEC_SESSION_KEYRING, "user", "of-the-host", 0)
	say("key of the host", err)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func say(attempt string, err error) {
	fmt.Printf("%s: %v\n", attempt, err)
}
