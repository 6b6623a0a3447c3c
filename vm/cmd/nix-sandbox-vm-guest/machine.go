//go:build linux

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/protocol"
)

// Variables of the launcher of the jail (package jail): the descriptor of the code's
// control group, and by how much an interpreter may take longer to load.
const (
	codeGroupVariable   = "NIX_SANDBOX_CODE_GROUP"
	startFactorVariable = "NIX_SANDBOX_START_FACTOR"
)

// machine is the state of the first process.
type machine struct {
	groups             *groups
	random             *os.File // the kernel's device of random numbers
	input, output, log *os.File // ports

	mu      sync.Mutex // of the answers, and of what follows
	answers *json.Encoder
	started bool              // whether the program was
	project *protocol.Project // that it shows from [protocol.Show] on
	streams sync.WaitGroup    // of its output
	written [2]int64          // bytes of its output and log; read after streams
}

func (m *machine) answer(answer protocol.Answer) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.answers.Encode(answer)
}

// follow answers the host's requests until the host has closed the control port.
func (m *machine) follow(control io.Reader) error {
	lines := bufio.NewReaderSize(control, protocol.MaxLine)
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the control port: %w", err)
		}
		var request protocol.Request
		answer := protocol.Answer{}
		if err := json.Unmarshal(line, &request); err != nil {
			return fmt.Errorf("reading the control port: %w", err)
		}
		answer.Did = request.Do
		if err := m.do(request); err != nil {
			answer.Error = err.Error()
		}
		if err := m.answer(answer); err != nil {
			return err
		}
	}
}

func (m *machine) do(request protocol.Request) error {
	switch request.Do {
	case protocol.Start:
		if err := setClock(request.Now); err != nil {
			return err
		}
		return m.start(request)
	case protocol.Show:
		if m.project == nil {
			return errors.New("no program shows a project")
		}
		return m.groups.showProject(*m.project)
	case protocol.SetClock:
		return setClock(request.Now)
	case protocol.Freeze:
		return m.groups.freeze()
	case protocol.Thaw:
		if err := setClock(request.Now); err != nil {
			return err
		}
		if err := reseed(m.random, request.Seed); err != nil {
			return err
		}
		return m.groups.thaw()
	case protocol.Ping:
		return nil
	}
	return fmt.Errorf("the machine does not know the request %.40q", request.Do)
}

// start starts the program, as an ordinary user and with pipes for its streams, so
// that nothing in the jail has a port.
func (m *machine) start(request protocol.Request) error {
	var pipes [3]struct{ r, w *os.File }
	for i := range pipes {
		var err error
		if pipes[i].r, pipes[i].w, err = os.Pipe(); err != nil {
			return err
		}
	}
	theirs := []*os.File{pipes[0].r, pipes[1].w, pipes[2].w}
	for _, file := range theirs {
		defer file.Close()
		// Code may open /dev/stdout by its name.
		if err := file.Chown(protocol.User, protocol.User); err != nil {
			return err
		}
	}
	program := filepath.Join(protocol.ProgramDir, filepath.Base(request.Program))
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.started {
		return errors.New("a program was started already")
	}
	environ := []string{codeGroupVariable + "=3", startFactorVariable + "=" + strconv.Itoa(max(request.StartFactor, 1))}
	if request.Project != nil {
		if err := makeProjectMount(); err != nil {
			return err
		}
		m.project = request.Project
		environ = append(environ, projectVariables(*request.Project)...)
	}
	pid, err := syscall.ForkExec(program, []string{program}, &syscall.ProcAttr{
		Dir:   "/",
		Env:   environ,
		Files: []uintptr{theirs[0].Fd(), theirs[1].Fd(), theirs[2].Fd(), m.groups.code.Fd()},
		Sys: &syscall.SysProcAttr{
			Setsid:      true,
			Credential:  &syscall.Credential{Uid: protocol.User, Gid: protocol.User},
			UseCgroupFD: true,
			CgroupFD:    int(m.groups.agent.Fd()),
		},
	})
	if err != nil {
		return fmt.Errorf("starting %s: %w", program, err)
	}
	m.started = true
	go m.reap(pid)
	go func() {
		_, _ = io.Copy(pipes[0].w, m.input) // the program may close its input
		pipes[0].w.Close()
	}()
	for i, port := range []*os.File{m.output, m.log} {
		m.streams.Go(func() { m.written[i], _ = io.Copy(port, pipes[i+1].r) })
	}
	return nil
}

// reap awaits every process that ends, and tells the host when the program did.
// After the program there is none: what it started ends with its PID namespace.
func (m *machine) reap(program int) {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return
		case pid == program:
			go m.exit(status)
		}
	}
}

// exit tells the host how the program ended, when all that it wrote has been sent.
func (m *machine) exit(status unix.WaitStatus) {
	m.streams.Wait()
	exited := protocol.Exited{Status: status.ExitStatus(), Output: m.written[0], Log: m.written[1]}
	if status.Signaled() {
		exited.Status = 128 + int(status.Signal())
	}
	_ = m.answer(protocol.Answer{Exited: &exited})
}
