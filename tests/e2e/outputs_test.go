package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// texts are the contents of the files in a folder, by their paths.
func texts(t *testing.T, folder string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for path, about := range tree(t, folder) {
		if !strings.HasPrefix(about, "d") {
			all[must.Get(filepath.Rel(folder, path))(t)] = string(must.Get(os.ReadFile(path))(t))
		}
	}
	return all
}

// What code leaves in its folder of outputs is in the user's when the answer comes, whether
// by a call of a session, whose environments share files or not, or by one without.
func TestOutputs_AreCopied(t *testing.T) {
	t.Parallel()
	metadata := "NIX_SANDBOX_METADATA=" + mcptest.MetadataWith(t, environments(t), map[string]any{
		"session": mcptest.Session(map[string]any{"shared_files": true}),
	})
	for name, variables := range map[string][]string{"alone": nil, "shared": {metadata}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			c := start(t, append(variables, "NIX_SANDBOX_OUTPUTS="+folder)...)
			expect(t, in(c, "s", "bash", "echo 1"), "1\n")
			answer := in(c, "s", "bash", "mkdir outputs/deep; echo a >outputs/a.csv; echo b >outputs/deep/b.json; echo no >outputs/Makefile; cp outputs/a.csv outputs/tool.sh; chmod +x outputs/tool.sh; ln -s /etc/passwd outputs/passwd.csv; mkfifo outputs/pipe.csv")
			if want := "[copied for the user to " + folder + "/s: 3 of 4 files; not Makefile, because its name is not one of source code, prose or plain data]"; !strings.Contains(answer.Text(), want) || answer.IsError {
				t.Errorf("answer %q, want %q", answer.Text(), want)
			}
			want := map[string]string{"s/a.csv": "a\n", "s/deep/b.json": "b\n", "s/tool.sh": "a\n"}
			if diff := cmp.Diff(want, texts(t, folder)); diff != "" {
				t.Error(diff)
			}
			if info := must.Get(os.Stat(filepath.Join(folder, "s", "tool.sh")))(t); info.Mode()&0o111 != 0 {
				t.Errorf("tool.sh has the mode %v", info.Mode())
			}
			in(c, "s", "bash", "echo other >outputs/a.csv")
			in(c, "t", "python", "open('outputs/a.csv', 'w').write('of t')")
			run(c, "bash", "echo once >outputs/once.txt")
			c.CloseInput()
			c.Wait(patience.Long)
			want["s/a-2.csv"], want["t/a.csv"] = "other\n", "of t"
			got := texts(t, folder)
			for path, text := range got {
				if strings.HasPrefix(path, "calls/2") && strings.HasSuffix(path, "/once.txt") && text == "once\n" {
					delete(got, path)
					want["once"], got["once"] = "", ""
				}
			}
			if diff := cmp.Diff(want, got); diff != "" || len(want) != 6 {
				t.Errorf("want %d files: %s", len(want), diff)
			}
		})
	}
}

