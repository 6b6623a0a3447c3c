package clients

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// conformance are the runs of the conformance suite, in its two versions. The newer one
// has a set of scenarios for each revision of the protocol.
var conformance = []struct {
	name, program string
	options       []string
	expected      string   // the file of what fails
	pass          []string // some scenarios that pass, in case that the suite runs none
}{
	{
		"0.1", "@modelcontextprotocol/conformance", nil, "expected-failures.yml",
		[]string{"server-initialize", "ping", "tools-list", "resources-list", "dns-rebinding-protection"},
	},
	{
		"2025-11-25", "conformance-0.2", []string{"--requirements", "2025-11-25"}, "expected-failures-2025-11-25.yml",
		[]string{"server-initialize", "ping", "tools-list", "resources-list", "server-sse-multiple-streams", "dns-rebinding-protection", "server-session-lifecycle"},
	},
	{
		"2026-07-28", "conformance-0.2", []string{"--requirements", "2026-07-28"}, "expected-failures-2026-07-28.yml",
		[]string{"tools-list", "resources-list", "server-sse-multiple-streams", "sep-2164-resource-not-found", "dns-rebinding-protection", "http-header-validation"},
	},
}

// expected is a line of such a file: a scenario, or one check of it, and why it is there.
var expected = regexp.MustCompile(`^  - [a-z0-9-]+(:[a-z0-9-]+)? # \S.{10,}$`)

// attempts is how often the suite may run: it waits for some answers for 1.5 s, which are
// not enough on a machine that is busy with something else.
const attempts = 4

// The conformance suite's scenarios that a server with one tool can meet pass, and those
// that the file names fail: the suite counts a line too many in it as a failure.
func TestConformance(t *testing.T) {
	given(t)
	for _, suite := range conformance {
		t.Run(suite.name, func(t *testing.T) {
			s := prepare(t)
			arguments := []string{
				s.file(t, "node_modules/"+suite.program+"/dist/index.js"), "server", "--url", s.serveHTTP(t, false).url,
				"--expected-failures", must.Get(filepath.Abs(suite.expected))(t),
			}
			var out output
			for range attempts {
				if out = s.run(t, s.Node, append(arguments, suite.options...)...); out.status == 0 {
					break
				}
				t.Logf("status %d:\n%s", out.status, out.stdout)
			}
			if out.status != 0 {
				t.Errorf("status %d, %d times: %s", out.status, attempts, out.stderr)
			}
			for _, scenario := range suite.pass {
				if !regexp.MustCompile(`(?m)^✓ ` + scenario + `: [1-9][0-9]* passed, 0 failed`).MatchString(out.stdout) {
					t.Errorf("%s did not pass:\n%s", scenario, out.stdout)
				}
			}
		})
	}
}

// Every scenario that may fail says why.
func TestExpectedFailuresHaveReasons(t *testing.T) {
	for _, suite := range conformance {
		text := must.Get(os.ReadFile(suite.expected))(t)
		lines := 0
		for line := range strings.Lines(string(text)) {
			line = strings.TrimRight(line, "\n")
			if line == "server:" || strings.HasPrefix(strings.TrimSpace(line), "#") {
				continue
			}
			lines++
			if !expected.MatchString(line) {
				t.Errorf("%s: %q is not a scenario with its reason: write \"  - NAME # why\"", suite.expected, line)
			}
		}
		if lines == 0 {
			t.Errorf("%s names no scenario", suite.expected)
		}
	}
}
