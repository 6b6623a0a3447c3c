package machine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

func TestAdviceOn_DependsOnTheDevice(t *testing.T) {
	device := filepath.Join(t.TempDir(), "kvm")
	if advice := adviceOn(device); !strings.Contains(advice, "kernel module") {
		t.Errorf("without a device: %s", advice)
	}
	must.Write(t, device, "", 0o600)
	if advice := adviceOn(device); !strings.Contains(advice, "start the computer again") {
		t.Errorf("with a device that can be opened: %s", advice)
	}
	must.Do(t, os.Chmod(device, 0))
	if os.Geteuid() != 0 {
		if advice := adviceOn(device); !strings.Contains(advice, "belongs to the group ") {
			t.Errorf("with a device of a group: %s", advice)
		}
	}
}
