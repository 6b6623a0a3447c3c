package workspace

import (
	"bufio"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// FindExposed returns the files under a folder that the processes of this PID namespace
// may write without opening them. Threads that have descriptors of their own are not
// asked.
func FindExposed(folder string) (found Exposed) {
	var root unix.Stat_t
	proc, err := os.Open("/proc")
	if err != nil || unix.Stat(folder, &root) != nil {
		return found
	}
	defer proc.Close()
	found = Exposed{map[uint64]bool{}, map[uint64]bool{}}
	names, _ := proc.Readdirnames(0)
	for _, name := range names {
		// Process 1 is the agent.
		if name[0] < '1' || name[0] > '9' || name == "1" {
			continue
		}
		addOpen(found.Open, "/proc/"+name+"/fd", root.Dev)
		maps, err := os.Open("/proc/" + name + "/maps")
		if err != nil {
			continue // it has ended
		}
		lines := bufio.NewScanner(maps)
		for lines.Scan() {
			if inode, ok := writable(lines.Text(), folder); ok {
				found.Mapped[inode] = true
			}
		}
		maps.Close()
	}
	return found
}

// addOpen adds the inodes of regular files of a device that a process has open for
// writing. Fds is the folder of its descriptors, as proc_pid_fd(5) describes it.
func addOpen(inodes map[uint64]bool, fds string, device uint64) {
	dir, err := os.Open(fds)
	if err != nil {
		return
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(0)
	for _, name := range names {
		var link, file unix.Stat_t
		if unix.Fstatat(int(dir.Fd()), name, &link, unix.AT_SYMLINK_NOFOLLOW) != nil || link.Mode&unix.S_IWUSR == 0 {
			continue
		}
		if unix.Fstatat(int(dir.Fd()), name, &file, 0) == nil && file.Dev == device && file.Mode&unix.S_IFMT == unix.S_IFREG {
			inodes[file.Ino] = true
		}
	}
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
