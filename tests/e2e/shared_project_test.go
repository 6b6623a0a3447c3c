package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
)

// sharing are the variables of a server whose sessions share files, over an overlay of a
// project.
func sharing(t *testing.T, project, state string, session map[string]any) []string {
	t.Helper()
	session["shared_files"] = true
	metadata := mcptest.MetadataWith(t, environments(t), map[string]any{"session": mcptest.Session(session)})
	return []string{"NIX_SANDBOX_METADATA=" + metadata, "PROJECT_DIR=" + project, "PROJECT_MODE=overlay", "XDG_STATE_HOME=" + state}
}

// commit makes a repository of a project, if the host has git.
func commit(t *testing.T, project string) {
	t.Helper()
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("the host has no git")
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "."}, {"-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", "first"}} {
		cmd := exec.Command(git, args...)
		cmd.Dir = project
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v: %s", args, err, out)
		}
	}
}

// What one environment of a session changes in the project, the others see, and it is one
// patch, which applies. Other sessions and the host see nothing of it.
func TestSharedProject_IsOne(t *testing.T) {
	t.Parallel()
	for name, keep := range map[string]bool{"files are kept": true, "files are not kept": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			project, state := sample(t, "a project"), t.TempDir()
			commit(t, project)
			before := tree(t, project)
			c := start(t, sharing(t, project, state, map[string]any{"keep_files": keep})...)

			expect(t, in(c, "fix", "bash", "cd /project && git status --short"), "[no output]")
			answer := in(c, "fix", "python", `import os, sys
os.environ['GREETING'] = 'hello from the shell'
os.chdir('/project'); sys.path.insert(0, '/project'); sys.dont_write_bytecode = True
text = open('words.py').read()
open('words.py', 'w').write(text.replace('!', '!!'))
import test_words
try: test_words.test_shout(); print('passed')
except AssertionError: print('failed')`)
			if diff := cmp.Diff([]string{"sandbox://fix/changes.patch"}, links(answer)); answer.Text() != "failed\n[changes to the project: the user takes them with: nix-sandbox-mcp changes fix --apply]" || diff != "" {
				t.Errorf("answer %+v: links %s", answer, diff)
			}
			diff := in(c, "fix", "bash", "cd /project && git diff && git status --short").Text()
			for _, want := range []string{`+    return text.upper() + "!!"`, " M words.py"} {
				if !strings.Contains(diff, want) {
					t.Errorf("bash does not see %q of Python's edit: %s", want, diff)
				}
			}
			expect(t, in(c, "fix", "bash", `cd /project && sed -i 's/!!/!/; s/text):/text, end="!"):/' words.py && rm build/old.txt && chmod +x Makefile`), "[no output]")
			expect(t, in(c, "fix", "node", "require('fs').writeFileSync('/project/from node', require('fs').readFileSync('/project/words.py', 'utf8').split('\\n')[0])"), "[no output]")
			expect(t, in(c, "fix", "python", "import importlib, words; importlib.reload(words); importlib.reload(test_words); test_words.test_shout(); print(open('from node').read(), os.path.exists('build/old.txt'), os.access('Makefile', os.X_OK))"),
				"def shout(text, end=\"!\"): False True\n")
			// Another session and a call without one have the project as it is on the host.
			expect(t, in(c, "other", "bash", "ls /project; cat /project/words.py"), "Makefile\nbuild\nflake.nix\ntest_words.py\nwords.py\ndef shout(text):\n    return text.upper() + \"!\"\n")
			expect(t, run(c, "python", "import os; os.path.exists('/project/from node')"), "False\n")

			c.CloseInput()
			c.Wait(patience.Long)
			if diff := cmp.Diff(before, tree(t, project)); diff != "" {
				t.Errorf("the host's files changed:\n%s", diff)
			}
			out, errs, status := changesCommand(t, state)
			if lines := strings.Split(strings.TrimSpace(out), "\n"); status != 0 || len(lines) != 2 || !regexp.MustCompile(`^fix +bash, python, node +.* 4 +\+2 -2 `).MatchString(lines[1]) {
				t.Errorf("the list, status %d, is %s%s", status, out, errs)
			}
			if out, errs, status = changesCommand(t, state, "fix", "--apply", "words.py", "build/old.txt", "Makefile", "from node"); status != 0 || !strings.Contains(out, "3 written, 1 deleted") {
				t.Fatalf("applied with status %d: %s%s", status, out, errs)
			}
			if got := string(must.Get(os.ReadFile(filepath.Join(project, "words.py")))(t)); got != "def shout(text, end=\"!\"):\n    return text.upper() + \"!\"\n" {
				t.Errorf("on the host words.py is %q", got)
			}
			if info, err := os.Stat(filepath.Join(project, "build", "old.txt")); err == nil {
				t.Errorf("%s is still there", info.Name())
			}
		})
	}
}

