package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Names of contenders that others refer to.
const (
	pipeName  = "pipe into a jail (floor of a session)"
	plainName = "interpreter, no sandbox"
	jailName  = "bare bubblewrap (floor of a cold call)"
	emptyName = "an empty Go program"
)

// A workload is code, what it prints, and code that prints a line and stays
// for a second.
type workload struct{ code, want, hold string }

// small are the smallest calls that do something.
var small = map[string]workload{
	"python": {"print(1+1)", "2", "import time; print(2, flush=True); time.sleep(1)"},
	"bash":   {"echo 2", "2", "echo 2; sleep 1"},
	"node":   {"console.log(2)", "2", "console.log(2); setTimeout(() => {}, 1000)"},
}

// A build is one of the server with its sandboxes.
type build struct {
	server string
	cold   string // metadata without waiting sandboxes
	warm   string // metadata with one of each environment
	found  map[string]artifact
}

// A bench is what all groups are made from.
type bench struct {
	build
	other    *build // measured beside the first; nil is none
	peers    string // folder of sandbox-runtime
	temp     string
	env      []string
	short    bool
	duration time.Duration // of the throughput of each contender
	callers  []int         // that it is measured with
}

// environment is what every command gets: nothing that makes one interpreter
// start slower than another.
func environment() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "LANG=C.UTF-8"}
}

// plain is the interpreter without a sandbox.
func (b *bench) plain(a artifact, w workload) *command {
	return &command{
		name: plainName, env: b.env, code: w.code, want: w.want, hold: w.hold,
		argv: func(code string) []string { return []string{a.interpreter, option(a.language), code} },
	}
}

// jail is the interpreter in a minimal jail.
func (b *bench) jail(a artifact, w workload) *command {
	return &command{
		name: jailName, env: b.env, code: w.code, want: w.want, hold: w.hold,
		argv: func(code string) []string {
			return append(a.minimal(), programs[a.language], option(a.language), code)
		},
	}
}

// call is a call to the server.
func (b *bench) call(a artifact, name, metadata, session, code, want string) *served {
	return &served{
		name:        name,
		launch:      launch{program: b.server, metadata: metadata, env: b.env},
		environment: a.environment, session: session, code: code, want: want,
	}
}

// language is the group of one language: the smallest call, every way.
func (b *bench) language(language string) group {
	a, w := b.found[language], small[language]
	g := group{
		name: language, base: plainName, rounds: 150, budget: 55 * time.Second, weigh: true,
		title: language + ": " + w.code,
		list: []entry{
			{contender: b.plain(a, w)},
			{contender: b.jail(a, w)},
			{contender: &command{
				name: "bin/run by hand", env: b.env, code: w.code, want: w.want, hold: w.hold, stdin: true,
				argv: func(string) []string { return []string{a.run} },
			}},
			{contender: b.call(a, "run, no sandbox waiting", b.cold, "", w.code, w.want)},
			{contender: b.call(a, "run, one sandbox waiting", b.warm, "", w.code, w.want)},
			{contender: b.call(a, "run in a session", b.cold, "bench", w.code, w.want), batch: 10},
			{contender: floor(a, w.code, w.want), batch: 10},
		},
	}
	if b.other != nil {
		g.list = append(g.list, b.beside(language)...)
	}
	if b.short {
		g.rounds, g.budget, g.weigh = 25, 5*time.Second, false
		return g
	}
	for _, c := range peers(a, w, b.peers, b.temp, b.env) {
		g.list = append(g.list, entry{contender: c, every: 8, optional: true})
	}
	return g
}

// beside are the calls of a language to the other build.
func (b *bench) beside(language string) []entry {
	other := *b
	other.build = *b.other
	a, w := other.found[language], small[language]
	return []entry{
		{contender: other.call(a, "other build, no sandbox waiting", other.cold, "", w.code, w.want)},
		{contender: other.call(a, "other build, one sandbox waiting", other.warm, "", w.code, w.want)},
		{contender: other.call(a, "other build, in a session", other.cold, "bench", w.code, w.want), batch: 10},
	}
}

// large are the groups of large code and large output, in a session.
func (b *bench) large() []group {
	a := b.found["python"]
	var groups []group
	for _, size := range []int{64 << 10, 1 << 20} {
		label := strconv.Itoa(size>>10) + " KB"
		// Code that is one string; output that is one line.
		code := "s='" + strings.Repeat("x", size) + "'\nprint(len(s))"
		groups = append(groups,
			b.sized("large", "python: "+label+" of code", code, strconv.Itoa(size)),
			b.sized("large", "python: "+label+" of output",
				"print('x'*"+strconv.Itoa(size)+")", strings.Repeat("x", size)))
	}
	for i := range groups {
		groups[i].list[0].contender.(*command).argv = func(string) []string { return []string{a.interpreter, "-"} }
	}
	return groups
}

func (b *bench) sized(name, title, code, want string) group {
	a := b.found["python"]
	plain := b.plain(a, workload{code: code, want: want})
	plain.stdin = true
	shown := want
	if len(want) > longest {
		shown = want[:longest/2] // a part of the head that every answer keeps
	}
	g := group{
		name: name, title: title, base: plainName, rounds: 60, budget: 8 * time.Second,
		list: []entry{
			{contender: plain},
			{contender: b.call(a, "run in a session", b.cold, "bench", code, shown)},
			{contender: floor(a, code, want)},
		},
	}
	if b.other != nil {
		other := *b
		other.build = *b.other
		g.list = append(g.list, entry{contender: other.call(other.found["python"], "other build, in a session", other.cold, "bench", code, shown)})
	}
	return g
}

// start is the group of the server's start.
func (b *bench) start() group {
	g := group{
		name: "start", title: "server: start to the answer of initialize", base: emptyName,
		rounds: 100, budget: 10 * time.Second,
		list: []entry{
			{contender: b.empty()},
			{contender: &starting{launch: launch{program: b.server, metadata: b.cold, env: b.env}}},
		},
	}
	if b.short {
		g.rounds, g.budget = 30, 2*time.Second
	}
	return g
}

// empty is a Go program that does nothing: what every Go program costs.
func (b *bench) empty() *command {
	program := filepath.Join(b.temp, "empty")
	return &command{
		name: emptyName, env: b.env,
		prepare: func(ctx context.Context) error {
			source := program + ".go"
			if err := os.WriteFile(source, []byte("package main\n\nfunc main() {}\n"), 0o644); err != nil {
				return err
			}
			return exec.CommandContext(ctx, "go", "build", "-o", program, source).Run()
		},
		argv: func(string) []string { return []string{program} },
	}
}

// A starting server is measured to the answer of initialize, and then ended.
type starting struct {
	launch launch
	calls  int
	cpu    time.Duration
}

func (c *starting) Name() string                  { return "nix-sandbox-mcp" }
func (c *starting) Prepare(context.Context) error { return nil }
func (c *starting) Close() error                  { return nil }

func (c *starting) CPU(context.Context) (time.Duration, error) {
	return c.cpu / time.Duration(max(1, c.calls)), nil
}

func (c *starting) Call(ctx context.Context) (time.Duration, error) {
	s, took, err := c.launch.start(ctx)
	if err != nil {
		return 0, err
	}
	if err := s.Close(); err != nil {
		return 0, err
	}
	c.calls++
	c.cpu += s.cmd.ProcessState.UserTime() + s.cmd.ProcessState.SystemTime()
	return took, nil
}
