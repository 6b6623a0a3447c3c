// Package device turns the names of a sandbox's devices into a plan for its start: it
// decides which device nodes, mounts, variables and links of a specification the sandbox
// gets, and refuses the others.
//
// A specification is written by root or by the user who starts the sandbox (package cdi).
// It is trusted to name the files of a device, but it has no power over the sandbox: it
// cannot replace a file of the sandbox, open a service of the host, or make anything but
// device nodes writable.
package device

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail/devices/cdi"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail/pathowner"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/mountpoint"
)

// FoldersVariable names more folders of specifications than the standard's, with colons
// between them.
const FoldersVariable = "NIX_SANDBOX_CDI"

// maxMounts bounds the mounts of a sandbox, because each makes its start longer.
const maxMounts = 512

// maxFlags bounds the other arguments for bubblewrap, which accepts 9000 in all.
const maxFlags = 6000

// Finder finds devices of this machine. It is a [jail.DeviceFinder].
type Finder struct {
	folders []string
}

// NewFinder returns a Finder that reads specifications in the standard's folders and in
// more, a value of [FoldersVariable].
func NewFinder(more string) *Finder {
	return &Finder{cdi.Folders(more)}
}

func (f *Finder) read() *cdi.Registry { return cdi.Read(f.folders, os.Geteuid()) }

// Find implements [jail.DeviceFinder].
func (f *Finder) Find(spec *jail.Spec, request jail.Request) (*jail.DevicePlan, error) {
	return f.find(nil, spec, request)
}

// find is Find with specifications that were read, or nil to read them.
func (f *Finder) find(registry *cdi.Registry, spec *jail.Spec, request jail.Request) (*jail.DevicePlan, error) {
	p := &planner{
		spec: spec, user: os.Geteuid(),
		plan:   &jail.DevicePlan{},
		taken:  map[string]string{},
		above:  map[string]bool{},
		links:  map[string]string{},
		inBase: map[string]bool{},
		own:    map[string]own{},
	}
	for _, path := range spec.Reserved {
		p.reserve(path, "a folder of the sandbox's own")
	}
	if request.Project.Dir != "" {
		p.reserve(request.Project.Mount, "the project")
	}
	var names, nodes []string
	for _, name := range spec.Devices.Names {
		if filepath.IsAbs(name) {
			nodes = append(nodes, name)
		} else {
			names = append(names, name)
		}
	}
	edits := &cdi.Edits{}
	if len(names) > 0 {
		if registry == nil {
			registry = f.read()
		}
		var err error
		if edits, err = registry.Find(names); err != nil {
			return nil, f.missing(err, registry)
		}
	}
	if err := p.addAll(edits, nodes); err != nil {
		return nil, err
	}
	return p.plan, nil
}

// missing adds a hint to an error about names.
func (f *Finder) missing(err error, registry *cdi.Registry) error {
	refusal := &jail.Refusal{Problem: err.Error(), Hint: "fix the specification, or write it again with the vendor's generator"}
	if known := registry.Names(); len(known) > 0 {
		refusal.Hint = "name one of " + strings.Join(known, ", ")
	} else if len(registry.Problems) == 0 {
		refusal.Hint = fmt.Sprintf("write a specification with the vendor's generator, such as nvidia-ctk cdi generate or amd-ctk cdi generate, into %s, or name a folder of specifications in %s",
			strings.Join(f.folders, ", "), FoldersVariable)
	}
	return refusal
}

type planner struct {
	spec *jail.Spec
	user int // who starts the sandbox
	plan *jail.DevicePlan
	// reserved are paths of the sandbox that devices may not cover.
	reserved []reservation
	// taken has the source of each mount and node, by its path in the sandbox.
	taken map[string]string
	above map[string]bool
	// links are the targets of the symbolic links, by path.
	links map[string]string
	// inBase are the paths below bin, etc and usr that devices add.
	inBase map[string]bool
	// own caches the results of ownAt.
	own   map[string]own
	nodes []node
	// libraries are the devices' shared libraries: their paths on the host, by their paths
	// in the sandbox.
	libraries map[string]string
	// search are the folders that programs search for libraries.
	search []string
}

type reservation struct{ path, what string }

func (p *planner) reserve(path, what string) {
	switch path {
	// Devices may add files to these.
	case "/bin", "/etc", "/usr", "/nix", "/dev":
		return
	}
	p.reserved = append(p.reserved, reservation{path, what})
}

func (p *planner) note(format string, args ...any) {
	p.plan.Notes = append(p.plan.Notes, fmt.Sprintf(format, args...))
}

func (p *planner) addAll(edits *cdi.Edits, nodes []string) error {
	for _, n := range edits.Nodes {
		if err := p.addNode(n); err != nil {
			return err
		}
	}
	for _, path := range nodes {
		if err := p.addNamedNode(path); err != nil {
			return err
		}
	}
	// A folder comes before what is in it.
	slices.SortStableFunc(edits.Mounts, func(a, b cdi.Mount) int {
		return strings.Compare(a.ContainerPath, b.ContainerPath)
	})
	for _, m := range edits.Mounts {
		if err := p.addMount(m); err != nil {
			return err
		}
	}
	if len(p.taken) > maxMounts {
		return fmt.Errorf("the devices of this sandbox add %d files and nodes, want at most %d", len(p.taken), maxMounts)
	}
	folders := p.addHooks(edits.Hooks)
	p.addLibraries(folders)
	p.addVariables(edits.Variables)
	p.addGroups(edits.Groups)
	p.finish()
	if count := len(p.plan.Before) + 3*len(p.links) + len(p.plan.After); count > maxFlags {
		return &jail.Refusal{
			Problem: fmt.Sprintf("the links and variables of this sandbox's devices are %d arguments of bubblewrap, which accepts at most %d", count, maxFlags),
			Hint:    "name fewer devices, or use fewer packages in an environment with devices that add programs",
		}
	}
	return nil
}

