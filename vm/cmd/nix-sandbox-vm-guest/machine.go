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
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/carrier"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/protocol"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/handover"
)

// Variables of the launcher of the jail (package jail): the descriptors of the code's control group, and of the socket
// that takes the sockets of its network.
const (
	codeGroupVariable = "NIX_SANDBOX_CODE_GROUP"
	carrierVariable   = "NIX_SANDBOX_CARRIER"
)

// machine is the state of the first process.
type machine struct {
	groups             *groups
	random             *os.File        // the kernel's device of random numbers
	input, output, log *os.File        // ports
	network            *carrier.Inside // nil without a network

	mu      sync.Mutex // of the answers, and of what follows
	answers *json.Encoder
	started bool              // whether the program was
	project *protocol.Project // that it shows from [protocol.Show] on
	streams sync.WaitGroup    // its pipes for what it writes
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
	case protocol.Trust:
		if m.network == nil {
			return errors.New("no program has a network")
		}
		return m.network.AwaitTrust(trustLimit)
	case protocol.SetClock:
		return setClock(request.Now)
	case protocol.Freeze:
		return m.groups.freeze()
	case protocol.Trim:
		return trim()
	case protocol.Thaw:
		if err := setClock(request.Now); err != nil {
			return err
		}
		if err := reseed(m.random, request.Seed); err != nil {
			return err
		}
		if m.network != nil {
			if err := m.network.Begin(); err != nil {
				return err
			}
		}
		return m.groups.thaw()
	case protocol.Finish:
		_, err := m.output.Write(request.Mark)
		_, logErr := m.log.Write(request.Mark)
		return errors.Join(err, logErr)
	case protocol.Ping:
		return nil
	}
	return fmt.Errorf("the machine does not know the request %.40q", request.Do)
}

// start starts the program as an ordinary user. Its streams are pipes, so that the jail contains no
// port unless the request asks for that.
func (m *machine) start(request protocol.Request) error {
	ports := []*os.File{m.input, m.output, m.log}
	theirs, own := slices.Clone(ports), slices.Clone(ports)
	piped := 0 // the first one that is a pipe
	if request.Ports {
		piped = 2
	}
	for i := piped; i < len(ports); i++ {
		var err error
		if own[i], theirs[i], err = os.Pipe(); err != nil {
			return err
		}
		if i == 0 {
			own[i], theirs[i] = theirs[i], own[i]
		}
		defer theirs[i].Close()
		// Code may open /dev/stdout by its name.
		if err := theirs[i].Chown(protocol.User, protocol.User); err != nil {
			return err
		}
	}
	program := filepath.Join(protocol.ProgramDir, filepath.Base(request.Program))
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.started {
		return errors.New("a program was started already")
	}
	environ := []string{codeGroupVariable + "=3"}
	if err := makeShown(request); err != nil {
		return err
	}
	if request.Project != nil {
		if err := makeProjectMounts(*request.Project); err != nil {
			return err
		}
		m.project = request.Project
		environ = append(environ, projectVariables(*request.Project)...)
	}
	files := []uintptr{theirs[0].Fd(), theirs[1].Fd(), theirs[2].Fd(), m.groups.code.Fd()}
	if request.Network {
		sockets, err := m.connect()
		if err != nil {
			return err
		}
		defer sockets.Close()
		files, environ = append(files, sockets.Fd()), append(environ, carrierVariable+"=4")
	}
	pid, err := forkInBatches(program, []string{program}, &syscall.ProcAttr{
		Dir:   "/",
		Env:   environ,
		Files: files,
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
	for i := piped; i < len(ports); i++ {
		if i == 0 {
			go func() {
				_, _ = io.Copy(own[0], ports[0]) // the program may close its input
				own[0].Close()
			}()
			continue
		}
		m.streams.Go(func() { _, _ = io.Copy(ports[i], own[i]) })
	}
	go m.reap(pid)
	return nil
}

// trustLimit bounds the start of the network's proxy, which makes a key.
const trustLimit = time.Minute

// trust has programs find certificates from now on.
func trust(certificates []byte) error {
	if len(certificates) == 0 {
		return nil
	}
	return os.WriteFile(shown(protocol.CertificatesName), certificates, 0o444)
}

// connect begins to carry the program's connections. It returns the socket for the launcher, which the caller closes.
func (m *machine) connect() (*os.File, error) {
	port, err := openPort(protocol.Network)
	if err != nil {
		return nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	m.network = carrier.NewInside(port, trust)
	go func() {
		defer unix.Close(pair[0])
		if err := m.network.Accept(func() (handover.Socket, *os.File, error) { return handover.Receive(pair[0]) }); err != nil {
			fmt.Fprintln(os.Stderr, "nix-sandbox-vm-guest: error:", err)
		}
	}()
	return os.NewFile(uintptr(pair[1]), "sockets"), m.network.Begin()
}

// forkInBatches starts a program in the scheduling class SCHED_BATCH, so that its processes do not
// preempt each other when they wake up. The agent has more weight than the code, and would preempt
// it at each line of output. An emulated processor then forgets its translations of addresses
// twice, the most expensive thing it does.
func forkInBatches(program string, argv []string, attr *syscall.ProcAttr) (pid int, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	policy := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_BATCH}
	if err := unix.SchedSetAttr(0, &policy, 0); err != nil {
		return 0, err
	}
	pid, err = syscall.ForkExec(program, argv, attr)
	policy.Policy = unix.SCHED_NORMAL
	return pid, errors.Join(err, unix.SchedSetAttr(0, &policy, 0))
}

// reap awaits every process that ends, and tells the host when the program did. No process outlives
// the program, because its PID namespace ends with it.
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

// exit tells the host how the program ended, when all that it wrote was given to the ports.
func (m *machine) exit(status unix.WaitStatus) {
	m.streams.Wait()
	exited := protocol.Exited{Status: status.ExitStatus()}
	if status.Signaled() {
		exited.Status = 128 + int(status.Signal())
	}
	_ = m.answer(protocol.Answer{Exited: &exited})
}
