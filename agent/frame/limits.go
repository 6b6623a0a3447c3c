package frame

// Limits that every sandbox has, of what the kernel keeps for code and charges to
// no memory limit: names that [Limit] carries beside those of the metadata, and
// how many there may be.
const (
	FileLocks    = "file_locks" // POSIX locks of parts of files
	MaxFileLocks = 4096

	Terminals    = "terminals" // pseudoterminals, of which a machine has 4,096
	MaxTerminals = 64
)
