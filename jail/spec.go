package jail

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/bounded"
)

// Schema is the version of [Spec] that this program reads.
const Schema = 1

// maxOOMScore is the highest value of oom_score_adj: the kernel chooses such a
// process before any other, however much memory the others have.
const maxOOMScore = 1000

// MaxSpec bounds a description, in bytes. A real one has about 3 KB.
const MaxSpec = 1 << 20

// Spec describes a sandbox. The build writes it, after a first line that
// names this program as the file's interpreter.
type Spec struct {
	Schema int `json:"schema"`
	// Bubblewrap is the absolute path of the program that makes the jail.
	Bubblewrap string `json:"bubblewrap"`
	// Seccomp is the absolute path of the system call filter, as package
	// seccomp encodes it.
	Seccomp string `json:"seccomp"`
	// Flags are given to bubblewrap before the project's mount, Seal after it.
	Flags []string `json:"flags"`
	Seal  []string `json:"seal"`
	// ProjectMount is where the project appears if the caller does not say.
	ProjectMount string `json:"project_mount"`
	// InboxMount is where the inbox appears, and is among Reserved; empty where
	// there can be none.
	InboxMount string `json:"inbox_mount,omitempty"`
	// Reserved are the paths in the sandbox where no project may appear.
	Reserved []string `json:"reserved"`
	// Binds are folders and files of the host that the sandbox sees, read-only.
	Binds []Bind `json:"binds"`
	// Masks are files of the build that the sandbox sees in place of those of
	// /proc that name the host, where the kernel has them.
	Masks []Bind `json:"masks"`
	// Variables is the absolute path of a file of environment variables, each as
	// NAME=VALUE and a zero byte, which only the build of the sandbox could find
	// out; empty where Flags set all variables.
	Variables string `json:"variables"`
	// Overlay describes how code may write into the project; nil where it may
	// not, and then NoOverlay says why.
	Overlay   *Overlay `json:"overlay"`
	NoOverlay string   `json:"no_overlay"`
	// Network describes the network of named hosts; nil where there is no network.
	Network *Network `json:"network,omitempty"`
	// Devices describes the devices of the sandbox; nil where it has none.
	Devices *Devices `json:"devices,omitempty"`
	// OOMScore is the oom_score_adj of the processes, at most and by default
	// [maxOOMScore].
	OOMScore int `json:"oom_score,omitempty"`
	// Workspace describes how several sandboxes have one workspace.
	Workspace *Workspace `json:"workspace"`
	// Command is the first process of the sandbox and its arguments.
	Command []string `json:"command"`
}

// Bind is a folder or file of the host that the sandbox sees, read-only.
type Bind struct {
	From string `json:"from"` // absolute, on the host
	To   string `json:"to"`   // absolute, in the sandbox
}

// Overlay describes the throw-away layer that takes what code writes into the
// project. The layer is a file system in memory of a fixed size, which
// bubblewrap cannot give its own overlays. So a first bubblewrap makes an outer
// namespace with the layer and the project, and a second one starts the sandbox
// in it. The layer ends with the outer namespace.
type Overlay struct {
	// Flags are those of the first bubblewrap.
	Flags []string `json:"flags"`
	// HostDir is the folder of the outer namespace below which everything is bound
	// that the sandbox sees of the host.
	HostDir string `json:"host_dir"`
	// Upper and Work are the layer's folders, in the outer namespace.
	Upper string `json:"upper"`
	Work  string `json:"work"`
	// Option and the project's mount are added after the first two arguments of
	// the command, which learns of the layer by them.
	Option string `json:"option"`
}

// Network describes how a sandbox reaches named hosts. In an outer namespace every
// address is the namespace's own. The launcher makes listening sockets there, hands
// them to a proxy outside, and starts the sandbox in that namespace. The proxy runs in
// a jail of its own and ends with the sandbox. Where the sandbox has an outer namespace
// by the flags of [Overlay] or [Workspace], it has this one by them too.
type Network struct {
	// Proxy is the absolute path of the description of the proxy's jail, a [Spec].
	Proxy string `json:"proxy"`
	// Ports are the TCP ports at which the sandbox reaches hosts.
	Ports []int `json:"ports"`
	// Secrets are those of the policy's credentials, in its order. The launcher opens
	// them for the proxy, and they reach no other process.
	Secrets []Secret `json:"secrets,omitempty"`
	// Authorities is the absolute path of a file of public certificate authorities, in
	// PEM, where the proxy ends TLS for some hosts, with an authority of the
	// sandbox's own. Certificates is the absolute path in the sandbox of the file that
	// has both. Otherwise they are empty.
	Authorities  string `json:"authorities,omitempty"`
	Certificates string `json:"certificates,omitempty"`
}

