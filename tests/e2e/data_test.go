package e2e

import (
	"bytes"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// A sandbox that an operator built apart from the server is served from a
// folder of links, and a plot made in it arrives as an image.
func TestPlotFromAnotherSandbox(t *testing.T) {
	artifact := undertest.Artifact(t, "data") // data.nix
	folder := t.TempDir()
	must.Do(t, os.Symlink(artifact, filepath.Join(folder, "data")))
	c := start(t, "NIX_SANDBOX_DIR="+folder)
	answer := in(c, "plots", "data", "import pandas as pd\nframe = pd.DataFrame({'x': range(10)})\nframe['y'] = frame.x ** 2\nint(frame.y.sum())")
	if answer.IsError || answer.Text() != "285\n" {
		t.Fatalf("answer %+v", answer)
	}
	answer = in(c, "plots", "data", "import matplotlib.pyplot as plt\nplt.plot(frame.x, frame.y)\nplt.title('squares')\nNone")
	if answer.IsError || len(answer.Content) != 1 || answer.Content[0].Type != "image" {
		t.Fatalf("answer %+v", answer)
	}
	picture := must.Get(png.Decode(bytes.NewReader(answer.Content[0].Data)))(t)
	if size := picture.Bounds().Size(); size.X < 200 || size.Y < 200 {
		t.Errorf("a picture of %v", size)
	}
	// Its name is known, so that the next call can go on with it.
	answer = in(c, "plots", "data", "import os; print(*os.listdir('outputs'))")
	if !strings.HasPrefix(answer.Text(), "figure-1.png") {
		t.Errorf("outputs: %s", answer.Text())
	}
}

// What an answer leaves out of its plots is said, and a result comes before its frames.
func TestPlots_SayWhatIsNotShown(t *testing.T) {
	artifact := undertest.Artifact(t, "data") // data.nix
	folder := t.TempDir()
	must.Do(t, os.Symlink(artifact, filepath.Join(folder, "data")))
	c := start(t, "NIX_SANDBOX_DIR="+folder)
	const begin = "import os, tempfile\nimport numpy as np\nimport matplotlib.pyplot as plt\nr = np.random.default_rng(0)\n"
	for name, test := range map[string]struct {
		code   string
		images int
		remark string // the beginning; "" for none
	}{
		"a large plot":     {"plt.figure(figsize=(10, 6), dpi=300); plt.imshow(r.random((1500, 2500))); plt.show()", 0, "[not shown: figure-1.png (too large: save with fewer pixels, such as dpi=100, to at most 1 MB)]"},
		"more than enough": {"for i in range(5):\n  plt.figure(figsize=(3, 2)); plt.plot([i, 2]); plt.show()", 4, "[not shown: figure-1.png (others came first: those in outputs, and the last)]"},
		"frames of a result": {"for i in range(8):\n  plt.figure(figsize=(1, 1)); plt.plot([i, 2]); plt.savefig(f'frame_{i}.png'); plt.close()\n" +
			"plt.figure(figsize=(1, 1)); plt.savefig('outputs/first.png'); plt.close()", 4, "[not shown: frame_0.png, frame_1.png, 3 more (others came first"},
		"frames that were deleted": {"plt.figure(figsize=(1, 1)); plt.savefig('frame.png'); plt.close(); os.remove('frame.png')", 0, "[no output]"},
		"frames in a temporary folder": {"with tempfile.TemporaryDirectory() as d:\n  plt.figure(figsize=(1, 1)); plt.savefig(d + '/frame.png'); plt.close()\n" +
			"plt.figure(figsize=(1, 1)); plt.savefig(tempfile.mkdtemp() + '/frame.png'); plt.close()", 0, "[no output]"},
		"enough": {"for i in range(4):\n  plt.figure(figsize=(3, 2)); plt.plot([i, 2]); plt.show()", 4, ""},
	} {
		for _, session := range []string{"", strings.ReplaceAll(name, " ", "-")} {
			answer := in(c, session, "data", begin+test.code)
			images, text := 0, ""
			for _, item := range answer.Content {
				if item.Type == "image" {
					images++
				}
				text += item.Text
			}
			if images != test.images || !strings.HasPrefix(text, test.remark) || test.remark == "" && text != "" {
				t.Errorf("%s, session %q: %d images, %q", name, session, images, text)
			}
		}
	}
}
