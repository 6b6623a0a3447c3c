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
	if s.launcher != nil {
		return errors.New("it is a virtual machine")
	}
	launch, cancel := context.WithTimeout(ctx, growTimeout)
	defer cancel()
	cmd := exec.CommandContext(launch, filepath.Join(filepath.Dir(program), "grow"))
	cmd.Env = append(sandbox.Environ(nil), intoVariable+"="+strconv.Itoa(s.pid()), besideVariable+"="+strings.Join(s.grown, ":"))
	cmd.WaitDelay = time.Second // what it started may have its streams
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	// It writes one or the other.
	out, wrong := bounded.Read(stdout, maxVariables)
	problem, _ := io.ReadAll(io.LimitReader(stderr, maxProblem))
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%w: %s", err, hostile.Message(string(problem)))
	}
	var variables map[string]string
	if err := cmp.Or(wrong, json.Unmarshal(out, &variables)); err != nil {
		return fmt.Errorf("its variables: %w", err)
	}
	s.grown = append(s.grown, program)
	_, err = s.request(ctx, frame.Request{Type: frame.Grow, Env: variables}, frame.Grown, growTimeout)
	return err
}
