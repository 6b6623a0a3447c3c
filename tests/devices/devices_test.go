// Package devices_test tests sandboxes with devices: those of specifications of the
// Container Device Interface, whose devices and drivers are made up, in a folder of the
// test. What a device node is to a kernel, tests/vm tests with a real one.
package devices_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// machine is what a test's machine has: a folder with specifications in cdi, and drivers.
type machine struct {
	t   testing.TB
	dir string
}

func newMachine(t testing.TB) machine {
	t.Helper()
	dir := t.TempDir()
	// Where root starts a sandbox, it is another user's.
	must.Do(t, errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755)))
	must.Do(t, os.Mkdir(filepath.Join(dir, "cdi"), 0o755))
	return machine{t, dir}
}

// file writes a file of the machine and returns its path.
func (m machine) file(path, text string) string {
	m.t.Helper()
	path = filepath.Join(m.dir, path)
	must.Write(m.t, path, text, 0o755)
	return path
}

// link makes a symbolic link of the machine.
func (m machine) link(target, path string) {
	m.t.Helper()
	path = filepath.Join(m.dir, path)
	must.Do(m.t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(target, path)))
}

// specification writes one; DIR in its text becomes the machine's folder.
func (m machine) specification(name, text string) {
	m.t.Helper()
	m.file("cdi/"+name, strings.ReplaceAll(text, "DIR", m.dir))
}

// sandbox writes a program like bin/run of the artifact under test, with other devices,
// and returns the path. change may be nil.
func (m machine) sandbox(name string, devices []string, change func(*jail.Spec)) string {
	m.t.Helper()
	artifact := undertest.Artifact(m.t, "devices-python")
	program := map[string]string{"run": "run", "session-run": "session-run", "check": "check"}[name]
	text := must.Get(os.ReadFile(filepath.Join(artifact, "bin", program)))(m.t)
	spec := must.Get(jail.ParseSpec(text))(m.t)
	spec.Devices.Names = devices
	if change != nil {
		change(spec)
	}
	first, _, _ := bytes.Cut(text, []byte("\n"))
	// A path of its own: another test may run it.
	path := filepath.Join(m.t.TempDir(), name)
	must.Write(m.t, path, string(first)+"\n"+string(must.Get(json.Marshal(spec))(m.t)), 0o755)
	return path
}

// start runs a program with code as its input.
func (m machine) start(program, code string, environ ...string) (out, errs string, status int) {
	m.t.Helper()
	cmd := exec.CommandContext(m.t.Context(), program)
	cmd.Env = append([]string{"NIX_SANDBOX_CDI=" + m.dir + "/cdi"}, environ...)
	cmd.Stdin = strings.NewReader(code)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		m.t.Fatal(err)
	}
	return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
}

// run runs code in a sandbox with devices and returns its output, which is JSON.
func (m machine) run(devices []string, code string, environ ...string) map[string]any {
	m.t.Helper()
	out, errs, status := m.start(m.sandbox("run", devices, nil), "import ctypes, json, os\nr = {}\n"+code+"\nprint(json.dumps(r))", environ...)
	if status != 0 || errs != "" {
		m.t.Fatalf("status %d: %s%s", status, out, errs)
	}
	var result map[string]any
	must.Do(m.t, json.Unmarshal([]byte(out), &result))
	return result
}

// lib is where Debian has libraries.
const lib = "/usr/lib/x86_64-linux-gnu"

// ofVendor returns a specification with the shape of a vendor's generator, whose files
// and nodes are those of the machine's folder.
func (m machine) ofVendor(name string) string {
	m.t.Helper()
	text := string(must.Get(os.ReadFile("../../jail/devices/cdi/testdata/" + name))(m.t))
	if filepath.Ext(name) == ".json" {
		// The numbers of /dev/zero.
		text = strings.NewReplacer(`"major":226,"minor":128`, `"major":1,"minor":5`, `"major":226,"minor":1`, `"major":1,"minor":5`, `"major":510`, `"major":1,"minor":5`).Replace(text)
		for _, node := range []string{"kfd", "dri/card1", "dri/renderD128"} {
			text = strings.ReplaceAll(text, `"path":"/dev/`+node+`"`, `"path":"/dev/`+node+`","hostPath":"DIR/dev/`+node+`"`)
		}
		return text
	}
	var lines []string
	for line := range strings.Lines(text) {
		line = strings.ReplaceAll(line, "hostPath: ", "hostPath: DIR")
		lines = append(lines, line)
		if indent, path, found := strings.Cut(line, "- path: "); found {
			lines = append(lines, indent+"  hostPath: DIR"+path)
		}
	}
	return strings.Join(lines, "")
}

