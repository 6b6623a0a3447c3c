package device

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail/devices/cdi"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/mountpoint"
)

// addMount adds a mount of a specification. It is read-only whatever its options say.
func (p *planner) addMount(m cdi.Mount) error {
	refuse := func(format string, args ...any) error {
		return &jail.Refusal{
			Problem: fmt.Sprintf("%s mounts %s: ", m.File, m.HostPath) + fmt.Sprintf(format, args...),
			Hint:    "write the specification again with the vendor's generator, or fix it",
		}
	}
	if m.Type != "" && m.Type != "bind" && m.Type != "none" {
		return refuse("it is a file system of the type %q, and a sandbox gets only files and folders of the host", m.Type)
	}
	from, to := filepath.Clean(m.HostPath), filepath.Clean(m.ContainerPath)
	store := p.spec.Devices.StoreDir
	if mountpoint.Inside(to, store) {
		if from != to || to == store {
			return refuse("it would be %s, and the store of a sandbox has only paths of the host's store, at their own paths", to)
		}
		return p.addStorePath(to, refuse)
	}
	if mountpoint.Inside(to, "/dev") {
		p.addNodeLinks(m, to)
		return nil
	}
	to, err := p.target(to)
	if err != nil {
		return refuse("it would be %v", err)
	}
	real, stat, err := p.resolve(from)
	if err != nil {
		return refuse("%v", err)
	}
	if real == "/" || mountpoint.Inside(real, "/proc") || mountpoint.Inside(real, "/sys") || mountpoint.Inside(real, "/dev") || mountpoint.Inside(store, real) {
		return refuse("it leads to %s, which shows the machine itself", real)
	}
	switch kind := stat.Mode & unix.S_IFMT; {
	case kind == unix.S_IFSOCK:
		// Devices work without services such as nvidia-persistenced.
		p.note("%s is not in the sandbox, because code would reach a service of the host through the socket", from)
		return nil
	case kind != unix.S_IFREG && kind != unix.S_IFDIR:
		return refuse("it is neither a folder nor a file")
	case kind == unix.S_IFDIR && mountpoint.Inside(real, "/run"):
		p.note("%s is not in the sandbox, because services of the host have their sockets in %s", from, real)
		return nil
	}
	isNew, err := p.take(to, real)
	if err != nil {
		return refuse("it would be %v", err)
	}
	if !isNew {
		return nil
	}
	p.plan.Mounts = append(p.plan.Mounts, jail.DeviceMount{From: real, To: to})
	p.addLibrary(to, real)
	return nil
}

// addStorePath adds a path of the store at its own path, with the whole folder of the store
// that contains it: the store has no secrets, and files of a folder link to each other.
func (p *planner) addStorePath(path string, refuse func(string, ...any) error) error {
	store := p.spec.Devices.StoreDir
	name, _, _ := strings.Cut(strings.TrimPrefix(path, store+"/"), "/")
	folder := store + "/" + name
	if _, err := os.Lstat(path); err != nil {
		return refuse("%v", err)
	}
	p.addLibrary(path, path)
	// The sandbox's own closure may have it.
	if _, err := os.Lstat(p.spec.Devices.Store + "/store/" + name); err == nil {
		return nil
	}
	info, err := os.Lstat(folder)
	if err != nil || !info.IsDir() {
		return refuse("%s is not a folder of the store", folder)
	}
	if isNew, err := p.take(folder, folder); !isNew {
		return err
	}
	p.plan.StoreFolders = append(p.plan.StoreFolders, name)
	p.plan.Mounts = append(p.plan.Mounts, jail.DeviceMount{From: folder, To: folder})
	return nil
}

