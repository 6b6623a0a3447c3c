package cdi_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail/devices/cdi"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// every has every field of the standard.
const every = "testdata/every.yaml"

func pointer[T any](value T) *T { return &value }

// everySpec is what testdata/every.yaml says, written a second time.
func everySpec() *specs.Spec {
	return &specs.Spec{
		Version:     "1.1.0",
		Kind:        "vendor.example/gpu.v2",
		Annotations: map[string]string{"vendor.example/note": "of the specification"},
		Devices: []specs.Device{
			{
				Name:        "0",
				Annotations: map[string]string{"slot": "1"},
				ContainerEdits: specs.ContainerEdits{
					Env: []string{"GPU=0", "EMPTY="},
					DeviceNodes: []*specs.DeviceNode{{
						Path: "/dev/gpu0", HostPath: "/dev/vendor/gpu0", Type: "c", Major: 195, Minor: 7,
						FileMode: pointer(os.FileMode(0o660)), Permissions: "rw", UID: pointer(uint32(0)), GID: pointer(uint32(44)),
					}, {Path: "/dev/gpuctl", Type: "u", Permissions: "none"}},
					Mounts: []*specs.Mount{{
						HostPath: "/usr/lib/libgpu.so.1.2", ContainerPath: "/usr/lib/libgpu.so.1.2",
						Options: []string{"ro", "nosuid", "nodev", "bind"}, Type: "bind",
					}},
					Hooks: []*specs.Hook{{
						HookName: "createContainer", Path: "/usr/bin/vendor-hook", Args: []string{"vendor-hook", "update-ldcache"},
						Env: []string{"DEBUG=false"}, Timeout: pointer(5),
					}},
					AdditionalGIDs: []uint32{0, 44, 109},
				},
			},
			{Name: "all", ContainerEdits: specs.ContainerEdits{
				IntelRdt:   &specs.IntelRdt{ClosID: "gpu", L3CacheSchema: "L3:0=f", MemBwSchema: "MB:0=20", Schemata: []string{"L3:0=f"}, EnableMonitoring: true},
				NetDevices: []*specs.LinuxNetDevice{{HostInterfaceName: "eth1", Name: "eth0"}},
			}},
		},
		ContainerEdits: specs.ContainerEdits{Env: []string{"VENDOR=yes"}},
	}
}

func TestParse_ReadsEveryField(t *testing.T) {
	text := must.Get(os.ReadFile(every))(t)
	got := must.Get(cdi.Parse(text, false))(t)
	if diff := cmp.Diff(everySpec(), got); diff != "" {
		t.Error("YAML:", diff)
	}
	encoded := must.Get(json.Marshal(got))(t)
	got = must.Get(cdi.Parse(encoded, true))(t)
	if diff := cmp.Diff(everySpec(), got); diff != "" {
		t.Error("JSON:", diff)
	}
	// JSON is YAML too, as the standard's own reader takes it.
	got = must.Get(cdi.Parse(encoded, false))(t)
	if diff := cmp.Diff(everySpec(), got); diff != "" {
		t.Error("JSON as YAML:", diff)
	}
}

func TestParse_ReadsEveryVersion(t *testing.T) {
	for _, version := range []string{"0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0", "v1.0.0"} {
		text := "cdiVersion: " + version + "\nkind: vendor.example/gpu\ndevices: [{name: a, containerEdits: {env: [A=b]}}]\n"
		if _, err := cdi.Parse([]byte(text), false); err != nil {
			t.Errorf("%s: %v", version, err)
		}
	}
}

