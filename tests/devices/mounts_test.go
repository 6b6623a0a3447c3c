package devices_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// describe has code write what is in the folders to which devices bring something: each
// file with its mode, owner and contents, each mount with its options, and what cannot be
// changed.
const describe = `
import json, os, stat
r = {"files": {}, "mounts": {}, "changed": []}
tops = ("/dev", "/opt", "/usr/lib")
for line in open("/proc/self/mountinfo"):
    fields, more = line.split(" - ")
    path, options = fields.split()[4:6]
    if path.startswith(tops):
        r["mounts"][path] = sorted(options.split(","))
def attempt(path, change):
    try:
        change()
        r["changed"].append(path)
    except OSError:
        pass
for top in tops:
    for folder, folders, files in os.walk(top):
        for name in folders + files:
            path = os.path.join(folder, name)
            s = os.lstat(path)
            entry = [oct(s.st_mode), s.st_uid, s.st_gid, s.st_rdev]
            if stat.S_ISLNK(s.st_mode):
                entry.append(os.readlink(path))
            elif stat.S_ISREG(s.st_mode):
                entry.append(open(path).read())
                attempt(path, lambda: open(path, "r+"))
                attempt(path, lambda: os.chmod(path, 0o777))
            r["files"][path] = entry
        if folder != "/dev/shm":
            attempt(folder, lambda: open(folder + "/made", "w"))
r["zeros"] = open("/dev/gpu/zero", "rb").read(2) == bytes(2)
open("/dev/gpu/null", "w").write("x")
print(json.dumps(r))
`

// As describe writes it.
type described struct {
	Files   map[string][]any
	Mounts  map[string][]string
	Changed []string
	Zeros   bool
}

// startFrom starts a program from a thread of its own, after prepare has changed what
// belongs to that thread, as a user where that is not 0.
func (m machine) startFrom(program, code string, user int, prepare func() error, environ ...string) (out, errs string, status int) {
	m.t.Helper()
	cmd := exec.CommandContext(m.t.Context(), program)
	cmd.Env = append([]string{"NIX_SANDBOX_CDI=" + m.dir + "/cdi"}, environ...)
	cmd.Dir = "/"
	cmd.Stdin = strings.NewReader(code)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if user != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(user), Gid: uint32(user)}}
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and the thread ends with this
		done <- errors.Join(prepare(), cmd.Run())
	}()
	if err := <-done; err != nil && cmd.ProcessState == nil {
		m.t.Fatal(err)
	}
	return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
}

