package e2e

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// saved are the contents of the files in which a server has saved changes.
func saved(t *testing.T, state string) (contents []string) {
	t.Helper()
	names := must.Get(filepath.Glob(filepath.Join(state, "nix-sandbox-mcp", "changes", "*.patch")))(t)
	for _, name := range names {
		info := must.Get(os.Stat(name))(t)
		if info.Mode() != 0o600 {
			t.Errorf("%s has the mode %v", name, info.Mode())
		}
		contents = append(contents, string(must.Get(os.ReadFile(name))(t)))
	}
	return contents
}

// patch reads the resource with the changes of a session.
func patch(t *testing.T, c *mcptest.Client, session string) string {
	t.Helper()
	var read struct{ Contents []struct{ Text, MIMEType string } }
	must.Do(t, json.Unmarshal(c.Request("resources/read", map[string]any{"uri": "sandbox://" + session + "/changes.patch"}).Result, &read))
	if len(read.Contents) != 1 || read.Contents[0].MIMEType != "text/x-diff" {
		t.Fatalf("the resource has %+v", read)
	}
	return read.Contents[0].Text
}

// links are the resource links of an answer.
func links(answer mcptest.Answer) (uris []string) {
	for _, content := range answer.Content {
		if content.Type == "resource_link" {
			uris = append(uris, content.URI)
		}
	}
	return uris
}

// What a session changes in an overlay is a resource, linked once, and a file that is
// there when the server is killed.
func TestChanges_AreAResourceAndAFile(t *testing.T) {
	project, state := sample(t, "a project"), t.TempDir()
	before := tree(t, project)
	c := start(t, "PROJECT_DIR="+project, "PROJECT_MODE=overlay", "XDG_STATE_HOME="+state)
	if answer := in(c, "work", "bash", "ls /project > list"); len(links(answer)) > 0 || answer.Meta["nix-sandbox-mcp/changes"] != nil {
		t.Errorf("nothing is changed, and the answer is %+v", answer)
	}
	answer := in(c, "work", "bash", "cd /project; sed -i s/upper/lower/ words.py; rm build/old.txt; echo new > 'new file'; mkdir .git; echo > .git/config")
	if diff := cmp.Diff([]string{"sandbox://work/changes.patch"}, links(answer)); diff != "" {
		t.Errorf("links: %s", diff)
	}
	facts, _ := answer.Meta["nix-sandbox-mcp/changes"].(map[string]any)
	for name, want := range map[string]any{"added": 1.0, "changed": 1.0, "deleted": 1.0, "uri": "sandbox://work/changes.patch", "left_out_count": 1.0} {
		if facts[name] != want {
			t.Errorf("%s is %v, want %v", name, facts[name], want)
		}
	}
	if answer := in(c, "work", "bash", "echo more >> '/project/new file'"); len(links(answer)) > 0 {
		t.Errorf("linked again: %+v", answer)
	}
	got := patch(t, c, "work")
	for _, want := range []string{"-    return text.upper() + \"!\"\n+    return text.lower() + \"!\"\n", "deleted file mode 100644", "+new\n+more\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("the patch lacks %q:\n%s", want, got)
		}
	}
	if strings.Contains(got, ".git/") {
		t.Errorf("the patch has git's own:\n%s", got)
	}
	// Another session has another layer, and a call without a session none that is saved.
	expect(t, in(c, "other", "bash", "ls /project"), "Makefile\nbuild\nflake.nix\ntest_words.py\nwords.py\n")
	run(c, "bash", "echo > /project/once")
	c.Signal(9)
	c.Wait(patience.Long)
	files := saved(t, state)
	if len(files) != 1 || !strings.HasSuffix(files[0], "\n\n"+got) {
		t.Errorf("%d files are saved: %q", len(files), files)
	}
	if diff := cmp.Diff(before, tree(t, project)); diff != "" {
		t.Errorf("the host's files changed:\n%s", diff)
	}
	if _, err := exec.LookPath("git"); err == nil {
		cmd := exec.Command("git", "apply", "-")
		cmd.Dir, cmd.Stdin = project, strings.NewReader(files[0])
		cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(project))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if text := must.Get(os.ReadFile(filepath.Join(project, "new file")))(t); string(text) != "new\nmore\n" {
			t.Errorf("applied, the new file has %q", text)
		}
	}
}

// Without an overlay nothing is written, and no folder is made.
func TestChanges_WithoutAnOverlay(t *testing.T) {
	for name, variables := range map[string][]string{
		"read-only":  {"PROJECT_DIR=" + sample(t, "project")},
		"no project": {"PROJECT_MODE=overlay"},
	} {
		t.Run(name, func(t *testing.T) {
			state := t.TempDir()
			c := start(t, append(variables, "XDG_STATE_HOME="+state)...)
			in(c, "work", "bash", "echo > changes.patch; echo > /project/x")
			c.CloseInput()
			c.Wait(10 * time.Second)
			must.Do(t, filepath.WalkDir(state, func(path string, _ fs.DirEntry, err error) error {
				if path != state {
					t.Errorf("%s was made", path)
				}
				return err
			}))
		})
	}
}
