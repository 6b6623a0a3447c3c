package jail

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
)

// Schema is the version of [Spec] that this package reads.
const Schema = 1

// maxOOMScore is the highest oom_score_adj: the kernel kills such a process before any
// other, however much memory the others use.
const maxOOMScore = 1000

// MaxSpec bounds a description, in bytes. A real one has about 3 KB.
const MaxSpec = 1 << 20

// Spec describes a sandbox. The build writes it after a #! line that names the
// launcher.
type Spec struct {
	Schema int `json:"schema"`
	// Seatbelt is the absolute path of a profile of macOS (sandbox-exec(1)), in place of everything else but Command.
	Seatbelt string `json:"seatbelt,omitempty"`
	// Bubblewrap is the absolute path of the program that makes the jail.
	Bubblewrap string `json:"bubblewrap"`
	// AppArmor is the absolute path of a profile that lets the launcher make user namespaces. An
	// administrator may load it. It may be empty.
	AppArmor string `json:"apparmor,omitempty"`
	// Seccomp is the absolute path of the system call filter, as package
	// seccomp encodes it.
	Seccomp string `json:"seccomp"`
	// Flags are given to bubblewrap before the project's mount, Seal after it.
	Flags []string `json:"flags"`
	Seal  []string `json:"seal"`
	// ProjectMount is where the project appears if the caller does not say.
	ProjectMount string `json:"project_mount"`
	// InboxMount is where the inbox appears. It is among Reserved, and empty if the
	// sandbox can have no inbox.
	InboxMount string `json:"inbox_mount,omitempty"`
	// Reserved are the paths in the sandbox that a project may not cover.
	Reserved []string `json:"reserved"`
	// Binds are folders and files of the host that the sandbox sees, read-only.
	Binds []Bind `json:"binds"`
	// Masks are files of the build that cover files of /proc which identify the host.
	Masks []Bind `json:"masks"`
	// Variables is the absolute path of a file of environment variables that were found
	// by a build: NAME=VALUE, each followed by a zero byte. It may be empty.
	Variables string `json:"variables"`
	// Overlay describes how code may write to the project. If it is nil, code may not,
	// and NoOverlay says why.
	Overlay   *Overlay `json:"overlay"`
	NoOverlay string   `json:"no_overlay"`
	// Network describes the network of named hosts; nil means no network.
	Network *Network `json:"network,omitempty"`
	// Devices describes the sandbox's devices of the host; nil means no devices.
	Devices *Devices `json:"devices,omitempty"`
	// OOMScore is the processes' oom_score_adj; 0 means [maxOOMScore].
	OOMScore int `json:"oom_score,omitempty"`
	// Workspace describes how several sandboxes share a workspace.
	Workspace *Workspace `json:"workspace"`
	// Command is the first process of the sandbox and its arguments.
	Command []string `json:"command"`
}

// Bind is a folder or file of the host that the sandbox sees, read-only.
type Bind struct {
	From string `json:"from"` // absolute, on the host
	To   string `json:"to"`   // absolute, in the sandbox
}

// Overlay describes the temporary layer over the project that code writes to. The layer
// is a file system in memory of a fixed size, and bubblewrap's own overlays have no size.
// So a first bubblewrap makes an outer namespace with the layer and the project, and a
// second one starts the sandbox in it. The layer ends with the outer namespace.
type Overlay struct {
	// Flags are the first bubblewrap's.
	Flags []string `json:"flags"`
	// HostDir is the folder of the outer namespace that has the host's files which the
	// sandbox sees.
	HostDir string `json:"host_dir"`
	// Upper and Work are the layer's folders, in the outer namespace.
	Upper string `json:"upper"`
	Work  string `json:"work"`
	// Option and the project's mount point, inserted after the first two words of the
	// command, tell the agent about the layer.
	Option string `json:"option"`
}

// Network describes how a sandbox reaches named hosts. In an outer namespace every
// address is local. The launcher opens listening sockets there, hands them to a proxy
// outside, and starts the sandbox in that namespace. The proxy runs in a jail of its own
// and ends with the sandbox. If the flags of [Overlay] or [Workspace] make an outer
// namespace anyway, it is that one.
type Network struct {
	// Proxy is the absolute path of the [Spec] of the proxy's jail. It is empty in a virtual machine, where the first
	// process takes the sockets in place of a proxy.
	Proxy string `json:"proxy,omitempty"`
	// Ports are the TCP ports of hosts that the sandbox reaches.
	Ports []int `json:"ports"`
	// Secrets belong to the policy's credentials, in their order. The launcher opens
	// them for the proxy, and no other process gets them.
	Secrets []Secret `json:"secrets,omitempty"`
	// Authorities and Certificates are set if the proxy ends TLS for some hosts, with a
	// certificate authority of the sandbox's own. Authorities is the absolute path of a
	// PEM file of public authorities; Certificates is the absolute path, in the sandbox,
	// of a file with these and the sandbox's own.
	Authorities  string `json:"authorities,omitempty"`
	Certificates string `json:"certificates,omitempty"`
}

