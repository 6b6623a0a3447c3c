// Package machines starts sandboxes that are virtual machines as the server does, for
// tests and benchmarks: their agents are asked by frames, and their launchers on the
// control channel (docs/contracts.md, C1).
package machines

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// Limit bounds the life of a machine and of a call in it: machines are emulated, on busy
// hosts.
const Limit = 8 * time.Minute

// Machine is a started machine. Its owner calls Close.
type Machine struct {
	Cmd      *exec.Cmd // the launcher
	Log      strings.Builder
	Requests *frame.Writer
	Replies  *frame.Reader

	control *os.File
	answers *bufio.Reader
	calls   uint64
	cancel  context.CancelFunc
}

// Answer is what a launcher answers on its control channel.
type Answer struct {
	Did, Error string
	Bytes      int64 // what the folder takes
	PauseMS    int64 `json:"pause_ms"`
}

// Start starts a machine of the sandbox in a folder and waits until its agent is ready.
// The machine goes on from what was saved in from, unless that is empty. The launcher
// has a cache and these variables.
func Start(folder, cache, from string, environ ...string) (_ *Machine, err error) {
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	theirs := os.NewFile(uintptr(ends[1]), "control")
	defer theirs.Close()
	m := &Machine{control: os.NewFile(uintptr(ends[0]), "control")}
	m.answers = bufio.NewReader(m.control)
	ctx, cancel := context.WithTimeout(context.Background(), Limit)
	m.cancel = cancel
	m.Cmd = exec.CommandContext(ctx, filepath.Join(folder, "bin/session-run"))
	m.Cmd.Stderr = &m.Log
	m.Cmd.ExtraFiles = []*os.File{theirs}
	m.Cmd.Env = append([]string{"XDG_CACHE_HOME=" + cache, "NIX_SANDBOX_CONTROL=3"}, environ...)
	if from != "" {
		m.Cmd.Env = append(m.Cmd.Env, "NIX_SANDBOX_FROM="+from)
	}
	defer func() {
		if err != nil {
			m.Close()
		}
	}()
	in, err := m.Cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := m.Cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := m.Cmd.Start(); err != nil {
		return nil, err
	}
	m.Requests, m.Replies = frame.NewWriter(in), frame.NewReader(out)
	var reply frame.Reply
	if err := m.Replies.Read(&reply); err != nil || reply.Type != frame.Ready {
		_ = m.Cmd.Wait() // for the log
		return nil, fmt.Errorf("the first frame is %+v, error %v: %s", reply, err, &m.Log)
	}
	if from != "" {
		return m, nil // it has limits already
	}
	return m, m.Requests.Write(frame.Request{Type: frame.Configure, OutputBytes: 4096})
}

// Close ends the machine.
func (m *Machine) Close() {
	m.control.Close()
	m.cancel()
	if m.Cmd.Process != nil {
		_ = m.Cmd.Process.Kill()
		_ = m.Cmd.Wait()
	}
}

// Begin asks for code to be run, whose state is kept.
func (m *Machine) Begin(code string) error {
	m.calls++
	return m.Requests.Write(frame.Request{Type: frame.Execute, ID: m.calls, Code: code, TimeoutMS: Limit.Milliseconds(), GraceMS: 1000, Keep: true})
}

// Ping asks the agent for a sign of life.
func (m *Machine) Ping() error {
	return m.Requests.Write(frame.Request{Type: frame.Ping, ID: m.calls})
}

// Run runs code, whose state is kept and which has to succeed, and returns its output.
func (m *Machine) Run(code string) (string, error) {
	if err := m.Begin(code); err != nil {
		return "", fmt.Errorf("%w: %s", err, &m.Log)
	}
	var output strings.Builder
	for {
		var reply frame.Reply
		if err := m.Replies.Read(&reply); err != nil {
			return "", fmt.Errorf("%w: %s", err, &m.Log)
		}
		switch reply.Type {
		case frame.Output:
			output.WriteString(reply.Data)
		case frame.Result:
			if reply.Outcome != frame.OutcomeOK || reply.ExitCode != 0 {
				return "", fmt.Errorf("the code ends with %+v, output %q", reply, &output)
			}
			return output.String(), nil
		default:
			return "", fmt.Errorf("the agent answers %+v", reply)
		}
	}
}

// Ask sends a line on the control channel and returns the launcher's answer to it.
func (m *Machine) Ask(request string) (a Answer, err error) {
	if _, err := io.WriteString(m.control, request+"\n"); err != nil {
		return a, err
	}
	line, err := m.answers.ReadBytes('\n')
	if err != nil {
		return a, fmt.Errorf("%w: %s", err, &m.Log)
	}
	return a, json.Unmarshal(line, &a)
}

// Save asks the launcher to save the machine when no frame is on its way. The answer may
// be that this failed. With keep, the machine goes on.
func (m *Machine) Save(to string, keep bool) (a Answer, err error) {
	if err := m.Ping(); err != nil {
		return a, err
	}
	var reply frame.Reply
	if err := m.Replies.Read(&reply); err != nil || reply.Type != frame.Pong {
		return a, fmt.Errorf("a ping gets %+v, error %v: %s", reply, err, &m.Log)
	}
	request, err := json.Marshal(map[string]any{"do": "save", "to": to, "keep": keep})
	if err != nil {
		return a, err
	}
	if a, err = m.Ask(string(request)); err == nil && a.Did != "save" {
		err = fmt.Errorf("the launcher answers %+v", a)
	}
	return a, err
}

// Saved saves the machine, which has to succeed. Without keep, the launcher ends.
func (m *Machine) Saved(to string, keep bool) (Answer, error) {
	a, err := m.Save(to, keep)
	if err == nil && (a.Error != "" || a.Bytes == 0) {
		err = fmt.Errorf("the machine is not saved: %+v", a)
	}
	if err == nil && !keep {
		if err = m.Cmd.Wait(); err != nil {
			err = fmt.Errorf("the launcher ends with %w: %s", err, &m.Log)
		}
	}
	return a, err
}

// ProcessorTime is what the machine has used, with its launcher and QEMU.
func (m *Machine) ProcessorTime() (used time.Duration) {
	if ended := m.Cmd.ProcessState; ended != nil {
		return ended.UserTime() + ended.SystemTime() // with what it waited for
	}
	for _, pid := range procfs.Tree(m.Cmd.Process.Pid) {
		if p, err := procfs.Read(pid); err == nil {
			own, ended := p.Times()
			used += own + ended
		}
	}
	return used
}
