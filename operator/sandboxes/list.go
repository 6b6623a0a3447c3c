// Package sandboxes has the commands that list, build and start sandboxes without a server.
package sandboxes

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/tidwall/gjson"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/cli"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/format"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/terminal"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/packages"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
)

// maxMetadata bounds an artifact's metadata.json, in bytes.
const maxMetadata = 1 << 20

// List prints the environments of this server.
func List(std cli.Streams) *cobra.Command {
	var asJSON, names bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the environments: their limits, sizes and states",
		Args:  cli.AtMost(0),
		RunE: func(*cobra.Command, []string) error {
			settings, set, err := Survey(terminal.Visible(std.Err), "")
			if err != nil {
				return err
			}
			switch all := listed(set, packages.Built(settings.Packages, set.Environments)); {
			case names:
				for _, name := range set.Names() {
					fmt.Fprintln(std.Out, name)
				}
			case asJSON:
				return format.JSON(std.Out, all)
			default:
				width := 0
				if terminal.Is(std.Out) {
					width = int(terminal.Size(std.Out.(*os.File)).Columns)
				}
				return writeList(std.Out, all, width)
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

// row is an environment in the list, and the schema of list --json. Unknown values are left out.
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
	// Domains are the hosts that it reaches, and Ports the ports of domains that name none.
	Domains []string `json:"domains,omitempty"`
	Ports   []int    `json:"ports,omitempty"`
	Closure string   `json:"closure,omitempty"`
	Size    int64    `json:"closure_bytes,omitempty"`
	Origin  string   `json:"origin,omitempty"`

	network string // the hosts, for the table
}

// listed returns a row for each environment: first the ready ones, then those with packages that
// calls added.
func listed(set *registry.Set, added []registry.Environment) []row {
	rows := []row{}
	now := registry.New(set).Now()
	usable := []registry.Environment{}
	for _, name := range now.Names() {
		usable = append(usable, now.Ready()[name])
	}
	for _, env := range append(usable, added...) {
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
			// The model is not told this reason, but an operator is.
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

// closureSize returns the size of a sandbox's closure in bytes, or 0 if it is not known.
func closureSize(env registry.Environment) int64 {
	return sizeOfArtifact(filepath.Join(filepath.Dir(env.Exec), ".."))
}

// sizeOfArtifact is closureSize for the folder of an artifact.
func sizeOfArtifact(folder string) int64 {
	text, err := bounded.ReadFile(filepath.Join(folder, "metadata.json"), maxMetadata)
	if err != nil || !gjson.ValidBytes(text) {
		return 0
	}
	return max(0, gjson.GetBytes(text, "closure_bytes").Int())
}

// hostsWidth is the width of the hosts that an environment reaches, in columns, without the
// number of further ones.
const hostsWidth = 40

// leastDescription is the smallest useful width of a description, in columns.
const leastDescription = 24

// writeList writes a table of at most width columns, or of any width if width is 0. In a narrow
// table the last columns before the description are left out.
func writeList(w io.Writer, rows []row, width int) error {
	if len(rows) == 0 {
		fmt.Fprintln(w, "there is no environment")
		return nil
	}
	type column struct {
		title string
		value func(row) string
	}
	columns := []column{
		{"NAME", func(r row) string { return r.Name }},
		{"STATE", func(r row) string { return r.State }},
		{"TIME", func(r row) string { return format.Unit(r.Timeout, "s") }},
		{"MEMORY", func(r row) string { return format.Unit(float64(r.Memory), "MB") }},
		{"SIZE", func(r row) string { return format.Megabytes(r.Size) }},
		{"NETWORK", func(r row) string { return format.Plain(r.network) }},
		{"BACKEND", func(r row) string { return format.Plain(r.Backend) }},
		{"CPUS", func(r row) string { return format.Unit(r.CPUs, "") }},
		{"PROCESSES", func(r row) string { return format.Unit(float64(r.PIDs), "") }},
	}
	var head []string
	cells := make([][]string, len(rows))
	taken := 0
	for i, c := range columns {
		widest := 0
		for _, r := range rows {
			widest = max(widest, len(c.value(r)))
		}
		taken += max(widest, len(c.title)) + 2
		if widest == 0 || width > 0 && i > 1 && taken+leastDescription > width {
			continue
		}
		head = append(head, c.title)
		for i, r := range rows {
			cells[i] = append(cells[i], c.value(r))
		}
	}
	for i, r := range rows {
		last := r.Description
		if r.State == broken {
			last = r.Reason
		}
		cells[i] = append(cells[i], format.Plain(last))
	}
	var text strings.Builder
	if err := format.Table(&text, append(head, "DESCRIPTION"), cells); err != nil {
		return err
	}
	for line := range strings.Lines(text.String()) {
		line = strings.TrimRight(line, " \n")
		if width > 0 {
			line = format.Shorten(line, width)
		}
		fmt.Fprintln(w, line)
	}
	return nil
}