// A program loads the library of NVIDIA's driver by its soname, as PyTorch does.
func TestDevices_NvidiasShape(t *testing.T) {
	m := newMachine(t)
	m.specification("nvidia.yaml", m.ofVendor("nvidia.yaml"))
	for _, node := range []string{"nvidia0", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools", "nvidiactl", "dri/card1", "dri/renderD128"} {
		m.link("/dev/zero", "dev/"+node)
	}
	m.file(lib+"/libcuda.so.999.88.77", string(library(t, "libcuda.so.1", "cuInit", 42)))
	m.file("/usr/bin/nvidia-smi", "#!/bin/sh\necho 'a made-up card'\n")
	socket := m.dir + "/run/nvidia-persistenced/socket"
	must.Do(t, os.MkdirAll(filepath.Dir(socket), 0o755))
	fd := must.Get(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0))(t)
	defer unix.Close(fd)
	must.Do(t, unix.Bind(fd, &unix.SockaddrUnix{Name: socket}))
	const code = `
r["cuInit"] = [ctypes.CDLL(name).cuInit() for name in ("libcuda.so.1", "libcuda.so", "libcuda.so.999.88.77", "/run/opengl-driver/lib/libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so")]
r["smi"] = [os.popen(p).read().strip() for p in ("nvidia-smi", "/usr/bin/nvidia-smi")]
r["nodes"] = sorted(os.path.join(d, f) for d, _, files in os.walk("/dev/dri") for f in files) + sorted(f for f in os.listdir("/dev") if f.startswith("nvidia"))
r["links"] = {f: os.readlink("/dev/dri/by-path/" + f) for f in os.listdir("/dev/dri/by-path")}
r["visible"] = os.environ["NVIDIA_VISIBLE_DEVICES"]
r["reads"] = len(open("/dev/nvidia0", "rb").read(3))
r["own"] = [open("/etc/passwd").read().startswith("sandbox"), os.path.exists("/usr/bin/env"), os.path.exists("/usr/share/zoneinfo/UTC")]
r["socket"] = os.path.exists("/run/nvidia-persistenced/socket")
r["path"] = os.environ["LD_LIBRARY_PATH"]
`
	want := map[string]any{
		"cuInit": []any{42.0, 42.0, 42.0, 42.0, 42.0},
		"smi":    []any{"a made-up card", "a made-up card"},
		"nodes": []any{
			"/dev/dri/by-path/pci-0000:01:00.0-card", "/dev/dri/by-path/pci-0000:01:00.0-render", "/dev/dri/card1", "/dev/dri/renderD128",
			"nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidiactl",
		},
		"links":   map[string]any{"pci-0000:01:00.0-card": "../card1", "pci-0000:01:00.0-render": "../renderD128"},
		"visible": "void", "reads": 3.0, "own": []any{true, true, true}, "socket": false, "path": "/run/opengl-driver/lib",
	}
	if diff := cmp.Diff(want, m.run([]string{"nvidia.com/gpu=0"}, code)); diff != "" {
		t.Error(diff)
	}
	// The same beside an outer namespace.
	project := t.TempDir()
	must.Do(t, errors.Join(os.Chmod(filepath.Dir(project), 0o755), os.Chmod(project, 0o755)))
	if diff := cmp.Diff(want, m.run([]string{"nvidia.com/gpu=0"}, code, "PROJECT_DIR="+project, "PROJECT_MODE=overlay")); diff != "" {
		t.Error("with an overlay:", diff)
	}
	// What is left out is in the log of bin/session-run.
	_, errs, _ := m.start(m.sandbox("session-run", []string{"nvidia.com/gpu=0"}, nil), "")
	for _, want := range []string{
		"note: the hook /usr/bin/nvidia-cdi-hook enable-cuda-compat --host-driver-version=999.88.77 of " + m.dir + "/cdi/nvidia.yaml does not run: hooks are programs of the host\n",
		"note: " + socket + " is not in the sandbox, because code would reach a service of the host through the socket\n",
	} {
		if !strings.Contains(errs, want) {
			t.Errorf("the log is %q, want %q in it", errs, want)
		}
	}
	if strings.Count(errs, "note:") != 2 {
		t.Errorf("the log is %q, want two notes", errs)
	}
}

