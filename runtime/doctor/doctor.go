// Package doctor looks at everything that sandboxes need of a machine, and
// says what is missing and what mends it.
//
// It promises to find what a start of a sandbox would find, in the same
// words, because both ask the same functions; to start every sandbox that is
// configured; and to change nothing.
package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/cgroup"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

// Finding is what one look found.
type Finding struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Needed says that sandboxes do not work without it.
	Needed bool `json:"needed"`
	// Found is what is there, or what is wrong.
	Found string `json:"found"`
	// Mend is the command or the file that mends it; empty where all is well.
	Mend string `json:"mend,omitempty"`
}

// Report is everything that was found.
type Report struct {
	Findings []Finding `json:"findings"`
	// Limits is what holds sandboxes to their limits: cgroup or watch.
	Limits string `json:"limits"`
}

// OK says that nothing that is needed is missing.
func (r Report) OK() bool {
	return !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Needed && !f.OK })
}

// WriteTable writes a line for each finding, and below it what mends it.
func (r Report) WriteTable(w io.Writer) error {
	width := 0
	for _, f := range r.Findings {
		width = max(width, len(f.Name))
	}
	var out strings.Builder
	for _, f := range r.Findings {
		mark := "✓"
		if !f.OK {
			mark = "✗"
		}
		fmt.Fprintf(&out, "%s %-*s  %s\n", mark, width, f.Name, f.Found)
		if f.Mend != "" {
			fmt.Fprintf(&out, "  %-*s  → %s\n", width, "", f.Mend)
		}
	}
	switch missing := r.missing(); {
	case missing == 0:
		out.WriteString("\nSandboxes work here.\n")
	case missing == 1:
		out.WriteString("\n1 thing that is needed is missing.\n")
	default:
		fmt.Fprintf(&out, "\n%d things that are needed are missing.\n", missing)
	}
	_, err := io.WriteString(w, out.String())
	return err
}

func (r Report) missing() int {
	n := 0
	for _, f := range r.Findings {
		if f.Needed && !f.OK {
			n++
		}
	}
	return n
}

// WriteJSON writes the report for programs.
func (r Report) WriteJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(struct {
		OK bool `json:"ok"`
		Report
	}{r.OK(), r})
}

// Subject is what is examined.
type Subject struct {
	Environments []registry.Environment
	Broken       []registry.Broken
	// Environ is the environment that sandboxes are started with.
	Environ []string
	// Within is what a sandbox may take to start, and its line to run; 0 is
	// [tryWithin].
	Within time.Duration
}

// Machine looks at what these environments' sandboxes need of the machine, and
// starts none of them.
func Machine(ctx context.Context, environments []registry.Environment) (found []Finding) {
	for _, program := range bubblewraps(environments) {
		f := version(ctx, program)
		found = append(found, f)
		if f.OK {
			found = append(found, namespaces(ctx, program))
		}
	}
	return append(found, filters(procStatus))
}

// Examine looks at the machine and at every environment.
func Examine(ctx context.Context, subject Subject) Report {
	r := Report{Findings: Machine(ctx, subject.Environments)}
	add := func(f Finding) { r.Findings = append(r.Findings, f) }
	limits := groups(cgroup.System)
	r.Limits = sandbox.ByGroup
	if !limits.OK {
		r.Limits = sandbox.ByWatch
	}
	add(limits)
	add(overlay(fileSystems))
	add(nix(ctx))
	for _, broken := range subject.Broken {
		add(Finding{"sandbox " + broken.Name, false, true, broken.Err.Error(), rebuild})
	}
	// Control groups are the server's to make; these looks are short.
	launcher := sandbox.NewLauncher(slog.New(slog.DiscardHandler), subject.Environ, nil)
	defer launcher.Close(tryWithin)
	within := cmp.Or(subject.Within, tryWithin)
	launcher.Wait(within)
	for _, env := range subject.Environments {
		add(try(ctx, launcher, env, within))
	}
	return r
}

// rebuild mends an artifact.
const rebuild = "build it again with mkSandbox, and name what that made"

// bubblewraps are the programs that make the sandboxes, each once.
func bubblewraps(environments []registry.Environment) []string {
	var programs []string
	for _, env := range environments {
		// One that cannot be read is told of when it is tried.
		if spec, err := jail.ReadSpec(env.SessionExec); err == nil && !slices.Contains(programs, spec.Bubblewrap) {
			programs = append(programs, spec.Bubblewrap)
		}
	}
	return programs
}

// oldest is the first bubblewrap that has every option of a jail: that of
// --disable-userns.
var oldest = []int{0, 8, 0}

func version(ctx context.Context, program string) Finding {
	f := Finding{Name: "bubblewrap", Needed: true, Mend: rebuild}
	said, err := output(ctx, program, "--version")
	if err != nil {
		f.Found = err.Error()
		return f
	}
	number, ok := strings.CutPrefix(said, "bubblewrap ")
	if !ok {
		f.Found = fmt.Sprintf("%s says %q of its version, which no bubblewrap does", program, said)
		return f
	}
	var have []int
	for word := range strings.SplitSeq(number, ".") {
		n, err := strconv.Atoi(word)
		if err != nil {
			break
		}
		have = append(have, n)
	}
	if slices.Compare(have, oldest) < 0 {
		f.Found = fmt.Sprintf("%s is version %s, sandboxes need 0.8.0 or later", program, number)
		return f
	}
	f.OK, f.Found, f.Mend = true, number, ""
	return f
}

