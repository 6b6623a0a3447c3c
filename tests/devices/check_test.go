package devices_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// The program for people with a GPU tries every device with a name, and prints nothing
// that names the machine or a user.
func TestGPUCheck_TriesDevicesInSandboxes(t *testing.T) {
	program := os.Getenv("NIX_SANDBOX_TEST_GPU_CHECK")
	if program == "" {
		t.Skip("NIX_SANDBOX_TEST_GPU_CHECK names no nix-sandbox-gpu-check to test")
	}
	m := newMachine(t)
	run := func(names ...string) (string, int) {
		t.Helper()
		cmd := exec.Command(program, names...)
		cmd.Env = append(os.Environ(), "NIX_SANDBOX_CDI="+m.dir+"/cdi", "USER=a-user-of-the-test")
		out, _ := cmd.CombinedOutput()
		return string(out), cmd.ProcessState.ExitCode()
	}
	m.specification("gpu.yaml", m.ofVendor("nvidia.yaml")) // whose nodes are not there
	out, status := run()
	if want := "FAIL devices nvidia.com/gpu=all: " + m.dir + "/cdi/gpu.yaml asks for the device node "; status != 1 || !strings.Contains(out, want) {
		t.Errorf("status %d, %s\nwant %q", status, out, want)
	}
	m.specification("gpu.yaml", "cdiVersion: 1.0.0\nkind: vendor.example/gpu\ndevices: [{name: all, containerEdits: {deviceNodes: [{path: /dev/gpu, hostPath: /dev/zero}]}}, {name: \"0\", containerEdits: {env: [A=b]}}]\n")
	out, status = run()
	for _, want := range []string{"CDI names: vendor.example/gpu=0, vendor.example/gpu=all\n", "in a sandbox with vendor.example/gpu=all:\n", "ok device nodes: /dev/gpu\n", "SKIP CUDA: "} {
		if status != 0 || !strings.Contains(out, want) {
			t.Errorf("status %d, %s\nwant %q", status, out, want)
		}
	}
	name := must.Get(os.Hostname())(t)
	if strings.Contains(out, "a-user-of-the-test") || len(name) > 3 && strings.Contains(out, name) || strings.Contains(out, "vendor.example/gpu=0:") {
		t.Errorf("it says too much: %s", out)
	}
	out, status = run("/dev/none")
	if status != 1 || !strings.Contains(out, "FAIL devices /dev/none: the sandbox has the device /dev/none: this machine does not have it\n  load its driver") {
		t.Errorf("status %d, %s", status, out)
	}
}
