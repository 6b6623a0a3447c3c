package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// A server without a configuration of its own adds its user's to what it has, and takes what changes
// in the environments of that file while it runs.
func TestUsersConfiguration(t *testing.T) {
	g := nix(t)
	folder := t.TempDir()
	variables := g.variables("XDG_CONFIG_HOME="+folder, "XDG_CACHE_HOME="+t.TempDir())
	file := filepath.Join(folder, "nix-sandbox-mcp", "config.toml")
	write := func(text string) {
		must.Write(t, file+".new", text, 0o644)
		must.Do(t, os.Rename(file+".new", file))
	}
	c := start(t, variables...)
	is := func(want string) {
		t.Helper()
		var got string
		patience.Wait(t, building, func() string { return fmt.Sprintf("environments %s, want %s\n%s", got, want, c.Log()) },
			func() bool { got = fmt.Sprint(listed(c)); return got == want })
	}
	logged := func(want string) {
		t.Helper()
		patience.Wait(t, patience.Long, func() string { return fmt.Sprintf("the log does not say %q:\n%s", want, c.Log()) },
			func() bool { return strings.Contains(c.Log(), want) })
	}
	is("[bash node python]")
	expect(t, in(c, "kept", "bash", "x=42; echo $x"), "42\n")

	// What add-env writes is there in the server that runs.
	add := exec.Command(undertest.Server(t), "add-env", "mine", "shell", "jq")
	add.Env = append(os.Environ(), variables...)
	if out, err := add.CombinedOutput(); err != nil || !strings.Contains(string(out), "[environments.mine]\npreset = \"shell\"\npackages = [\"jq\"]\n") {
		t.Fatalf("add-env: %v\n%s", err, out)
	}
	is("[bash mine node python]")
	expect(t, run(c, "mine", "echo $((6*7))"), "42\n")

	// So is what its user writes: a change, another environment, and limits of one that is the server's.
	write("[environments.mine]\npreset = \"shell\"\nenv = { GREETING = \"hello\" }\n[environments.other]\npreset = \"shell\"\n[environments.bash]\ntimeout_seconds = 7\n")
	is("[bash mine node other python]")
	logged(`msg="environment replaced" env=mine`)
	logged(`msg="environment replaced" env=bash`)
	expect(t, run(c, "mine", "echo $GREETING"), "hello\n")
	expect(t, in(c, "kept", "bash", "echo $x"), "42\n")

	// A mistake changes nothing.
	write("[environments.mine]\npreset = \"shel\"\n")
	logged(`config.toml: [environments.mine] preset is "shel" (did you mean "shell"?)`)
	logged("your configuration is " + file + ", which has mistakes")
	is("[bash mine node other python]")
	expect(t, run(c, "mine", "echo $GREETING"), "hello\n")
	expectRefusal(t, command(t, variables...), "nix-sandbox-mcp: error: your configuration is "+file+", which has mistakes\n")

	// Another configuration counts in place of the user's.
	own := filepath.Join(t.TempDir(), "config.toml")
	must.Write(t, own, "[environments.only]\npreset = \"shell\"\n", 0o644)
	other := start(t, append(variables, "NIX_SANDBOX_CONFIG="+own)...)
	offered(t, other, "only", true)
	if got := fmt.Sprint(listed(other)); got != "[only]" {
		t.Errorf("environments of NIX_SANDBOX_CONFIG: %s", got)
	}

	// What is taken away goes.
	write("[environments.other]\npreset = \"shell\"\n")
	is("[bash node other python]")
	must.Do(t, os.Remove(file))
	is("[bash node python]")
	expect(t, run(c, "bash", "echo 1"), "1\n")

	// A server that starts with the file has all of it.
	write("[environments.other]\npreset = \"shell\"\n[session]\nidle_timeout_seconds = 1\n")
	c = start(t, variables...)
	is("[bash node other python]")
	expect(t, in(c, "short", "bash", "echo 1"), "1\n")
	logged(`msg="session ended" session=short env=bash why=idle`)
}
