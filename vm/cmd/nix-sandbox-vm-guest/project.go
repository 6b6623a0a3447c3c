//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/protocol"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/system"
)

// The mounts of folders of the host: code changes no device through them, and gets no rights by
// their files.
const projectFlags = unix.MS_NOSUID | unix.MS_NODEV

// shown is the folder here that the jail shows, by its name in the image.
func shown(name string) string { return filepath.Join(protocol.ShownDir, filepath.Base(name)) }

// makeShown makes the folder of what the jail shows, if a request has any.
func makeShown(request protocol.Request) error {
	if request.Project == nil && !request.Certificates {
		return nil
	}
	size := "64k"
	if request.Certificates {
		size = "16m"
	}
	if err := system.Mount("shown", protocol.ShownDir, "tmpfs", projectFlags, "mode=755,size="+size); err != nil {
		return err
	}
	if !request.Certificates {
		return nil
	}
	return os.WriteFile(shown(protocol.CertificatesName), nil, 0o444)
}

// makeProjectMounts makes the folders, empty so far, that the jail shows. Later mounts over them appear in the jail
// too, because the jail's mounts are slaves of these (mount_namespaces(7)).
func makeProjectMounts(project protocol.Project) error {
	for name := range project.Mounts {
		dir := shown(name)
		if err := system.Mount("project", dir, "tmpfs", projectFlags|unix.MS_RDONLY, "mode=755,size=4k"); err != nil {
			return err
		}
		if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
			return fmt.Errorf("sharing the mount %s: %w", dir, err)
		}
	}
	return nil
}

// projectVariables returns the variables for the launcher of the jail (package jail) that describe
// project and inbox. To the jail both are read-only: an overlay is a mount over the project. It knows the
// other folders from its description.
func projectVariables(project protocol.Project) (variables []string) {
	if mount := project.Mounts[protocol.ProjectName]; mount != "" {
		variables = append(variables, "PROJECT_DIR="+shown(protocol.ProjectName), "PROJECT_MOUNT="+mount)
	}
	if project.Mounts[protocol.InboxName] != "" {
		variables = append(variables, "NIX_SANDBOX_INBOX="+shown(protocol.InboxName))
	}
	return variables
}

// showProject mounts the image of the folders for the jail to see.
func (g *groups) showProject(project protocol.Project) error {
	for name, inside := range project.Mounts {
		switch err := g.awaitJail(shown(name), inside); {
		case errors.Is(err, errEnded):
			return nil // its status and its log say why
		case err != nil:
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
	for name := range project.Mounts {
		if name == protocol.ProjectName && project.LayerMB != 0 {
			continue
		}
		if err := system.Mount(filepath.Join(protocol.ImageDir, filepath.Base(name)), shown(name), "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	if project.LayerMB == 0 {
		return nil
	}
	const lower, layer = protocol.ImageDir + "/" + protocol.ProjectName, protocol.LayerDir
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
	if err := unix.Stat(lower, &top); err != nil {
		return err
	}
	if err := errors.Join(os.Chown(upper, int(top.Uid), int(top.Gid)), os.Chmod(upper, os.FileMode(top.Mode&0o777))); err != nil {
		return err
	}
	return system.Mount("project", shown(protocol.ProjectName), "overlay", projectFlags, "lowerdir="+lower+",upperdir="+upper+",workdir="+work)
}

var errEnded = errors.New("the program has ended")

// awaitJail waits until the jail exists, with a mount at a path in it that is a slave of one here.
// Earlier mounts would be read-only in the jail, because bubblewrap makes them so.
func (g *groups) awaitJail(dir, inside string) error {
	own := mountsOf("self")
	shared, isShared := strings.CutPrefix(own[dir].propagation, "shared:")
	if !isShared {
		return fmt.Errorf("%s is not shared", dir)
	}
	const ended = "ended"
	found, err := await("jail", func() string {
		left := false
		for _, group := range []string{"agent", "code"} {
			list, err := os.ReadFile(filepath.Join(g.sandbox, group, "cgroup.procs"))
			if err != nil {
				return ""
			}
			for pid := range strings.FieldsSeq(string(list)) {
				left = true
				// Bubblewrap has the machine's root until all mounts are there.
				its := mountsOf(pid)
				if its["/"].device != own["/"].device && its[inside].propagation == "master:"+shared {
					return pid
				}
			}
		}
		if !left {
			return ended
		}
		return ""
	})
	if found == ended {
		return errEnded
	}
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
