package limitkeeper

import (
	"os"
	"os/signal"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A sandbox is at rest when several scans in a row have found the same processes and none
// has run between them. A process that does not run takes no memory and starts no other,
// so from then on a check of the processor time of each known process replaces the scan: a
// system call for each, at a hundredth of the cost.
//
// Every process is known. If a scan missed one that began meanwhile, the next scan found
// it, unless its parent ran in between; and the parent is known, or the same argument holds
// for it.
//
// If only the interpreter is left, the checks become rare, and the kernel reports when it
// runs again: a timer on its processor time expires at the first tick of the kernel, every
// 1 to 10 ms, that finds it running. The checks find a process that runs only between two
// ticks, and its children. Other processes, which code has left running, are checked as
// often as they would be scanned.

const (
	// restScans is the number of scans in a row after which a sandbox is at rest. The
	// slow scans of kernel.go begin and end in that time.
	restScans = 4
	// The pause between two checks of the interpreter alone is a fraction of the time
	// for which it has rested, within these bounds. A check takes 0.1 ms of processor
	// time if others use the processor's caches.
	restPart     = 16
	minRestPause = 500 * time.Millisecond
	maxRestPause = 5 * time.Second
)

// note notes the result of a scan. busy says that a call runs.
func (k *Keeper) note(busy bool) {
	s := k.scanner
	if !busy && len(s.found) > 1 && sameTimes(s.found, s.before, s.self) && k.kernel.isComplete(s.found, s.self) {
		k.still++
	} else {
		k.still = 0
	}
	s.before = append(s.before[:0], s.found...)
}

// atRest reports whether a scan would have the result of the last one.
func (k *Keeper) atRest() bool { return k.still >= restScans && k.scanner.unchanged() }

// sameTimes reports whether two scans have found the same processes, and none but this one
// has run in between.
func sameTimes(a, b []process, self int) bool {
	return slices.EqualFunc(a, b, func(a, b process) bool {
		return a.pid == b.pid && (a.time == b.time || a.pid == self)
	})
}

// others returns the processes of the last scan but this one.
func (s *scanner) others() []process {
	return slices.DeleteFunc(slices.Clone(s.found), func(p process) bool { return p.pid == s.self })
}

// unchanged reports whether no process but this one has run since the last scan and the
// files, which other sandboxes may share, have the same size. A later scan finds what this
// process starts.
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
		if used, _, _, err := filesIn(folder); err != nil || used != s.sizes[i] {
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

// processTime is the processor time of all threads of a process, in ns. The system call is
// raw because it does not wait: for one that may, Go's scheduler starts another thread.
func processTime(pid int) (ns int64, ok bool) {
	var now unix.Timespec
	_, _, errno := unix.RawSyscall(unix.SYS_CLOCK_GETTIME, uintptr(processClock(pid)), uintptr(unsafe.Pointer(&now)), 0)
	return now.Nano(), errno == 0
}

// alarm rings when it is time to check whether a sandbox is still at rest. A timer of Go
// would cost five times as much: Go's scheduler wakes a second thread for each.
type alarm struct {
	clock *os.File       // a timerfd
	fd    int            // its number
	rings chan os.Signal // receives SIGCHLD
	timer int32          // on the processor time of a process, or -1
	set   bool
	since time.Time // when it was set first
}

// newAlarm returns an alarm that is not set. The kernel's timer sends SIGCHLD, a signal
// for which the agent has a handler.
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

// read rings when the clock expires, until the clock is closed.
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

// arm makes the alarm ring once, after a pause or when the only process in left has run.
// It reports false if there are more processes, or the kernel has no such timer.
func (a *alarm) arm(left []process) bool {
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

// expire makes the clock expire after a time, or never if that is 0.
func (a *alarm) expire(after time.Duration) unix.Errno {
	value := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(after))}
	_, _, errno := unix.RawSyscall6(unix.SYS_TIMERFD_SETTIME, uintptr(a.fd), 0, uintptr(unsafe.Pointer(&value)), 0, 0, 0)
	return errno
}

// unset keeps the alarm from ringing.
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