// Mounts of devices are read-only, keep the host's restrictions and cannot be changed, for
// every user who starts a sandbox.
func TestDevices_Mounts(t *testing.T) {
	users := []int{os.Geteuid()}
	if users[0] == 0 {
		users = append(users, 1000)
	}
	m := newMachine(t)
	for _, name := range []string{"lib/libone.so.1", "lib/libtwo.so.2.1", "opt/tool", "share/text", "noexec/libthree.so.3"} {
		m.file(name, "the text of "+name)
	}
	must.Do(t, os.MkdirAll(filepath.Join(m.dir, "share/inner"), 0o755))
	m.link("/dev/zero", "dev/zero")
	m.link("/dev/null", "dev/null")
	m.link("../zero", "dev/by-path/card")
	m.specification("gpu.yaml", `
cdiVersion: 0.5.0
kind: vendor.example/gpu
devices:
- name: hostile
  containerEdits:
    mounts:
    - {hostPath: DIR/opt/tool, containerPath: /opt/vendor/tool}
    - {hostPath: DIR/share, containerPath: /opt/vendor/share}
    - {hostPath: /proc, containerPath: /opt/vendor/proc}
- name: all
  containerEdits:
    deviceNodes:
    - {path: /dev/gpu/zero, hostPath: DIR/dev/zero}
    - {path: /dev/gpu/null, hostPath: DIR/dev/null}
    mounts:
    - {hostPath: DIR/lib/libone.so.1, containerPath: /usr/lib/x86_64-linux-gnu/libone.so.1}
    - {hostPath: DIR/lib/libtwo.so.2.1, containerPath: /usr/lib/x86_64-linux-gnu/libtwo.so.2.1, options: [rw]}
    - {hostPath: DIR/noexec/libthree.so.3, containerPath: /usr/lib/vendor/libthree.so.3}
    - {hostPath: DIR/opt/tool, containerPath: /opt/vendor/tool}
    - {hostPath: DIR/share, containerPath: /opt/vendor/share, options: [rw, rbind]}
    - {hostPath: DIR/dev/by-path, containerPath: /dev/gpu/by-path}
    hooks:
    - {hookName: createContainer, path: /bin/x, args: [x, create-symlinks, --link, "libtwo.so.2.1::/usr/lib/x86_64-linux-gnu/libtwo.so"]}
`)
	program := m.sandbox("run", []string{"vendor.example/gpu=all"}, nil)
	hostile := m.sandbox("run", []string{"vendor.example/gpu=hostile"}, nil)
	for _, folder := range []string{filepath.Dir(program), filepath.Dir(hostile)} {
		must.Do(t, os.Chmod(folder, 0o755))
	}
	// Mounts of the host whose own options stay, and a mount in a folder that is shown.
	mounts := func() error {
		if users[0] != 0 {
			return nil
		}
		return errors.Join(
			unix.Unshare(unix.CLONE_NEWNS),
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount(m.dir+"/noexec", m.dir+"/noexec", "", unix.MS_BIND, ""),
			unix.Mount("", m.dir+"/noexec", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NOEXEC|unix.MS_NOATIME, ""),
			unix.Mount("inner", m.dir+"/share/inner", "tmpfs", 0, "mode=777,size=64k"),
			os.WriteFile(m.dir+"/share/inner/file", []byte("inner"), 0o666))
	}
	run := func(user int) described {
		t.Helper()
		out, errs, status := m.startFrom(program, describe, user, mounts)
		var r described
		if status != 0 || errs != "" || json.Unmarshal([]byte(out), &r) != nil {
			t.Fatalf("user %d: status %d: %s%s", user, status, out, errs)
		}
		return r
	}
	for _, user := range users {
		seen := run(user)
		if len(seen.Changed) > 0 || !seen.Zeros {
			t.Errorf("user %d: code has changed %q, and reads zeros from the node: %v", user, seen.Changed, seen.Zeros)
		}
		for path, want := range map[string][]string{
			"/usr/lib/x86_64-linux-gnu/libone.so.1":   {"ro", "nosuid", "nodev"},
			"/usr/lib/x86_64-linux-gnu/libtwo.so.2.1": {"ro", "nosuid", "nodev"},
			"/usr/lib/vendor/libthree.so.3":           {"ro", "nosuid", "nodev", "noexec", "noatime"},
			"/opt/vendor/share":                       {"ro", "nosuid", "nodev"},
			"/opt/vendor/share/inner":                 {"ro", "nosuid", "nodev"},
			"/dev":                                    {"ro", "nosuid", "nodev"},
			"/dev/gpu/zero":                           {"nosuid"},
		} {
			if users[0] != 0 && (strings.Contains(path, "inner") || strings.Contains(path, "vendor/lib")) {
				continue
			}
			got := seen.Mounts[path]
			for _, option := range want {
				if !slices.Contains(got, option) {
					t.Errorf("user %d: %s has the options %q, want %q", user, path, got, want)
				}
			}
			if strings.HasPrefix(path, "/dev/gpu") && slices.Contains(got, "nodev") {
				t.Errorf("user %d: %s cannot be a device node: %q", user, path, got)
			}
		}
		if got := seen.Files["/usr/lib/x86_64-linux-gnu/libtwo.so"]; len(got) != 5 || got[4] != "libtwo.so.2.1" {
			t.Errorf("user %d: the link of a hook is %q", user, got)
		}
		if out, errs, status := m.startFrom(hostile, describe, user, mounts); status != 125 || out != "" || !strings.Contains(errs, "shows the machine itself") {
			t.Errorf("user %d: with a hostile specification: status %d: %s%s", user, status, out, errs)
		}
	}
}

// withLibraries is a machine that has a device of a node and two files.
func withLibraries(t *testing.T) machine {
	t.Helper()
	m := newMachine(t)
	m.file("lib/libone.so.1", "one")
	m.file("lib/libtwo.so.2", "two")
	m.link("/dev/zero", "dev/zero")
	m.specification("gpu.yaml", `
cdiVersion: 0.5.0
kind: vendor.example/gpu
devices:
- name: all
  containerEdits:
    deviceNodes:
    - {path: /dev/gpu, hostPath: DIR/dev/zero}
    mounts:
    - {hostPath: DIR/lib/libone.so.1, containerPath: /usr/lib/libone.so.1}
    - {hostPath: DIR/lib/libtwo.so.2, containerPath: /usr/lib/libtwo.so.2}
`)
	return m
}

// A sandbox with mounts of devices ends with the launcher, and the launcher with the status
// of the code.
func TestDevices_LauncherIsTheSandboxsParent(t *testing.T) {
	m := withLibraries(t)
	program := m.sandbox("run", []string{"vendor.example/gpu=all"}, nil)
	if out, errs, status := m.start(program, "import sys; sys.exit(7)"); status != 7 || out+errs != "" {
		t.Errorf("status %d: %s%s, want the code's 7", status, out, errs)
	}
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = []string{"NIX_SANDBOX_CDI=" + m.dir + "/cdi"}
	cmd.Stdin = strings.NewReader("print('started', flush=True); import time; time.sleep(3600)")
	output := must.Get(cmd.StdoutPipe())(t)
	must.Do(t, cmd.Start())
	lines := bufio.NewReader(output)
	if line, err := lines.ReadString('\n'); line != "started\n" {
		t.Errorf("the code writes %q, %v", line, err)
	}
	must.Do(t, cmd.Process.Kill())
	// Every process of the sandbox has this output open.
	if rest, err := io.ReadAll(lines); err != nil || len(rest) > 0 {
		t.Errorf("after the launcher's end: %q, %v", rest, err)
	}
	_ = cmd.Wait() // says that it was killed
}

