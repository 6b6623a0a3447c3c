package workspace

import (
	"bufio"
	"bytes"
	"os"
	"strconv"
	"strings"
)

// WritableMappings returns the inodes of the files under a folder that processes of this
// PID namespace have mapped, shared and to be written. A file that has no name any more
// is left out.
func WritableMappings(folder string) map[uint64]bool {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(0)
	var inodes map[uint64]bool
	for _, name := range names {
		if name[0] < '1' || name[0] > '9' || !mapsSharedMemory(name) {
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
// To read its status takes a tenth of the time that its list of mappings takes.
func mapsSharedMemory(pid string) bool {
	status, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return false
	}
	_, rest, found := bytes.Cut(status, []byte("RssShmem:"))
	if !found {
		return false // it has no memory of its own
	}
	line, _, _ := bytes.Cut(rest, []byte("kB"))
	return string(bytes.TrimSpace(line)) != "0"
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
