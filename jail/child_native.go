//go:build linux && !posix

package jail

import (
	"fmt"
	"syscall"
)

// StartChild starts the sandbox as a child of this process and in its process group, and the caller waits for it.
// The child ends with the calling thread, so the caller has locked its goroutine to a thread that ends with the
// process.
//
// If root is the caller, the sandbox runs as a user that no other sandbox has, and this
// process stays root.
func (s *Spec) StartChild(child Child) (*Confined, error) {
	process, err := s.startChild(child, &syscall.SysProcAttr{})
	if err != nil {
		return nil, err
	}
	return &Confined{Process: process}, nil
}

// Watch is for systems without a signal that ends a program with its parent.
func Watch([]string) error { return fmt.Errorf("%s: the kernel watches here", WatchStep) }
