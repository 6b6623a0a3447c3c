package workspace

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"path"

	"golang.org/x/sys/unix"
)

const (
	// maxFolders is how many folders a watcher watches: the kernel keeps about a kilobyte
	// for each, and bounds them for all processes of a user (inotify(7)).
	maxFolders = 4096
	// maxDirty is how many entries a watcher remembers; where more have changed, all are
	// compared.
	maxDirty = 2048
	// earlyBytes is what a watcher reads of the kernel's events at most before a call is
	// answered: a few hundred of them.
	earlyBytes = 16 << 10
	// drainBytes is more than the kernel keeps: 16,384 events with names of 255 bytes. Code
	// may make more of them while they are read.
	drainBytes = 8 << 20
)

// watched are the events that a watcher asks for. A file whose pages a process writes
// through a mapping makes none, so that every opening counts (see [Tracker.FindExposed]).
const watched = unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_OPEN | unix.IN_CLOSE_WRITE |
	unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO

// watcher learns from the kernel which entries of a workspace change, so that they need
// not all be compared.
type watcher struct {
	fd      int
	folders map[int32]string // that are watched, by the number of their watch
	// dirty has the entries that may have changed since they were compared; those that
	// are true have changed.
	dirty map[string]bool
	// lost says that more has changed than dirty has.
	lost bool
	// touched says that there were events since FindExposed asked.
	touched bool
	buffer  []byte
	// former are the folders of before, while a scan watches all of them again.
	former map[int32]string
	// broken is why a folder could not be watched.
	broken error
}

func newWatcher() (*watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch the workspace: %w", err)
	}
	// What was opened before is not known.
	return &watcher{fd: fd, dirty: map[string]bool{}, buffer: make([]byte, earlyBytes), lost: true, touched: true}, nil
}

func (w *watcher) close() { unix.Close(w.fd) }

// begin begins to watch all folders again, of which a scan calls add for each before it
// reads it. What the kernel has reported so far is forgotten.
func (w *watcher) begin() {
	w.read(drainBytes)
	clear(w.dirty)
	w.lost = false
	w.former, w.folders = w.folders, map[int32]string{}
}

// add watches a folder that is open.
func (w *watcher) add(folder string, fd int) {
	if w.broken != nil {
		return
	}
	if len(w.folders) >= maxFolders {
		w.broken = fmt.Errorf("watch the workspace: it has more than %d folders", maxFolders)
		return
	}
	number, err := unix.InotifyAddWatch(w.fd, fmt.Sprintf("/proc/self/fd/%d", fd), watched|unix.IN_ONLYDIR)
	if err != nil {
		w.broken = fmt.Errorf("watch the workspace: %w", err)
		return
	}
	delete(w.former, int32(number))
	w.folders[int32(number)] = folder
}

// end follows the scan. The error says why not all folders are watched.
func (w *watcher) end() error {
	for number := range w.former {
		_, _ = unix.InotifyRmWatch(w.fd, uint32(number)) // it may have disappeared
	}
	w.former = nil
	return w.broken
}

// read reads the events that there are, but not much more than most bytes of them. It
// reports whether it has read all.
func (w *watcher) read(most int) bool {
	for total := 0; total < most; {
		n, err := unix.Read(w.fd, w.buffer)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return true
		}
		total += n
		for events := w.buffer[:n]; len(events) >= unix.SizeofInotifyEvent; {
			// struct inotify_event: wd, mask, cookie, len, name
			number, mask := int32(binary.NativeEndian.Uint32(events)), binary.NativeEndian.Uint32(events[4:])
			end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(events[12:]))
			name, _, _ := bytes.Cut(events[unix.SizeofInotifyEvent:end], []byte{0})
			w.take(number, mask, string(name))
			events = events[end:]
		}
	}
	return false
}

func (w *watcher) take(number int32, mask uint32, name string) {
	const structure = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO
	folder, known := w.folders[number]
	switch {
	case mask&unix.IN_IGNORED != 0: // a watch has ended
		delete(w.folders, number)
	case mask&unix.IN_Q_OVERFLOW != 0 || !known:
		w.lost, w.touched = true, true
	case name == "": // the folder itself, of which the one that it lies in is told too
	case mask&unix.IN_ISDIR != 0:
		// A folder that comes, goes or has other permissions changes what is watched.
		if mask&(structure|unix.IN_ATTRIB) != 0 {
			w.lost, w.touched = true, true
		}
	default:
		w.touched = true
		w.mark(path.Join(folder, name), mask&(structure|unix.IN_MODIFY) != 0)
		if mask&structure != 0 && folder != "." {
			w.mark(folder, true)
		}
	}
}

// mark takes an entry for one that may have changed, or with changed has.
func (w *watcher) mark(name string, changed bool) {
	if len(w.dirty) >= maxDirty {
		w.lost = true
	}
	if !w.lost {
		w.dirty[name] = w.dirty[name] || changed
	}
}
