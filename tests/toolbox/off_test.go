package toolbox

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// ofTheToolbox matches paths of the store that only servers with tools have.
var ofTheToolbox = regexp.MustCompile(`-toolbox|-sandbox-tools$|-sandbox-tool-`)

// symbol is in programs that have a package of the toolbox.
var symbol = []byte("nix-sandbox-mcp/parts/toolbox/")

// found are the paths of a server's closure that are of the toolbox, and its programs that have the
// toolbox in them.
func found(t *testing.T, server string) (paths, programs []string) {
	t.Helper()
	root := filepath.Dir(filepath.Dir(must.Get(filepath.EvalSymlinks(server))(t)))
	closure := string(must.Get(exec.Command("nix-store", "--query", "--requisites", root).Output())(t))
	for path := range strings.FieldsSeq(closure) {
		if ofTheToolbox.MatchString(path) {
			paths = append(paths, path)
		}
		if !strings.Contains(path, "nix-sandbox-") {
			continue
		}
		files, _ := filepath.Glob(path + "/bin/*") // the pattern is right
		for _, file := range files {
			if text, err := os.ReadFile(file); err == nil && bytes.Contains(text, symbol) {
				programs = append(programs, file)
			}
		}
	}
	return paths, programs
}

// The closure of a server without tools has nothing of the toolbox, with the environments of the
// example; the control is the server with tools.
func TestOff_HasNothingInTheClosure(t *testing.T) {
	with := server(t)
	if paths, programs := found(t, with); len(paths) == 0 || len(programs) < 3 {
		t.Errorf("the server with tools has %q, and in programs %q", paths, programs)
	}
	if paths, programs := found(t, undertest.Server(t)); len(paths)+len(programs) > 0 {
		t.Errorf("the server without tools has %q, and in programs %q", paths, programs)
	}
}
