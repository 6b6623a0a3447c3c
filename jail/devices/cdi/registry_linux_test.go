package cdi_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail/devices/cdi"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// specification is one of vendor.example/gpu whose devices each set a variable to the
// specification's own name.
func specification(name string, devices ...string) string {
	text := "cdiVersion: 1.0.0\nkind: vendor.example/gpu\ncontainerEdits: {env: [SPEC=" + name + "]}\ndevices:\n"
	for _, device := range devices {
		text += fmt.Sprintf("- {name: %q, containerEdits: {env: [GPU%s=%s]}}\n", device, device, name)
	}
	return text
}

// folders makes folders with files, each of which is FOLDER/NAME and its text, and
// returns the paths of a and b.
func folders(t *testing.T, files map[string]string) []string {
	t.Helper()
	base := t.TempDir()
	a, b := filepath.Join(base, "a"), filepath.Join(base, "b")
	for _, folder := range []string{a, b} {
		must.Do(t, os.Mkdir(folder, 0o755))
	}
	for name, text := range files {
		must.Write(t, filepath.Join(base, name), text, 0o644)
	}
	return []string{a, b}
}

func TestRegistry_LaterFoldersWin(t *testing.T) {
	r := cdi.Read(folders(t, map[string]string{
		"a/one.yaml":   specification("one", "0", "1", "2"),
		"a/two.json":   `{"cdiVersion":"1.0.0","kind":"vendor.example/gpu","devices":[{"name":"2","containerEdits":{"env":["GPU2=two"]}}]}`,
		"b/three.yaml": specification("three", "1"),
		"b/notes.txt":  "not a specification",
	}), os.Getuid())
	if diff := cmp.Diff([]string{"vendor.example/gpu=0", "vendor.example/gpu=1"}, r.Names()); diff != "" {
		t.Error(diff)
	}
	if len(r.Problems) != 1 || !strings.Contains(r.Problems[0], "vendor.example/gpu=2 is in ") || !strings.Contains(r.Problems[0], "one.yaml and in ") {
		t.Errorf("problems %q, want the device that two files of one folder have", r.Problems)
	}
	edits := must.Get(r.Find([]string{"vendor.example/gpu=0", "vendor.example/gpu=1"}))(t)
	// The edits of a specification come once, before those of its first device.
	if diff := cmp.Diff([]string{"SPEC=one", "GPU0=one", "SPEC=three", "GPU1=three"}, edits.Variables); diff != "" {
		t.Error(diff)
	}
	if _, err := r.Find([]string{"vendor.example/gpu=2"}); err == nil || !strings.Contains(err.Error(), "remove it from one of the two") {
		t.Errorf("a device of two files: %v", err)
	}
	// In a later folder the device is that one's alone.
	r = cdi.Read(folders(t, map[string]string{
		"a/one.yaml": specification("one", "0"), "a/two.yaml": specification("two", "0"), "b/three.yaml": specification("three", "0"),
	}), os.Getuid())
	if edits := must.Get(r.Find([]string{"vendor.example/gpu=0"}))(t); edits.Variables[1] != "GPU0=three" || r.Problems != nil {
		t.Errorf("got %q and the problems %q", edits.Variables, r.Problems)
	}
}

