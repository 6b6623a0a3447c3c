package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// A report is all that was measured. Its JSON form is what --json writes.
// Times are milliseconds, memory is MiB.
type report struct {
	Machine    machine   `json:"machine"`
	Sections   []section `json:"sections"`
	Throughput []rate    `json:"throughput,omitempty"`
	Sessions   *live     `json:"sessions,omitempty"`
	Idle       *idle     `json:"idle,omitempty"`
	Machines   *machines `json:"machines,omitempty"`
}

// A section is a group's result.
type section struct {
	Name  string `json:"name"`
	Title string `json:"title"`
	Base  string `json:"base"` // ratios refer to this row
	Rows  []row  `json:"rows"`
}

// A row is a contender's result.
type row struct {
	Name   string  `json:"name"`
	Gap    string  `json:"gap,omitempty"`
	Calls  int     `json:"calls,omitempty"`
	P50    float64 `json:"p50_ms,omitempty"`
	P95    float64 `json:"p95_ms,omitempty"`
	P99    float64 `json:"p99_ms,omitempty"`
	Ratio  float64 `json:"ratio,omitempty"`  // median of paired ratios to the base
	CPU    float64 `json:"cpu_ms,omitempty"` // a call
	Memory float64 `json:"memory_mib,omitempty"`

	series *series
}

// live is the idle server and live sessions.
type live struct {
	IdleMemory float64   `json:"idle_memory_mib"`
	IdleCPU    float64   `json:"idle_cpu_ms_per_second"`
	Rows       []liveRow `json:"rows"`
}

type liveRow struct {
	Sessions int     `json:"sessions"`
	Start    float64 `json:"start_ms"`        // a session, several starting at once
	Memory   float64 `json:"memory_mib"`      // a session
	Bare     float64 `json:"bare_memory_mib"` // an interpreter with nothing around it
	Ratio    float64 `json:"memory_ratio"`
	Server   float64 `json:"server_memory_mib"`
	P50      float64 `json:"p50_ms"` // all sessions calling at once
	P99      float64 `json:"p99_ms"`
	Rate     float64 `json:"calls_per_second"`
}

// print writes the report for people.
func (r report) print(w io.Writer) {
	m := r.Machine
	fmt.Fprintf(w, "%s · %d cores · %s · %s · Linux %s · load %s\n", m.Date, m.Cores, m.CPU, m.Memory, m.Kernel, m.Load)
	for _, name := range slices.Sorted(maps.Keys(m.Versions)) {
		fmt.Fprintf(w, "  %s: %s\n", name, m.Versions[name])
	}
	for _, s := range r.Sections {
		t := table{{s.Title, "p50 ms", "p95", "p99", "ratio", "CPU ms", "MiB", "calls"}}
		for _, row := range s.Rows {
			if row.Gap != "" {
				t = append(t, []string{row.Name, "gap: " + row.Gap})
				continue
			}
			t = append(t, []string{
				row.Name, number(row.P50), number(row.P95), number(row.P99), times(row.Ratio),
				number(row.CPU), number(row.Memory), fmt.Sprint(row.Calls),
			})
		}
		t.print(w)
	}
	if r.Throughput != nil {
		rateTable(r.Throughput).print(w)
	}
	if r.Sessions != nil {
		t := table{{"python: live sessions, all calling", "start ms", "MiB each", "bare", "ratio", "server MiB", "p50 ms", "p99", "calls/s"}}
		for _, row := range r.Sessions.Rows {
			t = append(t, []string{
				fmt.Sprint(row.Sessions), number(row.Start), number(row.Memory), number(row.Bare), times(row.Ratio),
				number(row.Server), number(row.P50), number(row.P99), number(row.Rate),
			})
		}
		t.print(w)
		fmt.Fprintf(w, "idle server: %s MiB, %s ms of CPU a second\n", number(r.Sessions.IdleMemory), number(r.Sessions.IdleCPU))
	}
	if r.Machines != nil {
		r.Machines.table().print(w)
	}
	if r.Idle != nil {
		fmt.Fprintf(w, "\n%d idle sessions of all interpreters: %s %% of a processor, as measured with %d; the server %s %%; %s MiB a session\n",
			manySessions, number(r.Idle.CPU), r.Idle.Sessions, number(r.Idle.Server), number(r.Idle.Memory))
	}
}

// A table's first row is its head. A row of two cells in a wider table is a
// remark.
type table [][]string

func (t table) print(w io.Writer) {
	width := make([]int, len(t[0]))
	for _, row := range t {
		for i, cell := range row {
			if len(row) == len(t[0]) || i == 0 {
				width[i] = max(width[i], utf8.RuneCountInString(cell))
			}
		}
	}
	fmt.Fprintln(w)
	for n, row := range t {
		var line strings.Builder
		for i, cell := range row {
			space := strings.Repeat(" ", max(0, width[i]-utf8.RuneCountInString(cell)))
			switch {
			case i == 0:
				line.WriteString(cell + space)
			case len(row) != len(t[0]):
				line.WriteString("  " + cell)
			default:
				line.WriteString("  " + space + cell)
			}
		}
		fmt.Fprintln(w, strings.TrimRight(line.String(), " "))
		if n == 0 {
			fmt.Fprintln(w, strings.Repeat("─", utf8.RuneCountInString(line.String())))
		}
	}
}

// number writes a figure with three digits that count; nothing was measured
// where it is 0.
func number(f float64) string {
	switch {
	case f == 0:
		return "–"
	case f < 1:
		return fmt.Sprintf("%.3f", f)
	case f < 10:
		return fmt.Sprintf("%.2f", f)
	case f < 100:
		return fmt.Sprintf("%.1f", f)
	}
	return fmt.Sprintf("%.0f", f)
}

// times writes a ratio.
func times(f float64) string {
	if f == 0 {
		return "–"
	}
	return number(f) + "×"
}
