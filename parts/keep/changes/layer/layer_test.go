package layer_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes/layer"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// secret is what must never be read.
const secret = "secret"

// plant makes a tree with a secret outside of it, and links that lead there.
func plant(t *testing.T) *layer.Tree {
	t.Helper()
	dir := t.TempDir()
	root := filepath.Join(dir, "tree")
	must.Do(t, os.MkdirAll(filepath.Join(root, "folder"), 0o755))
	must.Do(t, os.MkdirAll(filepath.Join(dir, "outside"), 0o755))
	for name, text := range map[string]string{"outside/file": secret, "tree/file": "text", "tree/folder/inner": "inner"} {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	for link, to := range map[string]string{
		"out": "../outside/file", "outFolder": "../outside", "absolute": filepath.Join(dir, "outside/file"),
		"loop": "loop", "proc": "/proc/self/root", "folder/parent": "../../outside",
	} {
		must.Do(t, os.Symlink(to, filepath.Join(root, link)))
	}
	must.Do(t, unix.Mkfifo(filepath.Join(root, "fifo"), 0o600))
	tree := must.Get(layer.Open(root))(t)
	t.Cleanup(func() { tree.Close() })
	return tree
}

func TestRead_FollowsNoLinkAndOpensNoFIFO(t *testing.T) {
	tree := plant(t)
	for _, name := range []string{
		"outFolder/file", "folder/parent/file", "../outside/file", "folder/../../outside/file", "/etc/passwd", "proc/etc/passwd", "loop/x",
	} {
		if content, _, err := tree.Read(name, 100); err == nil || strings.Contains(string(content), secret) {
			t.Errorf("%s: content %q, error %v", name, content, err)
		}
	}
	if content, _, err := tree.Read("fifo", 100); err == nil {
		t.Errorf("a FIFO: content %q", content)
	}
	// The control: what is inside, and a link as the path that it is.
	for name, want := range map[string]string{"file": "text", "folder/inner": "inner", "out": "../outside/file"} {
		if content, _, err := tree.Read(name, 100); err != nil || string(content) != want {
			t.Errorf("%s: content %q, error %v, want %q", name, content, err, want)
		}
	}
}

func TestRead_IsBounded(t *testing.T) {
	tree := plant(t)
	var large *layer.TooLargeError
	if _, _, err := tree.Read("file", 3); !errors.As(err, &large) || large.Size != 4 {
		t.Errorf("error %v, want one of 4 bytes", err)
	}
}

func TestWalk_VisitsNoMoreThanItsBudget(t *testing.T) {
	tree := plant(t)
	walk := func(budget int) (names []string, err error) {
		err = tree.Walk(".", &budget, func(entry layer.Entry) bool {
			names = append(names, entry.Path)
			return true
		})
		return names, err
	}
	want := "absolute fifo file folder folder/inner folder/parent loop out outFolder proc"
	if names, err := walk(10); err != nil || strings.Join(names, " ") != want {
		t.Errorf("visited %q, error %v", names, err)
	}
	if names, err := walk(5); !errors.Is(err, layer.ErrTooMany) || len(names) != 5 {
		t.Errorf("visited %q, error %v, want 5 and ErrTooMany", names, err)
	}
}

// Folders in folders, deeper than a path may be long, cost no more than the bounds.
func TestWalk_OfDeepFolders(t *testing.T) {
	root := t.TempDir()
	dir := must.Get(unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY, 0))(t)
	const depth = 1000
	for range depth {
		must.Do(t, unix.Mkdirat(dir, "folder", 0o755))
		next := must.Get(unix.Openat(dir, "folder", unix.O_RDONLY|unix.O_DIRECTORY, 0))(t)
		unix.Close(dir)
		dir = next
	}
	unix.Close(dir)
	tree := must.Get(layer.Open(root))(t)
	defer tree.Close()
	visited, unread, budget := 0, 0, depth
	err := tree.Walk(".", &budget, func(entry layer.Entry) bool {
		visited++
		if entry.Unread != nil {
			unread++
		}
		return true
	})
	if err != nil || visited != layer.MaxDepth || unread != 1 {
		t.Errorf("visited %d folders, %d of them could not be read, error %v", visited, unread, err)
	}
}

func TestFind_OfWhatIsNotThere(t *testing.T) {
	tree := plant(t)
	for _, name := range []string{"none", "none/below", "file/below", "outFolder/file"} {
		if entry, err := tree.Find(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %+v, error %v", name, entry, err)
		}
	}
}
