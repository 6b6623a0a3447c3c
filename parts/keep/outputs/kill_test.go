package outputs_test

import (
	"bufio"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/outputs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/seed"
)

const killVariable = "OUTPUTS_TEST_KILLED"

// declared is a text of a size that it says itself.
func declared(size int) string {
	text := fmt.Sprintf("%d\n", size)
	return text + strings.Repeat("x", size-len(text))
}

// A server that is killed at any moment leaves whole files under their names, and nothing else under
// a name without a dot; and what is beside the folder stays.
func TestCopy_IsKilledAtAnyMoment(t *testing.T) {
	if folder := os.Getenv(killVariable); folder != "" {
		f := open(t, folder, outputs.DefaultLimits)
		fmt.Println("begun")
		for n := 0; ; n++ {
			files := map[string]string{}
			for i := range 8 {
				files[fmt.Sprintf("deep/%d/%d.csv", i%3, i)] = declared(10 + (n*7919+i*104729)%200_000)
			}
			copied(f, files)
		}
	}
	random := seed.New(t)
	beside := t.TempDir()
	folder := filepath.Join(beside, "outputs")
	must.Do(t, os.Mkdir(folder, 0o755))
	must.Do(t, os.Mkdir(filepath.Join(beside, "victims"), 0o755))
	must.Write(t, filepath.Join(beside, "victims", "1.csv"), "victim", 0o644)
	must.Do(t, os.MkdirAll(filepath.Join(folder, "s", "deep"), 0o755))
	must.Do(t, os.Symlink(filepath.Join(beside, "victims"), filepath.Join(folder, "s", "deep", "1")))
	before := tree(t, filepath.Join(beside, "victims"))
	whole, partial := 0, 0
	for range 30 {
		cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), killVariable+"="+folder)
		out := must.Get(cmd.StdoutPipe())(t)
		must.Do(t, cmd.Start())
		must.Get(bufio.NewReader(out).ReadString('\n'))(t)
		time.Sleep(time.Duration(random.IntN(30_000)) * time.Microsecond)
		must.Do(t, cmd.Process.Kill())
		_ = cmd.Wait()
	}
	must.Do(t, filepath.WalkDir(folder, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		if strings.HasPrefix(entry.Name(), ".nix-sandbox-mcp-") {
			partial++
			return nil
		}
		text := string(must.Get(os.ReadFile(name))(t))
		size := 0
		if _, err := fmt.Sscanf(text, "%d\n", &size); err != nil || size < 10 || text != declared(size) {
			t.Errorf("%s has %d bytes, and says that it has %d", name, len(text), size)
		}
		whole++
		return nil
	}))
	// The control: servers were killed while they wrote.
	t.Logf("%d whole files, %d partial ones", whole, partial)
	if whole == 0 || partial == 0 {
		t.Errorf("%d whole files, %d partial ones", whole, partial)
	}
	if diff := cmp.Diff(before, tree(t, filepath.Join(beside, "victims"))); diff != "" {
		t.Errorf("beside the folder: %s", diff)
	}
}
