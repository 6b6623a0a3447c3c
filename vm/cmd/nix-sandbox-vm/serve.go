package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/machine"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/snapshot"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// serveProgram is the program that runs in saved and copied machines: its agent speaks frames, and
// has run no code when it reports that its interpreter is loaded.
const serveProgram = "session-run"

// maxFrame bounds the frames of an agent before it is asked to run code, in bytes.
const maxFrame = 4 << 10

// serving is a machine with an agent that speaks frames.
type serving struct {
	*machine.Machine
	// copied says that the machine is a copy, so that its agent was ready before; resumed says that
	// code has run in it.
	copied, resumed bool
	// projectChanged says that the project is not the one that a resumed machine shows.
	projectChanged bool
}

// began says how the machine began, or "" if it was resumed.
func (s *serving) began() string {
	switch {
	case s.resumed:
		return ""
	case s.copied:
		return "copy"
	}
	return "cold"
}

// startServing starts a machine with an agent, as a copy of a saved one if possible; it may save
// that first. Problems with snapshots cost time and nothing else. If capturable is set, the server
// can have the machine saved.
func startServing(spec *machine.Spec, memory machine.Memory, cache string, capturable bool) (*serving, error) {
	accelerator := machine.Expect(memory)
	key, err := spec.Key(accelerator)
	if err != nil || cache == "" || !memory.IsKnown() || os.Getenv(snapshotsVariable) == "0" {
		return cold(spec, memory, capturable)
	}
	store := snapshot.Store{Folder: filepath.Join(cache, "snapshots")}
	if copied, found := copyOf(spec, accelerator, store, key); found {
		return copied, nil
	}
	switch err := store.Make(key, int64(spec.MemoryMB)<<20, func(ram, state *os.File) error {
		return save(spec, accelerator, ram, state)
	}); {
	case errors.Is(err, snapshot.ErrBusy):
	case err != nil:
		fmt.Fprintf(os.Stderr, "nix-sandbox-vm: warning: no machine was saved to copy: %v\n", err)
	default:
		if copied, found := copyOf(spec, accelerator, store, key); found {
			return copied, nil
		}
	}
	return cold(spec, memory, capturable)
}

// snapshotsVariable disables snapshots if it is 0.
const snapshotsVariable = "NIX_SANDBOX_VM_SNAPSHOTS"

func cold(spec *machine.Spec, memory machine.Memory, capturable bool) (*serving, error) {
	m, err := spec.Start(memory, capturable)
	if err != nil {
		return nil, err
	}
	if err := m.Run(serveProgram, true, time.Now()); err != nil {
		m.Close()
		return nil, err
	}
	return &serving{Machine: m}, nil
}

// copyOf starts a copy of the machine with a key. It deletes a snapshot if no copy of it comes up.
func copyOf(spec *machine.Spec, accelerator machine.Accelerator, store snapshot.Store, key string) (_ *serving, found bool) {
	saved, found := store.Open(key)
	if !found {
		return nil, false
	}
	defer saved.Close()
	m, err := spec.Begin(accelerator, machine.Origin{Memory: saved.Memory, State: saved.State})
	if err == nil {
		s := &serving{Machine: m, copied: true}
		if err = m.Thaw(time.Now()); err == nil {
			err = s.reseed()
		}
		if err == nil {
			return s, true
		}
		m.Close()
	}
	store.Discard(key)
	fmt.Fprintf(os.Stderr, "nix-sandbox-vm: warning: a copy of a saved machine does not start: %v\n", err)
	return nil, false
}

// wake starts the machine that was saved in a folder. It has the project as it was.
func wake(spec *machine.Spec, memory machine.Memory, folder string, project *machine.Project) (*serving, error) {
	saved, err := snapshot.OpenFolder(folder)
	if err != nil {
		return nil, fmt.Errorf("the saved session cannot be used: %w", err)
	}
	defer saved.Close()
	changed := false
	if project != nil && saved.Project != nil {
		changed = project.Use(saved.Project, saved.Meta.Project, saved.ProjectDigest)
		saved.Project = nil
	}
	accelerator := machine.Accelerator(saved.Accelerator)
	if known, found := memory.Recall(); accelerator == machine.Hardware && found && !known.Works {
		return nil, &jail.Refusal{
			Problem: "the session was saved in a virtual machine with " + string(accelerator) + ", which does not work any more: " + known.Problem,
			Hint:    "have it work again, or begin the session anew",
		}
	}
	key, err := spec.Key(accelerator)
	if err != nil {
		return nil, err
	}
	if key != saved.Key {
		return nil, &jail.Refusal{
			Problem: "the session was saved by another build of its environment, with or without a project, or on another processor or kernel of the host",
			Hint:    "begin it anew",
		}
	}
	m, err := spec.Begin(accelerator, machine.Origin{Memory: saved.Memory, State: saved.State, Captured: true})
	if err != nil {
		return nil, err
	}
	s := &serving{Machine: m, copied: true, resumed: true, projectChanged: changed}
	if err := s.goOn(saved.Branch || saved.Again); err != nil {
		m.Close()
		return nil, err
	}
	return s, nil
}