// AMD's generator writes device nodes alone, with their numbers; the libraries come with
// the packages.
func TestDevices_AmdsShape(t *testing.T) {
	m := newMachine(t)
	m.specification("amd.json", m.ofVendor("amd.json"))
	for _, node := range []string{"kfd", "dri/card1", "dri/renderD128"} {
		m.link("/dev/zero", "dev/"+node)
	}
	got := m.run([]string{"amd.com/gpu=all"}, `
r["nodes"] = [len(open("/dev/" + n, "rb").read(2)) for n in ("kfd", "dri/card1", "dri/renderD128")]
r["search"] = "LD_LIBRARY_PATH" in os.environ
`)
	if diff := cmp.Diff(map[string]any{"nodes": []any{2.0, 2.0, 2.0}, "search": false}, got); diff != "" {
		t.Error(diff)
	}
}

// On NixOS a driver is a path of the store, which the sandbox's closure does not have, and
// the folder in which programs look has links into it.
func TestDevices_NixosShape(t *testing.T) {
	m := newMachine(t)
	m.file("driver/lib/libcuda.so.999.88.77", string(library(t, "libcuda.so.1", "cuInit", 7)))
	m.link("libcuda.so.999.88.77", "driver/lib/libcuda.so.1")
	m.file("driver/bin/nvidia-smi", "#!/bin/sh\necho 'a made-up card'\n")
	add := exec.Command("nix-store", "--add", filepath.Join(m.dir, "driver"))
	// The single user of a machine without a daemon.
	add.Env = append(os.Environ(), "NIX_CONFIG=build-users-group =")
	out, err := add.Output()
	if err != nil {
		t.Skipf("nothing can be added to the store here: %v", err)
	}
	driver := strings.TrimSpace(string(out))
	m.link(driver+"/lib/libcuda.so.1", "graphics-drivers/lib/libcuda.so.1")
	m.link("graphics-drivers", "opengl-driver")
	own := must.Get(jail.ReadSpec(filepath.Join(undertest.Artifact(t, "devices-python"), "bin/run")))(t).Devices.Base
	m.link("/dev/zero", "dev/nvidia0")
	m.specification("nvidia.json", must.Get(func() (string, error) {
		type dict = map[string]any
		same := func(path string) dict { return dict{"hostPath": path, "containerPath": path} }
		text, err := json.Marshal(dict{
			"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu",
			"devices": []dict{{"name": "all", "containerEdits": dict{"deviceNodes": []dict{{"path": "/dev/nvidia0", "hostPath": "DIR/dev/nvidia0"}}}}},
			"containerEdits": dict{
				"mounts": []dict{
					same(driver + "/lib/libcuda.so.999.88.77"), same(own + "/etc"),
					{"hostPath": "DIR/opengl-driver", "containerPath": "/run/opengl-driver"},
					{"hostPath": driver + "/bin/nvidia-smi", "containerPath": "/usr/bin/nvidia-smi"},
					{"hostPath": driver + "/lib", "containerPath": "/usr/local/nvidia/lib"},
				},
				"hooks": []dict{{"hookName": "createContainer", "path": "/run/current-system/sw/bin/nvidia-cdi-hook", "args": []string{"nvidia-cdi-hook", "update-ldcache", "--folder", driver + "/lib"}}},
			},
		})
		return string(text), err
	}())(t))
	code := `
r["cuInit"] = [ctypes.CDLL(name).cuInit() for name in ("libcuda.so.1", "/run/opengl-driver/lib/libcuda.so.1", "/usr/local/nvidia/lib/libcuda.so.1", "` + driver + `/lib/libcuda.so.1")]
r["smi"] = os.popen("/usr/bin/nvidia-smi").read().strip()
r["real"] = os.path.realpath("/run/opengl-driver/lib/libcuda.so.1")
r["store"] = "` + filepath.Base(driver) + `" in os.listdir("/nix/store")
for name, path in {"store file": "/nix/store/x", "driver file": "` + driver + `/x", "dev file": "/dev/x", "usr file": "/usr/x"}.items():
    try:
        open(path, "w")
        r[name] = "written"
    except OSError as e:
        r[name] = e.strerror
r["count"] = len(os.listdir("/nix/store"))
`
	tree := must.Get(jail.ReadSpec(filepath.Join(undertest.Artifact(t, "devices-python"), "bin/run")))(t).Devices.Store
	entries := must.Get(os.ReadDir(tree + "/store"))(t)
	want := map[string]any{
		"cuInit": []any{7.0, 7.0, 7.0, 7.0}, "smi": "a made-up card", "real": driver + "/lib/libcuda.so.999.88.77", "store": true,
		"store file": "Read-only file system", "driver file": "Read-only file system", "dev file": "Read-only file system", "usr file": "Read-only file system",
		"count": float64(len(entries) + 1),
	}
	if diff := cmp.Diff(want, m.run([]string{"nvidia.com/gpu=all"}, code)); diff != "" {
		t.Error(diff)
	}
	project := t.TempDir()
	must.Do(t, errors.Join(os.Chmod(filepath.Dir(project), 0o755), os.Chmod(project, 0o755)))
	if diff := cmp.Diff(want, m.run([]string{"nvidia.com/gpu=all"}, code, "PROJECT_DIR="+project, "PROJECT_MODE=overlay")); diff != "" {
		t.Error("with an overlay:", diff)
	}
}

