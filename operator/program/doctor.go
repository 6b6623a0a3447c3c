package program

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/cli"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/clients"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/format"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/sandboxes"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/terminal"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/packages"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/cgroup"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/machine"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox/framed"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostile"
)

const (
	// tryWithin is the default time for a sandbox to start, and the limit of `nix --version`.
	tryWithin = 10 * time.Second
	// probeWithin is the limit of a line of code in a virtual machine, which may be emulated.
	probeWithin = time.Minute
)

func doctorCommand(std cli.Streams) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor [FILE]",
		Short: "Check this machine, or a configuration file",
		Long: `Check that this machine can run sandboxes, and say how to add what is missing.

Starts every sandbox and runs one line of code in it. The exit status is 1 if
something that sandboxes need is missing.

With FILE, print the mistakes in that configuration. Nix reads it and builds nothing.`,
		Args: cli.AtMost(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return withoutWrapper("asks Nix")
			}
			ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			r := examine(ctx, terminal.Visible(std.Err))
			write := r.writeTable
			if asJSON {
				write = func(w io.Writer) error { return format.JSON(w, r) }
			}
			if err := write(std.Out); err != nil {
				return fmt.Errorf("write the report: %w", err)
			}
			if !r.OK {
				return command.Exit(command.Failed)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	return cmd
}

// report is the schema of doctor --json.
type report struct {
	// OK reports whether everything that sandboxes need is there.
	OK       bool              `json:"ok"`
	Findings []machine.Finding `json:"findings"`
	// Limits says what enforces the limits of sandboxes: [sandbox.ByGroup] or
	// [sandbox.ByAgent].
	Limits string `json:"limits"`

	missing int // findings that are needed and not OK
}

// newReport adds findings up.
func newReport(limits machine.Finding, findings []machine.Finding) report {
	r := report{Findings: findings, Limits: sandbox.ByGroup}
	if !limits.OK {
		r.Limits = sandbox.ByAgent
	}
	for _, f := range findings {
		if f.Needed && !f.OK {
			r.missing++
		}
	}
	r.OK = r.missing == 0
	return r
}

