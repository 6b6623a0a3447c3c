package device

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
)

// Folders are made at once only where nothing else of the sandbox is in them.
func TestGroup_TakesFoldersOfDevicesAlone(t *testing.T) {
	base := t.TempDir()
	for _, folder := range []string{"bin", "etc", "usr/share/zoneinfo"} {
		if err := os.MkdirAll(filepath.Join(base, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p := &planner{
		spec: &jail.Spec{Devices: &jail.Devices{Base: base, StoreDir: "/nix/store"}},
		plan: &jail.DevicePlan{},
		own:  map[string]own{}, free: map[string]bool{},
		links: map[string]string{"/usr/lib/a/one": "two", "/bin/link": "tool", "/run/driver/lib": "/usr/lib"},
	}
	for _, path := range []string{"/sys", "/proc", "/opt/project/mine"} {
		p.reserve(path, "a folder of the test's own")
	}
	mount := func(to string) jail.DeviceMount { return jail.DeviceMount{From: "/host" + to, To: to} }
	node := jail.DeviceMount{From: "/dev/zero", To: "/dev/gpu", IsNode: true}
	for _, to := range []string{
		"/usr/lib/a/libone.so", "/usr/lib/libtwo.so", // in one folder
		"/usr/share/vendor/one", "/usr/share/vendor/two", // the sandbox has /usr/share
		"/opt/vendor/one", "/opt/vendor/two", // the project is in /opt
		"/opt/project/yours/one",                     // and in this one, which has one mount
		"/bin/tool", "/nix/store/one", "/alone/file", // and each of these
		"/sys/devices/card",
	} {
		p.plan.Mounts = append(p.plan.Mounts, mount(to))
	}
	p.plan.Mounts = append(p.plan.Mounts, node)
	p.group()
	want := &jail.DevicePlan{
		Folders: []jail.DeviceFolder{
			{Path: "/opt/vendor", Mounts: []jail.DeviceMount{mount("/opt/vendor/one"), mount("/opt/vendor/two")}},
			{
				Path:   "/usr/lib",
				Mounts: []jail.DeviceMount{mount("/usr/lib/a/libone.so"), mount("/usr/lib/libtwo.so")},
				Links:  []jail.DeviceLink{{Path: "/usr/lib/a/one", Target: "two"}},
			},
			{Path: "/usr/share/vendor", Mounts: []jail.DeviceMount{mount("/usr/share/vendor/one"), mount("/usr/share/vendor/two")}},
		},
		Mounts: []jail.DeviceMount{
			mount("/bin/tool"), mount("/nix/store/one"), mount("/sys/devices/card"), node, mount("/alone/file"), mount("/opt/project/yours/one"),
		},
		Links: []jail.DeviceLink{{Path: "/bin/link", Target: "tool"}, {Path: "/run/driver/lib", Target: "/usr/lib"}},
	}
	if diff := cmp.Diff(want, p.plan, cmp.AllowUnexported(jail.DevicePlan{})); diff != "" {
		t.Error(diff)
	}
}