// Everything that a specification can ask for at once.
func TestDevices_EveryFeature(t *testing.T) {
	m := newMachine(t)
	m.file("share/a", "first")
	m.file("share/b/c", "second")
	m.link("/dev/zero", "dev/one")
	m.link("/dev/null", "dev/two")
	m.link("../one", "dev/by-path/card")
	m.link("../three", "dev/by-path/other")
	m.specification("every.yaml", `
cdiVersion: 0.7.0
kind: vendor.example/gpu
annotations: {vendor.example/note: x}
containerEdits:
  env: [ALL=yes, ONE=spec]
devices:
- name: "0"
  annotations: {slot: "1"}
  containerEdits:
    env: [ONE=device, HOME=/elsewhere, LD_LIBRARY_PATH=/vendor]
    deviceNodes:
    - {path: /dev/gpu/one, hostPath: DIR/dev/one, type: c, major: 1, minor: 5, fileMode: 0660, permissions: rw, uid: 0, gid: 44}
    mounts:
    - {hostPath: DIR/share, containerPath: /opt/vendor/share, options: [rw, rbind, shared], type: bind}
    - {hostPath: DIR/share/b, containerPath: /opt/vendor/share/b}
    - {hostPath: DIR/share/a, containerPath: /etc/vendor/a, options: [ro]}
    - {hostPath: DIR/dev/by-path, containerPath: /dev/gpu/by-path, options: [rw, rbind]}
    additionalGids: [0, 44]
- name: "1"
  containerEdits:
    deviceNodes:
    - {path: /dev/gpu/two, hostPath: DIR/dev/two, type: u, permissions: rwm}
    - {path: /dev/gpu/one, hostPath: DIR/dev/one}
- name: all
  containerEdits:
    deviceNodes:
    - {path: /dev/gpu/one, hostPath: DIR/dev/one}
    - {path: /dev/gpu/two, hostPath: DIR/dev/two}
`)
	const code = `
r["env"] = [os.environ.get(n) for n in ("ALL", "ONE", "HOME", "LD_LIBRARY_PATH")]
r["nodes"] = {n: os.path.realpath("/dev/gpu/" + n) for n in os.listdir("/dev/gpu")}
r["by-path"] = os.listdir("/dev/gpu/by-path") if os.path.exists("/dev/gpu/by-path") else None
r["files"] = [open(p).read() for p in ("/opt/vendor/share/a", "/opt/vendor/share/b/c", "/etc/vendor/a") if os.path.exists(p)]
r["stat"] = [os.stat("/dev/gpu/one").st_rdev]
try:
    open("/opt/vendor/share/a", "w")
    r["write"] = True
except OSError:
    r["write"] = False
`
	one := float64(unix.Mkdev(1, 5))
	for _, test := range []struct {
		devices []string
		want    map[string]any
	}{
		{[]string{"vendor.example/gpu=0"}, map[string]any{
			"env": []any{"yes", "device", "/workspace", "/vendor"}, "nodes": map[string]any{"one": "/dev/gpu/one", "by-path": "/dev/gpu/by-path"},
			"by-path": []any{"card"}, "files": []any{"first", "second", "first"}, "stat": []any{one}, "write": false,
		}},
		{[]string{"vendor.example/gpu=1", "vendor.example/gpu=0"}, map[string]any{
			"env": []any{"yes", "device", "/workspace", "/vendor"}, "nodes": map[string]any{"one": "/dev/gpu/one", "two": "/dev/gpu/two", "by-path": "/dev/gpu/by-path"},
			"by-path": []any{"card"}, "files": []any{"first", "second", "first"}, "stat": []any{one}, "write": false,
		}},
		{[]string{"vendor.example/gpu=all"}, map[string]any{
			"env": []any{"yes", "spec", "/workspace", nil}, "nodes": map[string]any{"one": "/dev/gpu/one", "two": "/dev/gpu/two"},
			"by-path": nil, "files": []any{}, "stat": []any{one}, "write": false,
		}},
	} {
		if diff := cmp.Diff(test.want, m.run(test.devices, code)); diff != "" {
			t.Errorf("%q: %s", test.devices, diff)
		}
	}
}

