package devices_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// renderNode is the node of the first graphics card of a machine.
const renderNode = "/dev/dri/renderD128"

// useGPU is code that opens the node, asks the kernel for its driver, and allocates and
// maps a buffer of the virtual graphics card of QEMU: drm.h and virtgpu_drm.h of Linux.
const useGPU = `
import ctypes, fcntl, mmap, struct
fd = os.open("` + renderNode + `", os.O_RDWR)
name = ctypes.create_string_buffer(64)
version = bytearray(struct.pack("=iiiiQQQQQQ", 0, 0, 0, 0, 64, ctypes.addressof(name), 0, 0, 0, 0))
fcntl.ioctl(fd, 0xC0406400, version)  # DRM_IOCTL_VERSION
r["driver"] = name.value.decode()
r["version"] = ".".join(map(str, struct.unpack_from("=iii", version)))
# 64 by 64 pixels of 4 bytes: PIPE_TEXTURE_2D, B8G8R8A8_UNORM.
buffer = bytearray(struct.pack("=14I", 2, 1, 2, 64, 64, 1, 1, 0, 0, 0, 0, 0, 64 * 64 * 4, 0))
fcntl.ioctl(fd, 0xC0386444, buffer)  # DRM_IOCTL_VIRTGPU_RESOURCE_CREATE
place = bytearray(struct.pack("=QII", 0, struct.unpack_from("=I", buffer, 40)[0], 0))
fcntl.ioctl(fd, 0xC0106441, place)  # DRM_IOCTL_VIRTGPU_MAP
memory = mmap.mmap(fd, 64 * 64 * 4, offset=struct.unpack_from("=Q", place)[0])
memory[:4] = b"pixl"
r["sys"] = ["DRIVER=" in open("/sys/class/drm/renderD128/device/uevent").read(), os.path.realpath("/sys/dev/char/226:128").startswith("/sys/devices/"), sorted(os.listdir("/sys"))]
try:
    open("/sys/dev/char/226:128/device/driver_override", "w").close()
    r["sys"].append("written")
except OSError as e:
    r["sys"].append("kept")
r["memory"] = [len(memory), memory[:5].decode()]
`

// With a real node of a kernel: code in a sandbox uses it, as an ordinary user, and a
// sandbox without devices does not see it.
func TestGPU_RenderNode(t *testing.T) {
	if os.Getenv("NIX_SANDBOX_TEST_MACHINE") == "" {
		t.Skip("this is about the virtual graphics card of tests/vm")
	}
	if os.Geteuid() == 0 {
		t.Fatal("this is not an ordinary user")
	}
	// The control: outside of a sandbox this user may use it.
	driver, version := driverOf(t)
	t.Logf("%s is of the driver %s %s", renderNode, driver, version)
	m := newMachine(t)
	m.specification("gpu.yaml", "cdiVersion: 0.5.0\nkind: vendor.example/gpu\ndevices:\n- name: \"0\"\n  containerEdits:\n    deviceNodes:\n"+
		"    - {path: "+renderNode+", type: c, major: 226, minor: 128, permissions: rw}\n    env: [VENDOR_VISIBLE_DEVICES=0]\n")
	want := map[string]any{"driver": driver, "version": version, "memory": []any{16384.0, "pixl\x00"}, "nodes": []any{"renderD128"},
		// What the kernel says about this node, and nothing else of /sys.
		"sys": []any{true, true, []any{"class", "dev", "devices"}, "kept"}}
	const nodes = "r['nodes'] = os.listdir('/dev/dri')\n"
	if diff := cmp.Diff(want, m.run([]string{"vendor.example/gpu=0"}, useGPU+nodes)); diff != "" {
		t.Error("by its CDI name:", diff)
	}
	if diff := cmp.Diff(want, m.run([]string{renderNode}, useGPU+nodes)); diff != "" {
		t.Error("by its path:", diff)
	}
	project := t.TempDir()
	if diff := cmp.Diff(want, m.run([]string{"vendor.example/gpu=0"}, useGPU+nodes, "PROJECT_DIR="+project, "PROJECT_MODE=overlay")); diff != "" {
		t.Error("with an overlay:", diff)
	}
	// Another environment has neither the node nor a way to make it.
	none := filepath.Join(undertest.Artifact(t, "devices-none"), "bin", "run")
	out, errs, status := m.start(none, `
import os
print(os.path.exists("/dev/dri"), [n for n in os.listdir("/dev") if n.startswith(("dri", "gpu"))])
try:
    os.mknod("/tmp/gpu", 0o20666, os.makedev(226, 128))
    print("made")
except OSError as e:
    print(e.strerror)
`)
	if want := "False []\nOperation not permitted\n"; out != want || status != 0 {
		t.Errorf("without devices: %q, %q, status %d, want %q", out, errs, status, want)
	}
	// Who may not open a node is told whom to ask.
	out, errs, status = m.start(m.sandbox("run", []string{"/dev/dri/card0"}, nil), "print('started')")
	if status != 125 || out != "" || !strings.Contains(errs, "/dev/dri/card0 cannot be opened by user: it is for ") {
		t.Errorf("a node of root's: %q, %q, status %d", out, errs, status)
	}
}

// driverOf asks the kernel for the driver of the render node.
func driverOf(t *testing.T) (name, version string) {
	t.Helper()
	fd := must.Get(unix.Open(renderNode, unix.O_RDWR|unix.O_CLOEXEC, 0))(t)
	defer unix.Close(fd)
	text := make([]byte, 64)
	query := struct {
		major, minor, patch, _ int32
		length                 uint64
		name                   *byte
		others                 [4]uint64
	}{length: uint64(len(text)), name: &text[0]}
	const ioctlVersion = 0xC0406400
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), ioctlVersion, uintptr(unsafe.Pointer(&query))); errno != 0 {
		t.Fatal(errno)
	}
	return unix.ByteSliceToString(text), fmt.Sprintf("%d.%d.%d", query.major, query.minor, query.patch)
}
