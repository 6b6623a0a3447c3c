package mcphttp

import (
	"strings"
	"testing"
)

// The id of an HTTP session is found for its principal, by the server that made it, as it is.
func TestSessions_AreOfOnePrincipalAndServer(t *testing.T) {
	s, other := newSessions(), newSessions()
	for _, elicits := range []bool{false, true} {
		id := s.open("alice", elicits)
		if found := s.find("alice", id); found == nil || found.id != id || found.elicits != elicits {
			t.Errorf("%q is found as %+v", id, found)
		}
		for name, strange := range map[string]struct {
			of        *sessions
			principal string
			id        string
		}{
			"another principal's": {s, "bob", id},
			"another server's":    {other, "alice", id},
			"empty":               {s, "alice", ""},
			"shorter":             {s, "alice", id[1:]},
			"longer":              {s, "alice", id + "0"},
			"without a code":      {s, "alice", id[:randomSize+1] + strings.Repeat("0", idSize-randomSize-1)},
			"of the other kind":   {s, "alice", id[:randomSize] + strings.Map(func(r rune) rune { return 'f' + 'p' - r }, id[randomSize:randomSize+1]) + id[randomSize+1:]},
		} {
			if found := strange.of.find(strange.principal, strange.id); found != nil {
				t.Errorf("%s: %+v", name, found)
			}
		}
	}
	// An id ends where its principal begins.
	one, two := s.open("alice", false), s.open("alice", false)
	if s.find("lice", one) != nil || one == two {
		t.Error("ids are not of one principal, or not different")
	}
}