// Paths by which a specification would change the sandbox or show the machine are refused,
// before anything starts. The control is the same specification with a path of its own.
func TestDevices_HostilePaths(t *testing.T) {
	const before = "cdiVersion: 1.0.0\nkind: vendor.example/gpu\ndevices:\n- name: all\n  containerEdits:\n    deviceNodes: [{path: /dev/gpu, hostPath: /dev/zero}]\n"
	mount := func(from, to string) string {
		return before + "    mounts: [{hostPath: " + from + ", containerPath: " + to + "}]\n"
	}
	node := func(from, to string) string {
		return before + "  \n- name: other\n  containerEdits: {env: [A=b]}\ncontainerEdits:\n    deviceNodes: [{path: " + to + ", hostPath: " + from + "}]\n"
	}
	for name, test := range map[string]struct{ text, want string }{
		"control: a file":            {mount("DIR/file", "/opt/file"), ""},
		"control: a file in etc":     {mount("DIR/file", "/etc/vendor/file"), ""},
		"control: a node":            {node("/dev/zero", "/dev/gpu1"), ""},
		"control: a link":            {mount("DIR/to-file", "/opt/file"), ""},
		"the store":                  {mount("DIR/folder", "/nix/store"), "only paths of the host's store, at their own paths"},
		"above the store":            {mount("DIR/folder", "/nix"), "only paths of the host's store, at their own paths"},
		"into the store":             {mount("DIR/file", "/nix/store/00000000000000000000000000000000-x"), "only paths of the host's store, at their own paths"},
		"the store over itself":      {mount("/nix/store", "/nix/store"), "only paths of the host's store, at their own paths"},
		"another path of the store":  {mount("DIR/file", "STORE/bin/python3"), "only paths of the host's store, at their own paths"},
		"the whole store elsewhere":  {mount("/nix/store", "/opt/store"), "leads to /nix/store, which shows the machine itself"},
		"proc":                       {mount("DIR/folder", "/proc"), "where the sandbox has a folder of the sandbox's own"},
		"into proc":                  {mount("DIR/file", "/proc/version"), "where the sandbox has a folder of the sandbox's own"},
		"sys":                        {mount("DIR/folder", "/sys/class"), "where the sandbox has a folder of the sandbox's own"},
		"the root":                   {mount("DIR/folder", "/"), "which is a folder of the sandbox's own"},
		"the programs":               {mount("DIR/folder", "/bin"), "which is a folder of the sandbox's own"},
		"the shell":                  {mount("DIR/file", "/bin/sh"), "where the sandbox has a file of its own"},
		"the shell by another path":  {mount("DIR/file", "/usr/bin/sh"), "where the sandbox has a file of its own"},
		"env":                        {mount("DIR/file", "/usr/bin/env"), "where the sandbox has a file of its own"},
		"the users":                  {mount("DIR/file", "/etc/passwd"), "where the sandbox has a file of its own"},
		"time zones":                 {mount("DIR/folder", "/usr/share/zoneinfo"), "where the sandbox has a file of its own"},
		"below a link":               {mount("DIR/file", "/usr/share/zoneinfo/UTC"), "where the sandbox has a file of its own"},
		"a folder of its own":        {mount("DIR/folder", "/usr/share"), "where the sandbox has a file of its own"},
		"the workspace":              {mount("DIR/folder", "/workspace"), "where the sandbox has a folder of the sandbox's own"},
		"in the workspace":           {mount("DIR/file", "/workspace/x"), "where the sandbox has a folder of the sandbox's own"},
		"temporary files":            {mount("DIR/folder", "/tmp"), "where the sandbox has a folder of the sandbox's own"},
		"the inbox":                  {mount("DIR/folder", "/inbox"), "where the sandbox has a folder of the sandbox's own"},
		"up":                         {mount("DIR/file", "/opt/../nix/store"), `containerPath is "/opt/../nix/store", want a path without ".."`},
		"up on the host":             {mount("DIR/../../etc/shadow", "/opt/file"), `want a path without ".."`},
		"the machine's root":         {mount("/", "/opt/host"), "leads to /, which shows the machine itself"},
		"the machine's processes":    {mount("/proc", "/opt/proc"), "leads to /proc, which shows the machine itself"},
		"the machine's kernel":       {mount("/sys/kernel", "/opt/sys"), "leads to /sys/kernel, which shows the machine itself"},
		"the machine's devices":      {mount("/dev", "/opt/dev"), "leads to /dev, which shows the machine itself"},
		"a disk as a file":           {mount("/dev/zero", "/opt/zero"), "leads to /dev/zero, which shows the machine itself"},
		"a link to processes":        {mount("DIR/to-proc", "/opt/proc"), "leads to /proc, which shows the machine itself"},
		"a link to the root":         {mount("DIR/to-root/", "/opt/root"), "leads to /, which shows the machine itself"},
		"a link that all can change": {mount("DIR/all/link", "/opt/file"), "other users can make it lead elsewhere"},
		"nothing there":              {mount("DIR/none", "/opt/file"), "no such file or directory"},
		"a pipe":                     {mount("DIR/pipe", "/opt/pipe"), "it is neither a folder nor a file"},
		"a file system":              {before + "    mounts: [{hostPath: /a, containerPath: /opt/a, type: tmpfs}]\n", `it is a file system of the type "tmpfs"`},
		"one over another": {before + "    mounts: [{hostPath: DIR/folder, containerPath: /opt/a}, {hostPath: DIR/file, containerPath: /opt/a/link/x}]\n",
			"where another mount shows "},
		"null":               {node("/dev/zero", "/dev/null"), "it would be /dev/null in the sandbox, where no device belongs"},
		"a terminal":         {node("/dev/ptmx", "/dev/gpu1"), "asks for the device node /dev/ptmx, which is a terminal"},
		"standard input":     {node("/dev/zero", "/dev/fd/0"), "where no device belongs"},
		"a node outside":     {node("/dev/zero", "/opt/gpu"), "where no device belongs"},
		"a folder as a node": {node("/dev/shm", "/dev/gpu1"), "it is not a device node"},
		"a node as a folder": {before + "  \n- name: other\n  containerEdits: {env: [A=b]}\ncontainerEdits:\n    deviceNodes: [{path: /dev/gpu/x, hostPath: /dev/zero}]\n",
			"it would be /dev/gpu, which is the folder of another mount"},
		"other numbers": {before + "  \n- name: other\n  containerEdits: {env: [A=b]}\ncontainerEdits:\n    deviceNodes: [{path: /dev/gpu1, hostPath: /dev/zero, type: c, major: 195, minor: 7}]\n",
			"its numbers are 1:5, and the specification has 195:7"},
		"another type": {before + "  \n- name: other\n  containerEdits: {env: [A=b]}\ncontainerEdits:\n    deviceNodes: [{path: /dev/gpu1, hostPath: /dev/zero, type: b}]\n",
			"its type is c, and the specification has b"},
		"less than its mode": {before + "  \n- name: other\n  containerEdits: {env: [A=b]}\ncontainerEdits:\n    deviceNodes: [{path: /dev/gpu1, hostPath: /dev/zero, permissions: r}]\n",
			`grants "r", and its mode lets this user do more`},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.file("file", "x")
			m.file("folder/x", "x")
			m.link("/proc", "folder/link")
			m.link("file", "to-file")
			m.link("/proc", "to-proc")
			m.link("/", "to-root")
			m.link("../file", "all/link")
			must.Do(t, unix.Chmod(m.dir+"/all", 0o777))
			must.Do(t, unix.Mkfifo(m.dir+"/pipe", 0o644))
			environment := ""
			program := m.sandbox("run", []string{"vendor.example/gpu=all"}, func(s *jail.Spec) {
				for i, flag := range s.Flags {
					if flag == "PATH" {
						environment = strings.TrimSuffix(s.Flags[i+1], "/bin")
					}
				}
			})
			m.specification("hostile.yaml", strings.ReplaceAll(test.text, "STORE", environment))
			out, errs, status := m.start(program, "print('started')")
			if test.want == "" {
				if out != "started\n" || errs != "" || status != 0 {
					t.Errorf("%q, %q, status %d, want a start", out, errs, status)
				}
				return
			}
			if status != 125 || out != "" || !strings.Contains(errs, test.want) || strings.Count(errs, "\n") != 2 && !strings.Contains(test.want, "..") {
				t.Errorf("%q, %q, status %d, want %q and a hint", out, errs, status, test.want)
			}
		})
	}
}

