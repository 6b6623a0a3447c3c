// Package guest defines the messages between the host and the test machine. The
// host's request is a file in the machine's initial RAM disk; the machine answers
// with a sequence of JSON messages on one virtio-serial port.
//
// The port belongs to root in the machine. The command that is tested runs as an
// ordinary user and reaches the host only as the bytes of Message.Output.
package guest

// The names of the devices that the host attaches: the virtio-serial port, the
// disk that becomes /nix/store, the one that becomes /tests, and the one with the
// Debian of [Systemd].
const (
	Port       = "org.nix-sandbox-mcp.test"
	StoreDisk  = "store"
	FilesDisk  = "files"
	DebianDisk = "debian"
)

// RequestFile is where the machine finds its request, and ModuleDir where it finds
// the kernel modules that the request names.
const (
	RequestFile = "/request.json"
	ModuleDir   = "/modules"
)

// RenderNode is the device node of the virtual graphics card, and RenderGroup the group
// that it belongs to; the user is in that group.
const (
	RenderNode  = "/dev/dri/renderD128"
	RenderGroup = 109
)

// ID is the user and the group that the command runs as.
const ID = 1000

// A Mode says what an ordinary user of the machine may do.
type Mode string

const (
	// Delegate gives the user a subtree of cgroups with the controllers cpu,
	// memory and pids, as systemd does for a user's manager.
	Delegate Mode = "delegate"
	// NoDelegate gives the user no cgroup to write to.
	NoDelegate Mode = "no-delegate"
	// NoUserns gives no cgroup and forbids user namespaces.
	NoUserns Mode = "no-userns"
	// Restricted is NoDelegate under an AppArmor profile that forbids user namespaces to programs without a
	// profile of their own, as Ubuntu does.
	Restricted Mode = "restricted"
	// Systemd boots a small Debian. Its systemd manages the user's services, and
	// the command runs in a cgroup that is root's, as in a login session.
	Systemd Mode = "systemd"
)

// A Request says what the machine does.
type Request struct {
	Mode    Mode     `json:"mode"`
	Modules []string `json:"modules"` // file names in ModuleDir, in the order of loading
	Time    int64    `json:"time"`    // seconds since 1970; the machine's own clock may be absent
	GPU     bool     `json:"gpu"`     // there is a virtual graphics card
	Files   bool     `json:"files"`   // a second disk is to be mounted at /tests
	Folder  string   `json:"folder"`  // where the command starts; the user's home where it is empty
	Path    []string `json:"path"`    // folders for PATH
	Env     []string `json:"env"`     // NAME=VALUE, added to the machine's own
	Command []string `json:"command"` // the program is looked up on PATH
	// Policy is compiled AppArmor profiles, in the mode Restricted alone. The command starts under the one
	// named [RestrictedProfile].
	Policy []byte `json:"policy"`
	// Places holds the text of files of Debian's, by their paths, in the mode
	// Systemd alone. A socket unit among them is started with the machine.
	Places map[string]string `json:"places"`
}

// RestrictedProfile is the profile of users in the mode [Restricted].
const RestrictedProfile = "restricted"

// A Message is one line from the machine: first Up, then Output as it comes, at
// last Ended.
type Message struct {
	Up     bool   `json:"up,omitempty"`
	Output []byte `json:"output,omitempty"`
	Ended  *Ended `json:"ended,omitempty"`
}

// Ended says how the command ended.
type Ended struct {
	Status int      `json:"status"`          // exit status; 128 + the signal that killed it
	Left   []string `json:"left,omitempty"`  // processes of the user that were still there, at most 20
	Error  string   `json:"error,omitempty"` // why the command could not be run
}
