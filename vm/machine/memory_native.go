//go:build linux && !posix

package machine

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/host"
)

// ownMemory returns the file that a machine maps for itself, and the caller closes it. Its pages are copied when the
// machine writes to them.
func ownMemory(from *os.File) (*os.File, error) { return host.Duplicate(from) }

// privately says that the machine's writes do not reach the file of [ownMemory].
const privately = true

// copyMemory writes to a file the pages of a machine that are its own; rest writes the others.
func (m *Machine) copyMemory(to *os.File) (rest func() error, err error) {
	table, err := m.pages()
	if err != nil {
		return nil, err
	}
	if err := table.copyOwn(to); err != nil {
		return nil, err
	}
	return func() error { return table.copyOthers(to, m.memory) }, nil
}

// pageTable tells which pages of a machine's memory are its own. The others are those of the file
// that it began with.
type pageTable struct {
	pid    int
	start  uintptr // of the memory, in QEMU
	size   int64   // bytes
	states []byte  // eight bytes a page (Documentation/admin-guide/mm/pagemap.rst of the kernel)
}

// pages finds the memory in QEMU, which this process may read because it has started it.
func (m *Machine) pages() (*pageTable, error) {
	t := &pageTable{pid: int(m.qmp.pid.Load()), size: m.size}
	var status unix.Stat_t
	if err := unix.Fstat(int(m.memory.Fd()), &status); err != nil {
		return nil, err
	}
	process := "/proc/" + strconv.Itoa(t.pid)
	maps, err := os.Open(process + "/maps")
	if err != nil {
		return nil, fmt.Errorf("find the virtual machine's memory: %w", err)
	}
	defer maps.Close()
	if t.start, err = findMapping(maps, status.Ino, t.size); err != nil {
		return nil, err
	}
	pagemap, err := os.Open(process + "/pagemap")
	if err != nil {
		return nil, fmt.Errorf("read which pages are the virtual machine's own: %w", err)
	}
	defer pagemap.Close()
	t.states = make([]byte, t.size/pageSize*8)
	if _, err := pagemap.ReadAt(t.states, int64(t.start)/pageSize*8); err != nil {
		return nil, fmt.Errorf("read which pages are the virtual machine's own: %w", err)
	}
	return t, nil
}

// findMapping returns the address at which a process has mapped a file of a size: once, from its
// beginning, and perhaps in several consecutive parts.
func findMapping(maps io.Reader, inode uint64, size int64) (start uintptr, err error) {
	var end uintptr
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 || fields[4] != strconv.FormatUint(inode, 10) {
			continue
		}
		var from, to uintptr
		if _, err := fmt.Sscanf(fields[0], "%x-%x", &from, &to); err != nil {
			return 0, err
		}
		if end == 0 {
			start, end = from, from
		}
		if from != end {
			return 0, errors.New("the virtual machine's memory is mapped more than once")
		}
		end = to
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	if int64(end-start) != size {
		return 0, fmt.Errorf("the virtual machine has mapped %d bytes of memory, not %d", end-start, size)
	}
	return start, nil
}

// isOwn reports whether the machine has its own copy of a page: the page is present or swapped out,
// and not the file's.
func (t *pageTable) isOwn(page int64) bool {
	state := binary.NativeEndian.Uint64(t.states[page*8:])
	return state>>62 != 0 && state>>61&1 == 0
}

// run returns the end of the pages that are own, or not, like the one at from: at most
// limit of them.
func (t *pageTable) run(from, limit int64) (to int64) {
	own := t.isOwn(from)
	for to = from + 1; to < min(from+limit, t.size/pageSize) && t.isOwn(to) == own; to++ {
	}
	return to
}

// copiers is how many threads copy memory: one does not saturate the memory bus.
const copiers = 2

// copyOwn copies the pages that are the machine's own, which stands still.
func (t *pageTable) copyOwn(to *os.File) error {
	var (
		next    atomic.Int64
		workers sync.WaitGroup
		errs    [copiers]error
	)
	const share = 16 * part
	for i := range copiers {
		workers.Go(func() {
			buffer := make([]byte, part*pageSize)
			for errs[i] == nil {
				from := next.Add(share) - share
				if from >= t.size/pageSize {
					return
				}
				errs[i] = t.copyOwnOf(to, from, min(from+share, t.size/pageSize), buffer)
			}
		})
	}
	workers.Wait()
	return cmp.Or(errs[:]...)
}

func (t *pageTable) copyOwnOf(to *os.File, from, end int64, buffer []byte) error {
	for from < end {
		next := t.run(from, min(part, end-from))
		if t.isOwn(from) {
			piece := buffer[:(next-from)*pageSize]
			n, err := unix.ProcessVMReadv(t.pid,
				[]unix.Iovec{{Base: &piece[0], Len: uint64(len(piece))}},
				[]unix.RemoteIovec{{Base: t.start + uintptr(from*pageSize), Len: len(piece)}}, 0)
			if err == nil && n != len(piece) {
				err = io.ErrUnexpectedEOF
			}
			if err != nil {
				return fmt.Errorf("read the virtual machine's memory: %w", err)
			}
			if err := writeSparse(to, piece, from*pageSize); err != nil {
				return err
			}
		}
		from = next
	}
	return nil
}

// copyOthers copies the pages that the machine has no copy of, from the file that it began with.
func (t *pageTable) copyOthers(to, from *os.File) error {
	buffer := make([]byte, part*pageSize)
	for at := int64(0); at < t.size; {
		data, err := unix.Seek(int(from.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, syscall.ENXIO) {
			return nil // nothing but a hole follows
		}
		if err != nil {
			return err
		}
		hole, err := unix.Seek(int(from.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		for page := data / pageSize; page < (hole+pageSize-1)/pageSize; {
			next := t.run(page, part)
			if !t.isOwn(page) {
				piece := buffer[:(next-page)*pageSize]
				if _, err := from.ReadAt(piece, page*pageSize); err != nil {
					return err
				}
				if err := writeSparse(to, piece, page*pageSize); err != nil {
					return err
				}
			}
			page = next
		}
		at = hole
	}
	return nil
}

// emptyMemory makes a file for the memory of a machine that begins with none. It is unlinked and
// sparse, so it takes no space if the machine's memory is private.
func emptyMemory(size int64) (*os.File, error) {
	fd, err := unix.MemfdCreate("memory", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file for the virtual machine's memory: %w", err)
	}
	file := os.NewFile(uintptr(fd), "memory")
	if err := file.Truncate(size); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// identify has the kernel name the process that writes to a monitor's connection, because bubblewrap starts QEMU.
func identify(connection *net.UnixConn) error {
	raw, err := connection.SyscallConn()
	if err != nil {
		return err
	}
	controlErr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1) })
	return errors.Join(controlErr, err)
}

// Read reads from the connection, and takes note of who has written.
func (q *monitor) Read(p []byte) (int, error) {
	sender := make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	n, rights, _, _, err := q.connection.ReadMsgUnix(p, sender)
	if n == 0 && err == nil {
		err = io.EOF
	}
	messages, _ := unix.ParseSocketControlMessage(sender[:rights])
	for i := range messages {
		if credentials, err := unix.ParseUnixCredentials(&messages[i]); err == nil {
			q.pid.Store(int64(credentials.Pid))
		}
	}
	return n, err
}
