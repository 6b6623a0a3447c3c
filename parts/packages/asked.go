package packages

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/order"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/question"
)

const (
	// maxAsked bounds the questions of a call.
	maxAsked = 1000
	// maxFound bounds the packages that a search finds.
	maxFound = 20
	// maxWord bounds a word of a search, in bytes, and maxWords the words.
	maxWord, maxWords = 100, 8
	// answerBefore is the time that code has left when it is told that a build goes on.
	answerBefore = 2 * time.Second
	// factsTimeout bounds how long a search waits for versions and descriptions.
	factsTimeout = 20 * time.Second
	// maxAddition bounds the metadata of an addition, in bytes.
	maxAddition = 1 << 20
)

// Ask returns the answer to the questions of a call's code, which has the environment of the call and may add
// packages to it while it runs.
func (e *Executor) Ask(c call.Call) sandbox.Ask {
	var asked atomic.Int64
	return func(ctx context.Context, box sandbox.Sandbox, text []byte) []byte {
		result, err := e.answer(ctx, box, c, text, asked.Add(1))
		if err != nil {
			return encode(map[string]any{"error": map[string]string{"kind": "denied", "message": err.Error()}})
		}
		return encode(map[string]any{"result": result})
	}
}

func encode(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		return []byte(`{"error":{"kind":"error","message":"the answer cannot be encoded"}}`)
	}
	return text
}

func (e *Executor) answer(ctx context.Context, box sandbox.Sandbox, c call.Call, text []byte, count int64) (any, error) {
	var q struct {
		Nix *question.Question `json:"nix"`
	}
	if err := json.Unmarshal(text, &q); err != nil || q.Nix == nil {
		return nil, errors.New("a question about packages is JSON with nix")
	}
	switch {
	case e.Place == nil:
		return nil, errors.New("there is no Nix beside this server, so that packages cannot be added: do without, or tell the user")
	case c.Env.OnDemand == nil:
		return nil, fmt.Errorf("env %q takes no packages: do without", c.Env.Name)
	case count > maxAsked:
		return nil, fmt.Errorf("this call has asked for packages %d times: go on in another call", maxAsked)
	case len(q.Nix.Add) > 0:
		return e.add(ctx, box, c, q.Nix.Add)
	case len(q.Nix.Search) > 0:
		return e.search(ctx, c, q.Nix.Search)
	case len(q.Nix.Facts) > 0:
		if err := mayHave(c.Env, q.Nix.Facts); err != nil {
			return nil, err
		}
		return e.facts(ctx, c, q.Nix.Facts)
	case q.Nix.Flake != nil:
		return e.addFlake(ctx, box, c, *q.Nix.Flake)
	}
	return nil, errors.New("a question about packages has add, search, facts or flake")
}

// mayHave refuses names of packages that the environment does not allow.
func mayHave(env registry.Environment, names []string) error {
	if len(names) > MaxPackages {
		return fmt.Errorf("these are too many packages at once: name at most %d", MaxPackages)
	}
	o := allowed{env.OnDemand}
	known := tableOf(o.Folder)
	for _, name := range names {
		if !registry.ValidPath.MatchString(name) {
			return fmt.Errorf("%.80q is no name of a package: use one such as nixpkgs#jq", name)
		}
		set, own, isPath := strings.Cut(name, ".")
		if strings.HasPrefix(own, "pkgs.") && !o.All { // python3.pkgs.numpy
			set, own = set+".pkgs", strings.TrimPrefix(own, "pkgs.")
		}
		switch {
		case known.allows(o, name), o.All && isPath: // the builder finds out
		case !o.All && isPath && slices.Contains([]string{"pkgs", "python3Packages", "python3.pkgs"}, set) && known.allows(o, own):
		case !o.All:
			return fmt.Errorf("%s may not be added, because it is not in packages_on_demand of [environments.%s]: do without, or ask the user to allow it there", name, env.BaseName())
		default:
			if of := cmp.Or(known.Programs[name], known.Modules[name]); of != "" {
				return fmt.Errorf("there is no package %s in nixpkgs: nixpkgs#%s has it", name, of)
			}
			if near := o.Near(set); len(near) > 0 {
				return fmt.Errorf("there is no package %s in nixpkgs: did you mean nixpkgs#%s?", name, strings.Join(near, " or nixpkgs#"))
			}
			return fmt.Errorf("there is no package %s in nixpkgs: look for its name with nix search nixpkgs WORD", name)
		}
	}
	return nil
}