// addNodeLinks adds links to the sandbox's nodes from a folder such as /dev/dri/by-path, if a
// specification mounts it.
func (p *planner) addNodeLinks(m cdi.Mount, to string) {
	entries, err := os.ReadDir(m.HostPath)
	if err != nil || isOwnNode(to) {
		p.note("%s is not in the sandbox: %s mounts it into /dev, which has only device nodes and links", m.HostPath, m.File)
		return
	}
	for _, entry := range entries {
		target, err := os.Readlink(filepath.Join(m.HostPath, entry.Name()))
		if err == nil && p.taken[filepath.Join(to, target)] != "" {
			p.links[filepath.Join(to, entry.Name())] = target
		}
	}
}

// addLibrary records a file if its name is that of a shared library.
func (p *planner) addLibrary(to, from string) {
	if name := filepath.Base(to); strings.HasSuffix(name, ".so") || strings.Contains(name, ".so.") {
		if p.libraries == nil {
			p.libraries = map[string]string{}
		}
		p.libraries[to] = from
	}
}

// The hooks that this package replaces, by the first of their arguments that is in this list.
const (
	hookLinks  = "create-symlinks"
	hookCache  = "update-ldcache"
	hookModes  = "chmod" // of folders in /dev, which need no change here
	linkOption = "--link"
	dirOption  = "--folder"
)

// addHooks replaces the usual hooks: it adds their links, and returns the folders with
// libraries that programs must find. Other hooks only get a note, because a hook is a
// program of the host that would run as the server's user, outside the sandbox.
func (p *planner) addHooks(hooks []cdi.Hook) (folders []string) {
	for _, hook := range hooks {
		verb := ""
		for _, arg := range hook.Args {
			if arg == hookLinks || arg == hookCache || arg == hookModes {
				verb = arg
				break
			}
		}
		switch verb {
		case hookLinks:
			for _, value := range values(hook.Args, linkOption) {
				p.addLink(value, hook)
			}
		case hookCache:
			for _, folder := range values(hook.Args, dirOption) {
				if filepath.IsAbs(folder) {
					folders = append(folders, filepath.Clean(folder))
				}
			}
		case hookModes:
		default:
			p.note("the hook %s of %s does not run: hooks are programs of the host", strings.Join(append([]string{hook.Path}, hook.Args[min(1, len(hook.Args)):]...), " "), hook.File)
		}
	}
	return folders
}

// values returns the values of an option, written as OPTION VALUE or OPTION=VALUE.
func values(args []string, option string) (found []string) {
	for i, arg := range args {
		value, isSame := strings.CutPrefix(arg, option+"=")
		switch {
		case isSame:
			found = append(found, value)
		case arg == option && i+1 < len(args):
			found = append(found, args[i+1])
		}
	}
	return found
}

// addLink adds a link, written as TARGET::LINK, unless a mount covers its path.
func (p *planner) addLink(text string, hook cdi.Hook) {
	target, link, found := strings.Cut(text, "::")
	leave := func(why any) {
		p.note("the link %q of a hook of %s is not in the sandbox: %v", text, hook.File, why)
	}
	if !found || target == "" || !filepath.IsAbs(link) || strings.ContainsAny(text, "\x00\n") || slices.Contains(strings.Split(link, "/"), "..") {
		leave("it is not TARGET::LINK")
		return
	}
	link = filepath.Clean(link)
	switch {
	case mountpoint.Inside(link, p.spec.Devices.StoreDir):
		return // the whole folder of the store is mounted, with its links
	case mountpoint.Inside(link, "/dev"):
		if isOwnNode(link) {
			leave("every sandbox has that node already")
			return
		}
	default:
		var err error
		if link, err = p.target(link); err != nil {
			leave(fmt.Sprintf("it would be %v", err))
			return
		}
	}
	for folder := link; folder != "/"; folder = filepath.Dir(folder) {
		if p.taken[folder] != "" {
			return // the mount counts
		}
	}
	p.links[link] = target
}

// driverFolder is where programs of nixpkgs look for libraries of drivers:
// addDriverRunpath.driverLink of nixpkgs.
const driverFolder = "/run/opengl-driver"

// usualFolders are the folders that loaders of distributions search without a cache.
var usualFolders = []string{"/lib", "/lib64", "/usr/lib", "/usr/lib64"}

