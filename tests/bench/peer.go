package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// peers are the other ways to run an artifact's interpreter in isolation. The
// script `peers` in this folder installs them; one that is missing or does
// not work here is a gap in the table.
func peers(a artifact, w workload, folder, temp string, env []string) []*command {
	each := []*command{
		sandboxRuntime(a, folder, temp),
		gvisor(a),
		crun(a, temp),
		podman(a, temp),
	}
	for _, c := range each {
		c.code, c.want, c.hold, c.env = w.code, w.want, w.hold, env
	}
	return each
}

// sandboxRuntime is Anthropic's, from npm.
func sandboxRuntime(a artifact, folder, temp string) *command {
	program := filepath.Join(folder, "node_modules", ".bin", "srt")
	return &command{
		name: "sandbox-runtime (srt)",
		prepare: func(context.Context) error {
			if _, err := exec.LookPath(program); err != nil {
				return errors.New("not installed; tests/bench/peers installs it")
			}
			return nil
		},
		argv: func(code string) []string {
			// Its own words are a shell's, so the code is quoted.
			line := strings.Join([]string{a.interpreter, option(a.language), quote(code)}, " ")
			return []string{program, "-c", line}
		},
	}
}

// gvisor is runsc in its simplest form: the machine's files, read-only, under
// a kernel of its own.
func gvisor(a artifact) *command {
	return &command{
		name:    "gVisor (runsc do)",
		prepare: installed("runsc"),
		argv: func(code string) []string {
			return []string{"runsc", "--network=none", "do", a.interpreter, option(a.language), code}
		},
	}
}

// crun runs an OCI bundle that holds the artifact's closure and nothing else.
func crun(a artifact, temp string) *command {
	folder := filepath.Join(temp, "crun-"+a.language)
	var calls int
	c := &command{name: "container (crun)"}
	// The code is a part of a bundle's description, so each has its bundle.
	place := func(code string) string {
		if code == c.hold {
			return filepath.Join(folder, "hold")
		}
		return filepath.Join(folder, "call")
	}
	c.prepare = func(ctx context.Context) error {
		return errors.Join(installed("crun")(ctx),
			bundle(place(c.code), a, c.code), bundle(place(c.hold), a, c.hold))
	}
	c.argv = func(code string) []string {
		calls++
		return hybrid("crun", "--cgroup-manager=disabled", "--root", filepath.Join(folder, "state"),
			"run", "--bundle", place(code), fmt.Sprintf("bench-%d-%d", os.Getpid(), calls))
	}
	return c
}

// podman runs the same root file system with podman, which starts crun.
func podman(a artifact, temp string) *command {
	root := filepath.Join(temp, "podman-"+a.language)
	c := &command{name: "container (podman run)"}
	c.prepare = func(ctx context.Context) error {
		if err := installed("podman")(ctx); err != nil {
			return err
		}
		return rootFolder(root)
	}
	c.argv = func(code string) []string {
		return hybrid("podman", "--cgroup-manager=cgroupfs", "--runtime=crun", "run", "--rm", "--cgroups=disabled",
			"--network=none", "--log-driver=none", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024",
			"--volume="+a.tree+":/nix:ro", "--rootfs", root,
			filepath.Join(a.path, programs[a.language]), option(a.language), code)
	}
	return c
}

// hybrid puts a command into a mount namespace of its own that shows cgroup
// v2 alone, on machines that have both versions: crun refuses those. It costs
// about two milliseconds.
func hybrid(argv ...string) []string {
	const unified = "/sys/fs/cgroup/unified"
	if _, err := os.Stat(unified); err != nil {
		return argv
	}
	return append([]string{"unshare", "--mount", "--propagation=private", "sh", "-c",
		"mount --rbind " + unified + ` /sys/fs/cgroup && exec "$@"`, "-"}, argv...)
}

func installed(program string) func(context.Context) error {
	return func(context.Context) error {
		if _, err := exec.LookPath(program); err != nil {
			return errors.New("not installed; tests/bench/peers installs it")
		}
		return nil
	}
}

// rootFolder makes a root file system without files: mount points only.
func rootFolder(root string) error {
	for _, name := range []string{"proc", "dev", "sys", "tmp", "etc", "nix", "run"} {
		if err := os.MkdirAll(filepath.Join(root, name), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// bundle makes an OCI bundle: no network, no capability, the same namespaces
// as a jail's.
func bundle(folder string, a artifact, code string) error {
	if err := rootFolder(filepath.Join(folder, "root")); err != nil {
		return err
	}
	type object = map[string]any
	mount := func(at, kind, source string, options ...string) object {
		return object{"destination": at, "type": kind, "source": source, "options": options}
	}
	var namespaces []object
	for _, kind := range []string{"pid", "network", "ipc", "uts", "mount"} {
		namespaces = append(namespaces, object{"type": kind})
	}
	text, err := json.Marshal(object{
		"ociVersion": "1.0.0",
		"process": object{
			"args":            []string{filepath.Join(a.path, programs[a.language]), option(a.language), code},
			"env":             []string{"PATH=" + a.path, "LANG=C.UTF-8"},
			"cwd":             "/",
			"user":            object{"uid": 0, "gid": 0},
			"noNewPrivileges": true,
			"capabilities":    object{},
		},
		"root": object{"path": "root", "readonly": true},
		"mounts": []object{
			mount("/proc", "proc", "proc"),
			mount("/dev", "tmpfs", "tmpfs", "nosuid", "mode=755"),
			mount("/tmp", "tmpfs", "tmpfs", "nosuid", "nodev", "size=64m"),
			mount("/nix", "bind", a.tree, "bind", "ro"),
		},
		"linux": object{"namespaces": namespaces},
	})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "config.json"), text, 0o644)
}

// option is how an interpreter takes code on its command line.
func option(language string) string {
	if language == "node" {
		return "-e"
	}
	return "-c"
}

func quote(s string) string {
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
