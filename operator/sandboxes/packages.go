package sandboxes

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/cli"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/format"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/terminal"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/packages"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/order"
)

// Packages lists, builds and removes environments with packages.
func Packages(std cli.Streams) *cobra.Command {
	var asJSON, add, remove bool
	cmd := &cobra.Command{
		Use:   "packages [ENV | ENV+PACKAGE]...",
		Short: "List, build or remove environments with packages",
		Long: `List, build or remove environments with packages, which calls otherwise add.

ENV alone means all environments that calls made of it. A removed environment is
built again if a call names it. Nix's garbage collection frees the space.
+PACKAGE are packages that code added with nix.`,
		Example: "  " + cli.Program + " packages\n  " + cli.Program + " packages --add python+pandas\n  " + cli.Program + " packages --remove python+pandas",
		RunE: func(_ *cobra.Command, args []string) error {
			switch {
			case add && (remove || asJSON):
				return command.Misuse("--add cannot be given with --remove or --json", "leave one of them out")
			case (add || remove) && len(args) == 0:
				return command.Misuse("no environment was named", "use ENV+PACKAGE, or ENV to remove all of them")
			case add:
				for _, name := range args {
					if _, err := choose(terminal.Visible(std.Err), name, ""); err != nil {
						return err
					}
					fmt.Fprintln(std.Out, "ready:", name)
				}
				return nil
			}
			settings, set, err := config.Survey()
			if err != nil {
				return err
			}
			rows, err := chosenPackages(addedPackages(settings.Packages, set), args)
			if err != nil {
				return err
			}
			switch {
			case remove:
				return removePackages(std.Out, settings.Packages, rows)
			case asJSON:
				return format.JSON(std.Out, rows)
			}
			return writePackages(std.Out, rows, time.Now())
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON: an array of objects")
	cmd.Flags().BoolVar(&add, "add", false, "build the environments that are named, for later calls")
	cmd.Flags().BoolVar(&remove, "remove", false, "remove the environments that are named")
	return cmd
}

// outdated is the state of an environment with packages if its base has changed since: no call
// uses it any more.
const outdated = "outdated"

// addedRow is an environment with packages, and the schema of packages --json.
type addedRow struct {
	Name  string `json:"name"`
	State string `json:"state"`
	// Reason is empty unless the build failed.
	Reason string    `json:"reason,omitempty"`
	Size   int64     `json:"closure_bytes,omitempty"`
	Used   time.Time `json:"used,omitzero"`

	base, key string
}

// addedPackages returns the environments with packages in a folder, by name.
func addedPackages(folder string, set *registry.Set) []addedRow {
	rows, built := []addedRow{}, packages.Built(folder, set.Environments)
	for _, key := range packages.Keys(folder) {
		request, err := packages.ReadRequest(folder, key)
		if err != nil {
			continue
		}
		derived, err := packages.Parse(packages.Name{Base: request.Base, Packages: request.Packages}.String())
		ofCode := request.Base == "" // which may have it in every environment
		if err != nil && !ofCode {
			continue
		}
		row := addedRow{Name: derived.String(), State: outdated, base: derived.Base, key: key}
		if ofCode {
			row.Name = packages.Name{Packages: request.Packages}.String()
		}
		at := filepath.Join(folder, key)
		row.Size = sizeOfArtifact(filepath.Join(at, order.ResultLink))
		if info, err := os.Stat(filepath.Join(at, order.UsedFile)); err == nil {
			row.Used = info.ModTime()
		}
		base := set.Environments[derived.Base]
		isBuilt := slices.ContainsFunc(built, func(env registry.Environment) bool { return env.Name == row.Name })
		switch {
		case !ofCode && (base.OnDemand == nil || packages.Key(base, derived) != key):
		case isBuilt, ofCode && row.Size > 0:
			row.State = ready
		case found(os.Lstat(filepath.Join(at, order.FailedFile))):
			row.State, row.Reason = broken, firstLines(filepath.Join(at, order.FailedFile))
		case found(os.Lstat(filepath.Join(at, order.BuildingFile))):
			row.State = building
		default:
			continue // no server has begun to build it
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b addedRow) int { return strings.Compare(a.Name+" "+a.key, b.Name+" "+b.key) })
	return rows
}

// chosenPackages returns the rows that names refer to, or all rows if there are no names.
func chosenPackages(rows []addedRow, names []string) ([]addedRow, error) {
	if len(names) == 0 {
		return rows, nil
	}
	var chosen []addedRow
	for _, name := range names {
		canonical := name
		if derived, err := packages.Parse(name); err == nil {
			canonical = derived.String()
		}
		found := false
		for _, row := range rows {
			if row.Name == canonical || row.base == canonical {
				found = true
				if !slices.Contains(chosen, row) {
					chosen = append(chosen, row)
				}
			}
		}
		if !found {
			return nil, &config.Error{
				Problem: fmt.Sprintf("there is no environment with packages %q", name),
				Hint:    "see " + cli.Program + " packages, or build it with " + cli.Program + " packages --add ENV+PACKAGE",
			}
		}
	}
	return chosen, nil
}

func removePackages(w io.Writer, folder string, rows []addedRow) error {
	for _, row := range rows {
		if err := packages.Remove(folder, row.key); err != nil {
			return fmt.Errorf("remove %s: %w", row.Name, err)
		}
		fmt.Fprintln(w, "removed", row.Name)
	}
	return nil
}

func writePackages(w io.Writer, rows []addedRow, now time.Time) error {
	if len(rows) == 0 {
		fmt.Fprintln(w, "there are no environments with packages")
		return nil
	}
	var table [][]string
	for _, row := range rows {
		used := format.Plain(row.Reason)
		if row.Reason == "" && !row.Used.IsZero() {
			used = format.Age(now.Sub(row.Used)) + " ago"
		}
		table = append(table, []string{row.Name, row.State, format.Megabytes(row.Size), used})
	}
	return format.Table(w, []string{"NAME", "STATE", "SIZE", "USED"}, table)
}

// maxReason bounds the reason of a failure in the table, in bytes.
const maxReason = 300

// firstLines returns the beginning of a report of the builder.
func firstLines(path string) string {
	text, err := bounded.ReadFile(path, maxMetadata)
	if err != nil {
		return ""
	}
	return strings.ToValidUTF8(bounded.Head(string(text), maxReason), "")
}

// found reports whether a search succeeded.
func found[T any](_ T, err error) bool { return err == nil }
