package framed

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostile"
)

const (
	// growTimeout bounds the work of an artifact's bin/grow, and then that of the agent.
	growTimeout = 15 * time.Second
	// maxVariables bounds what it writes, in bytes, and maxProblem what it says.
	maxVariables = 64 << 10
	maxProblem   = 300
)

// The variables of an artifact's bin/grow (docs/contracts.md, C1).
const (
	intoVariable   = "NIX_SANDBOX_INTO"
	besideVariable = "NIX_SANDBOX_BESIDE"
)

// Grow implements [sandbox.Grower].
func (s *Sandbox) Grow(ctx context.Context, program string) error {
	variables, err := s.enlarge(ctx, program)
	if err != nil {
		return err
	}
	_, err = s.request(ctx, frame.Request{Type: frame.Grow, Env: variables}, frame.Grown, growTimeout)
	return err
}

// Add implements [sandbox.Grower].
func (s *Sandbox) Add(ctx context.Context, program string) error {
	_, err := s.enlarge(ctx, program)
	return err
}

// enlarge adds the store of an artifact, which has a program, and returns the variables of its environment.
func (s *Sandbox) enlarge(ctx context.Context, program string) (variables map[string]string, err error) {
	if s.launcher != nil {
		return nil, errors.New("it is a virtual machine")
	}
	launch, cancel := context.WithTimeout(ctx, growTimeout)
	defer cancel()
	s.growing.Lock()
	defer s.growing.Unlock()
	cmd := exec.CommandContext(launch, filepath.Join(filepath.Dir(program), "grow"))
	cmd.Env = append(sandbox.Environ(nil), intoVariable+"="+strconv.Itoa(s.pid()), besideVariable+"="+strings.Join(s.grown, ":"))
	cmd.WaitDelay = time.Second // what it started may have its streams
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	// It writes one or the other.
	out, wrong := bounded.Read(stdout, maxVariables)
	problem, _ := io.ReadAll(io.LimitReader(stderr, maxProblem))
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, hostile.Message(string(problem)))
	}
	if err := cmp.Or(wrong, json.Unmarshal(out, &variables)); err != nil {
		return nil, fmt.Errorf("its variables: %w", err)
	}
	if !slices.Contains(s.grown, program) {
		s.grown = append(s.grown, program)
	}
	return variables, nil
}