func (p *planner) finish() {
	for _, top := range []string{"bin", "etc", "usr"} {
		p.base("/" + top)
	}
	for _, link := range slices.Sorted(maps.Keys(p.links)) {
		p.plan.Links = append(p.plan.Links, jail.DeviceLink{Path: link, Target: p.links[link]})
	}
	p.plan.Usable = p.usable
}

const otherBin = "/usr/bin"

// base adds a folder or file of the sandbox's own below /bin, /etc or /usr as a link. If a
// device adds something to the folder, it becomes a folder of links.
func (p *planner) base(path string) {
	own := p.spec.Devices.Base + path
	grows := false
	for added := range p.inBase {
		grows = grows || mountpoint.Inside(added, path)
	}
	if grows && path == otherBin {
		p.plan.Before = append(p.plan.Before, "--symlink", "../bin", path)
		return
	}
	if !grows {
		p.plan.Before = append(p.plan.Before, "--symlink", own, path)
		return
	}
	entries, err := os.ReadDir(own)
	if err != nil {
		return // the sandbox has no such folder
	}
	p.plan.Before = append(p.plan.Before, "--dir", path)
	for _, entry := range entries {
		p.base(path + "/" + entry.Name())
	}
}

// target checks the path of an addition, and returns the actual path in the sandbox.
func (p *planner) target(path string) (string, error) {
	path = filepath.Clean(path)
	// The sandbox has only one folder of programs.
	for _, folder := range []string{otherBin, "/usr/sbin", "/sbin"} {
		if mountpoint.Inside(path, folder) {
			path = "/bin" + strings.TrimPrefix(path, folder)
		}
	}
	if path == "/" || path == "/dev" || path == "/bin" || path == "/etc" || path == "/usr" {
		return "", fmt.Errorf("%s, which is a folder of the sandbox's own", path)
	}
	for _, r := range p.reserved {
		if mountpoint.Inside(path, r.path) || mountpoint.Inside(r.path, path) {
			return "", fmt.Errorf("%s, where the sandbox has %s", path, r.what)
		}
	}
	if mountpoint.Inside(path, "/nix") {
		return "", fmt.Errorf("%s, and the store of a sandbox has only paths of the host's store, at their own paths", path)
	}
	for _, top := range []string{"/bin", "/etc", "/usr"} {
		if !mountpoint.Inside(path, top) {
			continue
		}
		for part := path; part != top; part = filepath.Dir(part) {
			if own := p.ownAt(part); own == ownFile || own == ownFolder && part == path {
				return "", fmt.Errorf("%s, where the sandbox has a file of its own", path)
			}
		}
		p.inBase[path] = true
		if top == "/bin" {
			p.inBase[otherBin] = true
		}
	}
	return path, nil
}

// own says whether the sandbox itself has a file or folder at a path below /bin, /etc or
// /usr.
type own int

const (
	ownNothing own = iota
	ownFolder
	ownFile // or anything else that is not a folder
)

// ownAt returns the kind of the sandbox's own file at a path. It caches the answers,
// because a driver has most of its files in one folder, which most sandboxes lack.
func (p *planner) ownAt(path string) own {
	if known, found := p.own[path]; found {
		return known
	}
	result := ownNothing
	if parent := filepath.Dir(path); parent == "/" || p.ownAt(parent) == ownFolder {
		if info, err := os.Lstat(p.spec.Devices.Base + path); err == nil {
			result = ownFile
			if info.IsDir() {
				result = ownFolder
			}
		}
	}
	p.own[path] = result
	return result
}

// take records that a device adds something at a path of the sandbox, and reports whether
// that is new. Two devices may add the same file.
func (p *planner) take(path, from string) (isNew bool, err error) {
	for folder := path; folder != "/"; folder = filepath.Dir(folder) {
		other, found := p.taken[folder]
		switch {
		case !found:
			continue
		case other+strings.TrimPrefix(path, folder) == from:
			return false, nil
		}
		return false, fmt.Errorf("%s, where another mount shows %s", path, other)
	}
	if p.above[path] {
		return false, fmt.Errorf("%s, which is the folder of another mount", path)
	}
	p.taken[path] = from
	for folder := filepath.Dir(path); !p.above[folder]; folder = filepath.Dir(folder) {
		p.above[folder] = true
		if folder == "/" {
			break
		}
	}
	return true, nil
}

// resolve returns the target of a path of the host, without links, and its state.
func (p *planner) resolve(path string) (string, unix.Stat_t, error) {
	var stat unix.Stat_t
	fd, err := p.open(path)
	if err != nil {
		return "", stat, err
	}
	defer unix.Close(fd)
	if err := unix.Fstat(fd, &stat); err != nil {
		return "", stat, err
	}
	real, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	return real, stat, err
}

// open opens a path if only root and the user who starts the sandbox can make it lead
// elsewhere.
func (p *planner) open(path string) (int, error) {
	fd, deciders, err := pathowner.Open(path)
	if err != nil {
		return 0, err
	}
	delete(deciders, uint32(p.user))
	if len(deciders) == 0 {
		return fd, nil
	}
	unix.Close(fd)
	if deciders[pathowner.Anybody] {
		return 0, errors.New("other users can make it lead elsewhere")
	}
	return 0, fmt.Errorf("user %d can make it lead elsewhere", slices.Min(slices.Collect(maps.Keys(deciders))))
}
