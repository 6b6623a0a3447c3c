// Package portable runs the archive for machines without Nix, unpacked, as an ordinary user.
// The script run does the same in clean roots of distributions.
package portable

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// archiveVariable names the folder with the archive of archive.nix.
const archiveVariable = "NIX_SANDBOX_TEST_PORTABLE"

// ordinary is the user that the tests become if root runs them.
const ordinary = 12345

// open returns a temporary folder that every user can reach.
func open(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	must.Do(t, os.Chmod(filepath.Dir(folder), 0o755))
	return folder
}

// unpacked returns the program of the archive in a folder that has a space in its name.
func unpacked(t *testing.T) string {
	t.Helper()
	folder := os.Getenv(archiveVariable)
	if folder == "" {
		t.Skip(archiveVariable + " does not name the folder of an archive")
	}
	archives := must.Get(filepath.Glob(filepath.Join(folder, "*.tar.xz")))(t)
	if len(archives) != 1 {
		t.Fatalf("%s has the archives %q", folder, archives)
	}
	to := filepath.Join(open(t), "a folder")
	must.Do(t, os.Mkdir(to, 0o755))
	if output, err := exec.CommandContext(t.Context(), "tar", "-xJf", archives[0], "-C", to).CombinedOutput(); err != nil {
		t.Fatalf("tar: %v: %s", err, output)
	}
	if os.Geteuid() == 0 {
		must.Do(t, filepath.WalkDir(to, func(path string, _ fs.DirEntry, err error) error {
			if err == nil {
				err = os.Lchown(path, ordinary, ordinary)
			}
			return err
		}))
	}
	return filepath.Join(to, "nix-sandbox-mcp", "bin", "nix-sandbox-mcp")
}

// asUser returns a command of an ordinary user with an empty home.
func asUser(t *testing.T, program string, args ...string) *exec.Cmd {
	t.Helper()
	home := open(t)
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir = home
	cmd.Env = []string{"HOME=" + home, "PATH=/usr/bin:/bin"}
	if os.Geteuid() == 0 {
		must.Do(t, os.Chown(home, ordinary, ordinary))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ordinary, Gid: ordinary}}
	}
	return cmd
}

func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var failure bytes.Buffer
	cmd.Stderr = &failure
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("%q: %v: %s%s", cmd.Args, err, text, &failure)
	}
	return string(text)
}

// The archive's AppArmor profiles are for its own loader and for the launchers in its store.
func TestPortable_CarriesProfiles(t *testing.T) {
	folder := filepath.Dir(filepath.Dir(unpacked(t)))
	text := string(must.Get(os.ReadFile(filepath.Join(folder, "apparmor")))(t))
	if !strings.HasPrefix(text, "abi <abi/4.0>,\n") || strings.Count(text, "abi <") != 1 || !strings.Contains(text, "\nprofile nix-sandbox-archive \"FOLDER/lib/loader\" ") {
		t.Errorf("the profiles:\n%s", text)
	}
	launchers := 0
	for path := range strings.FieldsSeq(text) {
		inside, is := strings.CutPrefix(path, "/nix/store/")
		if !is {
			continue
		}
		if _, err := os.Stat(filepath.Join(folder, "store", inside)); err != nil {
			t.Error(err)
		}
		if strings.HasSuffix(inside, "/bin/nix-sandbox-jail") {
			launchers++
		}
	}
	if launchers == 0 {
		t.Errorf("no launcher has a profile:\n%s", text)
	}
}

// What runs before the store is at its place needs none of it. Here the machine's own store
// would hide a mistake.
func TestPortable_OpensWithoutAStore(t *testing.T) {
	folder := filepath.Dir(filepath.Dir(unpacked(t)))
	entries := must.Get(os.ReadDir(filepath.Join(folder, "lib")))(t)
	found := map[string]bool{}
	for _, entry := range entries {
		found[entry.Name()] = true
		if !entry.Type().IsRegular() {
			t.Errorf("lib/%s is no plain file", entry.Name())
		}
	}
	for _, needed := range []string{"bwrap", "libc.so.6", "loader", "nsenter"} {
		if !found[needed] {
			t.Errorf("lib lacks %s", needed)
		}
	}
	if _, err := os.Stat(filepath.Join(folder, "share", "man", "man1", "nix-sandbox-mcp.1")); err != nil {
		t.Error(err)
	}
}

// Files with the same content are one file, so an edit of one would change the others.
func TestPortable_FilesOfTheStoreAreReadOnly(t *testing.T) {
	files := 0
	must.Do(t, filepath.WalkDir(filepath.Join(filepath.Dir(filepath.Dir(unpacked(t))), "store"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		files++
		info, err := entry.Info()
		if err == nil && info.Mode()&0o222 != 0 {
			t.Errorf("%s has the mode %v", path, info.Mode())
		}
		return err
	}))
	if files == 0 {
		t.Error("the store has no files")
	}
}

