package jail

import (
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

func TestSandboxUser(t *testing.T) {
	for name, test := range map[string]struct {
		users, groups string
		want          int
		refused       string
	}{
		"the whole system":        {"0 0 4294967295", "0 0 4294967295", ownUsers + 4711, ""},
		"a container's 65,536":    {"0 1000 1\n1 100000 65535\n", "0 1000 1\n1 100000 65535\n", dynamicUsers + 375, ""},
		"an ordinary user's root": {"0 1000 1", "0 1000 1", 0, ""},
		"root's own namespace":    {"0 0 1", "0 0 1", 0, "no such user"},
		"a few":                   {"0 100000 1000", "0 100000 1000", 0, "no such user"},
		"users without groups":    {"0 0 4294967295", "0 1000 1", 0, "no such user"},
	} {
		t.Run(name, func(t *testing.T) {
			users := must.Get(parseMap([]byte(test.users)))(t)
			groups := must.Get(parseMap([]byte(test.groups)))(t)
			got, err := sandboxUser(users, groups, 4711)
			if got != test.want {
				t.Errorf("user %d, want %d", got, test.want)
			}
			if test.refused == "" && err != nil || test.refused != "" && (err == nil || !strings.Contains(err.Error(), test.refused) || HintOf(err) == "") {
				t.Errorf("error %v with hint %q", err, HintOf(err))
			}
		})
	}
}

func TestParseMapRefuses(t *testing.T) {
	for _, text := range []string{"0 0\n", "0 0 1 1\n", "a 0 1\n"} {
		if spans, err := parseMap([]byte(text)); err == nil {
			t.Errorf("%q is %v", text, spans)
		}
	}
}
