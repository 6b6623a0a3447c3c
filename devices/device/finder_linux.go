// Package device turns the devices that a sandbox asks for into what its start adds: it
// decides which device nodes, mounts, variables and links of a specification a sandbox
// gets, and refuses the others.
//
// A specification is written by root or by the user who starts the sandbox (package cdi).
// It is believed about which files a device takes, and not about the sandbox: nothing in
// it replaces a file of the sandbox, opens a service of the host, or makes anything
// writable but the device nodes.
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

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/devices/cdi"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail/pathowner"
)

// FoldersVariable has folders of specifications beside those of the standard, with colons
// between them.
const FoldersVariable = "NIX_SANDBOX_CDI"

// maxMounts bounds the mounts of a sandbox: each costs its start time.
const maxMounts = 512

// maxFlags bounds the other arguments for bubblewrap, which takes 9000 in all.
const maxFlags = 6000

// Finder finds devices of this machine. It is a [jail.DeviceFinder].
type Finder struct {
	folders []string
}

// NewFinder returns one that reads specifications in the folders of the standard, and in
// those of a value of [FoldersVariable].
func NewFinder(more string) *Finder {
	return &Finder{cdi.Folders(more)}
}

func (f *Finder) read() *cdi.Registry { return cdi.Read(f.folders, os.Geteuid()) }

// Find returns what a sandbox gets for its devices.
func (f *Finder) Find(spec *jail.Spec, request jail.Request) (*jail.DevicePlan, error) {
	return f.find(nil, spec, request)
}

// find does the same with specifications that were read, or nil.
func (f *Finder) find(registry *cdi.Registry, spec *jail.Spec, request jail.Request) (*jail.DevicePlan, error) {
	p := &planner{
		spec: spec, user: os.Geteuid(),
		plan:    &jail.DevicePlan{},
		taken:   map[string]string{},
		above:   map[string]bool{},
		folders: map[string]folder{},
		links:   map[string]string{},
		inBase:  map[string]bool{},
		own:     map[string]own{},
		free:    map[string]bool{},
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
			return nil, missing(err)
		}
	}
	if err := p.addAll(edits, nodes); err != nil {
		return nil, err
	}
	return p.plan, nil
}

// missing adds what to do to an error about names.
func missing(err error) error {
	refusal := &jail.Refusal{Problem: err.Error(), Hint: "see which names there are with nix-sandbox-mcp doctor"}
	var unknown *cdi.Unknown
	switch {
	case !errors.As(err, &unknown):
	case len(unknown.Known) > 0:
		refusal.Hint = "name one of " + strings.Join(unknown.Known, ", ")
	case len(unknown.Problems) == 0:
		refusal.Hint = fmt.Sprintf("write a specification with the vendor's generator, such as nvidia-ctk cdi generate or amd-ctk cdi generate, into %s, or name a folder of specifications in %s",
			strings.Join(unknown.Folders, ", "), FoldersVariable)
	default:
		refusal.Hint = "fix the specification, or write it again with the vendor's generator"
	}
	return refusal
}

// planner collects what one sandbox gets.
type planner struct {
	spec *jail.Spec
	user int // who starts the sandbox
	plan *jail.DevicePlan
	// reserved are paths of the sandbox that no device brings, with what is there.
	reserved []reservation
	// taken has the source of each mount and node, by its path in the sandbox.
	taken map[string]string
	// above are the folders of these paths.
	above map[string]bool
	// folders are those of the host that were opened, by their paths.
	folders map[string]folder
	// links are the symbolic links, by their paths.
	links map[string]string
	// inBase are the paths below bin, etc and usr that a device brings.
	inBase map[string]bool
	// own is what ownAt has found out, and free what isFree has.
	own   map[string]own
	free  map[string]bool
	nodes []node
	// libraries are the shared libraries that a device brings, by their paths in the
	// sandbox, with their paths on the host.
	libraries map[string]string
	// search are the folders in which programs look for libraries.
	search []string
}

type reservation struct{ path, what string }

func (p *planner) reserve(path, what string) {
	switch path {
	// These three have room for files beside the sandbox's own, and the store for
	// folders of the store.
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
		return fmt.Errorf("the devices of this sandbox bring %d files and nodes, and it takes at most %d", len(p.taken), maxMounts)
	}
	folders := p.addHooks(edits.Hooks)
	p.addLibraries(folders)
	p.addVariables(edits.Variables)
	p.addGroups(edits.Groups)
	p.finish()
	if count := len(p.plan.Before) + 3*len(p.links) + len(p.plan.After); count > maxFlags {
		return &jail.Refusal{
			Problem: fmt.Sprintf("the links and variables of this sandbox's devices are %d arguments of bubblewrap, and it takes at most %d", count, maxFlags),
			Hint:    "name fewer devices, or have fewer packages in an environment whose devices bring programs",
		}
	}
	return nil
}

