package builder

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// parallel is how many Nix commands run at once. Each of them evaluates, which takes one processor and some
	// hundred MiB.
	parallel = 4
	// lookEvery is the time between two looks at the configuration.
	lookEvery = 2 * time.Second
	// maxPlan bounds the fields of a plan.
	maxPlan = 16_000
)

// Environments are built when a server starts. They are reported in a folder (runtime/registry).
type Environments struct {
	Nix *Nix
	// Folder has the reports, and Cache the results for later starts.
	Folder, Cache string
	// Watched is the configuration file that is read again when it changes, or "".
	Watched string
	// Replan is the command that does so, and writes the new plan.
	Replan []string
	// Evaluate is the command that evaluates a project's flake (nix/wrapper/project.sh).
	Evaluate []string

	plan Plan
	seen stamp
	ask  chan struct{}
}

// Plan is a list of environments to build.
type Plan struct {
	// Config is the folder of the cache for the configuration's content, File the configuration with Base, the folder
	// of its relative references, and Extends the configuration that it extends; each may be "".
	Config, File, Base, Extends string
	Items                       []Item
}

// Item is an environment to build.
type Item struct {
	// Kind is own, flake or sandbox of the configuration, reference of NIX_SANDBOX_ENVS, or project.
	Kind, Name, Value, Base string
}

// ReadPlan reads a plan as start.sh writes it: fields that end with a NUL; the fifth is the number of items.
func ReadPlan(in *bufio.Reader) (p Plan, err error) {
	field := func() string {
		text, wrong := in.ReadString(0)
		err = errors.Join(err, wrong)
		return strings.TrimSuffix(text, "\x00")
	}
	p.Config, p.File, p.Base, p.Extends = field(), field(), field(), field()
	count, wrong := strconv.Atoi(field())
	if err = errors.Join(err, wrong); err == nil && count > maxPlan {
		err = fmt.Errorf("a plan has %d items, at most %d are read", count, maxPlan)
	}
	for i := 0; i < count && err == nil; i++ {
		p.Items = append(p.Items, Item{field(), field(), field(), field()})
	}
	return p, err
}

// NewEnvironments returns the environments of a plan.
func NewEnvironments(e Environments, plan Plan) *Environments {
	e.plan, e.ask = plan, make(chan struct{}, 1)
	e.seen = stampOf(e.Watched)
	return &e
}

// Again has everything built again. It does not wait.
func (e *Environments) Again() {
	select {
	case e.ask <- struct{}{}:
	default:
	}
}

// Run builds the plan, and again when it is asked to or the configuration changes, until ctx ends.
func (e *Environments) Run(ctx context.Context) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	if e.Watched == "" {
		ticker.Stop()
	}
	e.all(ctx, e.plan.Items)
	for {
		asked := false
		select {
		case <-ctx.Done():
			return
		case <-e.ask:
			asked = true
		case <-ticker.C:
			if stampOf(e.Watched) == e.seen {
				continue
			}
		}
		e.seen = stampOf(e.Watched)
		switch {
		case e.Watched == "" || e.reconfigure(ctx):
			e.all(ctx, e.plan.Items)
		case asked: // the configuration has mistakes, and the others have not
			e.all(ctx, e.plan.others())
		}
	}
}

// stamp tells one file from another.
type stamp struct {
	dev, ino         uint64
	changed, written unix.Timespec
}

// stampOf is zero for a file that does not exist.
func stampOf(path string) (s stamp) {
	var info unix.Stat_t
	if path != "" && unix.Stat(path, &info) == nil {
		s = stamp{uint64(info.Dev), info.Ino, info.Ctim, info.Mtim}
	}
	return s
}

// others are the environments that are not of the configuration.
func (p Plan) others() (all []Item) {
	for _, one := range p.Items {
		if one.Kind == "reference" || one.Kind == "project" {
			all = append(all, one)
		}
	}
	return all
}

