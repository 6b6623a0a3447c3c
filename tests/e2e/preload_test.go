package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// preloaded starts a server with the sandbox of data.nix, which preloads pandas, beside its own.
func preloaded(t *testing.T) *mcptest.Client {
	t.Helper()
	folder := t.TempDir()
	must.Do(t, os.Symlink(undertest.Artifact(t, "data"), filepath.Join(folder, "data")))
	return start(t, "NIX_SANDBOX_DIR="+folder)
}

// waited runs code in a one-shot call whose sandbox had waited, and so has pandas. Calls that come
// before one waits get others.
func waited(t *testing.T, c *mcptest.Client, code string) string {
	t.Helper()
	var text string
	patience.Wait(t, patience.Long, func() string { return "no call got a sandbox that waited: " + text }, func() bool {
		answer := run(c, "data", "import sys; waited = 'pandas' in sys.modules; print(waited)\n"+code)
		if answer.IsError {
			t.Fatalf("answer %+v", answer)
		}
		text = answer.Text()
		return strings.HasPrefix(text, "True\n")
	})
	return strings.TrimPrefix(text, "True\n")
}

// The modules are loaded, and code sees nothing else of that.
func TestPreload_LeavesModulesAlone(t *testing.T) {
	c := preloaded(t)
	const look = `
import builtins, os
print(sorted(n for n in globals() if n[:1] != '_'), hasattr(builtins, '_'), os.listdir('/workspace'))
print(__name__, sys.argv, sys.path[0] == '', len(pandas.DataFrame({'x': [1, 2]})) if 'pandas' in globals() else 'no name')
import pandas
print(pandas.DataFrame({'x': [1, 2]}).x.sum())`
	want := "['builtins', 'os', 'sys', 'waited'] False ['outputs']\n__main__ [''] True no name\n3\n"
	if got := waited(t, c, look); got != want {
		t.Errorf("a call sees %q, want %q", got, want)
	}
	// The control: nothing is loaded where nothing is preloaded.
	for range 3 {
		expect(t, run(c, "python", "import sys; print('pandas' in sys.modules)"), "False\n")
	}
}

// Every sandbox loads its own: no call draws a number or has an address of another one's, and what
// one does to a module the next one does not see.
func TestPreload_SharesNothing(t *testing.T) {
	c := preloaded(t)
	const draw = `
import builtins, hashlib, os, random, secrets, tempfile, uuid
import numpy, pandas
assert not hasattr(pandas, 'mark') and not hasattr(numpy, 'mark') and not hasattr(builtins, 'mark')
assert not os.path.exists('/tmp/mark') and not os.path.exists('/dev/shm/mark') and 'MARK' not in os.environ
pandas.mark = numpy.mark = builtins.mark = os.environ['MARK'] = 'mark'
for folder in '/tmp', '/dev/shm': open(folder + '/mark', 'w').close()
print(random.random(), numpy.random.random(), numpy.random.default_rng().random(), pandas.Series(range(10**6)).sample(3).tolist())
print(secrets.token_hex(8), os.urandom(8).hex(), uuid.uuid4(), hash('mark'), next(tempfile._get_candidate_names()))
print(id(pandas), id(sys), id(numpy.random.mtrand._rand), open('/proc/self/stat').read().split()[27])
print(hashlib.sha256(open('/proc/self/auxv', 'rb').read()).hexdigest())`
	seen := map[string]bool{}
	for i := range 4 {
		words := strings.Fields(waited(t, c, draw))
		if len(words) != 16 {
			t.Fatalf("call %d drew %q", i, words)
		}
		for _, word := range words {
			if seen[word] {
				t.Errorf("call %d has %s, as an earlier one", i, word)
			}
			seen[word] = true
		}
	}
}

// A session that began in such a sandbox goes on after its interpreter has ended.
func TestPreload_InSessions(t *testing.T) {
	c := preloaded(t)
	waited(t, c, "")
	answer := in(c, "s", "data", "import pandas; x = 6; print(pandas.Series([x]).sum())")
	if answer.IsError || answer.Text() != "6\n" {
		t.Fatalf("answer %+v", answer)
	}
	if answer = in(c, "s", "data", "import os; os._exit(3)"); !answer.IsError {
		t.Errorf("answer %+v", answer)
	}
	if answer = in(c, "s", "data", "import pandas; print(pandas.Series([7]).sum())"); !strings.HasPrefix(answer.Text(), "7\n") {
		t.Errorf("answer %+v", answer)
	}
}
