// Package protocol defines the messages between the two programs of a sandbox in a virtual machine:
// nix-sandbox-vm outside, and the machine's first process.
//
// They use virtio ports that belong to root in the machine. Three carry the standard streams of the
// jail in the machine; JSON lines go both ways over the fourth, the control port. Every byte from a
// machine is hostile: the host bounds it, and believes only that it came from this machine.
package protocol

// The names of the ports and of the disk that the host attaches.
const (
	Input   = "org.nix-sandbox-mcp.in"
	Output  = "org.nix-sandbox-mcp.out"
	Log     = "org.nix-sandbox-mcp.log"
	Control = "org.nix-sandbox-mcp.control"
	// Network carries connections (package carrier), if the sandbox has a network.
	Network   = "org.nix-sandbox-mcp.network"
	StoreDisk = "store"
	// ProjectDisk contains the image of what a [Project] shows when [Show] is requested. It exists if a
	// program is started with a [Project].
	ProjectDisk = "project"
)

// MaxLine bounds a line of the control port, in bytes.
const MaxLine = 64 << 10

// SpecFile is the path of the [Spec] in the initial RAM disk, and ModuleDir that of the kernel
// modules.
const (
	SpecFile  = "/machine.json"
	ModuleDir = "/modules"
)

// ProgramDir is the folder in the store image with the programs that a machine can
// start, descriptions of jails.
const ProgramDir = "/programs"

// The folders in the store image for the mounts of the image of [ProjectDisk], of the folders that are in it,
// by their names, and of the layers of an overlay.
const (
	ImageDir = "/image"
	ShownDir = "/shown"
	LayerDir = "/layer"
)

// The names of folders in that image. The build has names for others.
const (
	ProjectName = "project"
	InboxName   = "inbox"
)

// CertificatesName is the name of a file in ShownDir: the certificates that the program trusts.
const CertificatesName = "certificates"

// User is the user, and the group of the same number, as whom the first process starts
// such a program.
const User = 1000

// Spec is the build's description of a machine.
type Spec struct {
	// Modules are the files in ModuleDir, in the order of loading.
	Modules []string `json:"modules"`
	// MemoryMB and PIDs are the limits of the code; the machine itself has more.
	MemoryMB int64 `json:"memory_mb"`
	PIDs     int   `json:"pids"`
}

// The requests of the host.
const (
	// Start starts a program; it is asked for once.
	Start = "start"
	// Ping is answered and has no effect.
	Ping = "ping"
	// Freeze stops every process but the first one, before the machine is saved.
	Freeze = "freeze"
	// Trim zeroes free memory, so that leftovers of the start take no space in a saved machine.
	Trim = "trim"
	// Thaw gives a copy of a machine its own time and random numbers, and then continues the
	// processes, which cannot see the values of other copies.
	Thaw = "thaw"
	// Show has the program that was started with a [Project] see it.
	Show = "show"
	// Trust is answered when the program's certificates are those of its network's proxy.
	Trust = "trust"
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
	// Project describes what of the host the program shows, or is nil.
	Project *Project `json:"project,omitempty"`
	// Network says that the program has a network, over the port of this name.
	Network bool `json:"network,omitempty"`
	// Certificates says that there is the file [CertificatesName], which is empty until [Trust].
	Certificates bool `json:"certificates,omitempty"`
	// Now is the time of the host, in nanoseconds since 1970.
	Now int64 `json:"now,omitempty"`
	// Seed is 32 random bytes, for [Thaw].
	Seed []byte `json:"seed,omitempty"`
	// Mark is written by the machine for [Finish]: random bytes that were unknown in the machine
	// before.
	Mark []byte `json:"mark,omitempty"`
}

// Project says how a program shows a project and other folders of the host. They are empty until [Show], because the
// image is made at the first call, and a machine may wait long for that.
type Project struct {
	// Mounts are the absolute paths in the sandbox of the folders in the image, by their names. All but the
	// project are read-only.
	Mounts map[string]string `json:"mounts"`
	// LayerMB is the size of the layer for the code's writes into the project, in MiB; 0 makes the
	// project read-only.
	LayerMB int `json:"layer_mb,omitempty"`
}

// Answer is a line from the machine: the answer to a request, [Exited], or an error that ends the
// machine.
type Answer struct {
	// Did is the Do of the request that is answered; empty otherwise.
	Did   string `json:"did,omitempty"`
	Error string `json:"error,omitempty"`
	// Exited says that the program ended.
	Exited *Exited `json:"exited,omitempty"`
}

// Exited is how the program ended.
type Exited struct {
	Status int `json:"status"` // 128 + N if signal N ended it
}