// reconfigure reads the configuration again, and reports whether it has no mistakes. What it has no longer is removed;
// references and the project stay.
func (e *Environments) reconfigure(ctx context.Context) bool {
	var text bytes.Buffer
	if err := e.Nix.run(ctx, command{name: "configuration", words: e.Replan, out: &text, plain: true}); err != nil {
		return false
	}
	next, err := ReadPlan(bufio.NewReader(&text))
	if err != nil {
		fmt.Fprintf(e.Nix.Log, "nix-sandbox-mcp: error: the configuration's environments: %v\n", err)
		return false
	}
	next.Items = append(next.Items, e.plan.others()...)
	e.plan = next
	built, _ := filepath.Glob(filepath.Join(next.Config, "built", "*"))
	if next.Config == "" {
		built = nil
	}
	known := map[string]bool{}
	for _, one := range next.Items {
		known[one.Name] = true
	}
	for _, link := range built {
		name := strings.TrimSuffix(filepath.Base(link), named)
		known[name] = true
		e.ready(name, filepath.Base(link), link)
	}
	entries, _ := os.ReadDir(e.Folder)
	for _, entry := range entries {
		if name, _, _ := strings.Cut(entry.Name(), "."); name != "" && !known[name] {
			_ = os.Remove(filepath.Join(e.Folder, entry.Name()))
		}
	}
	return true
}

// The endings of reports (runtime/registry/folder.go).
const (
	named    = ".named"
	building = ".building"
	failed   = ".failed"
)

// all builds everything, but an environment that the configuration describes only once for each of its contents.
func (e *Environments) all(ctx context.Context, items []Item) {
	own := false
	for _, one := range items {
		if !e.isBuilt(one.Name) {
			_ = os.WriteFile(e.report(one.Name+building), []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600)
		}
		_ = os.Remove(e.report(one.Name + failed))
		own = own || one.Kind == "own"
	}
	derivations := map[string]string{}
	var wrong error
	if own {
		derivations, wrong = e.derivations(ctx)
	}
	places := make(chan struct{}, parallel)
	var all sync.WaitGroup
	for _, one := range items {
		if one.Kind == "own" && wrong != nil {
			e.failed(one.Name, wrong)
			continue
		}
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			if err := e.build(ctx, one, derivations[one.Name]); err != nil && ctx.Err() == nil {
				e.failed(one.Name, err)
			}
		})
	}
	all.Wait()
}

// derivations returns the derivations of the environments that the configuration describes itself, by name: one
// evaluation serves all of them.
func (e *Environments) derivations(ctx context.Context) (map[string]string, error) {
	text, err := e.Nix.Eval(ctx, "configuration", "derivations", e.ofConfig()...)
	all := map[string]string{}
	for line := range strings.Lines(text) {
		name, derivation, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		all[name] = derivation
	}
	return all, err
}

// ofConfig are the arguments that tell Nix of the configuration.
func (e *Environments) ofConfig() []string {
	arguments := []string{"--argstr", "config", e.plan.File}
	if e.plan.Extends != "" {
		arguments = append(arguments, "--argstr", "extends", e.plan.Extends)
	}
	return arguments
}

// build builds an environment and reports it.
func (e *Environments) build(ctx context.Context, one Item, derivation string) error {
	c := command{name: one.Name, dir: "/"}
	switch one.Kind {
	case "own":
		root := filepath.Join(e.plan.Config, "built", one.Name)
		if derivation == "" {
			_, err := e.Nix.Eval(ctx, one.Name, "environments."+one.Name+".drvPath", e.ofConfig()...)
			if err == nil {
				err = errors.New("it could not be evaluated")
			}
			return err
		}
		if err := e.Nix.Realise(ctx, c, root, derivation); err != nil {
			return err
		}
		return e.ready(one.Name, one.Name, root)
	case "reference", "sandbox":
		root, err := e.root(one.Base + " " + one.Value)
		if err != nil {
			return err
		}
		c.dir = one.Base
		if err := e.Nix.Build(ctx, c, root, "--", one.Value); err != nil {
			return err
		}
		if one.Kind == "sandbox" {
			return e.ready(one.Name, one.Name+named, root)
		}
		return e.ready(one.Name, one.Name, root)
	case "flake":
		root, err := e.root(e.plan.File + " " + one.Name)
		if err != nil {
			return err
		}
		arguments := append([]string{"--impure", "-f", e.Nix.Start}, e.ofConfig()...)
		if err := e.Nix.Build(ctx, c, root, append(arguments, "--argstr", "base", e.plan.Base, "environments."+one.Name)...); err != nil {
			return err
		}
		return e.ready(one.Name, one.Name, root)
	case "project":
		return e.project(ctx, one, c)
	}
	return fmt.Errorf("this builder knows no %q", one.Kind)
}

