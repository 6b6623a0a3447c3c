package cdi

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail/pathowner"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
)

const maxFiles = 256

// standardFolders are the standard's folders. Later ones win.
var standardFolders = []string{"/etc/cdi", "/var/run/cdi"}

// Folders returns the folders of specifications: the standard's, then the paths in more,
// with colons between them. A device in a later folder replaces one in an earlier folder.
func Folders(more string) []string {
	folders := slices.Clone(standardFolders)
	for _, folder := range filepath.SplitList(more) {
		if folder != "" {
			folders = append(folders, folder)
		}
	}
	return folders
}

// Registry has the devices in the specifications of a machine.
type Registry struct {
	devices map[string]device
	// Problems are sentences about files and folders that were not read, and about names
	// that two files have.
	Problems []string
}

type device struct {
	*source
	edits specs.ContainerEdits
	// conflict is another file of the same folder that has the same device, or "".
	conflict string
}

type source struct {
	file     string
	priority int
	spec     *specs.Spec
}

// Read reads the specifications in folders, for a user. A file that cannot be read or
// trusted becomes a problem of the registry, and the others count.
func Read(folders []string, user int) *Registry {
	r := &Registry{devices: map[string]device{}}
	for priority, folder := range folders {
		if err := r.readFolder(folder, priority, user); err != nil {
			r.Problems = append(r.Problems, fmt.Sprintf("%s is not read: %v", folder, err))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.devices)) {
		if d := r.devices[name]; d.conflict != "" {
			r.Problems = append(r.Problems, d.conflicting(name))
		}
	}
	return r
}

func (d device) conflicting(name string) string {
	return fmt.Sprintf("%s is in %s and in %s: remove it from one of the two", name, d.conflict, d.file)
}

func (r *Registry) readFolder(folder string, priority, user int) error {
	if !filepath.IsAbs(folder) {
		return errors.New("it is not an absolute path")
	}
	dir, err := open(folder, user, unix.S_IFDIR)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	entries, err := dir.ReadDir(maxFiles + 1)
	if len(entries) > maxFiles {
		return fmt.Errorf("it has more than %d files", maxFiles)
	}
	if err != nil && len(entries) > 0 {
		return err
	}
	slices.SortFunc(entries, func(a, b os.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
	for _, entry := range entries {
		extension := filepath.Ext(entry.Name())
		if extension != ".json" && extension != ".yaml" || entry.IsDir() {
			continue
		}
		file := filepath.Join(folder, entry.Name())
		if err := r.readFile(file, extension == ".json", priority, user); err != nil {
			r.Problems = append(r.Problems, fmt.Sprintf("%s is not read: %v", file, err))
		}
	}
	return nil
}

func (r *Registry) readFile(path string, isJSON bool, priority, user int) error {
	file, err := open(path, user, unix.S_IFREG)
	if err != nil {
		return err
	}
	defer file.Close()
	text, err := bounded.Read(file, MaxSize)
	if err != nil {
		return err
	}
	spec, err := Parse(text, isJSON)
	if err != nil {
		return err
	}
	from := &source{file: path, priority: priority, spec: spec}
	for _, d := range spec.Devices {
		name := spec.Kind + "=" + d.Name
		added := device{source: from, edits: d.ContainerEdits}
		if other, found := r.devices[name]; found && other.priority == priority {
			added.conflict = other.file
		}
		r.devices[name] = added
	}
	return nil
}

// open opens a file or a folder for reading if no users but root and user can change it.
func open(path string, user int, kind uint32) (*os.File, error) {
	fd, deciders, err := pathowner.Open(path)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, err
	}
	if stat.Mode&unix.S_IFMT != kind {
		return nil, errors.New(map[uint32]string{unix.S_IFDIR: "it is not a folder", unix.S_IFREG: "it is not a file"}[kind])
	}
	deciders[stat.Uid] = true
	delete(deciders, 0)
	delete(deciders, uint32(user))
	switch {
	case deciders[pathowner.Anybody]:
		return nil, errors.New("others may write to a folder on the way there: put it where only root and you may write")
	case len(deciders) > 0:
		other := slices.Min(slices.Collect(maps.Keys(deciders)))
		return nil, fmt.Errorf("user %d can change it, and only root and user %d are trusted: give it and the folders above it to one of them with chown", other, user)
	case stat.Mode&0o022 != 0:
		return nil, fmt.Errorf("its mode is %04o, with which others can change it: chmod go-w %s", stat.Mode&0o7777, path)
	}
	// The path may lead elsewhere by now, but the descriptor does not.
	path = "/proc/self/fd/" + strconv.Itoa(fd)
	// Package os would also ask the kernel whether the file can be polled.
	opened, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(opened), path), nil
}

