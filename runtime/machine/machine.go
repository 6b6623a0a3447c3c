// Package machine checks whether this machine has what sandboxes need.
//
// The program bin/check of each artifact does the work: it reports what a start would report, in
// the same words. This package starts no sandbox and changes nothing.
package machine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostile"
)

// Finding is the state of one thing that sandboxes need or use.
type Finding struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Needed says that sandboxes do not work without it.
	Needed bool `json:"needed"`
	// Found describes the machine, or the problem.
	Found string `json:"found"`
	// Fix says how to solve the problem; it is empty if the problem has no known solution.
	Fix string `json:"fix,omitempty"`
}

// Of returns a finding with the problem of an error, or without a problem if it is nil.
func Of(name string, err error) Finding {
	f := Finding{Name: name, OK: err == nil, Needed: true}
	if err != nil {
		f.Found = err.Error()
	}
	var wrong *config.Error
	if errors.As(err, &wrong) {
		f.Fix = wrong.Hint
	}
	return f
}

// Rebuild is the Fix for a broken artifact.
const Rebuild = "build it again with mkSandbox, and name what that made"

const (
	maxOutput   = 64 << 10 // bytes
	maxFindings = 32
	// checkWithin bounds a bin/check, which may start a virtual machine.
	checkWithin = 30 * time.Second
)

// Check returns the needs of the sandboxes of these environments. Environments with the same needs
// are asked once, and equal findings are returned once.
func Check(ctx context.Context, environments []registry.Environment) (findings []Finding) {
	asked := map[string]bool{}
	for _, env := range environments {
		program := filepath.Join(filepath.Dir(env.SessionExec), "check")
		needs := cmp.Or(env.Needs, program)
		if asked[needs] {
			continue
		}
		asked[needs] = true
		// The artifact of a backend without needs has no such program.
		if _, err := os.Lstat(program); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		found, err := Ask(ctx, sandbox.Environ(env.Reads), program)
		if err != nil {
			found = []Finding{{"check of " + env.Name, false, true, err.Error(), Rebuild}}
		}
		for _, f := range found {
			if !slices.Contains(findings, f) {
				findings = append(findings, f)
			}
		}
	}
	return findings
}

// Ask returns the findings that a program prints, as the JSON of {"findings": [...]}. Its
// environment is that of this process if environ is nil.
func Ask(ctx context.Context, environ []string, program string, args ...string) ([]Finding, error) {
	text, err := Output(ctx, checkWithin, environ, program, args...)
	if err != nil {
		return nil, err
	}
	var report struct{ Findings []Finding }
	if err := json.Unmarshal(text, &report); err != nil {
		return nil, fmt.Errorf("%s printed no findings: %w", program, err)
	}
	if len(report.Findings) > maxFindings {
		return nil, fmt.Errorf("%s printed %d findings, more than %d", program, len(report.Findings), maxFindings)
	}
	for i := range report.Findings {
		f := &report.Findings[i]
		f.Name, f.Found, f.Fix = hostile.Message(f.Name), hostile.Message(f.Found), hostile.Message(f.Fix)
	}
	return report.Findings, nil
}

// lastLine keeps the last line with text that is written to it, at most 1 KiB.
type lastLine struct{ line, rest string }

func (l *lastLine) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		l.rest = (l.rest + line)[:min(len(l.rest)+len(line), 1<<10)]
		if text := strings.TrimSpace(l.rest); text != "" {
			l.line = text
		}
		if strings.HasSuffix(line, "\n") {
			l.rest = ""
		}
	}
	return len(p), nil
}

// Output returns the output of a program, at most 64 KiB. Its error ends with the program's last line on standard error. It uses the environment of this process
// if environ is nil.
func Output(ctx context.Context, within time.Duration, environ []string, program string, args ...string) ([]byte, error) {
	ctx, stop := context.WithTimeout(ctx, within)
	defer stop()
	command := exec.CommandContext(ctx, program, args...)
	command.Env = environ
	command.WaitDelay = time.Second // for children that keep its output open
	text, err := command.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", program, err)
	}
	said := &lastLine{}
	command.Stderr = said
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("%s does not run: %w", filepath.Base(program), err)
	}
	printed, err := bounded.Read(text, maxOutput)
	if err != nil {
		stop()
		err = fmt.Errorf("read its output: %w", err)
	}
	// The first error is the reason of the second.
	if failed := command.Wait(); err == nil && failed != nil {
		err = failed
		if said.line != "" {
			err = fmt.Errorf("%w: %s", failed, said.line)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s does not run: %w", filepath.Base(program), err)
	}
	return printed, nil
}