func TestRegistry_OneBrokenFileLeavesTheOthers(t *testing.T) {
	r := cdi.Read(folders(t, map[string]string{
		"a/broken.yaml": "cdiVersion: 1.0.0\nkind: gpu\n",
		"a/large.yaml":  strings.Repeat("#", cdi.MaxSize+1),
		"b/good.yaml":   specification("good", "0"),
	}), os.Getuid())
	must.Get(r.Find([]string{"vendor.example/gpu=0"}))(t)
	_, err := r.Find([]string{"vendor.example/gpu=0", "vendor.example/gpu=9"})
	for _, want := range []string{
		"vendor.example/gpu=9 is in no CDI specification of this machine; ",
		`broken.yaml is not read: kind is "gpu", want a vendor and a class such as vendor.example/gpu`,
		"large.yaml is not read: larger than its limit of 2097152 bytes",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
}

func TestRegistry_JoinsWhatDevicesNeed(t *testing.T) {
	r := cdi.Read(folders(t, map[string]string{"a/gpu.yaml": `
cdiVersion: 1.0.0
kind: vendor.example/gpu
devices:
- name: a
  containerEdits:
    env: [X=a]
    deviceNodes: [{path: /dev/a}, {path: /dev/ctl, hostPath: /dev/first}]
    mounts: [{hostPath: /1, containerPath: /lib/x/}]
    additionalGids: [0, 44]
- name: b
  containerEdits:
    env: [X=b]
    deviceNodes: [{path: /dev/ctl, hostPath: /dev/second}]
    mounts: [{hostPath: /2, containerPath: /lib/x}]
    hooks: [{hookName: poststart, path: /hook}]
    additionalGids: [44, 109]
`}), os.Getuid())
	edits := must.Get(r.Find([]string{"vendor.example/gpu=a", "vendor.example/gpu=b"}))(t)
	var nodes, mounts []string
	for _, node := range edits.Nodes {
		nodes = append(nodes, node.Path+" "+node.HostPath)
	}
	for _, mount := range edits.Mounts {
		mounts = append(mounts, mount.ContainerPath+" "+mount.HostPath)
	}
	got := []any{edits.Variables, nodes, mounts, len(edits.Hooks), edits.Groups}
	want := []any{[]string{"X=a", "X=b"}, []string{"/dev/a ", "/dev/ctl /dev/second"}, []string{"/lib/x /2"}, 1, []uint32{44, 109}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestRegistry_RefusesWhatChangesTheHost(t *testing.T) {
	r := cdi.Read(folders(t, map[string]string{"a/gpu.yaml": `
cdiVersion: 1.1.0
kind: vendor.example/gpu
devices:
- name: net
  containerEdits: {netDevices: [{hostInterfaceName: eth1, name: eth0}]}
- name: rdt
  containerEdits: {intelRdt: {closID: gpu}}
`}), os.Getuid())
	for name, want := range map[string]string{
		"net": "takes the network interface eth1 away from the host", "rdt": "sets shares of processor caches (intelRdt)",
	} {
		if _, err := r.Find([]string{"vendor.example/gpu=" + name}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q in it", name, err, want)
		}
	}
}

// A file or folder that another user can change says nothing. Each case has a control:
// the same without the change is read.
func TestRegistry_BelievesRootAndTheUserAlone(t *testing.T) {
	const other, group = 4001, 4002
	for name, test := range map[string]struct {
		change func(t *testing.T, folder string)
		want   string
		root   bool
	}{
		"folder for a group": {func(t *testing.T, folder string) { must.Do(t, unix.Chmod(folder, 0o775)) }, "its mode is 0775, with which others can change it: chmod go-w ", false},
		"folder for all":     {func(t *testing.T, folder string) { must.Do(t, unix.Chmod(folder, 0o777)) }, "its mode is 0777", false},
		"file for all": {func(t *testing.T, folder string) {
			must.Do(t, unix.Chmod(filepath.Join(folder, "gpu.yaml"), 0o646))
		}, "gpu.yaml is not read: its mode is 0646", false},
		"parent for all": {func(t *testing.T, folder string) { must.Do(t, unix.Chmod(filepath.Dir(folder), 0o777)) }, "others may write to a folder on the way there", false},
		"folder of another": {func(t *testing.T, folder string) { must.Do(t, os.Chown(folder, other, group)) },
			"user 4001 can change it, and only root and user 0 are trusted", true},
		"file of another": {func(t *testing.T, folder string) {
			must.Do(t, os.Chown(filepath.Join(folder, "gpu.yaml"), other, group))
		}, "user 4001 can change it", true},
		"parent of another": {func(t *testing.T, folder string) { must.Do(t, os.Chown(filepath.Dir(folder), other, group)) }, "user 4001 can change it", true},
		"link of another": {func(t *testing.T, folder string) {
			must.Do(t, os.Rename(filepath.Join(folder, "gpu.yaml"), filepath.Join(folder, "real")))
			must.Do(t, os.Mkdir(filepath.Join(folder, "theirs"), 0o755))
			must.Do(t, os.Symlink("../real", filepath.Join(folder, "theirs", "link")))
			must.Do(t, os.Lchown(filepath.Join(folder, "theirs"), other, group))
			must.Do(t, os.Symlink("theirs/link", filepath.Join(folder, "gpu.yaml")))
		}, "user 4001 can change it", true},
		"pipe": {func(t *testing.T, folder string) {
			must.Do(t, os.Remove(filepath.Join(folder, "gpu.yaml")))
			must.Do(t, unix.Mkfifo(filepath.Join(folder, "gpu.yaml"), 0o644))
		}, "gpu.yaml is not read: it is not a file", false},
	} {
		t.Run(name, func(t *testing.T) {
			if test.root && os.Geteuid() != 0 {
				t.Skip("only root can make files of other users")
			}
			list := folders(t, map[string]string{"a/gpu.yaml": specification("one", "0")})
			if r := cdi.Read(list, os.Getuid()); len(r.Names()) != 1 || r.Problems != nil {
				t.Fatalf("before the change: %q, %q", r.Names(), r.Problems)
			}
			test.change(t, list[0])
			r := cdi.Read(list, os.Getuid())
			if len(r.Names()) != 0 || len(r.Problems) == 0 || !strings.Contains(r.Problems[0], test.want) {
				t.Errorf("devices %q and problems %q, want %q", r.Names(), r.Problems, test.want)
			}
		})
	}
	// Root's links are followed, as those of NixOS in /etc.
	list := folders(t, map[string]string{"b/real": specification("one", "0")})
	must.Do(t, os.Symlink("../b/real", filepath.Join(list[0], "gpu.yaml")))
	if r := cdi.Read(list, os.Getuid()); len(r.Names()) != 1 {
		t.Errorf("through a link: %q, %q", r.Names(), r.Problems)
	}
}

func TestFolders_StandardOnesComeFirst(t *testing.T) {
	if diff := cmp.Diff([]string{"/etc/cdi", "/var/run/cdi", "/a", "/b"}, cdi.Folders("/a::/b")); diff != "" {
		t.Error(diff)
	}
}
