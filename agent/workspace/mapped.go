package workspace

import (
	"bufio"
	"bytes"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Mappings finds what the processes of this PID namespace have mapped. It is for one
// goroutine.
type Mappings struct {
	// shared has, for each process without pages of a tmpfs, how many pages of files it
	// had then.
	shared map[string]string
}

// Writable returns the inodes of the files under a folder that processes have mapped,
// shared and to be written. A file that has no name any more is left out.
func (m *Mappings) Writable(folder string) map[uint64]bool {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(0)
	var inodes map[uint64]bool
	before := m.shared
	m.shared = map[string]string{}
	for _, name := range names {
		// Process 1 is the agent.
		if name[0] < '1' || name[0] > '9' || name == "1" || !m.mapsSharedMemory(name, before[name]) {
			continue
		}
		maps, err := os.Open("/proc/" + name + "/maps")
		if err != nil {
			continue // it has ended
		}
		lines := bufio.NewScanner(maps)
		for lines.Scan() {
			if inode, ok := writable(lines.Text(), folder); ok {
				if inodes == nil {
					inodes = map[uint64]bool{}
				}
				inodes[inode] = true
			}
		}
		maps.Close()
	}
	return inodes
}

// mapsSharedMemory reports whether a process uses pages of a tmpfs or of shared memory.
// Its number of shared pages is cheaper to read than its status, and that than its list
// of mappings: a process that had none, and has as many shared pages as then, has none.
func (m *Mappings) mapsSharedMemory(pid, before string) bool {
	var buffer [256]byte
	n := readInto("/proc/"+pid+"/statm", buffer[:])
	fields := strings.Fields(string(buffer[:n]))
	if len(fields) < 3 {
		return false // it has ended
	}
	if before != "" && fields[2] == before {
		m.shared[pid] = before
		return false
	}
	status, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return false
	}
	_, rest, found := bytes.Cut(status, []byte("RssShmem:"))
	if !found {
		return false // it has no memory of its own
	}
	line, _, _ := bytes.Cut(rest, []byte("kB"))
	if string(bytes.TrimSpace(line)) != "0" {
		return true
	}
	m.shared[pid] = fields[2]
	return false
}

// readInto reads the beginning of a file and returns its length; 0 where there is none.
func readInto(name string, buffer []byte) int {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, buffer)
	if err != nil {
		return 0
	}
	return n
}

// writable returns the inode in a line of maps, as proc_pid_maps(5) describes it, that is
// a shared mapping which can be written, of a file under a folder.
func writable(line, folder string) (inode uint64, ok bool) {
	fields := strings.Fields(line)
	if len(fields) < 6 || len(fields[1]) != 4 || fields[1][1] != 'w' || fields[1][3] != 's' || !strings.HasPrefix(fields[5], folder+"/") {
		return 0, false
	}
	inode, err := strconv.ParseUint(fields[4], 10, 64)
	return inode, err == nil
}
