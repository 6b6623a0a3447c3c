package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

func sample() report {
	return report{
		Machine: machine{Date: "2026-01-02", Cores: 2, Versions: map[string]string{"go": "go1.26"}},
		Sections: []section{{
			Name: "python", Title: "python: print(1+1)", Base: plainName,
			Rows: rows([]*series{
				{Name: plainName, Rounds: [][]time.Duration{{10 * time.Millisecond}}},
				{Name: "run in a session", Rounds: [][]time.Duration{{200 * time.Microsecond}}},
				{Name: "a <peer>", Gap: "not installed"},
				{Name: "slow peer", Rounds: [][]time.Duration{{400 * time.Millisecond}}},
			}, plainName),
		}},
	}
}

func TestTable_AlignsColumns(t *testing.T) {
	var text strings.Builder
	table{
		{"what", "ms", "ratio"},
		{"µ", "1.00", "12×"},
		{"peer", "gap: a long reason"},
	}.print(&text)
	want := `
what    ms  ratio
─────────────────
µ     1.00    12×
peer  gap: a long reason
`
	if text.String() != want {
		t.Errorf("table is\n%s\nwant\n%s", text.String(), want)
	}
}

func TestReportSaysMachineFiguresAndGaps(t *testing.T) {
	var text strings.Builder
	sample().print(&text)
	for _, want := range []string{"2026-01-02", "2 cores", "go: go1.26", "0.200", "0.020×", "40.0×", "gap: not installed"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, text.String())
		}
	}
}

// A row has a line for each of its aims, compared with the median of its rounds; one
// that was not measured compares nothing.
func TestMachines_AreComparedWithTheirAims(t *testing.T) {
	m := newMachines()
	m.Isolation = "emulated"
	for _, ms := range []int{10, 12, 90} {
		took := time.Duration(ms) * time.Millisecond
		m.add(warmRow, took, 2*took, milliseconds(took), 9)
	}
	m.sum()
	var text strings.Builder
	table(m.table()[:4]).print(&text)
	want := `
virtual machines, emulated, python  p50 ms  CPU ms           measured   aim  reached  rounds
────────────────────────────────────────────────────────────────────────────────────────────
call, one clone waiting               12.0    24.0              12 ms  ≤ 15      yes       3
                                                    9 × a jail's time   ≤ 8       no
the same of a jail, to compare           –       –                                         0
`
	if text.String() != want {
		t.Errorf("the table is\n%s\nwant\n%s", text.String(), want)
	}
}

func TestReportAsJSON(t *testing.T) {
	text := must.Get(json.Marshal(sample()))(t)
	var back report
	must.Do(t, json.Unmarshal(text, &back))
	if got := back.Sections[0].Rows[3]; got.P50 != 400 || got.Ratio != 40 {
		t.Errorf("the row came back as %+v", got)
	}
}

func TestNumber_HasThreeDigits(t *testing.T) {
	for value, want := range map[float64]string{0: "–", 0.0772: "0.077", 1.234: "1.23", 12.34: "12.3", 1234.5: "1234"} {
		if got := number(value); got != want {
			t.Errorf("number(%g) is %s, want %s", value, got, want)
		}
	}
}