func TestPortable_RefusesAFolderThatTheLoaderSplits(t *testing.T) {
	folder := filepath.Dir(filepath.Dir(unpacked(t)))
	for _, name := range []string{"a:b", "a;b"} {
		other := filepath.Join(filepath.Dir(folder), name)
		must.Do(t, os.Rename(folder, other))
		folder = other
		text, err := asUser(t, filepath.Join(folder, "bin", "nix-sandbox-mcp"), "--version").CombinedOutput()
		if err == nil || !strings.Contains(string(text), "the folder "+folder+"/lib has a colon or semicolon in its path") {
			t.Errorf("%v: %s", err, text)
		}
	}
}

func TestPortable_RunsForAUser(t *testing.T) {
	program := unpacked(t)
	if got, want := output(t, asUser(t, program, "--version")), "nix-sandbox-mcp "+undertest.Version(t); !strings.HasPrefix(got, want) {
		t.Errorf("--version prints %q", got)
	}
	if got := output(t, asUser(t, program, "doctor")); !strings.Contains(got, "Sandboxes work here.") {
		t.Errorf("doctor prints\n%s", got)
	}
	client := mcptest.Start(t, asUser(t, program, "--stdio"))
	client.Initialize("2025-11-25")
	for i, code := range []string{"x=42", "echo $x"} {
		answer := client.Run(mcptest.Arguments{Code: code, Env: "bash", Session: "kept"})
		if want := []string{"[no output]", "42\n"}[i]; answer.Text() != want {
			t.Errorf("%s is answered with %q", code, answer.Text())
		}
	}
}

// What the code sees of its own jail is the same as without the archive.
func TestPortable_IsolatesAsNixDoes(t *testing.T) {
	const code = "cat /proc/self/status; while read -r _ _ _ _ mount; do echo \"$mount\"; done < /proc/self/mountinfo"
	facts := func(program string) (found string) {
		for line := range strings.Lines(output(t, asUser(t, program, "run", "bash", "-c", code))) {
			for _, of := range []string{"Cap", "NoNewPrivs", "Seccomp", "Uid", "Gid", "/ ", "/nix ", "/proc "} {
				if strings.HasPrefix(line, of) {
					// The rest of a mount names the file system that has the folder.
					line, _, _ = strings.Cut(line, " - ")
					found += strings.TrimSpace(line) + "\n"
				}
			}
		}
		return found
	}
	got, want := facts(unpacked(t)), facts(undertest.Server(t))
	if !strings.Contains(want, "CapEff:\t0000000000000000") || !strings.Contains(want, "/nix ro,") {
		t.Fatalf("the control printed\n%s", want)
	}
	if got != want {
		t.Errorf("the code sees\n%s\nand without the archive\n%s", got, want)
	}
}

// A client is given the path by which the program was called, so that a link stays one.
func TestPortable_ConfiguresClients(t *testing.T) {
	link := filepath.Join(open(t), "nix-sandbox-mcp")
	must.Do(t, os.Symlink(unpacked(t), link))
	cmd := asUser(t, link, "client-config", "cursor", "--install")
	output(t, cmd)
	text := must.Get(os.ReadFile(filepath.Join(cmd.Dir, ".cursor/mcp.json")))(t)
	if !strings.Contains(string(text), `"command": "`+link+`"`) {
		t.Errorf("the client's file is\n%s", text)
	}
	// The client's own command is a program of the host.
	programs := open(t)
	must.Do(t, os.WriteFile(filepath.Join(programs, "codex"), []byte("#!/bin/sh\necho \"ran $@\"\n"), 0o755))
	cmd = asUser(t, link, "client-config", "codex", "--install")
	cmd.Env[1] = "PATH=" + programs + ":/usr/bin:/bin"
	if got, want := output(t, cmd), "ran mcp add sandbox --env PROJECT_DIR=. -- "+link+" --stdio\n"; !strings.HasPrefix(got, want) {
		t.Errorf("it printed %q, want %q", got, want)
	}
}

func TestPortable_SaysWhatTheKernelForbids(t *testing.T) {
	program := unpacked(t)
	// The setting is that of a user namespace of its own.
	cmd := asUser(t, "unshare", "--user", "--map-root-user", "sh", "-c", `echo 0 > /proc/sys/user/max_user_namespaces && exec "$0" doctor`, program)
	text, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(text), "this system forbids user namespaces: user.max_user_namespaces is 0") {
		t.Errorf("%v: %s", err, text)
	}
}

// Root, for whom each sandbox gets a user of its own.
func TestPortable_RunsForRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can try this")
	}
	cmd := exec.CommandContext(t.Context(), unpacked(t), "run", "bash", "-c", "echo $((6 * 7))")
	cmd.Env = []string{"HOME=" + t.TempDir(), "PATH=/usr/bin:/bin"}
	if got := output(t, cmd); got != "42\n" {
		t.Errorf("it printed %q", got)
	}
}
