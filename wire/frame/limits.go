package frame

import "fmt"

// Names of the limits that a sandbox's metadata has.
const (
	Memory = "memory_mb"
	PIDs   = "pids" // processes and threads
)

// Limits of every sandbox on kernel resources that are not charged to a memory limit, or
// are counted for each user of the host.
const (
	FileLocks    = "file_locks" // POSIX locks of parts of files
	MaxFileLocks = 4096

	EpollWatches    = "epoll_watches" // file descriptors in epoll instances, epoll(7)
	MaxEpollWatches = 32_768

	Terminals    = "terminals" // pseudoterminals, of which a machine has 4,096
	MaxTerminals = 64
)

// String says that the limit was crossed.
func (l Limit) String() string {
	switch l.Name {
	case PIDs:
		return fmt.Sprintf("more than %d processes and threads", l.Value)
	case FileLocks:
		return fmt.Sprintf("held more than %d locks on files", l.Value)
	case EpollWatches:
		return fmt.Sprintf("watched more than %d files with epoll", l.Value)
	case Terminals:
		return fmt.Sprintf("opened more than %d terminals", l.Value)
	}
	return fmt.Sprintf("used more than %d MB of memory", l.Value)
}