// A sandbox whose device is missing does not start, and says what to do.
func TestDevices_MissingOnes(t *testing.T) {
	m := newMachine(t)
	m.specification("gpu.yaml", "cdiVersion: 1.0.0\nkind: vendor.example/gpu\ndevices: [{name: a, containerEdits: {deviceNodes: [{path: /dev/gpu, hostPath: /dev/zero}]}}]\n")
	for _, test := range []struct {
		devices []string
		want    string // empty where it starts
	}{
		{[]string{"vendor.example/gpu=a"}, ""},
		{[]string{"/dev/zero1"}, "error: the sandbox has the device /dev/zero1: this machine does not have it\nnix-sandbox-jail: hint: load its driver, or build the sandbox with other devices\n"},
		{[]string{"/dev/shm"}, "error: the sandbox has the device /dev/shm: it is not a device node\n"},
		{[]string{"vendor.example/gpu=b"}, "error: vendor.example/gpu=b is in no CDI specification of this machine\nnix-sandbox-jail: hint: name one of vendor.example/gpu=a\n"},
		{[]string{"vendor.example/gpu=a", "/dev/tty0"}, "error: the sandbox has the device /dev/tty0"},
		{[]string{"/dev/vda"}, "error: the sandbox has the device /dev/vda"},
	} {
		out, errs, status := m.start(m.sandbox("run", test.devices, nil), "print('started')")
		if test.want == "" {
			if out != "started\n" {
				t.Errorf("%q: %q, %q, status %d", test.devices, out, errs, status)
			}
		} else if status != 125 || out != "" || !strings.HasPrefix(errs, "nix-sandbox-jail: "+test.want) {
			t.Errorf("%q: %q, %q, status %d, want %q", test.devices, out, errs, status, test.want)
		}
	}
	// Bubblewrap would refuse so many arguments without saying why.
	hooks := ""
	for i := range 6 {
		hooks += "{hookName: createContainer, path: /hook, args: [hook, create-symlinks"
		for link := range 500 {
			hooks += fmt.Sprintf(", --link, a::/opt/%d/%d", i, link)
		}
		hooks += "]}, "
	}
	m.specification("many.yaml", "cdiVersion: 1.0.0\nkind: vendor.example/many\ndevices: [{name: a, containerEdits: {hooks: ["+hooks+"]}}]\n")
	_, errs, status := m.start(m.sandbox("run", []string{"vendor.example/many=a"}, nil), "print('started')")
	if status != 125 || !strings.Contains(errs, "the links and variables of this sandbox's devices are 9") {
		t.Errorf("many links: %q, status %d", errs, status)
	}
	// A terminal is had where the operator says so.
	m.specification("terminal.yaml", "cdiVersion: 1.0.0\nkind: vendor.example/terminal\ndevices: [{name: a, containerEdits: {deviceNodes: [{path: /dev/gpu, hostPath: /dev/ptmx}]}}]\n")
	for unsafe, want := range map[bool]int{true: 0, false: 125} {
		_, errs, status := m.start(m.sandbox("run", []string{"vendor.example/terminal=a"}, func(s *jail.Spec) { s.Devices.Unsafe = unsafe }), "print('started')")
		if status != want || (status == 125) != strings.Contains(errs, "which is a terminal\nnix-sandbox-jail: hint: leave the device out, or write unsafe_devices = true beside it\n") {
			t.Errorf("unsafe_devices %v: %q, status %d, want %d", unsafe, errs, status, want)
		}
	}
}

