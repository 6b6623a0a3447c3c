package device

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
)

// group moves mounts and links into the folders that have nothing else in them, which the
// start of a sandbox makes at once. A folder with one mount stays a mount.
func (p *planner) group() {
	folders := map[string]*jail.DeviceFolder{}
	var alone []jail.DeviceMount
	for _, mount := range p.plan.Mounts {
		top := ""
		if !mount.IsNode && !inside(mount.To, p.spec.Devices.StoreDir) {
			top = p.freeFolder(mount.To)
		}
		if top == "" {
			alone = append(alone, mount)
			continue
		}
		if folders[top] == nil {
			folders[top] = &jail.DeviceFolder{Path: top}
		}
		folders[top].Mounts = append(folders[top].Mounts, mount)
	}
	for _, top := range slices.Sorted(maps.Keys(folders)) {
		if folder := folders[top]; len(folder.Mounts) == 1 {
			alone = append(alone, folder.Mounts...)
			delete(folders, top)
		}
	}
	for _, link := range slices.Sorted(maps.Keys(p.links)) {
		made := jail.DeviceLink{Path: link, Target: p.links[link]}
		if folder := folders[p.freeFolder(link)]; folder != nil {
			folder.Links = append(folder.Links, made)
		} else {
			p.plan.Links = append(p.plan.Links, made)
		}
	}
	p.plan.Mounts = alone
	for _, top := range slices.Sorted(maps.Keys(folders)) {
		p.plan.Folders = append(p.plan.Folders, *folders[top])
	}
}

// freeFolder returns the topmost folder of a path in which the sandbox has nothing of its
// own, and "" where there is none.
func (p *planner) freeFolder(of string) string {
	for i, c := range of {
		if folder := of[:i]; c == '/' && i > 0 && p.isFree(folder) {
			return folder
		}
	}
	return ""
}

// isFree reports whether the sandbox has nothing of its own in a folder.
func (p *planner) isFree(folder string) bool {
	known, found := p.free[folder]
	if found {
		return known
	}
	top, _, _ := strings.Cut(strings.TrimPrefix(folder, "/"), "/")
	free := true
	switch "/" + top {
	case "/dev", "/nix":
		free = false
	case "/bin", "/etc", "/usr":
		free = path.Dir(folder) != "/" && p.ownAt(folder) == ownNothing
	}
	for _, r := range p.reserved {
		free = free && !inside(r.path, folder) && !inside(folder, r.path)
	}
	p.free[folder] = free
	return free
}
