package main

import (
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/tidwall/gjson"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
)

// maxMetadata bounds an artifact's metadata.json, in bytes.
const maxMetadata = 1 << 20

func listCommand(std streams) *cobra.Command {
	var asJSON, names bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the environments: their limits, sizes and states",
		Args:  atMost(0),
		RunE: func(*cobra.Command, []string) error {
			_, set, err := config.Survey()
			if err != nil {
				return err
			}
			switch all := listed(set); {
			case names:
				for _, name := range set.Names() {
					fmt.Fprintln(std.out, name)
				}
			case asJSON:
				return writeJSON(std.out, all)
			default:
				width := 0
				if isTerminal(std.out) {
					width = int(sizeOf(std.out.(*os.File)).Columns)
				}
				writeList(std.out, all, width)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON: an array of objects")
	cmd.Flags().BoolVar(&names, "names", false, "write only the names of the environments that are ready")
	return cmd
}

// States in the list.
const (
	ready    = "ready"
	building = "building"
	broken   = "failed"
)

// row is an environment in the list, and the schema of list --json. Fields with
// unknown values are left out.
type row struct {
	Name        string  `json:"name"`
	State       string  `json:"state"`
	Reason      string  `json:"reason,omitempty"` // of a failed one
	Description string  `json:"description,omitempty"`
	Backend     string  `json:"backend,omitempty"`
	Interpreter string  `json:"interpreter_type,omitempty"`
	Timeout     float64 `json:"timeout_seconds,omitempty"`
	MaxTimeout  float64 `json:"max_timeout_seconds,omitempty"`
	Memory      int64   `json:"memory_mb,omitempty"`
	CPUs        float64 `json:"cpus,omitempty"`
	PIDs        int64   `json:"pids,omitempty"`
	Output      int64   `json:"output_kb,omitempty"`
	// Domains are the hosts that it reaches, and Ports those of domains without
	// one.
	Domains []string `json:"domains,omitempty"`
	Ports   []int    `json:"ports,omitempty"`
	Closure string   `json:"closure,omitempty"`
	Size    int64    `json:"closure_bytes,omitempty"`
	Origin  string   `json:"origin,omitempty"`

	network string // the hosts, as the table names them
}

// listed returns a row for each environment: first those that are ready.
func listed(set *registry.Set) []row {
	rows := []row{}
	now := registry.New(set).Now()
	usable := []registry.Environment{}
	for _, name := range now.Names() {
		usable = append(usable, now.Ready()[name])
	}
	for _, env := range append(usable, now.AllDerived()...) {
		r := row{
			Name: env.Name, State: ready, Description: env.Description, Backend: env.Backend, Interpreter: env.InterpreterType,
			Timeout: env.Timeout.Seconds(), MaxTimeout: env.MaxTimeout.Seconds(), Memory: env.MemoryMB, CPUs: env.CPUs, PIDs: env.PIDs, Output: env.OutputBytes >> 10,
			Closure: env.Closure, Size: closureSize(env), Origin: env.Origin,
		}
		if env.Network != nil {
			r.Domains, r.Ports, r.network = env.Network.Domains, env.Network.Ports, env.Network.Hosts(hostsWidth)
		}
		rows = append(rows, r)
	}
	for _, entry := range now.AllPending() {
		r := row{Name: entry.Name, State: building}
		if entry.Failed {
			r.State, r.Reason = broken, entry.Reason
			// An operator may read what the model may not.
			for _, one := range set.Broken {
				if one.Name == entry.Name && r.Reason == "" {
					r.Reason = one.Err.Error()
				}
			}
		}
		rows = append(rows, r)
	}
	return rows
}

// closureSize is the size of a sandbox's closure in bytes, as its builder
// measured it, or 0 if it is not known.
func closureSize(env registry.Environment) int64 {
	return sizeOfArtifact(filepath.Join(filepath.Dir(env.Exec), ".."))
}

// sizeOfArtifact is the same of an artifact's folder.
func sizeOfArtifact(folder string) int64 {
	text, err := bounded.ReadFile(filepath.Join(folder, "metadata.json"), maxMetadata)
	if err != nil || !gjson.ValidBytes(text) {
		return 0
	}
	return max(0, gjson.GetBytes(text, "closure_bytes").Int())
}

type column struct {
	title string
	right bool // aligned to the right, as numbers are
	value func(row) string
}

// hostsWidth is the width of the hosts that an environment reaches, in columns,
// without the number of those that are left out.
const hostsWidth = 40

// leastDescription is the smallest useful width of a description, in columns.
const leastDescription = 24

// writeList writes a table of at most width columns, or of any width if width is
// 0. In a narrow table the last columns before the description are left out.
func writeList(w io.Writer, rows []row, width int) {
	if len(rows) == 0 {
		fmt.Fprintln(w, "there is no environment")
		return
	}
	columns := []column{
		{"NAME", false, func(r row) string { return r.Name }},
		{"STATE", false, func(r row) string { return r.State }},
		{"TIME", true, func(r row) string { return unit(r.Timeout, "s") }},
		{"MEMORY", true, func(r row) string { return unit(float64(r.Memory), "MB") }},
		{"SIZE", true, func(r row) string { return megabytes(r.Size) }},
		{"NETWORK", false, func(r row) string { return plain(r.network) }},
		{"BACKEND", false, func(r row) string { return plain(r.Backend) }},
		{"CPUS", true, func(r row) string { return unit(r.CPUs, "") }},
		{"PROCESSES", true, func(r row) string { return unit(float64(r.PIDs), "") }},
	}
	columns = slices.DeleteFunc(columns, func(c column) bool {
		return !slices.ContainsFunc(rows, func(r row) bool { return c.value(r) != "" })
	})
	widths := func() (list []int, sum int) {
		for _, c := range columns {
			n := len(c.title)
			for _, r := range rows {
				n = max(n, len(c.value(r)))
			}
			list, sum = append(list, n), sum+n+2
		}
		return list, sum
	}
	list, sum := widths()
	for width > 0 && sum+leastDescription > width && len(columns) > 2 {
		columns = columns[:len(columns)-1]
		list, sum = widths()
	}
	line := func(cells []string, last string) {
		var text strings.Builder
		for i, cell := range cells {
			if columns[i].right {
				cell = strings.Repeat(" ", list[i]-len(cell)) + cell
			}
			fmt.Fprintf(&text, "%-*s  ", list[i], cell)
		}
		if width > 0 {
			last = shorten(last, width-sum)
		}
		fmt.Fprintln(w, strings.TrimRight(text.String()+last, " "))
	}
	titles := make([]string, len(columns))
	for i, c := range columns {
		titles[i] = c.title
	}
	line(titles, "DESCRIPTION")
	for _, r := range rows {
		cells := make([]string, len(columns))
		for i, c := range columns {
			cells[i] = c.value(r)
		}
		last := r.Description
		if r.State == broken {
			last = r.Reason
		}
		line(cells, plain(last))
	}
}

// megabytes formats a size in bytes, and 0 as an empty text.
func megabytes(size int64) string { return unit(math.Round(float64(size)/1e5)/10, "MB") }

// unit formats a number with its unit, and 0 as an empty text.
func unit(n float64, of string) string {
	if n == 0 {
		return ""
	}
	return strings.TrimSpace(strconv.FormatFloat(n, 'f', -1, 64) + " " + of)
}

// plain makes one line of a text and removes control characters, and those that are
// invisible or show text in another order.
func plain(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool {
		return r <= ' ' || r >= 0x7f && r < 0xa0 || r == 0x2028 || r == 0x2029 || unicode.Is(unicode.Cf, r) && !written(r)
	}), " ")
}

// shorten cuts a line to a width and marks the cut with an ellipsis.
func shorten(text string, width int) string {
	runes := []rune(text)
	if len(runes) <= width {
		return text
	}
	return string(runes[:max(0, width-1)]) + "…"
}
