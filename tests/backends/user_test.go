package backends

import (
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// someone is an ordinary user.
const someone = 1000

// folderOf makes a folder that a user has, whom nothing keeps from reaching it.
func folderOf(t *testing.T, user int) string {
	t.Helper()
	folder := t.TempDir()
	must.Do(t, os.Chown(folder, user, user))
	must.Do(t, os.Chmod(folder, 0o700))
	must.Do(t, os.Chmod(filepath.Dir(folder), 0o755))
	return folder
}

// The server of an ordinary user has sessions that sleep, wake and branch, and only that
// user can read them. Code sees a variable that the server passes on, whose value is in no
// machine that is saved to be copied; it is in the session that sleeps: the control.
func TestServer_OfAnOrdinaryUser(t *testing.T) {
	long(t)
	if os.Geteuid() != 0 {
		t.Skip("it is an ordinary user that runs all tests")
	}
	state, cache, value := folderOf(t, someone), folderOf(t, someone), rand.Text()
	fillCache(t, cache)
	must.Do(t, filepath.Walk(cache, func(path string, _ os.FileInfo, err error) error {
		if err == nil {
			err = os.Chown(path, someone, someone)
		}
		return err
	}))
	as := serving{user: someone, cache: cache, environ: []string{"INHERITED=" + value},
		project: map[string]any{"inherit_env": map[string]any{"vars": []string{"INHERITED"}}}}
	first := serveAs(t, state, as, "bash")
	first.in("bash", "a", "x=1; echo $INHERITED", value+"\n")
	for _, pid := range procfs.Tree(first.PID()) {
		if status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)); err == nil && !strings.Contains(string(status), fmt.Sprintf("\nUid:\t%d\t%[1]d\t%[1]d\t%[1]d\n", someone)) {
			t.Errorf("process %d is another user's: %s", pid, status)
		}
	}
	if answer := first.call("bash", "b", "a", "x=$((x + 1)); echo $x"); answer.IsError || answer.Texts()[0] != "2\n" {
		t.Errorf("a branch answers %q", answer.Text())
	}
	first.end()
	if sessions := asleep(t, state); len(sessions) != 2 {
		t.Errorf("there sleep %+v; the log:\n%s", sessions, first.log)
	}
	isNowhere(t, cache, value)
	search := procfs.NewSearch(value)
	search.Files(state)
	if len(search.Found) == 0 || len(search.Unread) > 0 {
		t.Errorf("the value is in none of %v, unread: %v", search.Read, search.Unread)
	}
	must.Do(t, filepath.Walk(state, func(path string, info os.FileInfo, err error) error {
		if err == nil && (info.Sys().(*syscall.Stat_t).Uid != someone || info.Mode().Perm()&0o077 != 0 && strings.Contains(path, "sessions")) {
			t.Errorf("%s is of user %d and has the mode %v", path, info.Sys().(*syscall.Stat_t).Uid, info.Mode())
		}
		return err
	}))
	second := serveAs(t, state, as, "bash")
	second.in("bash", "a", "echo $x $INHERITED", "1 "+value+"\n")
	second.in("bash", "b", "echo $x", "2\n")
}

// A server needs no folder to write to: not where all of them are read-only, and not where
// they are full. Its machines start from nothing, and its sessions end with it.
func TestServer_HasNowhereToWrite(t *testing.T) {
	long(t)
	if os.Geteuid() != 0 {
		t.Skip("mounts take root")
	}
	sandboxes := t.TempDir() // is hidden
	must.Do(t, os.Symlink(artifact(t, "bash"), filepath.Join(sandboxes, "machine-bash")))
	for name, mounts := range map[string]string{
		"read-only": "mount -t tmpfs -o ro none /var/tmp",
		"full":      "mount -t tmpfs -o size=4k none /var/tmp && head -c 4096 /dev/zero >/var/tmp/full",
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("unshare", "--mount", "sh", "-c", mounts+` && exec "$@"`, "sh", undertest.Server(t), "--stdio")
			cmd.Env = []string{"HOME=/var/tmp", "TMPDIR=/var/tmp", "NIX_SANDBOX_DIR=" + sandboxes, "NIX_SANDBOX_START_SECONDS=60", "PATH=" + os.Getenv("PATH")}
			c := mcptest.Start(t, cmd)
			c.Initialize(mcptest.Newest)
			for _, want := range []string{"1\n", "2\n"} {
				answer := c.Run(mcptest.Arguments{Code: "echo $((++x))", Env: "machine-bash", Session: "s"})
				if answer.IsError || !strings.HasPrefix(answer.Text(), want) {
					t.Errorf("the answer is %+v, want %q", answer, want)
				}
			}
			c.CloseInput()
			if status := c.Wait(machineTime); status != 0 {
				t.Errorf("the server ends with status %d", status)
			}
		})
	}
}