// Secret says where a secret is when a sandbox starts: in a file of the host, or in a
// variable of the launcher's environment.
type Secret struct {
	Name     string `json:"name"`
	File     string `json:"file,omitempty"` // absolute
	Variable string `json:"variable,omitempty"`
}

// Devices describes which devices of the host the sandbox has. What that means on a
// machine, only its start knows: see devices_linux.go.
type Devices struct {
	// Names are names of the Container Device Interface, such as vendor.example/gpu=0,
	// and absolute paths of device nodes.
	Names []string `json:"names"`
	// Unsafe allows nodes through which code gets out of the sandbox or stops the
	// machine, such as disks.
	Unsafe bool `json:"unsafe,omitempty"`
	// Base is the folder whose bin, etc and usr the sandbox has as its own.
	Base string `json:"base"`
	// Store is the folder that the sandbox has at /nix, and StoreDir the path of its
	// store in there.
	Store    string `json:"store"`
	StoreDir string `json:"store_dir"`
	// Flags are those of the outer namespace of a sandbox that has no other need of
	// one, and HostDir is the same folder as the one of [Overlay].
	Flags   []string `json:"flags"`
	HostDir string   `json:"host_dir"`
}

// maxDeviceNames bounds the names of devices, as the build does.
const maxDeviceNames = 64

// Workspace describes a workspace that several sandboxes have: see
// workspace_linux.go.
type Workspace struct {
	// Mount is the path of the workspace, in the holder's namespace and in sandboxes.
	Mount string `json:"mount"`
	// Holder are the flags of the holder's bubblewrap.
	Holder []string `json:"holder"`
	// Flags are those of the outer namespace of a sandbox that has no other need of
	// one, and Join are added to the flags of any: they allow this program to mount
	// the workspace at the path At.
	Flags []string `json:"flags"`
	Join  []string `json:"join"`
	At    string   `json:"at"`
	// HostDir is the same folder as the one of [Overlay].
	HostDir string `json:"host_dir"`
}

// maxPorts bounds the ports of a network. The build accepts half as many in the list of
// ports, and as many more after names.
const maxPorts = 64

// maxSecrets bounds the secrets of a network, as the build does.
const maxSecrets = 16

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

// ParseSpec reads a description: a line that starts with #!, then one JSON
// object with the fields of [Spec] and no others.
func ParseSpec(text []byte) (*Spec, error) {
	first, object, found := bytes.Cut(text, []byte("\n"))
	if !found || !bytes.HasPrefix(first, []byte("#!")) {
		return nil, errors.New("it does not start with a #! line")
	}
	return ParseObject(object)
}

// ParseObject reads a description without its first line.
func ParseObject(object []byte) (*Spec, error) {
	decoder := json.NewDecoder(bytes.NewReader(object))
	decoder.DisallowUnknownFields()
	var spec Spec
	if err := decoder.Decode(&spec); err != nil {
		return nil, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the JSON object")
	}
	if err := spec.check(); err != nil {
		return nil, err
	}
	return &spec, nil
}

