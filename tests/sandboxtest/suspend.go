package sandboxtest

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

// suspended is what a sandbox that sleeps has, in a file of this name.
type suspended struct {
	Variables map[string]string
	Files     map[string][]byte
}

const suspendedFile = "state"

// Suspend implements [sandbox.Suspender]. It takes as long as a start, and what it writes
// can be started by another [Machine] too.
func (s *Sandbox) Suspend(ctx context.Context, folder string, keep bool) (int64, error) {
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	if !s.Spec.Control {
		return 0, errors.New("the sandbox has no control channel")
	}
	if !s.runs.TryLock() {
		return 0, errors.New("the sandbox runs a call")
	}
	defer s.runs.Unlock()
	time.Sleep(s.machine.StartTime)
	s.machine.mu.Lock()
	failure := s.machine.suspendFailure
	s.machine.mu.Unlock()
	if failure != nil {
		return 0, failure
	}
	s.mu.Lock()
	s.workspace.mu.Lock()
	data, err := json.Marshal(suspended{s.variables, s.workspace.files})
	s.workspace.mu.Unlock()
	s.mu.Unlock()
	if err == nil {
		err = os.Mkdir(folder, 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, suspendedFile), data, 0o600)
	}
	if err != nil {
		return 0, err
	}
	if !keep {
		s.Kill()
	}
	return int64(len(data)), nil
}

// SetSuspendFailure has sandboxes go on with this error instead of being suspended; nil
// has them be suspended.
func (m *Machine) SetSuspendFailure(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.suspendFailure = err
}

// restore gives a sandbox what one that sleeps had.
func (s *Sandbox) restore() error {
	if s.Spec.From == "" {
		return nil
	}
	data, err := os.ReadFile(filepath.Join(s.Spec.From, suspendedFile))
	var state suspended
	if err == nil {
		err = json.Unmarshal(data, &state)
	}
	if err != nil {
		return &sandbox.DeadError{Reason: "the saved session cannot be used: " + err.Error()}
	}
	maps.Copy(s.variables, state.Variables)
	maps.Copy(s.workspace.files, state.Files)
	return nil
}