// goOn continues a machine that code has run in. If another one has continued from the same moment,
// this one gets different random numbers. Until that is done its clock is in the past, for the reason
// that [past] gives; other processes in it can see that.
func (s *serving) goOn(again bool) error {
	if !again {
		return s.Thaw(time.Now())
	}
	if err := s.Thaw(past); err != nil {
		return err
	}
	if err := s.reseed(); err != nil {
		return err
	}
	return s.SetClock()
}

// past is the time in a machine that is saved. Programs that have random numbers of
// their own, such as OpenSSL, take a new seed when their time has changed by much.
var past = time.Unix(1_000_000_000, 0)

// save starts a machine, waits until its interpreter has loaded, and saves it.
func save(spec *machine.Spec, accelerator machine.Accelerator, ram, state *os.File) error {
	m, err := spec.Begin(accelerator, machine.Origin{Memory: ram, Shared: true})
	if err != nil {
		return err
	}
	defer m.Close()
	if err := m.Run(serveProgram, true, past); err != nil {
		return err
	}
	s := &serving{Machine: m}
	go func() { _, _ = io.Copy(os.Stderr, m.Log) }()
	if err := s.request(frame.Ready, frame.Request{}); err != nil {
		return err
	}
	if err := s.request(frame.Pong, frame.Request{Type: frame.Ping, ID: 1}); err != nil {
		return err
	}
	return m.Save(state)
}

// reseed gives the interpreter of a copy random numbers of its own.
func (s *serving) reseed() error {
	return s.request(frame.Reseeded, frame.Request{Type: frame.Reseed, ID: 1})
}

// request sends a request to the agent, unless its type is empty, and waits for an answer of the given
// type. The agent gets no other request meanwhile.
func (s *serving) request(answer string, request frame.Request) error {
	deadline := time.Now().Add(machine.LoadLimit)
	_ = s.Input.SetDeadline(deadline)
	_ = s.Output.SetDeadline(deadline)
	defer s.Input.SetDeadline(time.Time{})
	defer s.Output.SetDeadline(time.Time{})
	if request.Type != "" {
		if err := frame.NewWriter(s.Input).Write(request); err != nil {
			return err
		}
	}
	frames := frame.NewReader(s.Output)
	frames.Limit(maxFrame)
	var reply frame.Reply
	switch err := frames.Read(&reply); {
	case err != nil:
		return fmt.Errorf("the agent in the machine: %w", err)
	case reply.Type != answer:
		return fmt.Errorf("the agent in the machine answers %.20q and not %s: %.200q", reply.Type, answer, strings.TrimSpace(reply.Message))
	}
	return nil
}

// serve carries frames until the agent has ended, or until the machine was saved. The project
// may be nil.
func serve(spec *machine.Spec, s *serving, control *os.File, project *machine.Project) (status int, err error) {
	if s.copied {
		if err := frame.NewWriter(os.Stdout).Write(frame.Reply{Type: frame.Ready, Protocol: frame.Protocol}); err != nil {
			return 0, nil // the server has gone
		}
	}
	carried := newStreams(s.Machine)
	var quiet *pauser
	if !s.resumed && (s.copied || project != nil) {
		quiet = &pauser{machine: s.Machine, pauses: s.copied, written: carried.written, failed: make(chan error, 1)}
		if project != nil {
			quiet.first = func() error { return project.Show(s.Machine) }
		}
	}
	saved := make(chan struct{})
	if control != nil {
		c := &controller{serving: s, pauser: quiet, project: project, spec: spec, saved: saved}
		go c.follow(control)
	}
	return carried.carry(quiet, saved)
}
