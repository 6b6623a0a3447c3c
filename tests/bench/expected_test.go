package main

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

func TestExpectation_BreaksBeyondTwice(t *testing.T) {
	pair := func(a, b time.Duration) section {
		return section{Name: "g", Rows: rows([]*series{
			{Name: "a", Rounds: [][]time.Duration{{a}}},
			{Name: "b", Rounds: [][]time.Duration{{b}}},
		}, "b")}
	}
	e := expectation{Group: "g", Row: "a", Against: "b", Ratio: 3}
	for _, test := range []struct {
		name   string
		s      section
		broken bool
	}{
		{"as expected", pair(3, 1), false},
		{"faster", pair(1, 1), false},
		{"at the limit", pair(6, 1), false},
		{"beyond it", pair(7, 1), true},
		{"not measured", section{Rows: rows([]*series{{Name: "a", Gap: "g"}, {Name: "b"}}, "b")}, true},
		{"no such row", section{}, true},
	} {
		if err := e.broken(test.s); (err != nil) != test.broken {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

func TestExpectedFileNamesRealRows(t *testing.T) {
	var expected []expectation
	must.Do(t, json.Unmarshal(expectedText, &expected))
	if len(expected) == 0 {
		t.Fatal("expected.json expects nothing")
	}
	b := &bench{short: true, build: build{found: map[string]artifact{"python": {}, "bash": {}, "node": {}}}}
	rows := map[string]bool{}
	for _, g := range b.groups(shortNames) {
		for _, e := range g.list {
			rows[g.name+"/"+e.Name()] = true
		}
	}
	for _, e := range expected {
		for _, name := range []string{e.Row, e.Against} {
			if !rows[e.Group+"/"+name] {
				t.Errorf("expected.json names %q of %s, which no short run measures", name, e.Group)
			}
		}
		if e.Ratio <= 0 || e.Why == "" {
			t.Errorf("%s of %s has no ratio or no reason", e.Row, e.Group)
		}
	}
}
