package builder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/order"
)

// validKey matches the names of folders of results.
var validKey = regexp.MustCompile(`^[0-9a-f]{64}$`)

// maxFacts bounds the facts that are remembered.
const maxFacts = 256

// make makes the result of an order. Nothing here is made of the names that a call brought but a file of JSON, which
// Nix reads.
func (b *Builder) make(ctx context.Context, o order.Order, progress func(done, total int)) (report order.Report, err error) {
	name := "packages " + o.Key[:12]
	if o.Kind == order.Facts {
		report.Value, err = b.told(ctx, name, o)
		return report, err
	}
	report.Folder = filepath.Join(b.made.folder, o.Key)
	if !b.made.has(o.Key) { // nor has another server built it
		build := b.build
		if o.Kind == order.Flake {
			build = b.flake
		}
		if err := build(ctx, name, o, progress); err != nil {
			return report, err
		}
	}
	report.Bytes = sizeOf(filepath.Join(report.Folder, order.ResultLink))
	return report, nil
}

// attributes of nix/wrapper/default.nix are asked for the derivations of orders.
var attributes = map[order.Kind]string{order.Environment: "derived", order.Addition: "addition"}

// build builds an artifact.
func (b *Builder) build(ctx context.Context, name string, o order.Order, progress func(done, total int)) error {
	folder, err := b.made.open(o)
	if err != nil {
		return err
	}
	plan, err := b.nix.Eval(ctx, name, attributes[o.Kind], "--argstr", "request", filepath.Join(folder, order.RequestFile))
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
	return b.realise(ctx, command{name: name}, o, folder, rest, progress)
}

// told returns what is known of packages.
func (b *Builder) told(ctx context.Context, name string, o order.Order) (json.RawMessage, error) {
	b.mu.Lock()
	known := b.facts[o.Key]
	b.mu.Unlock()
	if known != nil {
		return known, nil
	}
	request, err := os.CreateTemp("", "nix-sandbox-mcp.")
	if err != nil {
		return nil, err
	}
	defer os.Remove(request.Name())
	err = json.NewEncoder(request).Encode(map[string]any{"packages": o.Packages})
	if err = errors.Join(err, request.Close()); err != nil {
		return nil, err
	}
	text, err := b.nix.Eval(ctx, name, "facts", "--argstr", "request", request.Name())
	if err == nil && (!json.Valid([]byte(text)) || len(text) > order.MaxLine/2) {
		err = &nixError{"the facts of these packages are no JSON, or too many"}
	}
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.facts) >= maxFacts {
		clear(b.facts)
	}
	b.facts[o.Key] = json.RawMessage(text)
	return b.facts[o.Key], nil
}

// realise builds a derivation with the words and variables of a command, unless its result is too large.
func (b *Builder) realise(ctx context.Context, c command, o order.Order, folder, derivation string, progress func(done, total int)) error {
	total, fetched := 0, int64(0)
	var built []string
	dry := command{name: c.name, words: []string{"nix-store", "--realise", "--dry-run", derivation}, env: c.env, quiet: true, line: func(line string) {
		if path := strings.TrimSpace(line); strings.HasPrefix(path, "/nix/store/") {
			total++
			if strings.HasSuffix(path, ".drv") {
				built = append(built, path)
			}
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
	if o.Kind == order.Flake {
		for _, one := range built {
			if fetch, err := fetches(one); fetch || err != nil {
				return wrong(fmt.Sprintf("the flake needs to fetch %s, which a flake of code may not: have the user fetch it first, by nix build or nix flake archive in the project", strings.TrimSuffix(filepath.Base(one)[33:], ".drv")))
			}
		}
	}
	progress(0, total)
	done := 0
	root := filepath.Join(folder, ".result")
	defer b.made.remove(root)
	build := c
	build.line = func(line string) {
		if strings.HasPrefix(line, "building '") || strings.HasPrefix(line, "copying path '") {
			progress(done, total)
			done = min(done+1, total)
		}
	}
	if err := b.nix.Realise(ctx, build, root, derivation); err != nil {
		return err
	}
	if size := sizeOf(root); size > most {
		return &order.Failure{Kind: order.TooLarge, Size: size}
	}
	if err := b.nix.Realise(ctx, c, filepath.Join(folder, order.ResultLink), derivation); err != nil {
		return fmt.Errorf("the result could not be written to %s: %w", folder, err)
	}
	return nil
}

// unpacked matches Nix's words about the size of its downloads.
var unpacked = regexp.MustCompile(`([0-9.]+) ([KMGT]iB) unpacked`)

var units = map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
