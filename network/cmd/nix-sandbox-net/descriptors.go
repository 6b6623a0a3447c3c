package main

import (
	"errors"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/event"
)

// maxLines is how many lines for standard error wait until they are written.
const maxLines = 64

// writeWait is how long a line for standard error is awaited.
const writeWait = time.Second

// isGiven reports whether this process was started with the descriptor. The Go runtime opens its
// own descriptors with FD_CLOEXEC, which no descriptor keeps over execve(2).
func isGiven(descriptor int) bool {
	flags, err := unix.FcntlInt(uintptr(descriptor), unix.F_GETFD, 0)
	return err == nil && flags&unix.FD_CLOEXEC == 0
}

// reporter returns a function that writes events to their descriptor without blocking. If there is
// no such descriptor, it writes sentences to standard error and waits briefly for each.
func reporter() func(event.Event) {
	if !isGiven(eventsDescriptor) {
		return sentences(os.Stderr.WriteString)
	}
	// The other end of the pipe has settings of its own.
	if err := unix.SetNonblock(eventsDescriptor, true); err != nil {
		return sentences(os.Stderr.WriteString)
	}
	unix.CloseOnExec(eventsDescriptor)
	return event.NewWriter(func(line []byte) bool {
		for {
			// Not by a type of package os, which would wait for a full pipe.
			n, err := unix.Write(eventsDescriptor, line)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			// A pipe takes a line of this size whole or not at all (pipe(7)).
			return err == nil && n == len(line)
		}
	}).Write
}

// sentences returns a function that writes refusals and failures as lines for people. Standard
// error may be a stopped terminal, so a goroutine writes the lines and drops those that it cannot
// write in time. A caller waits up to writeWait for its line, because the refused code may end as
// soon as it learns of the refusal, and this process with it; but not if an earlier line is still
// stuck.
func sentences(write func(string) (int, error)) func(event.Event) {
	type line struct {
		text    string
		written chan struct{}
	}
	lines := make(chan line, maxLines)
	var stuck atomic.Bool
	go func() {
		for l := range lines {
			_, _ = write(l.text)
			stuck.Store(false)
			close(l.written)
		}
	}()
	return func(e event.Event) {
		if e.Kind != event.Refused && e.Kind != event.Failed {
			return
		}
		l := line{"nix-sandbox-net: " + e.Sentence() + "\n", make(chan struct{})}
		select {
		case lines <- l:
		default:
			return
		}
		if stuck.Load() {
			return
		}
		select {
		case <-l.written:
		case <-time.After(writeWait):
			stuck.Store(true)
		}
	}
}

// parentEnd returns a channel that is closed when the process of a pidfd has ended. If the
// descriptor does not exist, the channel is never closed.
func parentEnd(descriptor int) <-chan struct{} {
	ended := make(chan struct{})
	if isGiven(descriptor) {
		go func() {
			defer close(ended)
			// A pidfd can be read, in the sense of poll(2), once its process has ended.
			poll := []unix.PollFd{{Fd: int32(descriptor), Events: unix.POLLIN}}
			for err := error(unix.EINTR); errors.Is(err, unix.EINTR); {
				_, err = unix.Poll(poll, -1)
			}
		}()
	}
	return ended
}
