package process

import (
	"errors"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/cgroup"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// start starts a line of sh.
func start(t *testing.T, s *Starter, line string, environ ...string) (*Process, io.Reader) {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", line)
	cmd.Env = environ
	out := must.Get(cmd.StdoutPipe())(t)
	p := must.Get(s.Start(cmd, cgroup.Limits{}, cgroup.Owner{}))(t)
	t.Cleanup(func() {
		p.Kill()
		_ = p.Wait()
	})
	return p, out
}

// A program has the variables that it was given and no other, works in /, and
// leads a process group.
func TestStart_SetsTheEnvironment(t *testing.T) {
	t.Setenv("SECRET_OF_THE_HOST", "1")
	s := NewStarter(nil)
	defer s.Close()
	for _, environ := range [][]string{nil, {"GIVEN=yes"}} {
		p, out := start(t, s, "/usr/bin/env; pwd", environ...)
		text := must.Get(io.ReadAll(out))(t)
		if strings.Contains(string(text), "SECRET") || strings.Contains(string(text), "GIVEN=yes") != (environ != nil) || !strings.HasSuffix(string(text), "\n/\n") {
			t.Errorf("with %v it prints %q", environ, text)
		}
		if group, err := unix.Getpgid(p.Cmd.Process.Pid); err == nil && group != p.Cmd.Process.Pid {
			t.Errorf("process %d is in group %d", p.Cmd.Process.Pid, group)
		}
	}
}

// Wait kills what a program left behind in its process group, and Kill after
// that meets no other process.
func TestWait_EndsTheProcessGroup(t *testing.T) {
	s := NewStarter(nil)
	defer s.Close()
	p, out := start(t, s, "sleep 60 >/dev/null & echo $!")
	text := must.Get(io.ReadAll(out))(t)
	if err := p.Wait(); err != nil || !p.Cmd.ProcessState.Success() {
		t.Errorf("it ended with %v, error %v", p.Cmd.ProcessState, err)
	}
	pid := must.Get(strconv.Atoi(strings.TrimSpace(string(text))))(t)
	patience.Gone(t, pid)
	p.Kill()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

func TestStart_Fails(t *testing.T) {
	s := NewStarter(nil)
	if _, err := s.Start(exec.Command("/nowhere/program"), cgroup.Limits{}, cgroup.Owner{}); err == nil || !strings.Contains(err.Error(), "/nowhere/program") {
		t.Errorf("error %v", err)
	}
	s.Close()
	s.Close()
	if _, err := s.Start(exec.Command("/bin/true"), cgroup.Limits{}, cgroup.Owner{}); !errors.Is(err, ErrClosed) {
		t.Errorf("error %v after the end", err)
	}
}