// bin/check says which devices there are, and who can have those of the sandbox.
func TestDevices_Check(t *testing.T) {
	m := newMachine(t)
	m.specification("gpu.yaml", "cdiVersion: 1.0.0\nkind: vendor.example/gpu\ndevices: [{name: a, containerEdits: {deviceNodes: [{path: /dev/gpu, hostPath: /dev/zero}], hooks: [{hookName: poststart, path: /bin/hook}]}}]\n")
	m.specification("broken.yaml", "cdiVersion: 9.0.0\n")
	check := func(devices ...string) []jail.Finding {
		t.Helper()
		out, errs, status := m.start(m.sandbox("check", devices, nil), "")
		var report struct{ Findings []jail.Finding }
		if err := json.Unmarshal([]byte(out), &report); err != nil || status != 0 || errs != "" {
			t.Fatalf("%q, %q, status %d: %v", out, errs, status, err)
		}
		return slices.DeleteFunc(report.Findings, func(f jail.Finding) bool {
			return !strings.Contains(f.Name, "devices") && !strings.Contains(f.Name, "CDI")
		})
	}
	problem := m.dir + `/cdi/broken.yaml is not read: cdiVersion is "9.0.0", want a version from 0.3.0 to 1.1.0`
	names := jail.Finding{Name: "CDI names", Found: "vendor.example/gpu=a; " + problem, Fix: "fix these files, or write them again with the vendor's generator"}
	if diff := cmp.Diff([]jail.Finding{names, {
		Name: "devices vendor.example/gpu=a", OK: true, Needed: true,
		Found: "device nodes: 1, other files and folders: 0; the hook /bin/hook of " + m.dir + "/cdi/gpu.yaml does not run: hooks are programs of the host",
	}}, check("vendor.example/gpu=a")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]jail.Finding{names, {
		Name: "devices vendor.example/gpu=b", Needed: true,
		Found: "vendor.example/gpu=b is in no CDI specification of this machine; " + problem, Fix: "name one of vendor.example/gpu=a",
	}}, check("vendor.example/gpu=b")); diff != "" {
		t.Error(diff)
	}
}

