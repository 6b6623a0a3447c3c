//go:build linux

package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/protocol"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/system"
)

// The mounts of a project and an inbox: code changes no device through them, and gets no rights by
// their files.
const projectFlags = unix.MS_NOSUID | unix.MS_NODEV

// makeProjectMounts makes the folders, empty so far, that the jail shows as project and inbox. Later mounts
// over them appear in the jail too, because the jail's mounts are slaves of these
// (mount_namespaces(7)).
func makeProjectMounts(project protocol.Project) error {
	for dir := range mountsIn(project) {
		if err := system.Mount("project", dir, "tmpfs", projectFlags|unix.MS_RDONLY, "mode=755,size=4k"); err != nil {
			return err
		}
		if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
			return fmt.Errorf("sharing the mount %s: %w", dir, err)
		}
	}
	return nil
}

// mountsIn returns the paths in the jail of the folders that are shown.
func mountsIn(project protocol.Project) map[string]string {
	mounts := map[string]string{protocol.ProjectDir: project.Mount, protocol.InboxDir: project.Inbox}
	maps.DeleteFunc(mounts, func(_, inside string) bool { return inside == "" })
	return mounts
}

// projectVariables returns the variables for the launcher of the jail (package jail) that describe
// project and inbox. To the jail both are read-only: an overlay is a mount over the project.
func projectVariables(project protocol.Project) (variables []string) {
	if project.Mount != "" {
		variables = append(variables, "PROJECT_DIR="+protocol.ProjectDir, "PROJECT_MOUNT="+project.Mount)
	}
	if project.Inbox != "" {
		variables = append(variables, "NIX_SANDBOX_INBOX="+protocol.InboxDir)
	}
	return variables
}

// showProject mounts the image of project and inbox for the jail to see.
func (g *groups) showProject(project protocol.Project) error {
	for dir, inside := range mountsIn(project) {
		if err := g.awaitJail(dir, inside); err != nil {
			return err
		}
	}
	disk := system.Disk(protocol.ProjectDisk)
	if disk == "" {
		return errors.New("the machine has no disk with a project")
	}
	// The kernel may have read the disk before it contained an image.
	if err := forget(disk); err != nil {
		return err
	}
	if err := system.Mount(disk, protocol.ImageDir, "erofs", projectFlags|unix.MS_RDONLY, ""); err != nil {
		return err
	}
	const shown = protocol.ImageDir + "/" + protocol.ProjectName
	if project.Inbox != "" {
		if err := system.Mount(protocol.ImageDir+"/"+protocol.InboxName, protocol.InboxDir, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	switch {
	case project.Mount == "":
		return nil
	case project.LayerMB == 0:
		return system.Mount(shown, protocol.ProjectDir, "", unix.MS_BIND, "")
	}
	const layer = protocol.LayerDir
	if err := system.Mount("layer", layer, "tmpfs", projectFlags, "mode=700,size="+strconv.Itoa(project.LayerMB)+"m"); err != nil {
		return err
	}
	const upper, work = layer + "/upper", layer + "/work"
	for _, folder := range []string{upper, work} {
		if err := os.Mkdir(folder, 0o755); err != nil {
			return err
		}
	}
	// The top folder of an overlay is that of the upper layer.
	var top unix.Stat_t
	if err := unix.Stat(shown, &top); err != nil {
		return err
	}
	if err := errors.Join(os.Chown(upper, int(top.Uid), int(top.Gid)), os.Chmod(upper, os.FileMode(top.Mode&0o777))); err != nil {
		return err
	}
	return system.Mount("project", protocol.ProjectDir, "overlay", projectFlags, "lowerdir="+shown+",upperdir="+upper+",workdir="+work)
}

// awaitJail waits until the jail exists, with a mount at a path in it that is a slave of one here.
// Earlier mounts would be read-only in the jail, because bubblewrap makes them so.
func (g *groups) awaitJail(dir, inside string) error {
	own := mountsOf("self")
	shared, found := strings.CutPrefix(own[dir].propagation, "shared:")
	if !found {
		return fmt.Errorf("%s is not shared", dir)
	}
	_, err := await("jail", func() string {
		for _, group := range []string{"agent", "code"} {
			list, err := os.ReadFile(filepath.Join(g.sandbox, group, "cgroup.procs"))
			if err != nil {
				return ""
			}
			for pid := range strings.FieldsSeq(string(list)) {
				// Bubblewrap has the machine's root until all mounts are there.
				its := mountsOf(pid)
				if its["/"].device != own["/"].device && its[inside].propagation == "master:"+shared {
					return pid
				}
			}
		}
		return ""
	})
	return err
}

type mountPoint struct {
	device      string
	propagation string // the first optional field
}

// mountsOf returns the mounts that a process sees, by their paths, or none if the process has
// ended.
func mountsOf(pid string) map[string]mountPoint {
	text, err := os.ReadFile("/proc/" + pid + "/mountinfo")
	if err != nil {
		return nil
	}
	mounts := map[string]mountPoint{}
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 6 {
			mounts[unescape.Replace(fields[4])] = mountPoint{fields[2], fields[6]}
		}
	}
	return mounts
}

// forget has the kernel read a disk anew.
func forget(disk string) error {
	file, err := os.Open(disk)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := unix.IoctlSetInt(int(file.Fd()), unix.BLKFLSBUF, 0); err != nil {
		return fmt.Errorf("having the kernel forget what it knows of %s: %w", disk, err)
	}
	return nil
}