func (s *Spec) check() error {
	if s.Schema != Schema {
		return fmt.Errorf("its schema is %d, this program reads schema %d", s.Schema, Schema)
	}
	if !filepath.IsAbs(s.Bubblewrap) {
		return fmt.Errorf("bubblewrap is %q, want an absolute path", s.Bubblewrap)
	}
	if !filepath.IsAbs(s.Seccomp) {
		return fmt.Errorf("seccomp is %q, want the absolute path of a filter", s.Seccomp)
	}
	if len(s.Command) == 0 || !filepath.IsAbs(s.Command[0]) {
		return fmt.Errorf("command is %q, want a program's absolute path first", s.Command)
	}
	// Without these lists a jail would be empty or open.
	if len(s.Flags) == 0 || len(s.Seal) == 0 || len(s.Reserved) == 0 {
		return errors.New("flags, seal or reserved is empty")
	}
	if s.InboxMount != "" && !slices.Contains(s.Reserved, s.InboxMount) {
		return fmt.Errorf("inbox_mount is %q, want one of the reserved paths", s.InboxMount)
	}
	if s.Variables != "" && !filepath.IsAbs(s.Variables) {
		return fmt.Errorf("variables is %q, want the absolute path of a file", s.Variables)
	}
	lists := [][]string{s.Flags, s.Seal, s.Command, {s.Bubblewrap}}
	for _, bind := range slices.Concat(s.Binds, s.Masks) {
		if !filepath.IsAbs(bind.From) || !filepath.IsAbs(bind.To) {
			return fmt.Errorf("binds has %q at %q, want absolute paths", bind.From, bind.To)
		}
		lists = append(lists, []string{bind.From, bind.To})
	}
	if o := s.Overlay; o != nil {
		if len(o.Flags) == 0 || !filepath.IsAbs(o.HostDir) || !filepath.IsAbs(o.Upper) || !filepath.IsAbs(o.Work) || o.Option == "" || len(s.Command) < 2 {
			return errors.New("overlay lacks flags, host_dir, upper, work or option")
		}
		lists = append(lists, o.Flags, []string{o.HostDir, o.Upper, o.Work, o.Option})
	}
	if n := s.Network; n != nil {
		if !filepath.IsAbs(n.Proxy) {
			return fmt.Errorf("network has the proxy %q, want an absolute path", n.Proxy)
		}
		if len(n.Ports) == 0 || len(n.Ports) > maxPorts {
			return fmt.Errorf("network has %d ports, want 1 to %d", len(n.Ports), maxPorts)
		}
		for _, port := range n.Ports {
			if port < 1 || port > math.MaxUint16 || port == portDNS {
				return fmt.Errorf("network has the port %d, want 1 to 65535 and not %d", port, portDNS)
			}
		}
		if len(n.Secrets) > maxSecrets {
			return fmt.Errorf("network has %d secrets, want at most %d", len(n.Secrets), maxSecrets)
		}
		for _, secret := range n.Secrets {
			if secret.Name == "" || (secret.Variable == "") != filepath.IsAbs(secret.File) {
				return fmt.Errorf("network has the secret %q in the file %q and the variable %q, want a name and one of them", secret.Name, secret.File, secret.Variable)
			}
		}
		if (n.Authorities != "" || n.Certificates != "") && !(filepath.IsAbs(n.Authorities) && filepath.IsAbs(n.Certificates)) {
			return fmt.Errorf("network has the authorities %q and certificates %q, want two absolute paths or none", n.Authorities, n.Certificates)
		}
		lists = append(lists, []string{n.Proxy, n.Authorities, n.Certificates})
	}
	if s.OOMScore < 0 || s.OOMScore > maxOOMScore {
		return fmt.Errorf("oom_score is %d, want 0 to %d", s.OOMScore, maxOOMScore)
	}
	if w := s.Workspace; w != nil {
		if len(w.Holder) == 0 || len(w.Flags) == 0 || len(w.Join) == 0 || !filepath.IsAbs(w.Mount) || !filepath.IsAbs(w.At) || !filepath.IsAbs(w.HostDir) {
			return errors.New("workspace lacks mount, holder, flags, join, at or host_dir")
		}
		lists = append(lists, w.Holder, w.Flags, w.Join, []string{w.Mount, w.At, w.HostDir})
	}
	if d := s.Devices; d != nil {
		if len(d.Names) == 0 || len(d.Names) > maxDeviceNames {
			return fmt.Errorf("devices has %d names, want 1 to %d", len(d.Names), maxDeviceNames)
		}
		if len(d.Flags) == 0 || !filepath.IsAbs(d.Base) || !filepath.IsAbs(d.Store) || !filepath.IsAbs(d.StoreDir) || !filepath.IsAbs(d.HostDir) {
			return errors.New("devices lacks base, store, store_dir, flags or host_dir")
		}
		lists = append(lists, d.Names, d.Flags, []string{d.Base, d.Store, d.StoreDir, d.HostDir})
	}
	for _, words := range lists {
		for _, word := range words {
			if strings.ContainsRune(word, 0) {
				return fmt.Errorf("%q has a zero byte", word)
			}
		}
	}
	return nil
}
