// Package escape tries to get out of a sandbox. It contains attempts, each a few
// lines in a language that the sandbox runs, and reports for each whether the
// sandbox contained it.
//
// What counts is evidence, not what an attempt's exit status says: a secret
// that only the host knows in its output, a connection at a listener of the
// host, a dead process, a changed file. An attempt that did not run to its
// end proves nothing and counts as a failure. And each attempt has a positive
// control: the same lines run outside, where they must succeed, so that
// nothing passes because of a misspelling or a missing program.
//
// An attempt that succeeds does no harm: it opens, but does not write, what is not
// the suite's own; it sends signals that are ignored by default; and it consumes a
// bounded amount.
package escape

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/cgroup"
)

// Options of a run of the suite. The zero value runs everything.
type Options struct {
	// Match limits the run to attempts whose name matches one of these
	// patterns of package path, such as "files/*".
	Match []string
	// Skip leaves out attempts with one of these tags: "limits" for those
	// that limits on memory and processes stop, "seccomp" for those that a
	// system call filter stops, and those of [Unpromised].
	Skip []string
	// Interpreters are the programs of the host that run the controls, by
	// interpreter type (python, bash, node); without an entry, the one on
	// PATH.
	Interpreters map[string]string
	// NoControls leaves out the controls.
	NoControls bool
	// Parallel is the number of attempts at a time; 0 is 2.
	Parallel int
	// Slow multiplies what an attempt may take, up to maxSlow; 0 is 1. It is
	// for machines whose instructions are emulated.
	Slow int
	// Groups is where control groups for the sandboxes are made, as the server
	// does it; nil is nowhere.
	Groups *cgroup.Tree
	// Each is called with every result, in the order of the suite.
	Each func(Result)
}

// maxSlow bounds what an attempt may take on a slow machine.
const maxSlow = 5 * time.Minute

// maxPace is how many times longer a call's own limit becomes on a slow machine
// at most: an attempt that outlasts it has to wait for it, and its control for
// more.
const maxPace = 5

// patient returns what may take so long elsewhere.
func (o Options) patient(timeout time.Duration) time.Duration {
	return max(timeout, min(timeout*time.Duration(o.Slow), maxSlow))
}

// Unpromised returns the tags of attempts that succeed on a sandbox that is
// as it should be, because what they try is not promised: "channels", FIFOs
// and sockets in the project; "shared", what the kernel counts for each user
// of the host, unless root starts the sandbox, which then has a user of its
// own.
func Unpromised() []string {
	if os.Geteuid() == 0 {
		return []string{"channels"}
	}
	return []string{"channels", "shared"}
}

// A Verdict is what became of an attempt.
type Verdict string

const (
	Held    Verdict = "ok"   // the sandbox held, and the control fired or had a reason not to
	Failed  Verdict = "FAIL" // it escaped, or proved nothing
	Skipped Verdict = "SKIP" // it was not tried
	Opened  Verdict = "OPEN" // it escaped by a device that the environment names
)

// Result is one attempt's.
type Result struct {
	Name    string // family/name.extension
	Verdict Verdict
	// Reason is empty if the sandbox contained the attempt and the control
	// succeeded. It is one line of printable text.
	Reason string
	// Escaped says that there is evidence of an escape.
	Escaped bool
	// Controlled says that the positive control fired.
	Controlled bool
}

// String is one line: "ok NAME", or "FAIL NAME: REASON".
func (r Result) String() string {
	if r.Verdict == Held || r.Reason == "" {
		return fmt.Sprintf("%s %s", r.Verdict, r.Name)
	}
	return fmt.Sprintf("%s %s: %s", r.Verdict, r.Name, r.Reason)
}

// Report is what a run of the suite has shown of one artifact.
type Report struct {
	Environment   string // the artifact's name
	Results       []Result
	NotApplicable int // attempts in languages that the artifact does not run
}

// Count returns the number of results with a verdict.
func (r Report) Count(verdict Verdict) int {
	n := 0
	for _, result := range r.Results {
		if result.Verdict == verdict {
			n++
		}
	}
	return n
}

// OK reports whether something was tried and nothing failed.
func (r Report) OK() bool { return r.Count(Held) > 0 && r.Count(Failed) == 0 }

// String is one line of figures.
func (r Report) String() string {
	controlled := 0
	for _, result := range r.Results {
		if result.Controlled {
			controlled++
		}
	}
	opened := ""
	if n := r.Count(Opened); n > 0 {
		opened = fmt.Sprintf(", %d open by devices", n)
	}
	return fmt.Sprintf("%s: %d held, %d failed, %d skipped%s, %d not applicable; %d controls fired",
		r.Environment, r.Count(Held), r.Count(Failed), r.Count(Skipped), opened, r.NotApplicable, controlled)
}