// mess is code that leaves in its folder of outputs whatever could harm a copy: names, links out, pipes,
// sockets, devices, holes, deep trees, many files, and files that are others a moment later.
const mess = `import os, socket, threading
os.chdir('outputs')
def attempt(do, *args):
    try: do(*args)
    except OSError as error: print(type(error).__name__)
def write(name, data='x'):
    with open(name, 'w') as file: file.write(data)
for name in ['-rf.csv', 'a\nb.csv', 'a\x1b[2J.csv', '\u202egnp.csv', 'C:evil.txt', 'a\\b.txt', '.bashrc', '.envrc', 'Makefile', 'x.desktop', 'conftest.py', ' .csv', 'n' * 240 + '.csv']:
    attempt(write, name)
attempt(write, os.fsencode('latin-\xe9.csv').replace(b'\xc3\xa9', b'\xe9'))
os.symlink('/etc', 'etc'); os.symlink('/etc/passwd', 'passwd.csv'); os.symlink('..', 'up'); os.symlink('/proc/self/root', 'root')
os.link('-rf.csv', 'hard.csv')
os.mkfifo('pipe.csv')
socket.socket(socket.AF_UNIX).bind('socket.csv')
attempt(os.mknod, 'device.csv', 0o666 | 0o020000, os.makedev(1, 3))
with open('holes.csv', 'w') as file: attempt(file.truncate, 1 << 40)
deep = 'deep'
for n in range(200):
    attempt(os.mkdir, deep); deep += '/d'
attempt(write, 'deep/d/d/d/d/d/d/d/d/d/d/d/d/far.csv')
os.mkdir('many')
try:
    for n in range(100_000): write(f'many/{n}.csv', '')
except OSError as error: print('many:', type(error).__name__)
write('control.csv', 'control')
def swap():
    n = 0
    while True:
        n += 1
        try:
            os.symlink('/etc/passwd', f's{n}'); os.replace(f's{n}', 'swapped.csv')
            write(f's{n}', 'x' * 5000); os.replace(f's{n}', 'swapped.csv')
        except OSError: pass
threading.Thread(target=swap, daemon=True).start()
`

// Whatever code leaves in its folder of outputs: in the user's there are plain files with plain names,
// few enough, and beside it nothing changes. A folder that is a link is not followed either.
func TestOutputs_OfHostileCode(t *testing.T) {
	t.Parallel()
	beside := t.TempDir()
	folder := filepath.Join(beside, "outputs")
	must.Do(t, os.Mkdir(folder, 0o755))
	must.Write(t, filepath.Join(beside, "victim.csv"), "victim", 0o644)
	c := start(t, "NIX_SANDBOX_OUTPUTS="+folder)
	answer := in(c, "s", "python", mess)
	if !strings.Contains(answer.Text(), "[copied for the user to "+folder+"/s: ") {
		t.Errorf("answer %q", answer.Text())
	}
	in(c, "s", "python", "import shutil; os.chdir('/workspace'); shutil.rmtree('outputs', ignore_errors=True); os.symlink('/etc', 'outputs')")
	in(c, "link", "bash", "rm -rf outputs; ln -s /etc outputs; echo x >outputs/x.csv")
	in(c, "control", "bash", "echo control >outputs/control.csv")
	c.CloseInput()
	c.Wait(patience.Long)
	for path, about := range tree(t, beside) {
		name := must.Get(filepath.Rel(beside, path))(t)
		isPlain := regexp.MustCompile(`^outputs(/[A-Za-z0-9_][A-Za-z0-9_ .-]*)+$`).MatchString(name) && strings.HasSuffix(name, ".csv")
		switch {
		case name == "." || strings.HasPrefix(about, "d"):
		case name == "victim.csv":
		case !strings.HasPrefix(about, "-") || !isPlain:
			t.Errorf("there is %q, %s", name, about)
		case strings.Contains(string(must.Get(os.ReadFile(path))(t)), "root:"):
			t.Errorf("%q is a file of the sandbox's system", name)
		}
	}
	got := texts(t, beside)
	if got["victim.csv"] != "victim" || got["outputs/control/control.csv"] != "control\n" || len(got) > 300 {
		t.Errorf("%d files, the control is %q", len(got), got["outputs/control/control.csv"])
	}
}

// Without a folder, nothing is copied and no answer says so; one that does not exist is an
// error when the server starts.
func TestOutputs_AreNotCopiedByDefault(t *testing.T) {
	t.Parallel()
	c := start(t)
	if answer := in(c, "s", "bash", "echo a >outputs/a.csv"); strings.Contains(answer.Text(), "copied") {
		t.Errorf("answer %q", answer.Text())
	}
	expectRefusal(t, command(t, "NIX_SANDBOX_OUTPUTS=/no/such/folder"), "NIX_SANDBOX_OUTPUTS", "/no/such/folder, which does not exist")
}
