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
