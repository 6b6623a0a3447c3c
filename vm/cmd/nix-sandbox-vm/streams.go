package main

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/machine"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/protocol"
)

// streams carries the standard streams of the program in a machine.
type streams struct {
	machine *machine.Machine
	output  *copier // of the standard output
	log     *copier // of the standard error
}

func newStreams(m *machine.Machine) *streams {
	return &streams{
		machine: m,
		output:  &copier{to: os.Stdout, from: m.Output},
		log:     &copier{to: os.Stderr, from: m.Log},
	}
}

// written is how much of the output has come, in bytes.
func (s *streams) written() int64 { return s.output.read.Load() }

// carry carries the streams until the program in the machine has ended, and returns its
// exit status, or until saved is closed. With quiet, the machine stands still until its
// first call.
func (s *streams) carry(quiet *pauser, saved <-chan struct{}) (status int, err error) {
	go func() {
		if quiet != nil {
			_ = quiet.carry(s.machine.Input, os.Stdin)
		} else {
			_, _ = io.Copy(s.machine.Input, os.Stdin)
		}
		_ = s.machine.Input.CloseWrite() // the machine may have ended
	}()
	var copies sync.WaitGroup
	copies.Go(s.output.copy)
	copies.Go(s.log.copy)
	var (
		exited protocol.Exited
		failed chan error
	)
	if quiet != nil {
		failed = quiet.failed
	}
	select {
	case err := <-failed:
		return 0, err
	case <-saved:
		return 0, nil
	case exited = <-s.machine.Exited:
	case <-s.machine.Ended:
		// The last lines of the machine's own may be there.
		select {
		case exited = <-s.machine.Exited:
		default:
			return 0, s.machine.Failure()
		}
	}
	// The mark is random and comes last, so no output of the program can be mistaken for it.
	mark := make([]byte, 16)
	rand.Read(mark)
	s.output.finish(mark)
	s.log.finish(mark)
	finished := make(chan error, 1)
	go func() {
		err := s.machine.Finish(mark)
		copies.Wait() // their streams end with the machine too
		finished <- err
	}()
	select {
	case err := <-finished:
		if err != nil {
			return 0, fmt.Errorf("carry the last that the program in the virtual machine wrote: %w", err)
		}
	case <-saved: // after its end
	}
	return exited.Status & 0xff, nil
}

// copier copies a stream of a machine.
type copier struct {
	to   *os.File
	from *net.UnixConn

	read atomic.Int64           // bytes
	mark atomic.Pointer[[]byte] // the end of the stream; nil before finish
	held []byte                 // the newest bytes, which may be of the mark
}

// finish announces that the stream will end with a mark, which has not been sent yet. Copy returns
// when the mark has come.
func (c *copier) finish(mark []byte) { c.mark.Store(&mark) }

// copy copies until the stream ends.
func (c *copier) copy() {
	buffer := make([]byte, 64<<10)
	for {
		n, err := c.from.Read(buffer)
		c.read.Add(int64(n))
		text, over := c.split(buffer[:n])
		if _, failed := c.to.Write(text); failed != nil || over || err != nil {
			return
		}
	}
}

// split returns the part of the stream to write after a read, and reports whether the mark has
// come.
func (c *copier) split(text []byte) (_ []byte, over bool) {
	mark := c.mark.Load()
	if mark == nil {
		return text, false
	}
	c.held = append(c.held, text...)
	text, over = bytes.CutSuffix(c.held, *mark)
	if over {
		return text, true
	}
	kept := min(len(c.held), len(*mark)-1)
	text = c.held[:len(c.held)-kept]
	c.held = bytes.Clone(c.held[len(text):])
	return text, false
}
