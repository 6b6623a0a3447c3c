// Package doctor checks everything that sandboxes need of a machine, and says
// what is missing and how to fix it.
//
// What a sandbox needs is known to the program bin/check of its artifact, which
// finds what a start would find, in the same words. The package starts every
// sandbox that is configured, and changes nothing.
package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/cgroup"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/machine"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox/framed"
)

// Report is everything that was found.
type Report struct {
	Findings []machine.Finding `json:"findings"`
	// Limits is what enforces the limits of sandboxes: [sandbox.ByGroup] or
	// [sandbox.ByAgent].
	Limits string `json:"limits"`
}

// OK says that nothing that is needed is missing.
func (r Report) OK() bool { return r.missing() == 0 }

// WriteTable writes a line for each finding, and below it what to do.
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
		if f.Fix != "" {
			fmt.Fprintf(&out, "  %-*s  → %s\n", width, "", f.Fix)
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
	// Host is what the sandboxes show.
	Host sandbox.HostFolders
	// Within is what a sandbox may take to start, and its line to run; 0 is
	// [tryWithin].
	Within time.Duration
}

// Examine checks the machine and every environment.
func Examine(ctx context.Context, subject Subject) Report {
	r := Report{Findings: machine.Check(ctx, subject.Environments)}
	add := func(f machine.Finding) { r.Findings = append(r.Findings, f) }
	limits := groups(cgroup.Managed())
	r.Limits = sandbox.ByGroup
	if !limits.OK {
		r.Limits = sandbox.ByAgent
	}
	add(limits)
	nix := nix(ctx)
	// A server does not start without it where calls may add packages.
	nix.Needed = slices.ContainsFunc(subject.Environments, func(env registry.Environment) bool { return env.OnDemand != nil })
	add(nix)
	for _, broken := range subject.Broken {
		add(machine.Finding{Name: "sandbox " + broken.Name, Needed: true, Found: broken.Err.Error(), Fix: machine.Rebuild})
	}
	// Control groups are the server's to make; these sandboxes live shortly.
	within := cmp.Or(subject.Within, tryWithin)
	starter := framed.New(slog.New(slog.DiscardHandler), framed.Options{StartTimeout: within})
	defer starter.Close(tryWithin)
	for _, env := range subject.Environments {
		add(try(ctx, starter, env, subject.Host, within))
	}
	return r
}

func groups(paths cgroup.Paths) machine.Finding {
	f := machine.Finding{Name: "control groups", OK: true, Found: "limits of memory, processes and processors by the kernel"}
	if err := cgroup.Check(paths); err != nil {
		f.OK, f.Found = false, fmt.Sprintf("%v: the agent's limit keeper bounds memory and processes, nothing bounds processors", err)
		var unavailable *cgroup.Unavailable
		if errors.As(err, &unavailable) {
			f.Fix = unavailable.Hint
		}
	}
	return f
}

func nix(ctx context.Context) machine.Finding {
	f := machine.Finding{Name: "Nix", OK: true}
	program, err := exec.LookPath("nix")
	if err == nil {
		var version []byte
		version, err = machine.Output(ctx, tryWithin, nil, program, "--version")
		line, _, _ := strings.Cut(string(version), "\n")
		f.Found = machine.Printable(line)
	}
	if err != nil {
		f.OK, f.Found = false, "there is none: what is built works, nothing new is built here"
		f.Fix = "install Nix: https://nixos.org/download"
	}
	return f
}

const (
	// tryWithin bounds each program that is tried, probeWithin a line of code in a virtual
	// machine, which may be emulated.
	tryWithin   = 10 * time.Second
	probeWithin = time.Minute
)

// answer is what the probe of every language prints.
const answer = "42\n"

// try starts a sandbox and runs one line in it.
func try(ctx context.Context, starter sandbox.Starter, env registry.Environment, host sandbox.HostFolders, within time.Duration) machine.Finding {
	f := machine.Finding{Name: "sandbox " + env.Name, Needed: true}
	fail := func(err error) machine.Finding {
		f.Found, f.Fix = explain(err)
		return f
	}
	began := time.Now()
	s, err := starter.Start(ctx, sandbox.Spec{Name: env.Name, Exec: env.SessionExec, OutputBytes: env.OutputBytes, Host: host, Network: env.Network != nil, Secrets: env.Secrets(), Reports: env.Reports})
	if err != nil {
		return fail(err)
	}
	defer s.Kill()
	f.Found = "starts"
	// The language of a command is not known.
	if env.Language != nil && env.Language.Probe != "" {
		code := env.Language.Probe
		if env.Reports {
			within = max(within, probeWithin)
		}
		result, err := s.Execute(ctx, sandbox.Request{Code: code, Timeout: within, Grace: time.Second})
		if err != nil {
			return fail(err)
		}
		if result.Outcome != frame.OutcomeOK {
			return fail(fmt.Errorf("%q ended as %s after %v", code, result.Outcome, result.Duration.Round(time.Millisecond)))
		}
		if result.Stdout.Head != answer {
			return fail(fmt.Errorf("%q printed %.100q and, as errors, %.300q", code, result.Stdout.Head, result.Stderr.Head))
		}
		f.Found = "runs " + env.InterpreterType
	}
	f.OK, f.Found = true, fmt.Sprintf("%s, in %d ms", f.Found, time.Since(began).Milliseconds())
	return f
}

// explain takes the launcher's own sentences, where there are some, for what
// keeps a sandbox from starting: lines of its log that begin "PROGRAM: error: "
// and "PROGRAM: hint: ".
func explain(err error) (problem, fix string) {
	problem, fix = err.Error(), machine.Rebuild
	var dead *sandbox.DeadError
	if !errors.As(err, &dead) {
		return problem, fix
	}
	sentence := func(line, label string) (string, bool) {
		program, text, found := strings.Cut(line, label)
		return text, found && !strings.Contains(program, " ")
	}
	for line := range strings.SplitSeq(dead.Log, sandbox.LogSeparator) {
		if text, ok := sentence(line, ": error: "); ok {
			problem = text
		}
		if text, ok := sentence(line, ": hint: "); ok {
			fix = text
		}
	}
	return problem, fix
}