// A sandbox that dies, or that is killed, takes nothing of the project along.
func TestSharedProject_OutlivesASandbox(t *testing.T) {
	t.Parallel()
	project, state := sample(t, "project"), t.TempDir()
	c := start(t, sharing(t, project, state, map[string]any{})...)
	in(c, "s", "bash", "n=1; echo bash > /project/b")
	in(c, "s", "python", "open('/project/p', 'w').write('python\\n')")
	for round := range 3 {
		expectError(t, in(c, "s", "python", fmt.Sprintf("open('/project/p', 'a').write('%d\\n')\nlist(bytearray(1 << 26) for _ in range(1 << 12))", round)), "; the session's variables are lost")
		expect(t, in(c, "s", "bash", "cat /project/p | wc -l; echo $n"), fmt.Sprintf("%d\n1\n", round+2))
		if got := in(c, "s", "python", "sorted(f for f in __import__('os').listdir('/project') if len(f) == 1)").Text(); !strings.HasPrefix(got, "['b', 'p']\n") {
			t.Errorf("round %d: the new sandbox has %s", round, got)
		}
	}
	c.Signal(syscall.SIGKILL)
	c.Wait(patience.Long)
	files := saved(t, state)
	if len(files) != 1 || !strings.Contains(files[0], "+python\n+0\n+1\n+2\n") || !strings.Contains(files[0], "+bash\n") {
		t.Errorf("%d files are saved: %q", len(files), files)
	}
}

// The layers of an overlay that several sandboxes have are the holder's: code reaches
// neither them nor another session's, and cannot make what hides the project's files. Each
// attempt has a control, for which it works.
func TestSharedProject_HoldsItsLayers(t *testing.T) {
	t.Parallel()
	project, state := sample(t, "project"), t.TempDir()
	c := start(t, sharing(t, project, state, map[string]any{})...)
	const secret = "secret-of-the-other-session"
	in(c, "other", "bash", "echo "+secret+" > /project/secret")
	in(c, "s", "python", "open('/project/mine', 'w').write('mine\\n')")

	// The folders of the layers: the holder has them.
	holders := 0
	for _, p := range procfs.All() {
		if strings.Contains(p.Command(), "--hand-out") {
			if entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/root/layer/upper", p.PID)); err == nil && len(entries) > 0 {
				holders++
			}
		}
	}
	if holders < 2 {
		t.Errorf("the control: %d holders have layers, want 2", holders)
	}
	for _, env := range []string{"bash", "python"} {
		code := "ls -d /layer /layer/* /shared /host /proc/*/root/layer /proc/*/cwd/../layer 2>/dev/null; find / -xdev -maxdepth 3 '(' -name upper -o -name work ')' -print 2>/dev/null; ls -l /proc/self/fd /proc/1/fd 2>/dev/null | grep -e layer -e overlay -e upper; true"
		if env == "python" {
			code = "import subprocess; print(subprocess.run(['sh', '-c', " + fmt.Sprintf("%q", code) + "], capture_output=True, text=True).stdout, end='')"
		}
		expect(t, in(c, "s", env, code), "[no output]")
	}

	// Another session's files, wherever they can be named.
	const search = "grep -rsl " + secret + " / --exclude-dir=proc --exclude-dir=nix; cat /proc/*/root/project/secret 2>/dev/null | head -n 1; true"
	expect(t, in(c, "s", "bash", search), "[no output]")
	if got := in(c, "other", "bash", search).Text(); !strings.Contains(got, "/project/secret") {
		t.Errorf("the control: the other session finds %q", got)
	}

	// Whiteouts and opaque folders, as the layer has them when files are deleted.
	in(c, "s", "python", `import os
for what in (lambda: os.mknod('/project/words.py.w', 0o20644, 0), lambda: os.setxattr('/project/build', 'user.overlay.opaque', b'y'),
             lambda: os.setxattr('/project/mine', 'user.overlay.whiteout', b'y'), lambda: os.setxattr('/project', 'user.overlay.opaque', b'y'),
             lambda: os.setxattr('/project/build', 'trusted.overlay.opaque', b'y')):
    try: what()
    except OSError: pass`)
	expect(t, in(c, "s", "bash", "ls /project /project/build"), "/project:\nMakefile\nbuild\nflake.nix\nmine\ntest_words.py\nwords.py\n\n/project/build:\nold.txt\n")
	if got := patch(t, c, "s"); strings.Contains(got, "deleted file") || !strings.Contains(got, "+mine") {
		t.Errorf("the patch is %s", got)
	}
	in(c, "control", "python", "import shutil, os; shutil.rmtree('/project/build'); os.mkdir('/project/build'); os.remove('/project/words.py')")
	expect(t, in(c, "control", "bash", "ls /project/build; ls /project"), "Makefile\nbuild\nflake.nix\ntest_words.py\n")
	if got := patch(t, c, "control"); strings.Count(got, "deleted file") != 2 {
		t.Errorf("the control: the patch is %s", got)
	}

	// The mounts are the sandbox's for good.
	for _, attempt := range []string{"umount /project", "mount -o remount,ro /project", "mount --bind /tmp /project", "mount -t overlay overlay -o lowerdir=/project,upperdir=/tmp,workdir=/workspace /project", "unshare -Urm true"} {
		expectError(t, in(c, "s", "bash", attempt), "[exit status")
	}
	expect(t, in(c, "s", "bash", "touch /project/still && ls /project/still"), "/project/still\n")
}

// Without an overlay nothing is different: the project is the host's and read-only.
func TestSharedProject_ReadOnlyStaysSo(t *testing.T) {
	t.Parallel()
	project := sample(t, "project")
	c := start(t, append(sharing(t, project, t.TempDir(), map[string]any{}), "PROJECT_MODE=readonly")...)
	for _, env := range []string{"bash", "python"} {
		code := map[string]string{"bash": "touch /project/x", "python": "open('/project/x', 'w')"}[env]
		expectError(t, in(c, "s", env, code), "Read-only file system")
	}
	must.Do(t, os.WriteFile(filepath.Join(project, "new"), []byte("from the host\n"), 0o644))
	expect(t, in(c, "s", "bash", "cat /project/new"), "from the host\n")
}