// Secret names the place of a secret when a sandbox starts: a file of the host, or a
// variable of the launcher's environment.
type Secret struct {
	Name     string `json:"name"`
	File     string `json:"file,omitempty"` // absolute
	Variable string `json:"variable,omitempty"`
}

// Devices names the devices of the host that the sandbox has. A [DeviceFinder] looks
// them up when it starts.
type Devices struct {
	// Names are names of the Container Device Interface, such as vendor.example/gpu=0,
	// and absolute paths of device nodes.
	Names []string `json:"names"`
	// Unsafe allows nodes, such as disks, that let code out of the sandbox or stop the
	// machine.
	Unsafe bool `json:"unsafe,omitempty"`
	// Base has the sandbox's own bin, etc and usr.
	Base string `json:"base"`
	// Store is the folder that appears at /nix, and StoreDir the path of the store in
	// the sandbox.
	Store    string `json:"store"`
	StoreDir string `json:"store_dir"`
	// Flags make the outer namespace if the sandbox needs one for its devices alone.
	// HostDir is the same folder as in [Overlay].
	Flags   []string `json:"flags"`
	HostDir string   `json:"host_dir"`
}

// Workspace describes a workspace that several sandboxes share: see workspace_linux.go.
type Workspace struct {
	// Mount is the path of the workspace, in the holder's namespace and in sandboxes.
	Mount string `json:"mount"`
	// Holder are the flags of the holder's bubblewrap.
	Holder []string `json:"holder"`
	// Layer is added to them if the project is an overlay. It makes the folders of
	// [Overlay] and lets the holder mount the overlay at Project.
	Layer []string `json:"layer"`
	// Flags make the outer namespace if the sandbox needs one for the workspace alone.
	// Join is added to the flags of every outer namespace: it lets the launcher mount
	// the workspace at At.
	Flags []string `json:"flags"`
	Join  []string `json:"join"`
	At    string   `json:"at"`
	// Project is the path of the project's overlay, in the holder's namespace and in outer
	// ones.
	Project string `json:"project"`
	// HostDir is the same folder as in [Overlay].
	HostDir string `json:"host_dir"`
}

// ReadSpec reads the description in a file.
func ReadSpec(name string) (*Spec, error) {
	text, err := bounded.ReadFile(name, MaxSpec)
	if err != nil {
		return nil, fmt.Errorf("read the sandbox's description: %w", err)
	}
	spec, err := ParseSpec(text)
	if err != nil {
		return nil, &Refusal{
			Problem: fmt.Sprintf("%s does not describe a sandbox: %v", name, err),
			Hint:    "build the sandbox again with mkSandbox",
		}
	}
	return spec, nil
}

// ParseSpec reads a description: a line that starts with #!, then one JSON object with
// only the fields of [Spec].
func ParseSpec(text []byte) (*Spec, error) {
	first, object, found := bytes.Cut(text, []byte("\n"))
	if !found || !bytes.HasPrefix(first, []byte("#!")) {
		return nil, errors.New("it does not start with a #! line")
	}
	return ParseObject(object)
}

// ParseObject reads a description without its first line.
func ParseObject(object []byte) (*Spec, error) {
	var spec Spec
	if err := bounded.JSON(object, &spec); err != nil {
		return nil, err
	}
	if err := spec.check(); err != nil {
		return nil, err
	}
	return &spec, nil
}

// check refuses a description that would make no jail, or an open one. The build has checked the
// rest.
func (s *Spec) check() error {
	if s.Schema != Schema {
		return fmt.Errorf("its schema is %d, this program reads schema %d", s.Schema, Schema)
	}
	program := ""
	if len(s.Command) > 0 {
		program = s.Command[0]
	}
	paths := [][2]string{{"bubblewrap", s.Bubblewrap}, {"seccomp", s.Seccomp}, {"command[0]", program}}
	if runtime.GOOS == "darwin" {
		paths = [][2]string{{"seatbelt", s.Seatbelt}, {"command[0]", program}}
	}
	for _, field := range paths {
		if !filepath.IsAbs(field[1]) {
			return fmt.Errorf("%s is %q, want an absolute path", field[0], field[1])
		}
	}
	if runtime.GOOS == "darwin" {
		return nil
	}
	lists := [][]string{s.Flags, s.Seal, s.Reserved}
	if o := s.Overlay; o != nil {
		lists = append(lists, o.Flags)
	}
	if w := s.Workspace; w != nil {
		lists = append(lists, w.Holder, w.Layer, w.Flags, w.Join)
	}
	if d := s.Devices; d != nil {
		lists = append(lists, d.Names, d.Flags)
	}
	if slices.ContainsFunc(lists, func(list []string) bool { return len(list) == 0 }) {
		return errors.New("flags, seal, reserved or a list of overlay, workspace or devices is empty")
	}
	return nil
}
