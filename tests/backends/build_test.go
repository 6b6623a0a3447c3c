package backends

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// ofImages finds the image and the initial RAM disk of a machine in its description.
var ofImages = regexp.MustCompile(`/nix/store/[a-z0-9]+-sandbox-(image\.erofs|initrd)`)

// The image and the initial RAM disk of a machine are the same bits when they are built
// again. A derivation that writes random numbers is found: the control.
func TestImage_IsTheSameWhenBuiltAgain(t *testing.T) {
	t.Parallel()
	long(t)
	builder := ""
	for _, kind := range []string{"bash", "python", "node"} {
		description := must.Get(os.ReadFile(filepath.Join(artifact(t, kind), "bin/session-run")))(t)
		paths := ofImages.FindAllString(string(description), -1)
		if len(paths) != 2 {
			t.Fatalf("the description of %s names %q", kind, paths)
		}
		for _, path := range paths {
			derivation := query(t, "--deriver", path)
			if _, err := os.Stat(derivation); err != nil {
				t.Skipf("what builds %s is not in the store: %v", path, err)
			}
			if output, err := exec.Command("nix-store", "--realise", "--check", derivation).CombinedOutput(); err != nil {
				t.Errorf("%s is another one when it is built again: %v: %s", path, err, output)
			}
			if strings.HasSuffix(path, "initrd") { // the other one has structured attributes
				builder = query(t, "--binding", "builder", derivation)
			}
		}
	}
	control := []string{"--no-out-link", "-E", `derivation {
		name = "control";
		system = "x86_64-linux";
		builder = builtins.storePath "` + strings.TrimSuffix(builder, "/bin/bash") + `" + "/bin/bash";
		args = [ "-c" "echo $RANDOM$RANDOM$RANDOM$RANDOM > $out" ];
	}`}
	if output, err := exec.Command("nix-build", control...).CombinedOutput(); err != nil {
		t.Fatalf("the control is not built: %v: %s", err, output)
	}
	if output, err := exec.Command("nix-build", append(control, "--check")...).CombinedOutput(); err == nil || !strings.Contains(string(output), "may not be deterministic") {
		t.Errorf("random numbers are the same: %v: %s", err, output)
	}
}

// query asks Nix about a path.
func query(t *testing.T, about ...string) string {
	t.Helper()
	return strings.TrimSpace(string(must.Get(exec.Command("nix-store", append([]string{"--query"}, about...)...).Output())(t)))
}
