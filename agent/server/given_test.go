package server_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/agenttest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// awkward is a text that every language must take as it is.
const awkward = "a'b\"c\\d$HOME#{1}#$x`id`\n\té\u2028😀"

func given(g frame.Given) func(*frame.Request) { return func(r *frame.Request) { r.Given = &g } }

func TestGiven_ReachesTheCode(t *testing.T) {
	t.Parallel()
	value := must.Get(json.Marshal(map[string]any{"text": awkward, "number": 1.5, "list": []int{1, 2}}))(t)
	variables := map[string]json.RawMessage{"data": value, "text": must.Get(json.Marshal(awkward))(t), "whole": json.RawMessage("1.0"), "large": json.RawMessage("9007199254740993")}
	for name, test := range map[string]struct {
		stdin, none, variables string
		large                  string
		options                []Option
	}{
		"python": {
			stdin: "import sys\nprint(input())\nprint(sys.stdin.read(), end='')", none: "import sys; print(repr(sys.stdin.read()))",
			variables: "assert whole == 1 and type(whole) is float and data['list'] == [1, 2] and data['text'] == text; print(large); print(text)",
			large:     "9007199254740993",
		},
		"node": {
			stdin: "let s = require('fs').readFileSync(0, 'utf8'); process.stdout.write(s)", none: "console.log(JSON.stringify(require('fs').readFileSync(0, 'utf8')))",
			variables: "if (data.list[1] !== 2 || data.text !== text || whole !== 1) throw 1; console.log(large); console.log(text)",
			large:     "9007199254740992", // of the language
		},
		"bash": {
			stdin: "read -r line; echo \"$line\"; cat", none: "printf '\"%s\"\\n' \"$(cat)\"",
			variables: `[[ $data == *'[1,2]'* && $whole == 1.0 ]] || exit 1; printenv large; printf '%s\n' "$text"`,
			large:     "9007199254740993",
		},
		"command": {
			stdin: "read -r line; echo \"$line\"; cat", none: "printf '\"%s\"\\n' \"$(cat)\"",
			variables: `echo "$large"; printf '%s\n' "$text"`,
			large:     "9007199254740993",
			options:   []Option{Command(false, "sh", "-c")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := Start(t, name, test.options...)
			for _, change := range []func(*frame.Request){func(*frame.Request) {}, Ephemeral} {
				for range 2 {
					got := a.Run(test.stdin, change, given(frame.Given{Stdin: []byte("one\ntwo\nthree\n"), Variables: map[string]json.RawMessage{"unused": json.RawMessage("null")}}))
					if want := "one\ntwo\nthree\n"; got.Stdout != want || got.Stderr != "" {
						t.Errorf("with stdin: %q, %q, want %q", got.Stdout, got.Stderr, want)
					}
					// The next call of the session has none, and none of the rest either.
					a.Run("1", change, given(frame.Given{Stdin: []byte("left over")}))
					if got := a.Run(test.none, change); !strings.Contains(got.Stdout, `""`) && !strings.Contains(got.Stdout, "''") {
						t.Errorf("without stdin: %q, %q", got.Stdout, got.Stderr)
					}
				}
				got := a.Run(test.variables, change, given(frame.Given{Variables: variables}))
				if want := test.large + "\n" + awkward + "\n"; got.Stdout != want || got.ExitCode != 0 {
					t.Errorf("with variables: %q, %q, want %q", got.Stdout, got.Stderr, want)
				}
			}
		})
	}
}

func TestGiven_FilesAreInTheWorkspace(t *testing.T) {
	t.Parallel()
	a := Start(t, "python")
	files := map[string][]byte{"in.bin": {0, 255}, "a/b/c.txt": []byte("deep"), "outputs/given": []byte("x")}
	got := a.Run("print(open('in.bin', 'rb').read(), open('a/b/c.txt').read()); open('outputs/made', 'w').write('y');", given(frame.Given{Files: files}))
	if want := "b'\\x00\\xff' deep\n"; got.Stdout != want || got.Stderr != "" {
		t.Errorf("%q, %q, want %q", got.Stdout, got.Stderr, want)
	}
	if len(got.Files) != 1 || !strings.HasSuffix(got.Files[0].Path, "/made") {
		t.Errorf("files of the call: %v, want the one that it made", got.Files)
	}
	// A longer file is replaced as a whole.
	if got := a.Run("print(open('a/b/c.txt').read())", given(frame.Given{Files: map[string][]byte{"a/b/c.txt": []byte("d")}})); got.Stdout != "d\n" {
		t.Errorf("the replaced file: %q", got.Stdout)
	}
}

// Code of an earlier call may have put anything in the way of a file. It is not
// followed, nothing outside is written, and the call says so and does not run.
func TestGiven_FilesStayInTheWorkspace(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	a := Start(t, "python")
	a.Run(fmt.Sprintf("import os; os.symlink(%[1]q, 'link'); os.symlink(%[1]q + '/f', 'f'); os.mkfifo('fifo'); os.mkdir('folder'); os.symlink('folder', 'inner'); open('file', 'w')", outside))
	for name, want := range map[string]string{
		"link/f": "leads out", "f": "leads out", "inner/x": "leads out", "fifo": "fifo", "folder": "directory", "file/x": "not a directory",
		"../x": "leads out", "a/../../x": "leads out", "/etc/x": "not under",
	} {
		got := a.Run("print('ran')", given(frame.Given{Files: map[string][]byte{name: []byte("x")}}))
		if got.Stdout != "" || !strings.Contains(got.Stderr, want) || got.ExitCode != 2 {
			t.Errorf("%s: %q, %q, exit status %d, want %q", name, got.Stdout, got.Stderr, got.ExitCode, want)
		}
	}
	if left := must.Get(os.ReadDir(outside))(t); len(left) > 0 {
		t.Errorf("%v were written outside", left)
	}
	if got := a.Run("print(open('folder/x').read())", given(frame.Given{Files: map[string][]byte{"folder/x": []byte("in")}})); got.Stdout != "in\n" {
		t.Errorf("a file that may be written: %q, %q", got.Stdout, got.Stderr)
	}
	if _, err := os.Stat(filepath.Join(a.Root, "..", "x")); err == nil {
		t.Error("a file was written above the workspace")
	}
}

// A call whose variables an interpreter does not take does not run, and the session goes on.
func TestGiven_RefusedVariables(t *testing.T) {
	t.Parallel()
	a := Start(t, "bash")
	a.Run("x=5")
	got := a.Run("echo ran", given(frame.Given{Variables: map[string]json.RawMessage{"UID": json.RawMessage("7"), "a": json.RawMessage("1")}}))
	if got.Stdout != "" || !strings.Contains(got.Stderr, "did not take") || got.ExitCode != 2 {
		t.Errorf("%q, %q, exit status %d", got.Stdout, got.Stderr, got.ExitCode)
	}
	if got := a.Run("echo $x"); got.Stdout != "5\n" {
		t.Errorf("the next call: %q, %q", got.Stdout, got.Stderr)
	}
	a = Start(t, "command", Command(true, "sh"))
	if got := a.Run("echo ran", given(frame.Given{Stdin: []byte("x")})); got.Stdout != "" || !strings.Contains(got.Stderr, "give it a file") {
		t.Errorf("%q, %q", got.Stdout, got.Stderr)
	}
}
