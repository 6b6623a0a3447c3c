// Bench measures what a call costs: through the server, with bin/run, with the
// same interpreter without a sandbox, in a minimal jail, and in other sandboxes.
//
// All contenders of a group take turns, round after round, so that a machine
// that is busy with something else slows all of them alike: read the ratios.
// Every answer is checked. A peer that cannot run is a gap with its reason.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) > 2 && os.Args[1] == reapVerb {
		os.Exit(reap(os.Args[2:]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := measure(ctx, os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "bench: error: %v\n", err)
		stop()
		os.Exit(1)
	}
}

// names are what --only takes.
var names = []string{"python", "bash", "node", "large", "start", "printing", "kept", "throughput", "sessions", "idle", "changes", "packages"}

// shortNames are those of --short.
var shortNames = []string{"python", "bash", "node", "start", "printing"}

func measure(ctx context.Context, arguments []string) error {
	flags := flag.NewFlagSet("bench", flag.ExitOnError)
	var (
		program  = flags.String("server", "result/bin/nix-sandbox-mcp", "the server's `program`")
		metadata = flags.String("metadata", "", "the server's metadata `file`, if it is not in the server's share/")
		other    = flags.String("beside", "", "measure the calls of another build of the server too, in the same turns: its `program`")
		peers    = flags.String("peers", ".cache/peers", "the `folder` that tests/bench/peers filled")
		short    = flags.Bool("short", false, "measure less, and fail where a ratio of expected.json is off by two")
		jsonFile = flags.String("json", "", "write the figures to a `file`")
		svgFile  = flags.String("svg", "", "write a plot to a `file`")
		only     = flags.String("only", "", "measure only these, separated by commas: "+strings.Join(names, ", "))
		backend  = flags.String("backend", "jail", "what isolates the sandboxes: jail, or vm for the aims of virtual machines")
		machine  = flags.String("machine", ".cache/machine-python", "the `folder` of the sandbox for --backend vm: -A python of tests/backends/sandboxes.nix")
		callers  = flags.String("callers", "1,4,16,128", "the `numbers` of callers that throughput is measured with, separated by commas")
		duration = flags.Duration("duration", 6*time.Second, "how long each contender's throughput is measured, with each number of callers")
	)
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	wanted := names
	if *short {
		wanted = shortNames
	}
	if *only != "" {
		wanted = strings.Split(*only, ",")
		for _, name := range wanted {
			if !slices.Contains(names, name) {
				return fmt.Errorf("--only knows no %q, only %s", name, strings.Join(names, ", "))
			}
		}
	}
	if *backend != "jail" && *backend != "vm" {
		return fmt.Errorf("--backend knows no %q, only jail and vm", *backend)
	}
	if *backend == "vm" {
		if *short || *only != "" || *other != "" {
			return errors.New("--backend vm has one table: leave --short, --only and --beside away")
		}
		wanted = nil
	}
	b, err := prepare(*program, *metadata, *other, *peers, *short)
	if err != nil {
		return err
	}
	defer os.RemoveAll(b.temp)
	b.duration = *duration
	for word := range strings.SplitSeq(*callers, ",") {
		n, err := strconv.ParseUint(word, 10, 16)
		if err != nil || n == 0 {
			return fmt.Errorf("--callers takes numbers from 1 on, separated by commas, and not %q", *callers)
		}
		b.callers = append(b.callers, int(n))
	}

	began := time.Now()
	say := func(format string, a ...any) {
		fmt.Fprintf(os.Stderr, "%4.0f s  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, a...))
	}
	result := report{Machine: b.thisMachine(ctx)}
	var failed error
	for _, g := range b.groups(wanted) {
		s, err := g.run(ctx, say)
		result.Sections = append(result.Sections, s)
		failed = errors.Join(failed, err)
	}
	if slices.Contains(wanted, "throughput") && b.has("python") {
		rates, err := b.throughput(ctx, say)
		result.Throughput = rates
		failed = errors.Join(failed, err)
	}
	if slices.Contains(wanted, "sessions") && b.has("python") {
		live, err := b.sessions(ctx, []int{1, 16, 64, 256}, say)
		result.Sessions = &live
		failed = errors.Join(failed, err)
	}
	if slices.Contains(wanted, "idle") {
		rest, err := b.idleSessions(ctx, say)
		result.Idle = &rest
		failed = errors.Join(failed, err)
	}
	if *backend == "vm" {
		aims, err := b.machines(ctx, *machine, say)
		result.Machines = &aims
		failed = errors.Join(failed, err)
	}
	result.print(os.Stdout)
	if *jsonFile != "" {
		text, err := json.MarshalIndent(result, "", "  ")
		failed = errors.Join(failed, err, os.WriteFile(*jsonFile, append(text, '\n'), 0o644))
	}
	if *svgFile != "" {
		failed = errors.Join(failed, os.WriteFile(*svgFile, plot(result), 0o644))
	}
	if *short {
		failed = errors.Join(failed, b.verdict(ctx, result, say))
	}
	return failed
}

// prepare finds the artifacts behind a server, and behind another where there
// is one, and makes what the groups need.
func prepare(program, metadata, other, peers string, short bool) (b *bench, err error) {
	if peers, err = filepath.Abs(peers); err != nil {
		return nil, err
	}
	temp, err := os.MkdirTemp("", "nix-sandbox-bench-*")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(temp)
		}
	}()
	b = &bench{peers: peers, temp: temp, env: environment(), short: short}
	if b.build, err = readBuild(program, metadata, temp); err != nil || other == "" {
		return b, err
	}
	folder := filepath.Join(temp, "other")
	if err := os.Mkdir(folder, 0o755); err != nil {
		return nil, err
	}
	second, err := readBuild(other, "", folder)
	if err != nil {
		return nil, err
	}
	for language, a := range b.found {
		if second.found[language].environment == "" {
			return nil, fmt.Errorf("%s has no environment of type %s, as %s has", other, language, a.environment)
		}
	}
	b.other = &second
	return b, nil
}