func namespaces(ctx context.Context, program string) Finding {
	f := Finding{Name: "user namespaces", Needed: true}
	if err := jail.Check(ctx, program); err != nil {
		f.Found, f.Mend = err.Error(), jail.HintOf(err)
		return f
	}
	f.OK, f.Found = true, "allowed"
	return f
}

// Files of the kernel.
const (
	procStatus  = "/proc/self/status"
	fileSystems = "/proc/filesystems"
)

func filters(status string) Finding {
	f := Finding{Name: "system call filter", Needed: true, OK: true, Found: "the kernel has seccomp"}
	text, err := os.ReadFile(status)
	if err != nil || !strings.Contains(string(text), "\nSeccomp:") {
		f.OK, f.Found, f.Mend = false, "the kernel has no seccomp", "start a kernel with CONFIG_SECCOMP_FILTER=y, as every distribution's has"
	}
	return f
}

func groups(paths cgroup.Paths) Finding {
	f := Finding{Name: "control groups", OK: true, Found: "limits of memory, processes and processors by the kernel"}
	if err := cgroup.Check(paths); err != nil {
		f.OK, f.Found = false, fmt.Sprintf("%v: limits of memory and processes by the agent's watch, none of processors", err)
		var unavailable *cgroup.Unavailable
		if errors.As(err, &unavailable) {
			f.Mend = unavailable.Hint
		}
	}
	return f
}

func overlay(list string) Finding {
	f := Finding{Name: "overlay", OK: true, Found: "the kernel has it"}
	text, err := os.ReadFile(list)
	if err != nil || !strings.Contains(string(text), "\toverlay\n") {
		f.OK, f.Found = false, "the kernel has no overlay file system loaded: a project with mode overlay does not start"
		f.Mend = "modprobe overlay; for every start: echo overlay > /etc/modules-load.d/nix-sandbox-mcp.conf"
	}
	return f
}

func nix(ctx context.Context) Finding {
	f := Finding{Name: "Nix", OK: true}
	program, err := exec.LookPath("nix")
	if err == nil {
		f.Found, err = output(ctx, program, "--version")
	}
	if err != nil {
		f.OK, f.Found = false, "there is none: what is built works, nothing new is built here"
		f.Mend = "install Nix: https://nixos.org/download"
	}
	return f
}

// tryWithin bounds each program that is tried.
const tryWithin = 10 * time.Second

// output is the first line of what a program prints.
func output(ctx context.Context, program string, args ...string) (string, error) {
	ctx, stop := context.WithTimeout(ctx, tryWithin)
	defer stop()
	command := exec.CommandContext(ctx, program, args...)
	command.WaitDelay = time.Second // for what it started and left its output to
	text, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("%s does not run: %w", filepath.Base(program), err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return line, nil
}

// answer is what the probe of every language prints.
const answer = "42\n"

// try starts a sandbox and runs one line in it.
func try(ctx context.Context, launcher *sandbox.Launcher, env registry.Environment, within time.Duration) Finding {
	f := Finding{Name: "sandbox " + env.Name, Needed: true}
	fail := func(err error) Finding {
		f.Found, f.Mend = explain(err)
		return f
	}
	began := time.Now()
	s, err := launcher.Start(ctx, sandbox.Spec{Name: env.Name, Exec: env.SessionExec, OutputBytes: env.OutputBytes})
	if err != nil {
		return fail(err)
	}
	defer s.Kill()
	f.Found = "starts"
	// The language of a command is not known.
	if env.Language != nil && env.Language.Probe != "" {
		code := env.Language.Probe
		out := sandbox.NewOutput(env.OutputBytes)
		result, err := s.Execute(ctx, sandbox.Call{Code: code, Timeout: within, Grace: time.Second, Output: out})
		if err != nil {
			return fail(err)
		}
		if result.Outcome != frame.OutcomeOK {
			return fail(fmt.Errorf("%q ended as %s after %v", code, result.Outcome, result.Duration.Round(time.Millisecond)))
		}
		if stdout, stderr := out.Texts(); stdout.Head != answer {
			return fail(fmt.Errorf("%q printed %.100q and, as errors, %.300q", code, stdout.Head, stderr.Head))
		}
		f.Found = "runs " + env.InterpreterType
	}
	f.OK, f.Found = true, fmt.Sprintf("%s, in %d ms", f.Found, time.Since(began).Milliseconds())
	return f
}

// launcherSays begins the launcher's lines in a sandbox's log.
const launcherSays = "nix-sandbox-jail: "

// explain takes the launcher's own sentences, where there are some, for what
// keeps a sandbox from starting.
func explain(err error) (problem, mend string) {
	problem, mend = err.Error(), rebuild
	var dead *sandbox.DeadError
	if !errors.As(err, &dead) {
		return problem, mend
	}
	for text := range strings.SplitSeq(dead.Log, sandbox.LogSeparator) {
		if said, ok := strings.CutPrefix(text, launcherSays+"error: "); ok {
			problem = said
		}
		if said, ok := strings.CutPrefix(text, launcherSays+"hint: "); ok {
			mend = said
		}
	}
	return problem, mend
}
