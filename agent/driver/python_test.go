package driver_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/agenttest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// A figure that an earlier call has shown is shown again when it is asked for.
func TestPythonFigures_Again(t *testing.T) {
	t.Parallel()
	a := Start(t, "python")
	if got := a.Run("import matplotlib"); got.ExitCode != 0 {
		t.Skipf("no matplotlib here: %s", got.Stderr)
	}
	for _, step := range []struct {
		code string
		want int
	}{
		{"import matplotlib.pyplot as plt\nfig, ax = plt.subplots(); ax.plot([1]);", 1},
		{"ax.plot([2])\nfig", 1},
		{"fig", 1},
		{"fig.show(); fig", 1},
	} {
		if got := a.Run(step.code); got.ExitCode != 0 || got.Stdout != "" || len(got.Files) != step.want {
			t.Errorf("%s: %q, %s%d files, want %d", step.code, got.Stdout, got.Stderr, len(got.Files), step.want)
		}
	}
}

func TestMain(m *testing.M) { os.Exit(patience.Main(m)) }

// What an earlier call left running prints with the next call.
func TestPythonBackgroundOutput(t *testing.T) {
	t.Parallel()
	a := Start(t, "python")
	if got := a.Run("import subprocess; p = subprocess.Popen('echo now; read line; echo later', shell=True, stdin=subprocess.PIPE); print(p.stdout)"); got.State != frame.StateKept {
		t.Fatalf("%+v", got)
	}
	got := a.Run("p.stdin.close(); p.wait()")
	if !strings.HasSuffix(got.Stdout, "later\n0\n") {
		t.Errorf("stdout %q", got.Stdout)
	}
}

func TestPythonFigures(t *testing.T) {
	t.Parallel()
	a := Start(t, "python")
	if got := a.Run("import matplotlib"); got.ExitCode != 0 {
		t.Skipf("no matplotlib here: %s", got.Stderr)
	}
	got := a.Run("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.figure()\nplt.plot([2, 1])\nplt.show()")
	if got.ExitCode != 0 || len(got.Files) != 2 {
		t.Fatalf("%+v", got)
	}
	if want := filepath.Join(a.Root, "outputs", "figure-1.png"); got.Files[0].Path != want {
		t.Errorf("file %s, want %s", got.Files[0].Path, want)
	}
	if got := a.Run("1"); len(got.Files) != 0 {
		t.Errorf("files %v of a call without figures", got.Files)
	}
	if got := a.Run("plt.plot([1]);"); len(got.Files) != 1 || !strings.HasSuffix(got.Files[0].Path, "figure-3.png") {
		t.Errorf("files %v", got.Files)
	}
	if got := a.Run("%%capture cap\nplt.plot([1]);"); got.ExitCode != 0 || len(got.Files) != 0 {
		t.Errorf("a figure that is kept is shown: %+v", got)
	}
	if got := a.Run("cap.show()"); got.ExitCode != 0 || len(got.Files) != 1 {
		t.Errorf("a figure that was kept: %+v", got)
	}
	// What the code has saved there is not shown twice; what it saved
	// elsewhere, or went on with, is.
	for code, want := range map[string]int{
		"plt.plot([1]); plt.savefig('outputs/a.png')":                                          1,
		"plt.plot([1]); plt.savefig('outputs/a.png', dpi=50, bbox_inches='tight')":             1,
		"plt.plot([1]); plt.savefig('outputs/a.png'); plt.figure(); plt.plot([2]);":            2,
		"plt.plot([1]); plt.savefig('outputs/a.png'); plt.plot([2]);":                          2,
		"plt.plot([1]); plt.savefig('a.png')":                                                  1,
		"f = plt.figure(); plt.plot([1]); f.savefig('f.png')":                                  1,
		"f, ax = plt.subplots(); ax.plot([1]); f.savefig('f.png'); plt.show()":                 1,
		"f, ax = plt.subplots(); ax.plot([1]); f.savefig('f.png'); ax.plot([2]);":              2,
		"plt.plot([1]); plt.savefig('outputs/a.pdf')":                                          2,
		"import os; os.symlink('nowhere', 'outputs/b.png'); plt.plot([1]);":                    1,
		"import matplotlib; matplotlib.use('TkAgg'); plt.plot([1]); plt.show()":                1,
		"plt.switch_backend('qtagg'); plt.plot([1]); plt.show()":                               1,
		"plt.switch_backend('agg'); plt.plot([1]);":                                            1,
		"plt.plot([1]); plt.show(); plt.close()":                                               1,
		"plt.plot([1]); plt.show(); plt.clf()":                                                 1,
		"for i in range(3):\n    plt.plot([i]); plt.show()":                                    3,
		"plt.plot([1]); plt.savefig('c.png'); plt.show()":                                      1,
		"import os; os.makedirs('x/y'); plt.plot([1]); plt.savefig('x/y/deep.png')":            1,
		"old = plt.figure(); old.subplots().plot([1]); plt.close(old)":                         0,
		"plt.plot([1]); plt.gcf()":                                                             1,
		"from matplotlib.figure import Figure; f = Figure(); f.subplots(); f":                  1,
		"plt.plot([1])[0].figure":                                                              1,
		"plt.figure()":                                                                         1,
		"from PIL import Image; Image.new('RGB', (2, 2)).save('pillow.png')":                   1,
		"from PIL import Image; Image.new('RGB', (2, 2)).show()":                               1,
		"from PIL import Image; Image.new('RGB', (2, 2))":                                      1,
		"import IPython.display as d; plt.plot([1]); plt.savefig('d.png'); d.Image('d.png')":   1,
		"import io; from PIL import Image; Image.new('RGB', (2, 2)).save(io.BytesIO(), 'png')": 0,
	} {
		if got := a.Run(code); got.ExitCode != 0 || len(got.Files) != want {
			t.Errorf("%s: %s%d files, want %d", code, got.Stderr, len(got.Files), want)
		}
	}
	// A later call has to show a file again.
	if got := a.Run("d.Image('d.png')"); got.ExitCode != 0 || len(got.Files) != 1 {
		t.Errorf("files %v of a call that shows the file of an earlier one, %s", got.Files, got.Stderr)
	}
}