// add adds packages to a sandbox, and returns them in the order of their names.
func (e *Executor) add(ctx context.Context, box sandbox.Sandbox, c call.Call, names []string) (any, error) {
	if err := mayHave(c.Env, names); err != nil {
		return nil, err
	}
	sorted := slices.Clone(names)
	slices.Sort(sorted)
	sorted = slices.Compact(sorted)
	packages, err := e.enlarge(ctx, box, c, order.Order{Kind: order.Addition, Packages: sorted}, strings.Join(sorted, ", "))
	if err != nil {
		return nil, err
	}
	inOrder := []question.Added{}
	for _, name := range names {
		if at := slices.IndexFunc(packages, func(one question.Added) bool { return one.Name == name }); at >= 0 {
			inOrder = append(inOrder, packages[at])
		}
	}
	return map[string]any{"packages": inOrder}, nil
}

// maxFlake bounds the archive of a flake, in bytes.
const maxFlake = 40 << 20

// addFlake adds a part of a flake of code's files.
func (e *Executor) addFlake(ctx context.Context, box sandbox.Sandbox, c call.Call, f question.Flake) (any, error) {
	if !e.Bounds.Flakes {
		return nil, errors.New("flakes of files are not built here: name packages of nixpkgs, as in nixpkgs#jq, or ask the user to set flakes = true in [on_demand]")
	}
	if err := os.MkdirAll(e.Folder, 0o700); err != nil {
		return nil, errors.New("the server has no folder for the flake: tell the user")
	}
	archive, err := os.CreateTemp(e.Folder, ".flake-")
	if err != nil {
		return nil, errors.New("the server has no folder for the flake: tell the user")
	}
	defer os.Remove(archive.Name())
	defer archive.Close()
	sum := sha256.New()
	if _, err := box.CopyFile(ctx, io.MultiWriter(archive, sum), f.Source, maxFlake); err != nil {
		return nil, fmt.Errorf("the archive of the flake cannot be read: %w", err)
	}
	packages, err := e.enlarge(ctx, box, c, order.Order{
		Kind: order.Flake, Source: archive.Name(), Digest: hex.EncodeToString(sum.Sum(nil)), Want: f.Want, Attribute: f.Attribute,
	}, "the flake")
	if err != nil {
		return nil, err
	}
	return map[string]any{"packages": packages}, nil
}

// enlarge has something built and adds it to a sandbox. The words about it are for the code.
func (e *Executor) enlarge(ctx context.Context, box sandbox.Sandbox, c call.Call, o order.Order, listed string) ([]question.Added, error) {
	grower, can := box.(sandbox.Grower)
	if !can {
		return nil, errors.New("this sandbox cannot get packages")
	}
	if err := consent(ctx, c, []string{listed}); err != nil {
		var refused *BuildError
		if errors.As(err, &refused) && refused.Kind == Denied {
			return nil, fmt.Errorf("the user said no to %s: do without", listed)
		}
		return nil, fmt.Errorf("the user has to allow %s, and could not be asked or did not answer: do without, or ask the user to run nix-sandbox-mcp approve, or to set packages_ask = false in [environments.%s]", listed, c.Env.BaseName())
	}
	began := time.Now()
	report, err := e.build(ctx, c, o, listed)
	if err != nil {
		return nil, err
	}
	artifact, err := filepath.EvalSymlinks(filepath.Join(report.Folder, order.ResultLink))
	if err != nil {
		return nil, fmt.Errorf("%s was built and is gone: try again", listed)
	}
	var metadata struct {
		Packages []question.Added `json:"packages"`
	}
	text, err := bounded.ReadFile(filepath.Join(artifact, "metadata.json"), maxAddition)
	if err = cmp.Or(err, json.Unmarshal(text, &metadata)); err != nil {
		e.Log.Error("added packages cannot be read", "artifact", artifact, "error", err)
		return nil, fmt.Errorf("%s was built and cannot be read: tell the user", listed)
	}
	if err := grower.Add(ctx, filepath.Join(artifact, "bin", "grow")); err != nil {
		e.Log.Warn("packages cannot be added", append(c.Origin(), "session", c.Session, "env", c.Env.Name, "packages", listed, "error", err)...)
		return nil, fmt.Errorf("this sandbox cannot get packages while it runs: name them in env, as in run(env: \"%s+NAME\")", c.Env.BaseName())
	}
	e.mark(filepath.Join(report.Folder, order.UsedFile), c)
	e.Log.Info("packages added", append(c.Origin(), "session", c.Session, "env", c.Env.Name, "packages", listed,
		"artifact", artifact, "bytes", report.Bytes, "ms", time.Since(began).Milliseconds())...)
	return metadata.Packages, nil
}

