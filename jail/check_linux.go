package jail

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// Files that show the kernel's features.
const (
	statusFile      = "/proc/self/status"
	fileSystemsFile = "/proc/filesystems"
)

// CheckMachine reports whether the sandbox can start on this machine, with the errors that
// its start would return. It starts only the smallest jail that bubblewrap can make, and
// leaves the machine unchanged.
func (s *Spec) CheckMachine(ctx context.Context) []Finding {
	findings := []Finding{s.bubblewrap()}
	if findings[0].OK {
		findings = append(findings, s.namespaces(ctx))
	}
	if s.Network != nil && findings[len(findings)-1].OK {
		findings = append(findings, s.network(ctx))
	}
	return append(findings, filters(statusFile), s.overlays(fileSystemsFile))
}

func (s *Spec) bubblewrap() Finding {
	_, err := exec.LookPath(s.Bubblewrap)
	if err != nil {
		err = s.notStarted(reason(err))
	}
	return needed("bubblewrap", s.Bubblewrap, err)
}

func (s *Spec) notStarted(why string) *Refusal {
	return &Refusal{
		Problem: fmt.Sprintf("start %s: %s", s.Bubblewrap, why),
		Hint:    rebuild,
	}
}

func (s *Spec) namespaces(ctx context.Context) Finding {
	return needed("user namespaces", "allowed", s.Check(ctx))
}

// network tries the start of a sandbox with a network, without the proxy and the
// sandbox.
func (s *Spec) network(ctx context.Context) Finding {
	_, err := s.readProxy()
	for _, secret := range s.Network.Secrets {
		// Variables are the server's, and bin/check may have another parent.
		if err == nil && secret.File != "" {
			var fd int
			if fd, err = secret.open(); err == nil {
				_ = unix.Close(fd)
			}
		}
	}
	if err == nil {
		err = s.tryNetwork(ctx)
	}
	return needed("network", "sandboxes can have a network of named hosts", err)
}

func filters(status string) Finding {
	f := Finding{Name: "system call filter", Needed: true, OK: true, Found: "the kernel has seccomp"}
	text, err := os.ReadFile(status)
	if err != nil || !strings.Contains(string(text), "\nSeccomp:") {
		f.OK, f.Found = false, "the kernel has no seccomp"
		f.Fix = "start a kernel with CONFIG_SECCOMP_FILTER=y, as every distribution's has"
	}
	return f
}

func (s *Spec) overlays(fileSystems string) Finding {
	f := Finding{Name: "overlay", OK: true, Found: "the kernel has it"}
	text, err := os.ReadFile(fileSystems)
	switch {
	case s.Overlay == nil:
		f.OK, f.Found = false, "a project with mode overlay does not start: "+s.NoOverlay
		f.Fix = "build the sandbox with a newer bubblewrap"
	case err != nil || !strings.Contains(string(text), "\toverlay\n"):
		f.OK, f.Found = false, "the kernel has no overlay file system loaded: a project with mode overlay does not start"
		f.Fix = "modprobe overlay; for every start: echo overlay > /etc/modules-load.d/nix-sandbox-mcp.conf"
	}
	return f
}
