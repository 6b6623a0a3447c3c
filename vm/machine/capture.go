package machine

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/protocol"
)

var errUncapturable = errors.New("this virtual machine was not started to be captured")

// Capture freezes the processes of the machine and writes the state of its devices, and the memory
// pages that it has written to, to two new files. If Capture succeeds, the machine is paused until
// [Machine.Continue]; after an error it continues if it can. rest writes the other pages of the
// memory, at any time.
//
// No frame may be on its way into the machine: it would be lost. The machine must be capturable, or
// have begun with a state.
func (m *Machine) Capture(memory, state *os.File) (rest func() error, err error) {
	if m.memory == nil {
		return nil, errUncapturable
	}
	if err := m.Ask(protocol.Request{Do: protocol.Freeze}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			if stuck := m.Continue(); stuck != nil {
				err = fmt.Errorf("%w, and the virtual machine does not go on: %w", err, stuck)
			}
		}
	}()
	if err := m.Pause(); err != nil {
		return nil, err
	}
	if err := m.qmp.saveDevices(state); err != nil {
		return nil, err
	}
	if err := memory.Truncate(m.size); err != nil {
		return nil, err
	}
	table, err := m.pages()
	if err != nil {
		return nil, err
	}
	if err := table.copyOwn(memory); err != nil {
		return nil, err
	}
	return func() error { return table.copyOthers(memory, m.memory) }, nil
}

// Continue continues a paused machine and its processes.
func (m *Machine) Continue() error {
	if _, err := m.qmp.execute("cont", nil); err != nil {
		return err
	}
	return m.Thaw(time.Now())
}

const pageSize = 4096

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

// part is how many pages are copied at once.
const part = 256

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

var zeros [pageSize]byte

// writeSparse writes those pages that are not zero to a new file.
func writeSparse(to *os.File, pages []byte, at int64) error {
	isZero := func(at int) bool { return string(pages[at:at+pageSize]) == string(zeros[:]) }
	for from := 0; from < len(pages); {
		end := from
		for end < len(pages) && !isZero(end) {
			end += pageSize
		}
		if end > from {
			if _, err := to.WriteAt(pages[from:end], at+int64(from)); err != nil {
				return err
			}
		}
		for from = end; from < len(pages) && isZero(from); from += pageSize {
		}
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

func duplicate(file *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), file.Name()), nil
}
