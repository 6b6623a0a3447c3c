package backends

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/machines"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// project makes a folder to show, beside a file that is not in it.
func project(t *testing.T) string {
	t.Helper()
	host := t.TempDir()
	must.Write(t, filepath.Join(host, "outside"), "of the host", 0o644)
	folder := filepath.Join(host, "my project")
	must.Write(t, filepath.Join(folder, "file"), "content\n", 0o600)
	must.Write(t, filepath.Join(folder, "sub/other"), "other\n", 0o644)
	must.Do(t, os.Symlink("../outside", filepath.Join(folder, "link")))
	return folder
}

// digest lists what is in a folder of the host.
func digest(t *testing.T, folder string) string {
	t.Helper()
	return string(must.Get(exec.Command("find", folder, "-printf", "%P %y %m %s %T@\n").Output())(t))
}

// A project, and an inbox without one.
func TestProject_IsReadAndNotWritten(t *testing.T) {
	t.Parallel()
	for mount, variables := range map[string]func(folder string) []string{
		"/my project": func(folder string) []string { return []string{"PROJECT_DIR=" + folder, "PROJECT_MOUNT=/my project"} },
		"/inbox":      func(folder string) []string { return []string{"NIX_SANDBOX_INBOX=" + folder} },
	} {
		t.Run(mount, func(t *testing.T) {
			t.Parallel()
			folder := project(t)
			before := digest(t, folder)
			cmd := program(t, artifact(t, "bash"), "run", "cd '"+mount+`'; ls -d /project 2>/dev/null
				cat file sub/other; cat link 2>/dev/null && echo escaped
				echo x > file; rm -f sub/other; mkdir new; ls
			`)
			cmd.Env = append(variables(folder), "XDG_CACHE_HOME="+shared(t))
			var log bytes.Buffer
			cmd.Stderr = &log
			output, err := cmd.Output()
			if err != nil || string(output) != "content\nother\nfile\nlink\nsub\n" {
				t.Errorf("%v: it prints %q: %s", err, output, &log)
			}
			if n := strings.Count(log.String(), "Read-only file system"); n != 3 {
				t.Errorf("%d of 3 writes were refused: %s", n, &log)
			}
			if after := digest(t, folder); after != before {
				t.Errorf("the folder was\n%s, it is\n%s", before, after)
			}
		})
	}
}

// Folders of the description are shown too, with a project beside them, and what is in the store from there.
func TestBinds_AreReadAndNotWritten(t *testing.T) {
	t.Parallel()
	cmd := program(t, artifact(t, "command"), "run", "cat /project/file /hello/file; cat /data/sandboxes.nix; echo x >/data/new")
	cmd.Env = []string{"XDG_CACHE_HOME=" + shared(t), "PROJECT_DIR=" + project(t)}
	var log bytes.Buffer
	cmd.Stderr = &log
	output, _ := cmd.Output()
	want := "content\nof the store\n" + string(must.Get(os.ReadFile("sandboxes.nix"))(t))
	if string(output) != want || strings.Count(log.String(), "Read-only file system") != 1 {
		t.Errorf("it prints %q: %s", output, &log)
	}
}

// A machine that waits shows the project as it is at the first call. Code writes into a
// layer of its own, which further calls see and the host does not, also in a machine that
// was saved meanwhile.
func TestProject_OverlayIsTheSessions(t *testing.T) {
	t.Parallel()
	folder, machineFolder := project(t), artifact(t, "bash")
	inbox := t.TempDir()
	must.Write(t, filepath.Join(inbox, "data"), "given\n", 0o600)
	environ := []string{"PROJECT_DIR=" + folder, "PROJECT_MODE=overlay", "NIX_SANDBOX_INBOX=" + inbox}
	m := start(t, machineFolder, shared(t), "", environ...)
	must.Write(t, filepath.Join(folder, "file"), "newer\n", 0o600)
	before := digest(t, folder)
	if output := m.run("cd /project; cat file; echo changed >file; rm -r sub; echo new >new; ls"); output != "newer\nfile\nlink\nnew\n" {
		t.Errorf("the first call prints %q", output)
	}
	if after := digest(t, folder); after != before {
		t.Errorf("the folder was\n%s, it is\n%s", before, after)
	}
	must.Write(t, filepath.Join(folder, "later"), "x", 0o600)
	to := filepath.Join(t.TempDir(), "saved")
	m.saved(to, false)
	must.Do(t, os.Remove(filepath.Join(inbox, "data")))
	m = start(t, machineFolder, shared(t), to, environ...)
	if output := m.run("cat file new /inbox/data; ls; rm new; cat link 2>&1 | wc -l"); output != "changed\nnew\ngiven\nfile\nlink\nnew\n1\n" {
		t.Errorf("the second call prints %q", output)
	}
	if _, err := machines.Start(machineFolder, shared(t), to); err == nil || !strings.Contains(err.Error(), "with or without a project") {
		t.Errorf("without the project it goes on: %v", err)
	}
}

// A project that is too large for an image is refused before a machine starts.
func TestProject_TooLargeIsRefused(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	must.Write(t, filepath.Join(folder, "large"), "", 0o600)
	must.Do(t, os.Truncate(filepath.Join(folder, "large"), 3<<30))
	isRefused(t, folder, "more than 2048 MB")
}

// manyFilesVariable is how many files the project of the next test has, in a folder of
// TMPDIR, for its long form.
const manyFilesVariable = "NIX_SANDBOX_TEST_FILES"

func TestProject_ManyFilesAreRefused(t *testing.T) {
	files := 100_001
	if text := os.Getenv(manyFilesVariable); text != "" {
		files = must.Get(strconv.Atoi(text))(t)
	}
	folder, first := t.TempDir(), ""
	for n := range files {
		name := filepath.Join(folder, fmt.Sprint(n))
		// A link is made faster than a file, of which ext4 has at most 65,000.
		if n%50_000 == 0 {
			first = name
			must.Write(t, first, "", 0o600)
		} else {
			must.Do(t, os.Link(first, name))
		}
	}
	isRefused(t, folder, "more than 100000 files and folders")
}

// isRefused checks that a machine that would show a folder is refused for a reason.
func isRefused(t *testing.T, folder, reason string) {
	t.Helper()
	cmd := program(t, artifact(t, "bash"), "session-run", "")
	cmd.Env = []string{"PROJECT_DIR=" + folder}
	_, err := cmd.Output()
	var ended *exec.ExitError
	if !errors.As(err, &ended) || ended.ExitCode() != 125 {
		t.Fatalf("the error is %v, want status 125", err)
	}
	for _, part := range []string{"nix-sandbox-vm: error: the project " + folder + " is too large", reason, "hint: show a smaller folder"} {
		if !strings.Contains(string(ended.Stderr), part) {
			t.Errorf("it prints %q, want %q in it", ended.Stderr, part)
		}
	}
}