// A mistake is a sentence that names the field and its value.
func TestParse_NamesWhatIsWrong(t *testing.T) {
	// edits are those of a device that is otherwise right.
	edits := func(text string) string {
		return "cdiVersion: 1.1.0\nkind: vendor.example/gpu\ndevices:\n- name: \"0\"\n  containerEdits: " + text + "\n"
	}
	long := strings.Repeat("x", 5000)
	for _, test := range []struct{ text, want string }{
		{"", "it is empty"},
		{"# nothing\n", "it is empty"},
		{"- a list\n", "it is not a specification in YAML: line 1: cannot unmarshal !!seq into Spec"},
		{"kind: [", "it is not a specification in YAML: line 1: did not find expected node content"},
		{"cdiVersion: 1.0.0\nkinds: a\n", "it is not a specification in YAML: line 2: field kinds not found in Spec"},
		{"cdiVersion: 1.0.0\nkind: a\nkind: b\n", "it is not a specification in YAML: line 3: mapping key \"kind\" already defined at line 2"},
		{"cdiVersion: 1.0.0\ndevices: 4\n", "it is not a specification in YAML: line 2: cannot unmarshal !!int `4` into []Device"},
		{edits("{env: [A=b]}") + "---\na: b\n", "a second YAML document follows the first one"},
		{"kind: vendor.example/gpu\n", "cdiVersion is missing"},
		{"cdiVersion: 2.0.0\n", `cdiVersion is "2.0.0", want a version from 0.3.0 to 1.1.0`},
		{"cdiVersion: new\n", `cdiVersion is "new", want a version from 0.3.0 to 1.1.0`},
		{"cdiVersion: 1.0.0\n", `kind is "", want a vendor and a class such as vendor.example/gpu`},
		{"cdiVersion: 1.0.0\nkind: gpu\n", `kind is "gpu", want a vendor and a class such as vendor.example/gpu`},
		{"cdiVersion: 1.0.0\nkind: vendor.example/\n", `kind is "vendor.example/", want a vendor and a class such as vendor.example/gpu`},
		{"cdiVersion: 1.0.0\nkind: vendor.example/gpu/two\n", `kind is "vendor.example/gpu/two", want a vendor and a class such as vendor.example/gpu`},
		{"cdiVersion: 1.0.0\nkind: 1vendor/gpu\n", `kind is "1vendor/gpu", want a vendor and a class such as vendor.example/gpu`},
		{"cdiVersion: 1.0.0\nkind: vendor.example/gpu\n", "devices has 0 entries, want 1 to 4096"},
		{"cdiVersion: 1.0.0\nkind: vendor.example/gpu\ndevices: [{name: a}]\n", `devices[0].containerEdits is empty, so that the device "a" would be nothing`},
		{"cdiVersion: 1.0.0\nkind: vendor.example/gpu\ndevices: [{containerEdits: {env: [A=b]}}]\n", `devices[0].name is "", want letters, digits, -, _, . and :, with a letter or a digit first and last`},
		{"cdiVersion: 1.0.0\nkind: vendor.example/gpu\ndevices: [{name: -a, containerEdits: {env: [A=b]}}]\n", `devices[0].name is "-a", want letters, digits, -, _, . and :, with a letter or a digit first and last`},
		{"cdiVersion: 1.0.0\nkind: vendor.example/gpu\ndevices: [{name: a=b, containerEdits: {env: [A=b]}}]\n", `devices[0].name is "a=b", want letters, digits, -, _, . and :, with a letter or a digit first and last`},
		{"cdiVersion: 1.0.0\nkind: vendor.example/gpu\ndevices: [{name: a, containerEdits: {env: [A=b]}}, {name: a, containerEdits: {env: [A=b]}}]\n", `devices has "a" twice`},
		{"cdiVersion: 0.3.0\nkind: vendor.example/gpu\ndevices: [{name: \"0\", containerEdits: {env: [A=b]}}]\n", `cdiVersion is "0.3.0", and it has fields of version 0.5.0`},
		{"cdiVersion: 0.5.0\nkind: vendor.example/gpu.a\ndevices: [{name: \"0\", containerEdits: {env: [A=b]}}]\n", `cdiVersion is "0.5.0", and it has fields of version 0.6.0`},
		{"cdiVersion: 0.6.0\nkind: vendor.example/gpu\ndevices: [{name: \"0\", containerEdits: {additionalGids: [44]}}]\n", `cdiVersion is "0.6.0", and it has fields of version 0.7.0`},
		{"cdiVersion: 1.0.0\nkind: vendor.example/gpu\ndevices: [{name: \"0\", containerEdits: {netDevices: [{hostInterfaceName: a, name: b}]}}]\n", `cdiVersion is "1.0.0", and it has fields of version 1.1.0`},
		{edits("{env: [A]}"), `devices[0].containerEdits.env[0] is "A", want NAME=VALUE`},
		{edits("{env: [=b]}"), `devices[0].containerEdits.env[0] is "=b", want NAME=VALUE`},
		{edits(`{env: ["A=\0"]}`), `devices[0].containerEdits.env[0] is "A=\x00", want NAME=VALUE`},
		{edits("{deviceNodes: [null]}"), "devices[0].containerEdits.deviceNodes[0] is null"},
		{"cdiVersion: 0.3.0\nkind: vendor.example/gpu\ndevices: [{name: a, containerEdits: {deviceNodes: [null]}}]\n", "devices[0].containerEdits.deviceNodes[0] is null"},
		{"cdiVersion: 0.3.0\nkind: vendor.example/gpu\ndevices: [{name: a, containerEdits: {mounts: [null]}}]\n", "devices[0].containerEdits.mounts[0] is null"},
		{edits("{deviceNodes: [{}]}"), "devices[0].containerEdits.deviceNodes[0].path is missing"},
		{edits("{deviceNodes: [{path: dev/gpu}]}"), `devices[0].containerEdits.deviceNodes[0].path is "dev/gpu", want an absolute path`},
		{edits("{deviceNodes: [{path: /dev/../gpu}]}"), `devices[0].containerEdits.deviceNodes[0].path is "/dev/../gpu", want a path without ".."`},
		{edits("{deviceNodes: [{path: /dev/gpu, hostPath: gpu}]}"), `devices[0].containerEdits.deviceNodes[0].hostPath is "gpu", want an absolute path`},
		{edits("{deviceNodes: [{path: /dev/gpu, type: x}]}"), `devices[0].containerEdits.deviceNodes[0].type is "x", want b, c, u or p`},
		{edits("{deviceNodes: [{path: /dev/gpu, permissions: rx}]}"), `devices[0].containerEdits.deviceNodes[0].permissions is "rx", want letters of rwm, or none`},
		{edits("{deviceNodes: [{path: /dev/gpu, gid: -1}]}"), "it is not a specification in YAML: line 5: cannot unmarshal !!int `-1` into uint32"},
		{edits("{mounts: [{hostPath: /a}]}"), "devices[0].containerEdits.mounts[0].containerPath is missing"},
		{edits("{mounts: [{containerPath: /a}]}"), "devices[0].containerEdits.mounts[0].hostPath is missing"},
		{edits("{mounts: [{hostPath: /a/../b, containerPath: /a}]}"), `devices[0].containerEdits.mounts[0].hostPath is "/a/../b", want a path without ".."`},
		{edits("{mounts: [{hostPath: /a, containerPath: /" + long + "}]}"), `devices[0].containerEdits.mounts[0].containerPath is "/` + long[:199] + `…", want at most 4095 bytes of printable characters`},
		{edits("{mounts: [null]}"), "devices[0].containerEdits.mounts[0] is null"},
		{edits("{hooks: [{hookName: poststart}]}"), "devices[0].containerEdits.hooks[0].path is missing"},
		{edits("{hooks: [{hookName: poststart, path: hook}]}"), `devices[0].containerEdits.hooks[0].path is "hook", want an absolute path`},
		{edits("{hooks: [null]}"), "devices[0].containerEdits.hooks[0] is null"},
		{edits("{netDevices: [null]}"), "devices[0].containerEdits.netDevices[0] is null"},
		{edits("{env: [" + strings.Repeat("A=b,", 1025) + "]}"), "devices[0].containerEdits.env has 1025 entries, want at most 1024"},
		{"cdiVersion: 1.0.0\nkind: vendor.example/gpu\ncontainerEdits: {mounts: [{}]}\n", "containerEdits.mounts[0].hostPath is missing"},
	} {
		_, err := cdi.Parse([]byte(test.text), false)
		if err == nil || err.Error() != test.want {
			t.Errorf("%.200s\ngot  %v\nwant %s", test.text, err, test.want)
		}
	}
	for _, test := range []struct{ text, want string }{
		{"", "it is empty"},
		{"[]", "it is not a specification in JSON: cannot unmarshal array into Go value of type specs.Spec"},
		{`{"cdiVersion":"1.0.0","kinds":""}`, `it is not a specification in JSON: unknown field "kinds"`},
		{`{"cdiVersion":1}`, "it is not a specification in JSON: cannot unmarshal number into Go struct field Spec.cdiVersion of type string"},
		{`{"cdiVersion":"1.0.0","kind":"vendor.example/gpu","devices":[{"name":"0","containerEdits":{"deviceNodes":[{"path":"/dev/g\u007fpu"}]}}]}`,
			`devices[0].containerEdits.deviceNodes[0].path is "/dev/g\x7fpu", want at most 4095 bytes of printable characters`},
		{"{\"cdiVersion\":\"\xff\"}", "it is not in UTF-8"},
		{`{"cdiVersion":"1.0.0"} {}`, "it is not a specification in JSON: something follows the JSON object"},
		{"cdiVersion: 1.0.0\n", "it is not a specification in JSON: invalid character 'c' looking for beginning of value"},
	} {
		if _, err := cdi.Parse([]byte(test.text), true); err == nil || err.Error() != test.want {
			t.Errorf("%s\ngot  %v\nwant %s", test.text, err, test.want)
		}
	}
}

// What is accepted obeys the standard's own rule of versions, and is accepted again when
// it is written by the standard's own types.
func FuzzParse(f *testing.F) {
	for _, name := range []string{every, "testdata/nvidia.yaml", "testdata/amd.json"} {
		text := must.Get(os.ReadFile(name))(f)
		f.Add(text, strings.HasSuffix(name, ".json"))
	}
	f.Add([]byte("a: &a [*a]\n"), false)
	f.Add([]byte("a: &a {b: 1}\n<<: *a\n"), false)
	f.Fuzz(func(t *testing.T, text []byte, isJSON bool) {
		spec, err := cdi.Parse(text, isJSON)
		if err != nil {
			if err.Error() == "" || strings.ContainsRune(err.Error(), '\n') {
				t.Errorf("the error is %q, want one line", err)
			}
			return
		}
		if err := specs.ValidateVersion(spec); err != nil {
			t.Error(err)
		}
		for name, encode := range map[string]func(any) ([]byte, error){"yaml": yaml.Marshal, "json": json.Marshal} {
			written, err := encode(spec)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := cdi.Parse(written, name == "json"); err != nil {
				t.Errorf("written again, it is refused: %v\n%s", err, written)
			}
		}
	})
}