// project builds the shell of a project's flake. Its author is not trusted.
func (e *Environments) project(ctx context.Context, one Item, c command) error {
	root, err := e.root(one.Value + " project")
	if err != nil {
		return err
	}
	var said bytes.Buffer
	evaluate := command{name: one.Name, words: slices.Concat(e.Evaluate, []string{one.Value, filepath.Dir(root) + "/home"}), out: &said}
	err = e.Nix.run(ctx, evaluate)
	what, text, _ := strings.Cut(strings.TrimSpace(said.String()), " ")
	switch {
	case what == "problem":
		fmt.Fprintf(e.Nix.Log, "nix-sandbox-mcp: %s: %s\n", one.Name, text)
		return errors.New(text)
	case err != nil:
		return err
	}
	env, arguments, err := confined(filepath.Join(e.Folder, ".nix.conf"))
	if err != nil {
		return err
	}
	c.env = env
	if err := e.Nix.Build(ctx, c, root, append(arguments, "--impure", "-f", e.Nix.Start, "--argstr", "variables", text, "project")...); err != nil {
		return err
	}
	return e.ready(one.Name, one.Name, root)
}

// root returns the path of a root of Nix's garbage collection, in a folder that it makes.
func (e *Environments) root(key string) (string, error) {
	folder := filepath.Join(e.Cache, "roots", digest(key))
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	return filepath.Join(folder, "result"), os.WriteFile(filepath.Join(folder, "used"), nil, 0o600)
}

// digest is short enough for the name of a file.
func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func (e *Environments) report(name string) string { return filepath.Join(e.Folder, name) }

// isBuilt reports whether an earlier build of an environment succeeded.
func (e *Environments) isBuilt(name string) bool {
	_, err := os.Lstat(e.report(name))
	_, err2 := os.Lstat(e.report(name + named))
	return err == nil || err2 == nil
}

// ready reports the target of a root as an environment, by a link.
func (e *Environments) ready(name, link, root string) error {
	artifact, err := filepath.EvalSymlinks(root)
	if err == nil {
		_, err = os.Stat(filepath.Join(artifact, "metadata.json"))
	}
	if err != nil {
		return fmt.Errorf("%s is no sandbox: name an attribute that nix-sandbox-mcp.lib.mkSandbox made", artifact)
	}
	next := e.report("." + link + ".link")
	_ = os.Remove(next)
	if err := os.Symlink(artifact, next); err != nil {
		return err
	}
	if err := os.Rename(next, e.report(link)); err != nil {
		return err
	}
	_ = os.Remove(e.report(name + building))
	other := name + named
	if link == other {
		other = name
	}
	_ = os.Remove(e.report(other))
	return nil
}

// failed reports that an environment was not built, unless an earlier build of it succeeded.
func (e *Environments) failed(name string, why error) {
	var said *nixError
	if !errors.As(why, &said) {
		fmt.Fprintf(e.Nix.Log, "nix-sandbox-mcp: %s: %v\n", name, why)
	}
	if e.isBuilt(name) {
		fmt.Fprintf(e.Nix.Log, "nix-sandbox-mcp: %s: the sandbox that was built before stays\n", name)
		return
	}
	next := e.report("." + name + ".log")
	if os.WriteFile(next, []byte(why.Error()+"\n"), 0o600) == nil {
		_ = os.Rename(next, e.report(name+failed))
	}
	_ = os.Remove(e.report(name + building))
}
