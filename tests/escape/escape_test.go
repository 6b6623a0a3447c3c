package escape

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/cgroup"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/networld"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// controlGroups returns where control groups can be made, or nil. A virtual machine
// (tests/vm) in which the user has a subtree has to have them.
func controlGroups(t *testing.T) *cgroup.Tree {
	t.Helper()
	groups, err := cgroup.Find(t.Context(), cgroup.System)
	if err != nil && os.Getenv("NIX_SANDBOX_TEST_MACHINE") == "delegate" {
		t.Fatal(err)
	}
	t.Logf("control groups: %v, error %v", groups != nil, err)
	return groups
}

// TestEscape runs the suite on the sandboxes that package undertest names.
// NIX_SANDBOX_ESCAPE_SKIP lists tags to leave out beside those that are not
// promised ("none" leaves out nothing), and NIX_SANDBOX_ESCAPE_MATCH patterns
// of names, separated by commas.
func TestEscape(t *testing.T) { escapeSuite(t, undertest.Artifacts(t), nil) }

// An ordinary user has no world in [TestEscape], whose attempts are of the user as the
// machine has it. Here they are of the user in a user namespace.
func TestEscape_Network(t *testing.T) {
	var artifacts []string
	for _, dir := range undertest.Artifacts(t) {
		if a, err := describe(dir); err == nil && (&suite{artifact: a}).reachesWorld() {
			artifacts = append(artifacts, dir)
		}
	}
	switch {
	case len(artifacts) == 0:
		t.Skip("no sandbox under test has the network of the tests")
	case os.Geteuid() == 0:
		t.Skip("TestEscape has made these attempts as root")
	}
	if networld.Again(t) {
		escapeSuite(t, artifacts, []string{"network-*/*"})
	}
}

// escapeSuite runs the suite on sandboxes: the attempts that match, or those that the
// environment names.
func escapeSuite(t *testing.T, artifacts, match []string) {
	list := func(name string) []string {
		return strings.FieldsFunc(os.Getenv(name), func(char rune) bool { return char == ',' })
	}
	skip := list("NIX_SANDBOX_ESCAPE_SKIP")
	if !slices.Contains(skip, "none") {
		skip = append(skip, Unpromised()...)
	}
	for _, variable := range undertest.Machines() {
		name, value, _ := strings.Cut(variable, "=")
		t.Setenv(name, value)
	}
	groups := controlGroups(t)
	if named := list("NIX_SANDBOX_ESCAPE_MATCH"); len(named) > 0 {
		match = named
	}
	for _, dir := range artifacts {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			report, err := Run(context.Background(), dir, Options{
				Match:  match,
				Skip:   skip,
				Slow:   patience.Factor(),
				Groups: groups,
				Each: func(result Result) {
					if result.Verdict == Failed {
						t.Error(result)
						return
					}
					t.Log(result)
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Log(report)
			if !report.OK() {
				t.Fail()
			}
		})
	}
}