// finish orders what was collected.
func (p *planner) finish() {
	for _, top := range []string{"bin", "etc", "usr"} {
		p.base("/" + top)
	}
	p.group()
	p.plan.Usable = p.usable
}

// otherBin is a second path of /bin.
const otherBin = "/usr/bin"

// base adds a folder or file of the sandbox's own below /bin, /etc or /usr: a link, or
// where a device brings something into that folder, a folder with links.
func (p *planner) base(path string) {
	own := p.spec.Devices.Base + path
	brings := false
	for brought := range p.inBase {
		brings = brings || inside(brought, path)
	}
	if brings && path == otherBin {
		p.plan.Before = append(p.plan.Before, "--symlink", "../bin", path)
		return
	}
	if !brings {
		p.plan.Before = append(p.plan.Before, "--symlink", own, path)
		return
	}
	entries, err := os.ReadDir(own)
	if err != nil {
		return // it is no folder of the sandbox's own
	}
	p.plan.Before = append(p.plan.Before, "--dir", path)
	for _, entry := range entries {
		p.base(path + "/" + entry.Name())
	}
}

// inside reports whether a path is a folder or below it.
func inside(path, folder string) bool {
	rest, found := strings.CutPrefix(path, strings.TrimSuffix(folder, "/"))
	return found && (rest == "" || rest[0] == '/')
}

// target checks a path of the sandbox at which a device brings something, and returns it
// as it is in the sandbox.
func (p *planner) target(path string) (string, error) {
	path = filepath.Clean(path)
	// The sandbox has its programs in one folder.
	for _, folder := range []string{otherBin, "/usr/sbin", "/sbin"} {
		if inside(path, folder) {
			path = "/bin" + strings.TrimPrefix(path, folder)
		}
	}
	if path == "/" || path == "/dev" || path == "/bin" || path == "/etc" || path == "/usr" {
		return "", fmt.Errorf("%s, which is a folder of the sandbox's own", path)
	}
	for _, r := range p.reserved {
		if inside(path, r.path) || inside(r.path, path) {
			return "", fmt.Errorf("%s, where the sandbox has %s", path, r.what)
		}
	}
	if inside(path, "/nix") {
		return "", fmt.Errorf("%s, and the store of a sandbox has only paths of the host's store, at their own paths", path)
	}
	for _, top := range []string{"/bin", "/etc", "/usr"} {
		if !inside(path, top) {
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

// own is what the sandbox has of its own at a path below /bin, /etc or /usr.
type own int

const (
	ownNothing own = iota
	ownFolder
	ownFile // or anything else that is no folder
)

// ownAt returns what the sandbox has of its own at a path. It asks once about each folder:
// a driver has most of its files in one, which the sandbox mostly lacks.
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

// take records that a device brings something at a path of the sandbox, and reports
// whether that is new. What another device brings as well comes once.
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

// folder is a folder of the host, as [planner.resolve] found it.
type folder struct {
	fd   int
	path string // without links
	err  error  // why what is in it cannot be had
}

// resolve returns what a path of the host leads to, without links, and its state. It goes
// the way to a folder once: a driver has most of its files in one.
func (p *planner) resolve(path string) (string, unix.Stat_t, error) {
	var stat unix.Stat_t
	path = filepath.Clean(path)
	dir, name := filepath.Split(path)
	in, known := p.folders[dir]
	if !known {
		in = p.openFolder(dir)
		p.folders[dir] = in
	}
	if in.err != nil {
		return "", stat, in.err
	}
	if name != "" {
		if err := unix.Fstatat(in.fd, name, &stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return "", stat, err
		}
		if stat.Mode&unix.S_IFMT != unix.S_IFLNK {
			return filepath.Join(in.path, name), stat, nil
		}
	}
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

var errEverybody = errors.New("everybody can have it lead elsewhere")

// openFolder opens a folder for resolve. The descriptors close with this process's image:
// they are few.
func (p *planner) openFolder(path string) folder {
	fd, err := p.open(path)
	if err != nil {
		return folder{err: err}
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return folder{err: err}
	}
	switch {
	case stat.Mode&0o002 != 0:
		return folder{err: errEverybody}
	case stat.Uid != 0 && int(stat.Uid) != p.user:
		return folder{err: fmt.Errorf("user %d can have it lead elsewhere", stat.Uid)}
	}
	real, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	return folder{fd, real, err}
}

// open opens what a path leads to, if nobody but root and the user who starts the sandbox
// can have it lead elsewhere.
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
		return 0, errEverybody
	}
	return 0, fmt.Errorf("user %d can have it lead elsewhere", slices.Min(slices.Collect(maps.Keys(deciders))))
}
