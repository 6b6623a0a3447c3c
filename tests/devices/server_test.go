package devices_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// A server whose environment names a device that the machine lacks says so, to the model
// and in doctor, and its other environments work.
func TestServer_OneDeviceIsMissing(t *testing.T) {
	server := undertest.Server(t)
	m := newMachine(t)
	// The third has one that the server finds by the variable that it passes on.
	m.specification("gpu.yaml", "cdiVersion: 1.0.0\nkind: vendor.example/npu\ndevices: [{name: all, containerEdits: {deviceNodes: [{path: /dev/npu, hostPath: /dev/zero}]}}]\n")
	folder := t.TempDir()
	for name, device := range map[string]string{"missing": "vendor.example/gpu=all", "there": "vendor.example/npu=all"} {
		artifact := filepath.Join(folder, name)
		must.Do(t, os.CopyFS(artifact, os.DirFS(undertest.Artifact(t, "devices-python"))))
		for _, program := range []string{"run", "session-run", "check"} {
			path := filepath.Join(artifact, "bin", program)
			text := string(must.Get(os.ReadFile(path))(t))
			must.Do(t, os.Remove(path))
			must.Write(t, path, strings.Replace(text, "vendor.example/gpu=all", device, 1), 0o755)
		}
		path := filepath.Join(artifact, "metadata.json")
		text := string(must.Get(os.ReadFile(path))(t))
		must.Do(t, os.Remove(path))
		// Their needs of a machine differ.
		must.Write(t, path, strings.Replace(strings.Replace(text, `"devices-python"`, `"`+name+`"`, 1), `"needs":"`, `"needs":"`+name, 1), 0o644)
	}
	must.Do(t, os.Symlink(undertest.Artifact(t, "devices-none"), filepath.Join(folder, "none")))
	environ := append(os.Environ(), "NIX_SANDBOX_DIR="+folder, "NIX_SANDBOX_CDI="+m.dir+"/cdi", "PROJECT_DIR=")
	cmd := exec.Command(server, "--stdio")
	cmd.Env = environ
	client := mcptest.Start(t, cmd)
	client.Initialize("2025-06-18")
	for env, want := range map[string]string{
		"devices-none": "False\n", "there": "True\n",
		"missing": "vendor.example/gpu=all is in no CDI specification of this machine",
	} {
		answer := client.Run(map[string]any{"env": env, "code": "import os\nprint(os.path.exists('/dev/npu'))"})
		if text := answer.Text(); !strings.Contains(text, want) {
			t.Errorf("%s: %q, want %q", env, text, want)
		}
	}
	doctor := exec.Command(server, "doctor")
	doctor.Env = environ
	out, _ := doctor.CombinedOutput()
	for _, want := range []string{
		"CDI names", "vendor.example/npu=all",
		"devices vendor.example/npu=all", "device nodes: 1, other files and folders: 0",
		"devices vendor.example/gpu=all", "vendor.example/gpu=all is in no CDI specification of this machine",
		"name one of vendor.example/npu=all",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("doctor says %q, want %q in it", out, want)
		}
	}
}