// Where root starts the sandbox, its user has the group of the node, and no other.
func TestDevices_RootKeepsTheGroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root starts sandboxes as another user")
	}
	const group = 4242
	m := newMachine(t)
	for name, mode := range map[string]uint32{"for-group": 0o660, "for-root": 0o600} {
		path := filepath.Join(m.dir, name)
		if err := unix.Mknod(path, unix.S_IFCHR|mode, int(unix.Mkdev(1, 5))); err != nil {
			t.Skipf("no device nodes can be made here: %v", err)
		}
		must.Do(t, errors.Join(unix.Chmod(path, mode), os.Chown(path, 0, group)))
		if file, err := os.Open(path); err != nil {
			t.Skipf("no device nodes can be used here: %v", err)
		} else {
			file.Close()
		}
	}
	for name, devices := range map[string]string{
		"group": "[{path: /dev/gpu, hostPath: DIR/for-group}]", "root": "[{path: /dev/gpu, hostPath: DIR/for-root}]",
		"both": "[{path: /dev/gpu, hostPath: DIR/for-group}, {path: /dev/gpuctl, hostPath: DIR/for-root}]",
	} {
		m.specification(name+".yaml", "cdiVersion: 1.0.0\nkind: vendor.example/"+name+"\ndevices: [{name: all, containerEdits: {deviceNodes: "+devices+"}}]\n")
	}
	const code = "r['read'] = len(open('/dev/gpu', 'rb').read(2))\nr['groups'] = open('/proc/self/status').read().split('Groups:')[1].split('\\n')[0].split()"
	// The sandbox maps no group but its own; the kernel shows others as 65534.
	want := map[string]any{"read": 2.0, "groups": []any{"65534"}}
	if diff := cmp.Diff(want, m.run([]string{"vendor.example/group=all"}, code)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(want, m.run([]string{"vendor.example/both=all"}, code)); diff != "" {
		t.Error(diff)
	}
	_, errs, status := m.start(m.sandbox("run", []string{"vendor.example/root=all"}, nil), "print('started')")
	if status != 125 || !strings.Contains(errs, m.dir+"/for-root cannot be opened by user ") || !strings.Contains(errs, "it is for its owner root alone (mode 0600)") {
		t.Errorf("%q, status %d", errs, status)
	}
	_, errs, _ = m.start(m.sandbox("session-run", []string{"vendor.example/both=all"}, nil), "")
	if !strings.Contains(errs, "note: "+m.dir+"/for-root cannot be opened by ") {
		t.Errorf("the log is %q, want the node that cannot be opened", errs)
	}
}
