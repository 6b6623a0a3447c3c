package clients

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// expected is a line of expected-failures.yml: a scenario and why it is there.
var expected = regexp.MustCompile(`^  - [a-z0-9-]+ # \S.{10,}$`)

// The conformance suite's scenarios that a server with one tool can meet
// pass, and those that expected-failures.yml names fail: the suite counts a
// line too many in that file as a failure.
func TestConformance(t *testing.T) {
	s := prepare(t)
	file := must.Get(filepath.Abs("expected-failures.yml"))(t)
	web := s.serveHTTP(t, false)
	program := s.file(t, "node_modules/@modelcontextprotocol/conformance/dist/index.js")
	out := s.run(t, s.Node, program, "server", "--url", web.url, "--expected-failures", file)
	if out.status != 0 {
		t.Errorf("status %d:\n%s%s", out.status, out.stdout, out.stderr)
	}
	for _, scenario := range []string{"server-initialize", "ping", "tools-list", "resources-list"} {
		if !regexp.MustCompile(`(?m)^✓ ` + scenario + `: [1-9][0-9]* passed, 0 failed`).MatchString(out.stdout) {
			t.Errorf("%s did not pass:\n%s", scenario, out.stdout)
		}
	}
}

// Every scenario that may fail says why.
func TestExpectedFailuresHaveReasons(t *testing.T) {
	text := must.Get(os.ReadFile("expected-failures.yml"))(t)
	lines := 0
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		if line == "server:" || strings.HasPrefix(strings.TrimSpace(line), "#") {
			continue
		}
		lines++
		if !expected.MatchString(line) {
			t.Errorf("%q is not a scenario with its reason: write \"  - NAME # why\"", line)
		}
	}
	if lines == 0 {
		t.Error("no scenario is named")
	}
}
