package workspace

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

func TestLoose(t *testing.T) {
	root := &Root{Path: t.TempDir()}
	in := func(name string) string { return filepath.Join(root.Path, name) }
	must.Do(t, os.Mkdir(in("outputs"), 0o755))
	must.Do(t, os.Mkdir(in("folder"), 0o755))
	must.Write(t, in("given.csv"), "1", 0o644)
	must.Write(t, in("edited.csv"), "1", 0o644)
	root.Changed()
	before := root.Loose()
	must.Write(t, in("edited.csv"), "1,2", 0o644)
	for _, name := range []string{"report.xlsx", "Makefile", ".hidden", "tmpabcd_123", "tmp.XyZ1234567", "folder/inside.txt", "plot.png"} {
		must.Write(t, in(name), "x", 0o644)
	}
	must.Do(t, os.Link(in("plot.png"), in("outputs/plot.png")))
	must.Do(t, os.Symlink("/etc/passwd", in("link.txt")))
	var got []string
	if files := root.Changed(); len(files) != 1 {
		t.Errorf("%d outputs", len(files))
	}
	for _, file := range root.Left(before) {
		if strings.HasPrefix(file.Path, root.Path) {
			got = append(got, fmt.Sprint(filepath.Base(file.Path), file.Size))
		}
	}
	if text := fmt.Sprint(got); text != "[edited.csv3 report.xlsx1 Makefile1]" && text != "[edited.csv3 Makefile1 report.xlsx1]" {
		t.Errorf("left are %s", text)
	}
	for i := range 2 * maxLoose {
		must.Write(t, in(fmt.Sprintf("%d.txt", i)), "", 0o644)
	}
	if n := len(root.Left(before)); n != maxLoose {
		t.Errorf("%d files", n)
	}
}
