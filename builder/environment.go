package builder

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/order"
)

// validKey matches the names of folders of results.
var validKey = regexp.MustCompile(`^[0-9a-f]{64}$`)

// environment builds an environment with packages. Nothing here is made of the names that a call brought but a file
// of JSON, which Nix reads.
func (b *Builder) environment(ctx context.Context, o order.Order, progress func(done, total int)) error {
	if b.made.has(o.Key) {
		return nil // another server has built it
	}
	folder, err := b.made.open(o)
	if err != nil {
		return err
	}
	name := "packages " + o.Key[:12]
	plan, err := b.nix.Eval(ctx, name, "derived", "--argstr", "request", filepath.Join(folder, requestFile))
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(plan, "\n")
	kind, rest, _ := strings.Cut(first, " ")
	if kind != "build" {
		failure := &order.Failure{Kind: order.Reason(kind)}
		failure.Package, failure.Text, _ = strings.Cut(rest, " ")
		return failure
	}
	return b.realise(ctx, name, o, folder, rest, progress)
}

// realise builds a derivation whose result has a size, unless that is too large.
func (b *Builder) realise(ctx context.Context, name string, o order.Order, folder, derivation string, progress func(done, total int)) error {
	total, fetched := 0, int64(0)
	dry := command{name: name, words: []string{"nix-store", "--realise", "--dry-run", derivation}, quiet: true, line: func(line string) {
		if strings.Contains(line, "/nix/store/") {
			total++
		}
		if size := unpacked.FindStringSubmatch(line); size != nil {
			number, _ := strconv.ParseFloat(size[1], 64)
			fetched = int64(number * float64(units[size[2]]))
		}
	}}
	// What it says wrong, the build says too.
	if err := b.nix.run(ctx, dry); isEnd(err) {
		return err
	}
	most := o.Bounds.MaxClosureMB << 20
	if fetched > most {
		return &order.Failure{Kind: order.TooLarge, Size: fetched}
	}
	progress(0, total)
	done := 0
	root := filepath.Join(folder, ".result")
	defer b.made.remove(root)
	build := command{name: name, line: func(line string) {
		if strings.HasPrefix(line, "building '") || strings.HasPrefix(line, "copying path '") {
			progress(done, total)
			done = min(done+1, total)
		}
	}}
	if err := b.nix.Realise(ctx, build, root, derivation); err != nil {
		return err
	}
	if size := sizeOf(root); size > most {
		return &order.Failure{Kind: order.TooLarge, Size: size}
	}
	if err := b.nix.Realise(ctx, command{name: name}, filepath.Join(folder, ResultLink), derivation); err != nil {
		return fmt.Errorf("the result could not be written to %s: %w", folder, err)
	}
	return nil
}

// unpacked matches Nix's words about the size of its downloads.
var unpacked = regexp.MustCompile(`([0-9.]+) ([KMGT]iB) unpacked`)

var units = map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
