// Package container_test runs the image of nix/lib/mkImage.nix in containers, and
// shows what these need so that sandboxes start in them.
package container_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// imageVariable names the program that prints the image of image.nix.
const imageVariable = "NIX_SANDBOX_TEST_IMAGE"

const (
	image = "nix-sandbox-mcp-test:test"
	// localImage is its name for Podman.
	localImage = "localhost/" + image
)

// What docs/serving.md and docs/troubleshooting.md tell people to give a container.
var (
	lowered = []string{"--cap-drop", "ALL", "--security-opt", "no-new-privileges"}
	profile = []string{"--security-opt", "seccomp=" + seccompProfile()}
	proc    = []string{"--security-opt", "unmask=ALL"}
)

func seccompProfile() string {
	path, err := filepath.Abs("../../dist/deploy/seccomp.json")
	if err != nil {
		panic(err)
	}
	return path
}

// podman is Podman with a store of its own. Its containers are in no control group of
// the machine: crun makes none where it sees version 2 of them, and it is shown an
// instance of that in a mount namespace which ends with it.
type podman struct{ folder string }

func (p podman) command(ctx context.Context, args ...string) *exec.Cmd {
	words := []string{
		"--mount", "--propagation", "private", "sh", "-c", `mount -t cgroup2 none /sys/fs/cgroup && exec podman "$@"`, "podman",
		"--root", filepath.Join(p.folder, "root"), "--runroot", filepath.Join(p.folder, "run"), "--tmpdir", filepath.Join(p.folder, "tmp"),
		"--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--runtime", "crun",
	}
	return exec.CommandContext(ctx, "unshare", append(words, args...)...)
}

func (p podman) run(ctx context.Context, options []string, args ...string) *exec.Cmd {
	words := []string{
		"run", "--rm", "--interactive", "--cgroups", "disabled", "--network", "none",
		// Podman raises these to more than this user's own limits.
		"--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024",
	}
	words = append(append(words, options...), localImage)
	return p.command(ctx, append(words, args...)...)
}

func load(t *testing.T) podman {
	t.Helper()
	program := os.Getenv(imageVariable)
	if program == "" {
		t.Skip(imageVariable + " does not name the program that prints the image")
	}
	if os.Geteuid() != 0 {
		t.Skip("only root gives podman a mount namespace of its own")
	}
	for _, needed := range []string{"podman", "crun", "unshare"} {
		if _, err := exec.LookPath(needed); err != nil {
			t.Skip(needed + " is not installed")
		}
	}
	p := podman{folder: t.TempDir()}
	printed := exec.CommandContext(t.Context(), program)
	archive := must.Get(printed.StdoutPipe())(t)
	loading := p.command(t.Context(), "load")
	loading.Stdin = archive
	var output bytes.Buffer
	loading.Stdout, loading.Stderr = &output, &output
	must.Do(t, printed.Start())
	if err := loading.Run(); err != nil {
		t.Fatalf("podman load: %v: %s", err, &output)
	}
	must.Do(t, printed.Wait())
	return p
}

// longVariable has the tests run with options too that nobody is told to use, and in Docker.
const longVariable = "NIX_SANDBOX_TEST_LONG"

// row is what a container is given, and whether sandboxes start in it.
type row struct {
	options []string // those of Podman
	// What doctor says is missing; empty where sandboxes start.
	missing string
	isLong  bool
}

func rows() map[string]row {
	root := []string{"--user", "0"}
	// A user namespace of the container's own, as a pod has with hostUsers: false.
	namespace := []string{"--uidmap", "0:100000:65536", "--gidmap", "0:100000:65536", "--security-opt", "seccomp=unconfined"}
	return map[string]row{
		"user 1000 without capabilities": {options: slices.Concat(lowered, profile, proc)},
		"no filter of the container's":   {options: slices.Concat(lowered, proc, []string{"--security-opt", "seccomp=unconfined"})},
		"the default profile":            {options: slices.Concat(lowered, proc), missing: "seccomp=seccomp.json"},
		"a masked /proc":                 {options: slices.Concat(lowered, profile), missing: "unmask=ALL"},
		"root without capabilities":      {options: slices.Concat(lowered, profile, proc, root), missing: "KILL"},

		"no options":                          {isLong: true, missing: "seccomp=seccomp.json"},
		"root without options":                {isLong: true, options: root, missing: "seccomp=seccomp.json"},
		"root that may administer the system": {isLong: true, options: slices.Concat(root, proc, []string{"--cap-add", "SYS_ADMIN"})},
		"a user namespace":                    {isLong: true, options: slices.Concat(lowered, proc, namespace)},
		"root in a user namespace":            {isLong: true, options: slices.Concat(lowered, proc, namespace, root), missing: "KILL"},
	}
}

func isLong() bool { return os.Getenv(longVariable) != "" }

func TestImage_RunsSandboxes(t *testing.T) {
	p := load(t)
	for name, test := range rows() {
		t.Run(name, func(t *testing.T) {
			if test.isLong && !isLong() {
				t.Skip(longVariable + " is not set")
			}
			test.try(t, p.run)
		})
	}
}

// try runs a server and doctor in containers of the row. The function run returns the
// command that runs the image with options and arguments.
func (r row) try(t *testing.T, run func(ctx context.Context, options []string, args ...string) *exec.Cmd) {
	t.Helper()
	// Podman and Docker copy the image for each container.
	ctx, cancel := context.WithTimeout(t.Context(), 5*patience.Long)
	defer cancel()
	answer := call(ctx, t, run(ctx, r.options))
	// By its name, as with `podman exec`.
	named := slices.Concat(r.options, []string{"--entrypoint", "nix-sandbox-mcp"})
	report := must.Get(doctor(ctx, run(ctx, named, "doctor")))(t)
	if r.missing == "" {
		if answer.IsError || answer.Text() != "42 1000\n" {
			t.Errorf("run answered %q", answer.Text())
		}
		if !strings.Contains(report, "Sandboxes work here.") {
			t.Errorf("doctor found:\n%s", report)
		}
		return
	}
	if !answer.IsError {
		t.Errorf("a sandbox started, and run answered %q", answer.Text())
	}
	if !strings.Contains(report, r.missing) {
		t.Errorf("doctor does not name %q:\n%s", r.missing, report)
	}
}

// call asks a server in a container to run code.
func call(ctx context.Context, t *testing.T, cmd *exec.Cmd) mcpclient.Answer {
	t.Helper()
	client := must.Get(mcpclient.Start(cmd, func(fault string) { t.Error(fault) }))(t)
	defer func() { must.Do(t, client.Close(ctx)) }()
	must.Get(client.Initialize(ctx, "2025-11-25", "container"))(t)
	arguments := mcpclient.Arguments{Env: "bash", Code: "echo $((6 * 7)) $(id -u)"}
	reply := must.Get(client.Call(ctx, "tools/call", mcpclient.RunParams(arguments)))(t)
	return must.Get(reply.Answer())(t)
}

// doctor returns what the command doctor prints, which has another exit status than 0
// where something is missing. Errors are part of it: they say why a container printed nothing else.
func doctor(ctx context.Context, cmd *exec.Cmd) (string, error) {
	output, err := cmd.CombinedOutput()
	if cmd.ProcessState != nil && cmd.ProcessState.Exited() {
		err = nil
	}
	return string(output), err
}