// writeTable writes a line for each finding, and its fix below it.
func (r report) writeTable(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range r.Findings {
		mark := "✓"
		if !f.OK {
			mark = "✗"
		}
		fmt.Fprintf(table, "%s %s\t%s\n", mark, f.Name, f.Found)
		if f.Fix != "" {
			fmt.Fprintf(table, "  \t→ %s\n", f.Fix)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	end := "Sandboxes work here."
	if !r.OK {
		end = format.Count(r.missing, "thing that is needed is missing.", "things that are needed are missing.")
	}
	_, err := fmt.Fprintf(w, "\n%s\n", end)
	return err
}

// examine checks this machine, and starts each sandbox that the server would serve.
func examine(ctx context.Context, log io.Writer) report {
	limits := groupFinding(cgroup.Managed())
	settings, set, err := sandboxes.Survey(log, "")
	if err != nil {
		return newReport(limits, []machine.Finding{machine.Of("configuration", err), limits, nixFinding(ctx)})
	}
	var environments []registry.Environment
	for _, name := range set.Names() {
		environments = append(environments, set.Environments[name])
	}
	environments = append(environments, packages.Built(settings.Packages, set.Environments)...)
	findings := append(machine.Check(ctx, environments), limits, nixFinding(ctx))
	if _, err := desk.Usable(config.DeskFolders(os.Getenv), settings.Shown()); err != nil {
		findings = append(findings, machine.Finding{Name: "commands", Found: "top, shell --session and forward do not find servers: " + err.Error(), Fix: "set XDG_RUNTIME_DIR or HOME to a folder of this user alone, for the servers too"})
	}
	for _, slip := range config.Slips(os.Environ()) {
		findings = append(findings, machine.Finding{Name: "variables", Found: slip, Fix: "correct its name, or unset it"})
	}
	findings = append(findings, clients.HookFindings()...)
	if set.Unread != nil {
		findings = append(findings, machine.Finding{Name: "folders of sandboxes", Found: hostile.Message(set.Unread.Error()), Fix: registry.UnreadHint})
	}
	for _, broken := range set.Broken {
		findings = append(findings, machine.Finding{Name: "sandbox " + broken.Name, Needed: true, Found: broken.Err.Error(), Fix: machine.Rebuild})
	}
	lacks := slices.ContainsFunc(findings, func(f machine.Finding) bool { return f.Needed && !f.OK })
	within := cmp.Or(settings.StartWithin, tryWithin)
	// Only the server can make control groups; these sandboxes end soon.
	starter := framed.New(slog.New(slog.DiscardHandler), framed.Options{StartTimeout: within})
	defer starter.Close(tryWithin)
	for _, env := range environments {
		f := try(ctx, starter, env, settings.HostFolders(), within)
		if lacks && f.Fix == machine.Rebuild {
			f.Fix = "what is missing above may be the reason: add that first"
		}
		findings = append(findings, f)
	}
	return newReport(limits, append(findings, gatewayFindings(ctx)...))
}

// gatewayFindings returns what the gateway needs, if the server was built with one.
func gatewayFindings(ctx context.Context) []machine.Finding {
	program := os.Getenv(command.GatewayVariable)
	if program == "" {
		return nil
	}
	findings, err := machine.Ask(ctx, nil, program, "check")
	if err != nil {
		findings = []machine.Finding{machine.Of("gateway", err)}
	}
	return findings
}

func groupFinding(paths cgroup.Paths) machine.Finding {
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

// trial is a derivation that Nix builds without a program, a download or a package: an empty file.
const trial = `derivation {
  name = "nix-sandbox-mcp-doctor-%d"; system = "builtin"; builder = "builtin:fetchurl"; url = "file:///dev/null";
  outputHashMode = "flat"; outputHashAlgo = "sha256"; outputHash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
}`

// nixFinding has Nix, which serves only to build further environments, build something.
func nixFinding(ctx context.Context) machine.Finding {
	f := machine.Finding{Name: "Nix", OK: true}
	program, err := exec.LookPath("nix")
	if err == nil {
		var version []byte
		version, err = machine.Output(ctx, tryWithin, nil, program, "--version")
		line, _, _ := strings.Cut(string(version), "\n")
		f.Found = hostile.Message(line)
	}
	if err != nil {
		f.OK, f.Found = false, "not found: environments that are built work, and nothing new is built here"
		f.Fix = "install Nix: https://nixos.org/download"
		if os.Getenv("KUBERNETES_SERVICE_HOST") != "" {
			f.Fix = "build the environment into the image"
		}
		return f
	}
	// What has been built before is not built again: each time it is another one.
	expression := fmt.Sprintf(trial, time.Now().UnixNano())
	_, err = machine.Output(ctx, tryWithin, nil, program, "--extra-experimental-features", "nix-command", "--option", "substituters", "", "build", "--no-link", "--expr", expression)
	if err != nil {
		f.OK, f.Found = false, "environments that are built work, and nothing new can be built here: "+hostile.Message(err.Error())
		f.Fix = "have `nix build` work for this user"
		if strings.Contains(err.Error(), "build-users-group") {
			f.Fix = `add the line "build-users-group =" to /etc/nix/nix.conf, so that root builds without the users of a group`
		}
	}
	return f
}

// answer is printed by the probe of every language.
const answer = "42\n"

// try starts a sandbox and runs one line in it.
func try(ctx context.Context, starter sandbox.Starter, env registry.Environment, host sandbox.HostFolders, within time.Duration) machine.Finding {
	began := time.Now()
	found, err := probe(ctx, starter, env, host, within)
	f := machine.Finding{Name: "sandbox " + env.Name, Needed: true, OK: err == nil, Found: fmt.Sprintf("%s, in %d ms", found, time.Since(began).Milliseconds())}
	if err != nil {
		f.Found, f.Fix = explain(err)
	}
	return f
}

func probe(ctx context.Context, starter sandbox.Starter, env registry.Environment, host sandbox.HostFolders, within time.Duration) (found string, err error) {
	s, err := starter.Start(ctx, sandbox.Spec{Name: env.Name, Exec: env.SessionExec, OutputBytes: env.OutputBytes, Host: host, Network: env.Network != nil, Secrets: env.Secrets(), Reports: env.Reports})
	if err != nil {
		return "", err
	}
	defer s.Kill()
	if env.Language == nil || env.Language.Probe == "" {
		return "starts", nil // the language of a command is not known
	}
	if env.Reports {
		within = max(within, probeWithin)
	}
	code := env.Language.Probe
	result, err := s.Run(ctx, sandbox.Request{Code: code, Timeout: within, Grace: time.Second})
	switch {
	case err != nil:
		return "", err
	case result.Outcome != frame.OutcomeOK:
		return "", fmt.Errorf("%q ended as %s after %v", code, result.Outcome, result.Duration.Round(time.Millisecond))
	case result.Stdout.Head != answer:
		return "", fmt.Errorf("%q printed %.100q and, as errors, %.300q", code, result.Stdout.Head, result.Stderr.Head)
	}
	return "runs " + env.InterpreterType, nil
}

// explain returns why a sandbox does not start, and the fix, in the launcher's own words if its
// log has lines that begin "PROGRAM: error: " and "PROGRAM: hint: ".
func explain(err error) (problem, fix string) {
	problem, fix = err.Error(), machine.Rebuild
	var dead *sandbox.DeadError
	if !errors.As(err, &dead) {
		return problem, fix
	}
	for line := range strings.SplitSeq(dead.Log, sandbox.LogSeparator) {
		program, text, _ := strings.Cut(line, ": ")
		kind, text, found := strings.Cut(text, ": ")
		switch {
		case !found || strings.Contains(program, " "):
		case kind == "error":
			problem = text
		case kind == "hint":
			fix = text
		}
	}
	return problem, fix
}