// Names returns the sorted names of the devices, such as vendor.example/gpu=0.
func (r *Registry) Names() []string {
	var names []string
	for name, d := range r.devices {
		if d.conflict == "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Edits are the combined needs of several devices. Paths of the container are clean.
type Edits struct {
	Variables []string // NAME=VALUE; a later one replaces an earlier one
	Nodes     []Node
	Mounts    []Mount
	Hooks     []Hook
	Groups    []uint32 // without 0
}

// Node, Mount and Hook are entries of a specification, with its file.
type (
	Node struct {
		specs.DeviceNode
		File string
	}
	Mount struct {
		specs.Mount
		File string
	}
	Hook struct {
		specs.Hook
		File string
	}
)

// Find returns the needs of the devices with these names. If two entries have the same path
// in the container, the later one counts, as in the standard.
func (r *Registry) Find(names []string) (*Edits, error) {
	var unknown []string
	for _, name := range names {
		if _, found := r.devices[name]; !found {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		text := strings.Join(unknown, " and ") + " is in no CDI specification of this machine"
		return nil, errors.New(strings.Join(append([]string{text}, r.Problems...), "; "))
	}
	edits := &Edits{}
	begun := map[*source]bool{}
	for _, name := range names {
		d := r.devices[name]
		if d.conflict != "" {
			return nil, errors.New(d.conflicting(name))
		}
		if !begun[d.source] {
			begun[d.source] = true
			if err := edits.add(d.spec.ContainerEdits, name, d.file); err != nil {
				return nil, err
			}
		}
		if err := edits.add(d.edits, name, d.file); err != nil {
			return nil, err
		}
	}
	edits.Nodes = last(edits.Nodes, func(n Node) string { return n.Path })
	edits.Mounts = last(edits.Mounts, func(m Mount) string { return m.ContainerPath })
	return edits, nil
}

func (e *Edits) add(more specs.ContainerEdits, name, file string) error {
	// Both would change the host, as root.
	if len(more.NetDevices) > 0 {
		return fmt.Errorf("%s takes the network interface %s away from the host, as %s says, which sandboxes never do", name, more.NetDevices[0].HostInterfaceName, file)
	}
	if more.IntelRdt != nil {
		return fmt.Errorf("%s sets shares of processor caches (intelRdt), as %s says, which sandboxes never do", name, file)
	}
	e.Variables = append(e.Variables, more.Env...)
	for _, node := range more.DeviceNodes {
		added := Node{*node, file}
		added.Path = filepath.Clean(node.Path)
		e.Nodes = append(e.Nodes, added)
	}
	for _, mount := range more.Mounts {
		added := Mount{*mount, file}
		added.ContainerPath = filepath.Clean(mount.ContainerPath)
		e.Mounts = append(e.Mounts, added)
	}
	for _, hook := range more.Hooks {
		e.Hooks = append(e.Hooks, Hook{*hook, file})
	}
	for _, group := range more.AdditionalGIDs {
		if group != 0 && !slices.Contains(e.Groups, group) {
			e.Groups = append(e.Groups, group)
		}
	}
	return nil
}

// last returns, for each key, the last element of a list with that key.
func last[T any](list []T, key func(T) string) []T {
	at := make(map[string]int, len(list))
	for i, element := range list {
		at[key(element)] = i
	}
	kept := list[:0]
	for i, element := range list {
		if at[key(element)] == i {
			kept = append(kept, element)
		}
	}
	return kept
}
