// Package protocol is what the two programs of a sandbox in a virtual machine say to
// each other: nix-sandbox-vm outside, and the machine's first process.
//
// They speak over virtio ports that belong to root in the machine. Three carry the
// standard streams of the jail in the machine; JSON lines go both ways over the
// fourth, the control port. What comes out of a machine is hostile: the host bounds
// it, and believes nothing but that it came from this machine.
package protocol

// The names of the ports and of the disk that the host attaches.
const (
	Input     = "org.nix-sandbox-mcp.in"
	Output    = "org.nix-sandbox-mcp.out"
	Log       = "org.nix-sandbox-mcp.log"
	Control   = "org.nix-sandbox-mcp.control"
	StoreDisk = "store"
	// ProjectDisk has the image of the project when [Show] is asked for. It is there
	// where a program is started with a [Project].
	ProjectDisk = "project"
)

// MaxLine bounds a line of the control port, in bytes.
const MaxLine = 64 << 10

// SpecFile is where the first process finds its [Spec] in the initial RAM disk, and
// ModuleDir the kernel modules.
const (
	SpecFile  = "/machine.json"
	ModuleDir = "/modules"
)

// ProgramDir is the folder in the store image with the programs that a machine can
// start, descriptions of jails.
const ProgramDir = "/programs"

// The folders in the store image at which the first process mounts the project, and what
// an overlay consists of.
const (
	ProjectDir = "/project"
	LayerDir   = "/layer"
)

// User is the user, and the group of the same number, as whom the first process starts
// such a program.
const User = 1000

// Spec is what the build decides about a machine.
type Spec struct {
	// Modules are the files in ModuleDir, in the order of loading.
	Modules []string `json:"modules"`
	// MemoryMB and PIDs are what the code may have; the machine itself has more.
	MemoryMB int64 `json:"memory_mb"`
	PIDs     int   `json:"pids"`
}

// What the host asks for.
const (
	// Start starts a program; it is asked for once.
	Start = "start"
	// Ping is answered, and does nothing.
	Ping = "ping"
	// Freeze stops every process but the first one, before the machine is saved.
	Freeze = "freeze"
	// Trim fills the memory that nothing uses with zeros, so that a machine that is saved
	// takes no space for what its start has left there.
	Trim = "trim"
	// Thaw gives a copy of a machine the time and random numbers of its own, and then
	// has the processes go on: none of them sees the others.
	Thaw = "thaw"
	// Show has the program that was started with a [Project] see it.
	Show = "show"
	// SetClock sets the time, when the machine stood still.
	SetClock = "clock"
	// Finish has the machine write Mark to the output and the log when the program has
	// ended: all that the program wrote is before it.
	Finish = "finish"
)

// Request is a line from the host.
type Request struct {
	Do string `json:"do"`
	// Program is the name of the program to start, in ProgramDir.
	Program string `json:"program,omitempty"`
	// Ports says that the program gets the ports for its input and output and not pipes.
	// It is for an agent, which lets no code have them: each byte that another process
	// carries costs an emulated processor 2 switches to the memory of another process.
	Ports bool `json:"ports,omitempty"`
	// Project is what it shows of a project; nil where there is none.
	Project *Project `json:"project,omitempty"`
	// StartFactor is how many times longer than usual a start may take.
	StartFactor int `json:"start_factor,omitempty"`
	// Now is the time of the host, in nanoseconds since 1970.
	Now int64 `json:"now,omitempty"`
	// Seed is 32 random bytes, for [Thaw].
	Seed []byte `json:"seed,omitempty"`
	// Mark is what [Finish] has the machine write: random bytes, which nothing in the
	// machine knew before.
	Mark []byte `json:"mark,omitempty"`
}

// Project says how a program shows a project. The folder is empty until [Show], because
// the image is that of the moment of the first call, for which a machine may wait long.
type Project struct {
	Mount string `json:"mount"` // absolute, in the sandbox
	// LayerMB is the size of the layer that takes what code writes into the project, in
	// MiB; 0 where code may not write.
	LayerMB int `json:"layer_mb,omitempty"`
}

// Answer is a line from the machine: the answer to a request, [Exited], or an error
// for which the machine ends.
type Answer struct {
	// Did is the Do of the request that is answered; empty otherwise.
	Did   string `json:"did,omitempty"`
	Error string `json:"error,omitempty"`
	// Exited says that the program ended.
	Exited *Exited `json:"exited,omitempty"`
}

// Exited is how the program ended.
type Exited struct {
	Status int `json:"status"` // 128 + N where signal N ended it
}