// An artifact is a sandbox as it was built.
type artifact struct {
	dir         string
	Name        string `json:"name"`
	Type        string `json:"interpreter_type"`
	MemoryMB    int    `json:"memory_mb"`
	Pids        int    `json:"pids"`
	WorkspaceMB int    `json:"workspace_mb"`

	Network json.RawMessage `json:"network"`
	hosts   []string        // that its network reaches
	devices []string        // of the host that it has
}

// maxMetadata bounds a metadata.json, in bytes.
const maxMetadata = 1 << 20

// describe reads what is known of an artifact.
func describe(dir string) (artifact, error) {
	a := artifact{Type: "command", MemoryMB: 512, Pids: 256, WorkspaceMB: 256}
	var err error
	if a.dir, err = filepath.Abs(dir); err != nil {
		return a, err
	}
	file, err := os.Open(filepath.Join(a.dir, "metadata.json"))
	if err != nil {
		return a, fmt.Errorf("artifact: %w", err)
	}
	defer file.Close()
	if err := json.NewDecoder(io.LimitReader(file, maxMetadata)).Decode(&a); err != nil {
		return a, fmt.Errorf("%s: %w", file.Name(), err)
	}
	if a.hosts, err = hostsOf(a.Network); err != nil {
		return a, fmt.Errorf("%s: network: %w", file.Name(), err)
	}
	if a.devices, err = devicesOf(a.dir); err != nil {
		return a, err
	}
	if languages[a.Type] == "" {
		return a, fmt.Errorf("%s: no attempt is written for interpreter_type %q; use python, bash or node", file.Name(), a.Type)
	}
	return a, nil
}