// Beside the files of devices, the sandbox shows every other file of the host, read-only.
func TestDevices_MountsBesideFilesOfTheHost(t *testing.T) {
	m := withLibraries(t)
	for name, text := range map[string]string{
		"project/file": "of the project", "inbox/file": "of the inbox", "folder/file": "of a folder", "alone": "a file",
	} {
		must.Do(t, os.Chmod(m.file(name, text), 0o644))
	}
	program := m.sandbox("run", []string{"vendor.example/gpu=all"}, func(spec *jail.Spec) {
		spec.Binds = []jail.Bind{{From: m.dir + "/folder", To: "/extra/folder"}, {From: m.dir + "/alone", To: "/extra/alone"}}
	})
	const code = `
for path in ("/project/file", "/inbox/file", "/extra/folder/file", "/extra/alone", "/usr/lib/libone.so.1"):
    print(path, open(path).read())
    try:
        open(path, "r+")
        print("can be written to")
    except OSError:
        pass
`
	const want = `/project/file of the project
/inbox/file of the inbox
/extra/folder/file of a folder
/extra/alone a file
/usr/lib/libone.so.1 one
`
	out, errs, status := m.start(program, code, "PROJECT_DIR="+m.dir+"/project", "NIX_SANDBOX_INBOX="+m.dir+"/inbox")
	if status != 0 || errs != "" {
		t.Fatalf("status %d: %s", status, errs)
	}
	if diff := cmp.Diff(want, out); diff != "" {
		t.Error(diff)
	}
}

// Root shows the sandbox a project that only its owner may read, and what /sys has about a
// device is there as well.
func TestDevices_KernelFilesBesideProjectFromRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root shows a sandbox's user what another user owns")
	}
	m := withLibraries(t)
	project := t.TempDir()
	file := filepath.Join(project, "file")
	must.Write(t, file, "of the project", 0o600)
	must.Do(t, errors.Join(os.Chmod(project, 0o700), os.Chown(file, 1000, 1000), os.Chown(project, 1000, 1000)))
	const card = "/sys/devices/pci0000:00/card"
	// What the kernel of a machine with a card has, for the numbers of /dev/zero.
	withCard := func() error {
		errs := errors.Join(emptySys(), os.MkdirAll("/sys/kernel", 0o755), os.MkdirAll("/sys/fs", 0o755),
			os.MkdirAll(card+"/drm/renderD128", 0o755), os.MkdirAll("/sys/class/drm", 0o755), os.MkdirAll("/sys/dev/char", 0o755),
			os.WriteFile(card+"/uevent", []byte("DRIVER=made-up"), 0o444))
		for path, target := range map[string]string{
			card + "/drm/renderD128/device":    card,
			card + "/drm/renderD128/subsystem": "/sys/class/drm",
			"/sys/class/drm/renderD128":        card + "/drm/renderD128",
			"/sys/dev/char/1:5":                card + "/drm/renderD128",
		} {
			errs = errors.Join(errs, os.Symlink(target, path))
		}
		return errs
	}
	const code = `
import os
for path in ("/sys/class/drm/renderD128/device/uevent", "/project/file"):
    print(open(path).read() if os.path.exists(path) else "nothing")
print(*sorted(os.listdir("/sys")) if os.path.exists("/sys") else [])
`
	program := m.sandbox("run", []string{"vendor.example/gpu=all"}, nil)
	for _, test := range []struct {
		name    string
		prepare func() error
		environ []string
		want    string
	}{
		{"a card and no project", withCard, nil, "DRIVER=made-up\nnothing\nclass dev devices\n"},
		{"a card and a project", withCard, []string{"PROJECT_DIR=" + project}, "DRIVER=made-up\nof the project\nclass dev devices\n"},
		{"a card and an overlay", withCard, []string{"PROJECT_DIR=" + project, "PROJECT_MODE=overlay"}, "DRIVER=made-up\nof the project\nclass dev devices\n"},
		{"a project where no sysfs is mounted", emptySys, []string{"PROJECT_DIR=" + project}, "nothing\nof the project\n\n"},
	} {
		out, errs, status := m.startFrom(program, code, 0, test.prepare, test.environ...)
		if status != 0 || errs != "" || out != test.want {
			t.Errorf("%s: status %d: %s, and code found %q, want %q", test.name, status, errs, out, test.want)
		}
	}
}

// emptySys mounts an empty /sys for this thread and the programs that it starts.
func emptySys() error {
	return errors.Join(
		unix.Unshare(unix.CLONE_NEWNS),
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("sys", "/sys", "tmpfs", 0, "mode=755,size=1m"))
}