// build orders something for the code of a call. The error is a sentence for the code.
func (e *Executor) build(ctx context.Context, c call.Call, o order.Order, about string) (order.Report, error) {
	o.Principal, o.Bounds = digest(c.Principal), e.Bounds
	limited := ctx
	if deadline, has := ctx.Deadline(); has {
		// An answer that comes after the end of the code would not be read.
		before := min(answerBefore, time.Until(deadline)/2)
		var stop context.CancelFunc
		limited, stop = context.WithDeadline(ctx, deadline.Add(-before))
		defer stop()
	}
	progress := ""
	report, err := e.Place(limited, o, func(done, total int) {
		if total > 0 {
			progress = fmt.Sprintf(" (%d of %d)", done, total)
		}
		c.Progress.Say("building " + about + progress)
	})
	var failure *order.Failure
	switch {
	case err == nil:
		return report, nil
	case limited.Err() != nil:
		return report, fmt.Errorf("%s is being built%s, which goes on: run this again in a minute", about, progress)
	case !errors.As(err, &failure):
		e.Log.Error("packages are not built", "packages", about, "error", err)
		return report, fmt.Errorf("%s cannot be built, because %w: tell the user", about, err)
	}
	e.Log.Warn("packages not built", append(c.Origin(), "env", c.Env.Name, "packages", about, "kind", failure.Kind, "reason", bounded.Head(failure.Text, 200))...)
	switch failure.Kind {
	case order.Absent:
		return report, fmt.Errorf("there is no package %s in nixpkgs: look for its name with nix search nixpkgs WORD", failure.Package)
	case order.Refused:
		return report, fmt.Errorf("%s cannot be added, for %s: do without, or tell the user", failure.Package, failure.Text)
	case order.TooLarge:
		return report, fmt.Errorf("%s would take %s, more than max_closure_mb of [on_demand] allows: add fewer or smaller packages, or ask the user to raise it", about, size(failure.Size))
	case order.TooSlow:
		return report, fmt.Errorf("%s was not built within build_seconds of [on_demand]: do without, or ask the user to raise it", about)
	case order.Wrong:
		return report, errors.New(failure.Text)
	case order.Crowded:
		return report, errors.New("too many builds wait: try again in a minute")
	}
	return report, fmt.Errorf("%s could not be built: tell the user what Nix said, or do without\n%s", about, failure.Text)
}

// search finds the packages with all words in their names, or with a program or module of that name.
func (e *Executor) search(ctx context.Context, c call.Call, words []string) (any, error) {
	for i, word := range words {
		if len(word) > maxWord || len(words) > maxWords {
			return nil, fmt.Errorf("a search takes at most %d words of %d bytes", maxWords, maxWord)
		}
		words[i] = strings.ToLower(word)
	}
	o := allowed{c.Env.OnDemand}
	known := tableOf(o.Folder)
	names := known.Names
	if !o.All {
		names = o.Names
	}
	whole := strings.Join(words, "-")
	rank := map[string]int{}
	for _, name := range names {
		lower := strings.ToLower(name)
		if slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(lower, word) }) {
			continue
		}
		switch {
		case lower == whole:
			rank[name] = 0
		case strings.HasPrefix(lower, words[0]):
			rank[name] = 2
		default:
			rank[name] = 3
		}
	}
	for _, of := range []string{known.Programs[whole], known.Modules[whole]} {
		if of != "" && known.allows(o, of) {
			rank[of] = min(rank[of], 1)
		}
	}
	var all []string
	for name := range rank {
		all = append(all, name)
	}
	slices.SortFunc(all, func(a, b string) int {
		return cmp.Or(rank[a]-rank[b], len(a)-len(b), strings.Compare(a, b))
	})
	more := max(0, len(all)-maxFound)
	all = all[:len(all)-more]
	result := []question.Found{}
	facts := map[string]map[string]string{}
	if len(all) > 0 {
		// Names are an answer without them.
		limited, stop := context.WithTimeout(ctx, factsTimeout)
		defer stop()
		facts, _ = e.facts(limited, c, all)
	}
	for _, name := range all {
		result = append(result, question.Found{Name: name, Version: facts[name]["version"], Description: facts[name]["meta.description"]})
	}
	return question.List{Packages: result, More: more}, nil
}

// facts returns what is known of packages, by name.
func (e *Executor) facts(ctx context.Context, c call.Call, names []string) (facts map[string]map[string]string, err error) {
	sorted := slices.Clone(names)
	slices.Sort(sorted)
	report, err := e.build(ctx, c, order.Order{Kind: order.Facts, Packages: sorted}, strings.Join(sorted, ", "))
	if err == nil {
		err = json.Unmarshal(report.Value, &facts)
	}
	return facts, err
}

// mark has a file say that a principal's call uses something now.
func (e *Executor) mark(file string, c call.Call) {
	if info, err := os.Stat(file); err == nil && time.Since(info.ModTime()).Abs() < usedEvery {
		return
	}
	if err := os.WriteFile(file, []byte(digest(c.Principal)+"\n"), 0o600); err != nil {
		e.Log.Warn("the use of packages is not noted", "file", file, "error", err)
	}
}
