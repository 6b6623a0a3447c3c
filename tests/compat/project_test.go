package compat

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// makeDatabase and makeRepository print a project's file, in base64, and are run
// in sandboxes: the machine may lack SQLite and git.
const (
	makeDatabase = `
import base64, sqlite3
database = sqlite3.connect("notes.db")
with database:
    database.execute("CREATE TABLE notes (number INT, text TEXT)")
    database.execute("INSERT INTO notes VALUES (1, 'one'), (2, 'two')")
database.close()
print(base64.b64encode(open("notes.db", "rb").read()).decode())
`
	makeRepository = `
set -e
command -v git >/dev/null || { echo; exit; }
git init -q repository
cd repository
echo content >file
git add file
git -c user.name=a -c user.email=a@example.org commit -qm one
tar -cf - . | base64 -w 0
`
)

// TestProjects_WorkReadOnlyAndLaidOver runs the programs below projects in
// sandboxes that have a project with a database and a repository.
func TestProjects_WorkReadOnlyAndLaidOver(t *testing.T) {
	programs, err := filepath.Glob("projects/*/*")
	if err != nil || len(programs) < 2 {
		t.Fatalf("%d programs in projects, error %v", len(programs), err)
	}
	for _, program := range programs {
		language := filepath.Base(filepath.Dir(program))
		code := must.Get(os.ReadFile(program))(t)
		for _, mode := range []string{"readonly", "overlay"} {
			t.Run(language+"-"+filepath.Base(program)+"-"+mode, func(t *testing.T) {
				run := filepath.Join(undertest.Artifact(t, language), "bin", "run")
				project := makeProject(t, language, run)
				out, errs, err := execute(t, run, code, "PROJECT_DIR="+project, "PROJECT_MODE="+mode)
				if reason, skipped := strings.CutPrefix(out, "skip: "); skipped {
					t.Skip(reason)
				}
				if err != nil || !strings.HasSuffix(out, "ok\n") {
					t.Errorf("%v\n%s%s", err, out, errs)
				}
			})
		}
	}
}

// makeProject returns a folder with what the programs of a language look for.
func makeProject(t *testing.T, language, run string) string {
	t.Helper()
	folder := t.TempDir()
	maker := makeDatabase
	if language == "bash" {
		maker = makeRepository
	}
	out, errs, err := execute(t, run, []byte(maker))
	if err != nil {
		t.Fatalf("make the project: %v\n%s", err, errs)
	}
	contents := must.Get(base64.StdEncoding.DecodeString(strings.TrimSpace(out)))(t)
	if language != "bash" {
		must.Do(t, os.WriteFile(filepath.Join(folder, "notes.db"), contents, 0o644))
		return folder
	}
	must.Do(t, unpack(folder, contents))
	return folder
}

// unpack writes the files of an archive, all of which this test has made.
func unpack(folder string, archive []byte) error {
	for files := tar.NewReader(bytes.NewReader(archive)); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		path := filepath.Join(folder, header.Name)
		if header.Typeflag == tar.TypeDir {
			err = os.MkdirAll(path, 0o755)
		} else {
			var contents []byte
			if contents, err = io.ReadAll(files); err == nil {
				err = os.WriteFile(path, contents, os.FileMode(header.Mode))
			}
		}
		if err != nil {
			return err
		}
	}
}