// devicesOf returns the names of the devices in the description of an artifact. An
// artifact of another backend has a description of another form, and none.
func devicesOf(dir string) ([]string, error) {
	file, err := os.Open(filepath.Join(dir, "bin", "run"))
	if err != nil {
		return nil, fmt.Errorf("artifact: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxMetadata))
	if err != nil {
		return nil, err
	}
	_, description, _ := bytes.Cut(text, []byte("\n"))
	var spec struct{ Devices struct{ Names []string } }
	if json.Unmarshal(description, &spec) != nil {
		return nil, nil
	}
	return spec.Devices.Names, nil
}

// A suite is one run.
type suite struct {
	artifact
	Options
	open        bool   // the sandbox shows the host's processes
	interpreter string // of the host; empty where there is none
	uncontrol   string // why there is none
}

// Run tries every attempt that applies on the artifact in dir. The error says
// that the suite could not be run; what the attempts showed is in the report.
func Run(ctx context.Context, dir string, options Options) (Report, error) {
	attempts, err := load(families)
	if err != nil {
		return Report{}, err
	}
	return run(ctx, dir, options, attempts)
}

func run(ctx context.Context, dir string, options Options, attempts []attempt) (Report, error) {
	a, err := describe(dir)
	if err != nil {
		return Report{}, err
	}
	if runtime.GOOS != "linux" {
		return Report{}, fmt.Errorf("the escape suite runs on Linux, not on %s", runtime.GOOS)
	}
	for _, pattern := range options.Match {
		if _, err := path.Match(pattern, ""); err != nil {
			return Report{}, fmt.Errorf("pattern %q: %w", pattern, err)
		}
	}
	if err := keepDescriptors(); err != nil {
		return Report{}, err
	}
	allowPriorities()
	s := &suite{artifact: a, Options: options}
	if !s.NoControls {
		if s.interpreter, err = hostInterpreter(ctx, a.Type, options.Interpreters[a.Type], options.patient(maxTimeout)); err != nil {
			s.uncontrol = err.Error()
		}
	}
	if err := s.tryArtifact(ctx); err != nil {
		return Report{}, err
	}
	report := Report{Environment: a.Name}
	var chosen []attempt
	for _, each := range attempts {
		switch {
		case !s.matches(each.name):
		case each.language != languages[a.Type]:
			report.NotApplicable++
		default:
			if each.session { // where the time is the call's own limit
				each.backstop = s.patient(backstop)
				each.timeout *= time.Duration(min(max(s.Slow, 1), maxPace))
			} else {
				each.timeout = s.patient(each.timeout)
			}
			chosen = append(chosen, each)
		}
	}
	report.Results = s.all(ctx, chosen)
	return report, ctx.Err()
}

func (s *suite) matches(name string) bool {
	for _, pattern := range s.Match {
		if ok, _ := path.Match(pattern, name); ok {
			return true
		}
	}
	return len(s.Match) == 0
}

// all tries attempts side by side and reports them in order.
func (s *suite) all(ctx context.Context, attempts []attempt) []Result {
	results := make([]Result, len(attempts))
	ready := make([]chan struct{}, len(attempts))
	for i := range ready {
		ready[i] = make(chan struct{})
	}
	parallel := s.Parallel
	if parallel <= 0 {
		parallel = 2
	}
	slots := make(chan struct{}, parallel)
	var wait sync.WaitGroup
	wait.Go(func() {
		for i := range attempts {
			slots <- struct{}{}
			wait.Go(func() {
				// A sandbox dies with the thread that started it, and a
				// thread may be given a keyring: one thread an attempt.
				runtime.LockOSThread()
				defer func() { close(ready[i]); <-slots }()
				results[i] = s.try(ctx, &attempts[i])
			})
		}
	})
	for i := range results {
		<-ready[i]
		if s.Each != nil {
			s.Each(results[i])
		}
	}
	wait.Wait()
	return results
}

// readsVictim is code that prints the arguments of a process of the host.
var readsVictim = map[language]string{
	python: "with trying:\n    read(f'/proc/{VICTIM}/cmdline')",
	bash:   "while IFS= read -r -d '' line; do printf '%s\\n' \"$line\"; done <\"/proc/$VICTIM/cmdline\"",
	node:   "trying(() => show(fs.readFileSync(`/proc/${VICTIM}/cmdline`)));",
}

// tryArtifact makes sure that the artifact runs code at all, and finds out whether
// it shows the host's processes: then nothing may be tried on pid 1.
func (s *suite) tryArtifact(ctx context.Context) error {
	a := attempt{name: "first", language: languages[s.Type], baits: []string{"victim"}, timeout: s.patient(maxTimeout)}
	a.code = readsVictim[a.language] + "\n"
	scene, err := newScene(true, false, a.baits)
	if err != nil {
		return err
	}
	defer scene.close()
	out, err := s.inside(ctx, &a, scene)
	if err != nil {
		return err
	}
	if !out.output.has(scene.signal(wordTried)) {
		return fmt.Errorf("%s/bin/run does not run code: exit status %d, output %q", s.dir, out.exit, out.output.last())
	}
	s.open = out.output.has(scene.secret)
	return s.tryNetwork(ctx)
}

// reachesHost is code that fetches a page of an allowed host and reports that as an escape.
var reachesHost = map[language]string{
	python: "if b'hello files.example' in get('files.example'):\n    escaped('the network works')",
	bash: "exec 9<>/dev/tcp/files.example/80 && printf 'GET / HTTP/1.0\\r\\nHost: files.example\\r\\n\\r\\n' >&9\n" +
		"while IFS= read -r line; do [ \"$line\" = 'hello files.example' ] && escaped 'the network works'; done <&9",
	node: "if ((await (await fetch('http://files.example/')).text()).includes('hello files.example')) escaped('the network works');",
}

// tryNetwork makes sure that a sandbox with the network of the tests' internet reaches what
// it may: attempts on a network that does not work prove nothing.
func (s *suite) tryNetwork(ctx context.Context) error {
	if !s.reachesWorld() {
		return nil
	}
	a := attempt{name: "network", language: languages[s.Type], baits: []string{"world"}, timeout: s.patient(maxTimeout)}
	a.code = reachesHost[a.language] + "\n"
	scene, err := newScene(true, s.open, a.baits)
	var lacking errLacking
	if errors.As(err, &lacking) {
		return nil
	}
	if err != nil {
		return err
	}
	defer scene.close()
	out, err := s.inside(ctx, &a, scene)
	if err != nil {
		return err
	}
	if !out.output.has(scene.signal(wordEscaped)) {
		return fmt.Errorf("%s/bin/run does not reach files.example, which it may: output %q", s.dir, out.output.last())
	}
	if found := scene.world.Violations(); len(found) > 0 {
		return fmt.Errorf("%s/bin/run reaches files.example in a way that counts as an escape: %q", s.dir, found)
	}
	return nil
}

// hostInterpreter finds the program that runs the controls. What stands on
// PATH may be a script that finds the true one, and slowly.
func hostInterpreter(ctx context.Context, kind, program string, timeout time.Duration) (string, error) {
	names := map[string][]string{
		"python": {"python3", "-c", "import sys; print(sys.executable)"},
		"bash":   {"bash", "-c", "echo $BASH"},
		"node":   {"node", "-p", "process.execPath"},
	}
	argv := names[kind]
	if program == "" {
		program = argv[0]
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, argv[1:]...).Output()
	if err != nil {
		return "", fmt.Errorf("no %s on this host: %w", program, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// try runs one attempt and its control.
func (s *suite) try(ctx context.Context, a *attempt) Result {
	result := Result{Name: a.name}
	if tag, ok := a.shared(s.Skip); ok {
		result.Verdict, result.Reason = Skipped, "left out: "+tag
		return result
	}
	switch {
	case a.isolated && len(s.hosts) > 0:
		result.Verdict, result.Reason = Skipped, "it is about sandboxes without a network"
		return result
	case slices.Contains(a.baits, "world") && !s.reachesWorld():
		result.Verdict, result.Reason = Skipped, "the sandbox has not the network of the tests"
		return result
	}
	escaped, reason, err := s.sandboxed(ctx, a)
	var lacking errLacking
	switch {
	case errors.As(err, &lacking):
		result.Verdict, result.Reason = Skipped, string(lacking)
		return result
	case err != nil:
		result.Verdict, result.Reason = Failed, printable(err.Error(), 400)
		return result
	case escaped && len(s.devices) > 0 && slices.Contains(a.tags, "devices"):
		result.Verdict, result.Reason, result.Escaped = Opened, fmt.Sprintf("devices has %s: %s", strings.Join(s.devices, ", "), reason), true
		return result
	case escaped:
		result.Verdict, result.Reason, result.Escaped = Failed, "escaped: "+reason, true
		return result
	}
	fired, reason, err := s.controlled(ctx, a)
	if err != nil && !errors.As(err, &lacking) {
		// Attempts wait for answers for a second at most, which a busy machine may miss.
		fired, reason, err = s.controlled(ctx, a)
	}
	switch {
	case errors.As(err, &lacking):
		result.Verdict, result.Reason = Skipped, string(lacking)
	case err != nil:
		result.Verdict, result.Reason = Failed, "its control: "+printable(err.Error(), 400)
	case !fired && reason == "":
		result.Verdict, result.Reason = Failed, "its control did not fire, so that it proves nothing"
	default:
		result.Verdict, result.Controlled, result.Reason = Held, fired, reason
	}
	return result
}

// sandboxed runs an attempt in the sandbox and returns whether there is
// evidence of an escape, and which.
func (s *suite) sandboxed(ctx context.Context, a *attempt) (escaped bool, evidence string, err error) {
	scene, err := newScene(true, s.open, a.baits)
	if err != nil {
		return false, "", err
	}
	defer scene.close()
	out, err := s.inside(ctx, a, scene)
	if err != nil {
		return false, "", err
	}
	if found := scene.found(out); found != "" {
		return true, found, nil
	}
	has := func(word string) bool { return out.output.has(scene.signal(word)) }
	// A filter may end a process that makes a forbidden system call.
	const killedByFilter = 128 + 31
	switch {
	case has(wordLacking):
		return false, "", errLacking("the sandbox lacks something: " + out.output.lineAfter(scene.signal(wordLacking)))
	case out.timedOut:
		return false, "", fmt.Errorf("it had no end after %v; output %q", a.timeout, out.output.last())
	case has(wordTried) && (out.ended == "" || a.ends):
		return false, "", nil
	case has(wordStarted) && (a.ends || out.exit == killedByFilter):
		return false, "", nil
	}
	return false, "", fmt.Errorf("it did not run to its end: exit status %d %s, output %q", out.exit, out.ended, out.output.last())
}

// found returns the evidence of a run in this scene, or nothing.
func (s *scene) found(out outcome) string {
	switch {
	case out.output.has(s.secret):
		return "a secret of the host is in its output"
	case out.output.has(s.signal(wordEscaped)):
		return out.output.lineAfter(s.signal(wordEscaped))
	case out.evidence != "":
		return out.evidence
	}
	return s.evidence()
}

// inside runs an attempt's rounds in the sandbox.
func (s *suite) inside(ctx context.Context, a *attempt, scene *scene) (outcome, error) {
	s.tell(scene)
	scene.groups, scene.limits = s.Groups, cgroup.Limits{Memory: int64(s.MemoryMB) << 20, Tasks: s.Pids}
	programs, err := a.programs(scene)
	if err != nil {
		return outcome{}, err
	}
	if a.session {
		program := filepath.Join(s.dir, "bin", "session-run")
		if a.rounds == roundsAfter {
			if out, err := scene.session(ctx, a, program, programs[:1]); err != nil {
				return out, err
			}
			programs = programs[1:]
		}
		return scene.session(ctx, a, program, programs)
	}
	program := filepath.Join(s.dir, "bin", "run")
	return a.play(ctx, scene, programs, func(ctx context.Context, o *output, text string) (outcome, error) {
		return scene.run(ctx, o, false, text, program)
	})
}

// tell gives a scene the artifact's limits.
func (s *suite) tell(scene *scene) {
	scene.vars["ARTIFACT"] = s.dir
	scene.vars["MEMORY_MB"] = s.MemoryMB
	scene.vars["PIDS"] = s.Pids
	scene.vars["WORKSPACE_MB"] = s.WorkspaceMB
	scene.vars["SLOW"] = max(s.Slow, 1)
}

// controlled runs an attempt's control and returns whether it fired, or the
// reason why it was not run.
func (s *suite) controlled(ctx context.Context, a *attempt) (fired bool, reason string, err error) {
	switch {
	case s.NoControls:
		return false, "controls are left out", nil
	case s.interpreter == "":
		return false, s.uncontrol, nil
	case a.control == controlNone:
		return false, "no control: " + a.reason, nil
	case a.control == controlRoot && os.Geteuid() != 0:
		return false, "its control needs root", nil
	}
	scene, err := newScene(false, false, a.baits)
	if err != nil {
		return false, "", err
	}
	defer scene.close()
	s.tell(scene)
	programs, err := a.programs(scene)
	if err != nil {
		return false, "", err
	}
	argument := a.language.argument()
	var out outcome
	if a.session {
		for _, program := range programs {
			ctx, cancel := context.WithTimeout(ctx, s.patient(maxTimeout))
			defer cancel()
			if out, err = scene.exposed(ctx, s.interpreter, argument, program); err != nil {
				return false, "", err
			}
			if out.evidence != "" {
				break
			}
		}
	} else {
		namespaces := a.control == controlUserns
		out, err = a.play(ctx, scene, programs, func(ctx context.Context, o *output, text string) (outcome, error) {
			return scene.run(ctx, o, namespaces, "", s.interpreter, argument, text)
		})
		if err != nil {
			return false, "", err
		}
	}
	if found := scene.found(out); found != "" {
		return true, "", nil
	}
	if out.output.has(scene.signal(wordLacking)) {
		return false, "", errLacking("this host lacks something: " + out.output.lineAfter(scene.signal(wordLacking)))
	}
	late := ""
	if out.timedOut {
		late = ", it took too long"
	}
	return false, "", fmt.Errorf("it did not fire, so that the attempt proves nothing: exit status %d%s, output %q", out.exit, late, out.output.last())
}

// programs returns the text of each round.
func (a *attempt) programs(scene *scene) ([]string, error) {
	rounds := 1
	if a.rounds != "" {
		rounds = 2
	}
	var texts []string
	for round := 1; round <= rounds; round++ {
		scene.vars["ROUND"] = round
		text, err := a.program(scene.vars)
		if err != nil {
			return nil, err
		}
		texts = append(texts, text)
	}
	return texts, nil
}

// play runs the rounds of an attempt, one after the other or, with rounds
// beside, the second as soon as the first has reported that it is ready; the
// first is then ended. The outcome is the last round's.
func (a *attempt) play(ctx context.Context, scene *scene, programs []string, start func(context.Context, *output, string) (outcome, error)) (outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	if a.rounds != roundsBeside {
		var out outcome
		for _, text := range programs {
			var err error
			if out, err = start(ctx, newOutput(scene.needles()...), text); err != nil {
				return out, err
			}
		}
		return out, nil
	}
	ready := "ready " + scene.token
	first := newOutput(append(scene.needles(), ready)...)
	beside, end := context.WithCancel(ctx)
	defer end()
	seen := first.seen(ready)
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		_, err := start(beside, first, programs[0])
		done <- err
	}()
	select {
	case <-seen:
	case err := <-done:
		return outcome{output: first}, errors.Join(err, fmt.Errorf("the first round ended before the second began: output %q", first.last()))
	case <-ctx.Done():
		end()
		return outcome{output: first}, errors.Join(<-done, fmt.Errorf("the first round was never ready: output %q", first.last()))
	}
	out, err := start(ctx, newOutput(scene.needles()...), programs[1])
	if found := scene.found(outcome{output: first}); found != "" && out.evidence == "" {
		out.evidence = "in the first sandbox: " + found
	}
	end()
	return out, errors.Join(err, <-done)
}
