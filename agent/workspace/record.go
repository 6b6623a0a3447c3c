package workspace

import (
	"hash/maphash"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// record is what a folder is at one moment, with all that is in it. It is made so that no later change leaves all
// stamps as they are.
type record struct {
	root    uint64 // the folder's own stamp
	entries []entry
}

// entry is an entry of the folder, or of a folder in it, which comes first.
type entry struct {
	path     string // relative to the folder
	stamp    uint64
	size     int64 // of its data, in bytes
	isFolder bool
}

var seed = maphash.MakeSeed()

// stampOf hashes what stat(2) returns for an entry. The change time covers content, mode and links, and code
// cannot set it.
func stampOf(inode uint64, mode, links uint32, size, modified, changed int64) uint64 {
	return maphash.Comparable(seed, [...]int64{int64(inode), int64(mode), int64(links), size, modified, changed})
}

// coarse is the clock of change times, in ns.
func coarse() int64 {
	var now unix.Timespec
	_, _, _ = unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_REALTIME_COARSE, uintptr(unsafe.Pointer(&now)), 0)
	return now.Nano()
}

// isStill reports whether a folder, by its absolute path, is what it was. A new entry changes the folder that gets
// it, so that the known ones tell all. As in package pipe, Go's scheduler is not told of the system calls: each
// takes a microsecond, for a folder in memory.
func (r *record) isStill(folder string) bool {
	if r == nil {
		return false
	}
	path := append(make([]byte, 0, len(folder)+256), folder...)
	if !hasStamp(append(path, 0), r.root) {
		return false
	}
	path = append(path, '/')
	for i, e := range r.entries {
		if i%256 == 255 {
			runtime.Gosched() // the scheduler does not interrupt it by itself
		}
		if !hasStamp(append(append(path, e.path...), 0), e.stamp) {
			return false
		}
	}
	return true
}

// hasStamp reports whether an entry, by its path with a NUL byte at the end, has a stamp.
func hasStamp(path []byte, stamp uint64) bool {
	var st unix.Statx_t
	_, _, errno := unix.RawSyscall6(unix.SYS_STATX, 0, uintptr(unsafe.Pointer(&path[0])), unix.AT_SYMLINK_NOFOLLOW,
		unix.STATX_BASIC_STATS, uintptr(unsafe.Pointer(&st)), 0)
	return errno == 0 && stamp == stampOf(st.Ino, uint32(st.Mode), st.Nlink, int64(st.Size),
		st.Mtime.Sec*1e9+int64(st.Mtime.Nsec), st.Ctime.Sec*1e9+int64(st.Ctime.Nsec))
}

// statStamp is the stamp of an entry that stat(2) has returned.
func statStamp(st *unix.Stat_t) uint64 {
	return stampOf(st.Ino, st.Mode, uint32(st.Nlink), st.Size, st.Mtim.Nano(), st.Ctim.Nano())
}

// hasData reports whether a file has data, which a process could have mapped: to look for one takes longer
// than a short call. It is true of what is not known.
func (r *record) hasData() bool {
	return r == nil || slices.ContainsFunc(r.entries, func(e entry) bool { return e.size > 0 })
}
