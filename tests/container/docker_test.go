package container_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// docker is Docker with a daemon of its own.
type docker struct{ socket string }

// firstID is the user of the machine who is root for the daemon.
const firstID = 100000

// startDocker starts a daemon in a user namespace, as Docker's rootless mode does: it makes
// no control groups, and neither bridges nor rules of the machine's network.
func startDocker(t *testing.T) docker {
	t.Helper()
	if !isLong() {
		t.Skip(longVariable + " is not set")
	}
	if os.Geteuid() != 0 {
		t.Skip("only root gives Docker a range of user IDs without a program for it")
	}
	for _, needed := range []string{"docker", "dockerd", "containerd", "runc"} {
		if _, err := exec.LookPath(needed); err != nil {
			t.Skip(needed + " is not installed")
		}
	}
	// The path to a socket is short, and all folders above it are to be passed.
	folder := must.Get(os.MkdirTemp("", "nix-sandbox-docker-"))(t)
	t.Cleanup(func() { must.Do(t, os.RemoveAll(folder)) })
	must.Do(t, os.Chown(folder, firstID, firstID))
	must.Do(t, os.Chmod(folder, 0o755))
	d := docker{filepath.Join(folder, "socket")}
	// Rootless mode wants to find this program, and starts it for ports alone.
	must.Do(t, os.Symlink("/bin/false", filepath.Join(folder, "rootlesskit-docker-proxy")))
	daemon := exec.Command("sh", "-c", `mount -t proc proc /proc && mount -t tmpfs none /run && cd "$0" && exec dockerd "$@"`, folder,
		"--rootless", "--host", "unix://"+d.socket, "--data-root", filepath.Join(folder, "data"), "--exec-root", filepath.Join(folder, "exec"), "--pidfile", filepath.Join(folder, "pid"),
		"--iptables=false", "--ip6tables=false", "--bridge=none", "--userland-proxy=false", "--storage-driver=vfs")
	daemon.Env = []string{"HOME=" + folder, "XDG_RUNTIME_DIR=" + folder, "ROOTLESSKIT_STATE_DIR=" + folder, "ROOTLESSKIT_PARENT_EUID=" + fmt.Sprint(firstID), "PATH=" + os.Getenv("PATH") + ":" + folder}
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: firstID, Size: 1 << 16}}
	daemon.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID,
		UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true,
		Credential: &syscall.Credential{}, Pdeathsig: syscall.SIGKILL,
	}
	var log bytes.Buffer
	daemon.Stdout, daemon.Stderr = &log, &log
	must.Do(t, daemon.Start())
	t.Cleanup(func() {
		// All containers are in its namespace of processes, and end with it.
		must.Do(t, daemon.Process.Kill())
		_ = daemon.Wait()
		if t.Failed() {
			t.Logf("dockerd:\n%s", &log)
		}
	})
	patience.Until(t, "dockerd answers", func() bool { return d.command(t.Context(), "version").Run() == nil })
	return d
}

func (d docker) command(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "docker", append([]string{"--host", "unix://" + d.socket}, args...)...)
}

// run runs the image with options of Podman, of which Docker has another name for one.
func (d docker) run(ctx context.Context, options []string, args ...string) *exec.Cmd {
	words := []string{"run", "--rm", "--interactive", "--network", "none"}
	for _, option := range options {
		if option == "unmask=ALL" {
			option = "systempaths=unconfined"
		}
		words = append(words, option)
	}
	return d.command(ctx, append(append(words, image), args...)...)
}

// Docker starts what Podman starts, with the options that the page has for it.
func TestImage_RunsSandboxesInDocker(t *testing.T) {
	program := os.Getenv(imageVariable)
	if program == "" {
		t.Skip(imageVariable + " does not name the program that prints the image")
	}
	d := startDocker(t)
	archive := must.Get(exec.CommandContext(t.Context(), program).Output())(t)
	loading := d.command(t.Context(), "load")
	loading.Stdin = bytes.NewReader(archive)
	if output, err := loading.CombinedOutput(); err != nil {
		t.Fatalf("docker load: %v: %s", err, output)
	}
	for name, test := range rows() {
		// Docker's daemon has the one user namespace, and this test gives it its own.
		if slices.ContainsFunc(test.options, func(option string) bool { return strings.HasPrefix(option, "--uidmap") }) {
			continue
		}
		// Docker's default profile lacks pivot_root for those too who may administer the system.
		if slices.Contains(test.options, "SYS_ADMIN") {
			test.missing = "seccomp=seccomp.json"
		}
		t.Run(name, func(t *testing.T) { test.try(t, d.run) })
	}
}
