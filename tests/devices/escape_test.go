package devices_test

import (
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/escape"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// The escape suite says which attempts a device opens, and finds them closed in a sandbox
// without devices.
func TestDevices_EscapeSuiteNamesWhatTheyOpen(t *testing.T) {
	m := newMachine(t)
	m.specification("gpu.yaml", "cdiVersion: 1.0.0\nkind: vendor.example/gpu\ndevices: [{name: all, containerEdits: {deviceNodes: [{path: /dev/gpu, hostPath: /dev/zero}]}}]\n")
	t.Setenv("NIX_SANDBOX_CDI", m.dir+"/cdi")
	verdicts := func(name string) map[string]escape.Result {
		t.Helper()
		options := escape.Options{Match: []string{"devices/strange.py", "devices/make.py"}, NoControls: true, Slow: patience.Factor()}
		report := must.Get(escape.Run(t.Context(), undertest.Artifact(t, name), options))(t)
		if !report.OK() {
			t.Errorf("%s: %v", name, report)
		}
		results := map[string]escape.Result{}
		for _, result := range report.Results {
			results[result.Name] = result
		}
		return results
	}
	with := verdicts("devices-python")
	if r := with["devices/strange.py"]; r.Verdict != escape.Opened || !strings.Contains(r.String(), "OPEN devices/strange.py: devices has vendor.example/gpu=all: /dev holds ['gpu']") {
		t.Errorf("with devices: %v", r)
	}
	if r := with["devices/make.py"]; r.Verdict != escape.Held {
		t.Errorf("with devices: %v", r)
	}
	if r := verdicts("devices-none")["devices/strange.py"]; r.Verdict != escape.Held {
		t.Errorf("without devices: %v", r)
	}
}