// addLibraries lets programs find the libraries in folders and in the usual ones. It adds
// links beside them, as ldconfig does, and makes the folder that programs of nixpkgs
// search a link to theirs. The loader of nixpkgs does not read the system's cache.
func (p *planner) addLibraries(folders []string) {
	var paths []string
	count := map[string]int{}
	for _, library := range slices.Sorted(maps.Keys(p.libraries)) {
		folder := filepath.Dir(library)
		if !slices.Contains(folders, folder) && !isUsual(folder) {
			continue
		}
		paths = append(paths, library)
		if count[folder]++; count[folder] == 1 {
			p.search = append(p.search, folder)
		}
	}
	if len(paths) == 0 {
		return
	}
	// The folder with most libraries comes first.
	slices.SortStableFunc(p.search, func(a, b string) int { return count[b] - count[a] })
	for _, library := range paths {
		p.addSoname(library)
	}
	path := driverFolder + "/lib"
	if p.isTaken(driverFolder) || p.isTaken(path) || p.above[driverFolder] {
		// A specification adds that folder, as on NixOS.
		p.search = append([]string{path}, p.search...)
		return
	}
	p.links[path] = p.search[0]
	// Programs find libraries in other folders only by the variable.
	p.search[0] = path
}

// addSoname adds a link beside a library, with the name that programs load.
func (p *planner) addSoname(library string) {
	folder, name := filepath.Split(library)
	folder = filepath.Clean(folder)
	// The store, and folders that are mounted whole, have links already.
	if mountpoint.Inside(folder, p.spec.Devices.StoreDir) || p.isTaken(folder) {
		return
	}
	soname := sonameOf(p.libraries[library])
	if beside := folder + "/" + soname; soname != "" && soname != name && p.taken[beside] == "" && p.links[beside] == "" {
		p.links[beside] = name
	}
}

// isUsual reports whether the loader of a distribution searches a folder.
func isUsual(folder string) bool {
	return slices.ContainsFunc(usualFolders, func(usual string) bool {
		// Debian has a folder for each architecture.
		return folder == usual || filepath.Dir(folder) == usual && strings.HasSuffix(folder, "-linux-gnu")
	})
}

// isTaken reports whether a path is mounted, or in a mounted folder.
func (p *planner) isTaken(path string) bool {
	for ; path != "/"; path = filepath.Dir(path) {
		if p.taken[path] != "" {
			return true
		}
	}
	return false
}

// ownVariables are the sandbox's own variables: without them its programs could not be found
// or could not write.
var ownVariables = []string{"HOME", "PATH", "TMPDIR", "USER"}

const searchVariable = "LD_LIBRARY_PATH"

// addVariables adds the variables of specifications. Later ones win.
func (p *planner) addVariables(variables []string) {
	search := p.search
	for _, variable := range variables {
		name, value, _ := strings.Cut(variable, "=")
		switch {
		case slices.Contains(ownVariables, name):
			p.note("the variable %s of a specification is not set, because the sandbox has its own", name)
		case name == searchVariable:
			search = append(search, value)
		default:
			p.plan.After = append(p.plan.After, "--setenv", name, value)
		}
	}
	p.addFolders(searchVariable, search)
	// A driver may add programs, such as nvidia-smi.
	if p.inBase[otherBin] {
		p.addFolders("PATH", []string{otherBin})
	}
}

// addFolders adds folders to a variable, after the operator's own.
func (p *planner) addFolders(variable string, folders []string) {
	if len(folders) == 0 {
		return
	}
	for i, flag := range p.spec.Flags {
		if flag == "--setenv" && i+2 < len(p.spec.Flags) && p.spec.Flags[i+1] == variable {
			folders = append([]string{p.spec.Flags[i+2]}, folders...)
		}
	}
	p.plan.After = append(p.plan.After, "--setenv", variable, strings.Join(folders, ":"))
}