// readBuild finds the artifacts of a server, and writes two copies of its metadata
// to folder: without and with sandboxes that are started ahead.
func readBuild(program, metadata, folder string) (b build, err error) {
	if b.server, err = filepath.Abs(program); err != nil {
		return b, err
	}
	if metadata == "" {
		metadata = filepath.Join(filepath.Dir(b.server), "..", "share", "nix-sandbox-mcp", "metadata.json")
	}
	whole, found, err := readMetadata(metadata)
	if err != nil {
		return b, err
	}
	b.found = found
	if b.cold, err = prewarmed(whole, 0, folder); err == nil {
		b.warm, err = prewarmed(whole, 1, folder)
	}
	return b, err
}

func (b *bench) has(language string) bool {
	_, ok := b.found[language]
	return ok
}

// groups are those of the wanted names that this server has environments for.
func (b *bench) groups(wanted []string) []group {
	var list []group
	for _, name := range wanted {
		language, isPrinting := strings.CutPrefix(name, "printing-")
		switch {
		case name == "start":
			list = append(list, b.start())
		case name == "printing":
			for _, language := range slices.Sorted(maps.Keys(loopsThatPrint)) {
				list = append(list, b.groups([]string{"printing-" + language})...)
			}
		case isPrinting && b.has(language):
			list = append(list, b.printing(language))
		case name == "large" && b.has("python"):
			list = append(list, b.large()...)
		case name == "changes" && b.has("bash"):
			list = append(list, b.changes())
		case name == "packages":
			list = append(list, b.packages())
		case name == "kept" && b.has("python"):
			list = append(list, b.kept()...)
		case b.has(name):
			list = append(list, b.language(name))
		}
	}
	return list
}
