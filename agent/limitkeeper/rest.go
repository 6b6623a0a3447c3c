package limitkeeper

import (
	"os"
	"os/signal"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A sandbox is at rest when scans in a row have found the same processes, none of
// which has run between them. From then on a process that has not run has taken no
// memory and has started no other, so that instead of a scan it is enough to ask for
// the processor time of each process that is known: a system call for each, a
// hundredth of what a scan costs.
//
// No process is unknown. One that a scan missed, because it began during the scan, was
// there during the whole of the next one, unless its parent ran meanwhile; and that
// parent is known, or the same holds for it.
//
// Where the interpreter alone is left, it is asked ever more seldom, and the kernel
// reports when it runs again: a timer on its processor time expires at the first tick of
// the kernel that finds it running, which is 1 to 10 ms apart. The questions find what
// runs between two ticks only, and a process that it starts so. Processes beside the
// interpreter, which code has left running, are asked as often as they would be scanned.

const (
	// restScans is the number of scans in a row after which a sandbox is at rest. They
	// take as long as the slow part of a scan, that of kernel.go, needs to begin and
	// to end.
	restScans = 4
	// The pause between two questions where the interpreter alone is left is a part of
	// the time for which it has rested, between these two. A question takes 0.1 ms of
	// processor time where others use the processor's caches.
	restPart     = 16
	minRestPause = 500 * time.Millisecond
	maxRestPause = 5 * time.Second
)

// settle notes what a scan has found. busy says that a call runs.
func (k *Keeper) settle(busy bool) {
	s := k.scanner
	if !busy && len(s.found) > 1 && sameTimes(s.found, s.before, s.self) && k.kernel.isComplete(s.found, s.self) {
		k.still++
	} else {
		k.still = 0
	}
	s.before = append(s.before[:0], s.found...)
}

// atRest reports whether a scan would find what the last one has found.
func (k *Keeper) atRest() bool { return k.still >= restScans && k.scanner.unchanged() }

// sameTimes reports whether two scans have found the same processes, none of which has
// run between the two. This process is left out.
func sameTimes(a, b []process, self int) bool {
	return slices.EqualFunc(a, b, func(a, b process) bool {
		return a.pid == b.pid && (a.time == b.time || a.pid == self)
	})
}

// others returns the processes of the last scan but this one.
func (s *scanner) others() []process {
	return slices.DeleteFunc(slices.Clone(s.found), func(p process) bool { return p.pid == s.self })
}

// unchanged reports whether no process of the last scan has run since, and the files
// take what they took: then no process has taken memory, and none has started another
// one. Files of a workspace that several sandboxes share can grow nevertheless. This
// process is left out; what it starts is found by a later scan.
func (s *scanner) unchanged() bool {
	for _, p := range s.found {
		if p.pid == s.self {
			continue
		}
		if used, ok := processTime(p.pid); !ok || used != p.time {
			return false
		}
	}
	for i, folder := range s.folders {
		if used, _, err := filesIn(folder); err != nil || used != s.sizes[i] {
			return false
		}
	}
	return true
}

// processClock is the clock of the processor time of all threads of a process, as
// clock_getcpuclockid(3) makes its number.
func processClock(pid int) int32 {
	const scheduler = 2 // CPUCLOCK_SCHED
	return int32(^pid<<3 | scheduler)
}

// processTime is the processor time of all threads of a process, in ns. The call does
// not wait, so that Go's scheduler, which starts another thread for one that may, need
// not hear of it.
func processTime(pid int) (ns int64, ok bool) {
	var now unix.Timespec
	_, _, errno := unix.RawSyscall(unix.SYS_CLOCK_GETTIME, uintptr(processClock(pid)), uintptr(unsafe.Pointer(&now)), 0)
	return now.Nano(), errno == 0
}

// alarm says when to ask whether a sandbox is still at rest. A timer of Go would cost
// five times as much: Go's scheduler wakes a second thread for each.
type alarm struct {
	clock *os.File       // a timerfd
	fd    int            // its number
	rings chan os.Signal // receives SIGCHLD
	timer int32          // on the processor time of a process; -1 if there is none
	set   bool
	since time.Time // when it was set first
}

// newAlarm returns an alarm that is not set. The kernel sends SIGCHLD when a process has
// run, because that is the signal for which the agent has a handler.
func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("timerfd_create", err)
	}
	a := &alarm{clock: os.NewFile(uintptr(fd), "timer"), fd: fd, rings: make(chan os.Signal, 1), timer: -1}
	signal.Notify(a.rings, unix.SIGCHLD)
	go a.read()
	return a, nil
}

func (a *alarm) close() {
	signal.Stop(a.rings)
	a.unset()
	a.clock.Close()
}

// read passes the expirations of the clock on, until it is closed.
func (a *alarm) read() {
	conn, err := a.clock.SyscallConn()
	if err != nil {
		return
	}
	var expired [8]byte
	for err == nil {
		waited := false
		err = conn.Read(func(fd uintptr) bool {
			if waited {
				_, _, _ = unix.RawSyscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(&expired)), uintptr(len(expired)))
				return true
			}
			waited = true
			return false
		})
		select {
		case a.rings <- unix.SIGCHLD:
		default:
		}
	}
}

// begin has the alarm ring once, after a pause, or when the one process that is left has
// run. It reports false where there are more, or the kernel offers no such timer.
func (a *alarm) begin(left []process) bool {
	if a.set {
		return a.wind(time.Since(a.since) / restPart)
	}
	if len(left) != 1 {
		return false
	}
	p := left[0]
	event := sigevent{signo: int32(unix.SIGCHLD)}
	var timer int32
	_, _, errno := unix.RawSyscall(unix.SYS_TIMER_CREATE, uintptr(processClock(p.pid)), uintptr(unsafe.Pointer(&event)), uintptr(unsafe.Pointer(&timer)))
	if errno != 0 {
		return false
	}
	a.timer = timer
	at := unix.ItimerSpec{Value: unix.NsecToTimespec(p.time + 1)}
	const absolute = 1 // TIMER_ABSTIME
	_, _, errno = unix.RawSyscall6(unix.SYS_TIMER_SETTIME, uintptr(timer), absolute, uintptr(unsafe.Pointer(&at)), 0, 0, 0)
	a.since = time.Now()
	if errno != 0 || !a.wind(0) {
		a.unset()
	}
	return a.set
}

func (a *alarm) wind(pause time.Duration) bool {
	a.set = a.expire(min(max(pause, minRestPause), maxRestPause)) == 0
	return a.set
}

// expire has the clock expire after a time, never if that is 0.
func (a *alarm) expire(after time.Duration) unix.Errno {
	value := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(after))}
	_, _, errno := unix.RawSyscall6(unix.SYS_TIMERFD_SETTIME, uintptr(a.fd), 0, uintptr(unsafe.Pointer(&value)), 0, 0, 0)
	return errno
}

// unset has the alarm ring no more.
func (a *alarm) unset() {
	if a.timer >= 0 {
		_, _, _ = unix.RawSyscall(unix.SYS_TIMER_DELETE, uintptr(a.timer), 0, 0)
		a.timer = -1
	}
	if a.set {
		_ = a.expire(0)
		a.set = false
	}
}

// sigevent is the kernel's struct sigevent of 64-bit machines (sigevent(7)): its notify
// is 0, SIGEV_SIGNAL.
type sigevent struct {
	value  uint64
	signo  int32
	notify int32
	_      [48]byte
}
