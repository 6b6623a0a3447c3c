package server

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// Bounds of the executor's queue.
const (
	maxWaiting = 1024     // requests
	maxCode    = 64 << 20 // bytes of code in them, and of what they are given
)

// task is one entry of the queue: a call, or another request.
type task struct {
	call    *call
	request frame.Request
}

type call struct {
	frame.Request
	running bool
	cancel  chan struct{} // closed by an interrupt
}

// size is how many bytes wait with the call.
func (c *call) size() int {
	size := len(c.Code)
	if c.Given == nil {
		return size
	}
	size += len(c.Given.Stdin)
	for _, value := range c.Given.Variables {
		size += len(value)
	}
	for _, contents := range c.Given.Files {
		size += len(contents)
	}
	return size
}

// requests reads until the stream ends.
func (s *Server) requests(in io.Reader) error {
	r := frame.NewReader(bufio.NewReader(in))
	for {
		var req frame.Request
		if err := r.Read(&req); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) {
				return nil
			}
			return err
		}
		if err := s.request(req); err != nil {
			return err
		}
	}
}

// request answers or queues one request. The error is from the stream.
func (s *Server) request(req frame.Request) error {
	var refusal error
	switch req.Type {
	case frame.Execute:
		refusal = s.enqueue(&call{Request: req})
	case frame.Configure, frame.Grow, frame.Reseed, frame.Save, frame.Restore:
		refusal = s.queueTask(task{request: req})
	case frame.Interrupt:
		return s.interrupt(req.ID)
	case frame.Called:
		s.asking.Take(req)
	case frame.Ping:
		return s.pings.add(req.ID)
	case frame.Read:
		contents, size, err := s.root.Read(req.Path, req.Offset, req.Length)
		if err == nil {
			return s.out.Write(frame.Reply{Type: frame.Contents, ID: req.ID, Contents: contents, Size: size})
		}
		refusal = err
	case frame.Open, frame.Input, frame.Resize, frame.Signal, frame.Credit, frame.Close, frame.Look, frame.Examine:
		return s.answerBeside(req)
	default:
		refusal = fmt.Errorf("unknown request %q", req.Type)
	}
	if refusal == nil {
		return nil
	}
	return s.out.Write(frame.Reply{Type: frame.Error, ID: req.ID, Message: refusal.Error(), Missing: errors.Is(refusal, unix.ENOENT)})
}

// queueTask hands a task to the executor, if there is a free slot.
func (s *Server) queueTask(t task) error {
	select {
	case s.queue <- t:
		return nil
	default:
		return fmt.Errorf("%d requests wait already", maxWaiting)
	}
}

func (s *Server) enqueue(c *call) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.calls[c.ID]; ok {
		return fmt.Errorf("call %d is known already", c.ID)
	}
	if s.code+c.size() > maxCode {
		return fmt.Errorf("%d MiB of code wait already", maxCode>>20)
	}
	c.cancel = make(chan struct{})
	if err := s.queueTask(task{call: c}); err != nil {
		return err
	}
	s.calls[c.ID] = c
	s.code += c.size()
	return nil
}

// interrupt cancels a call. A waiting call is answered now and never runs. An unknown call
// has been answered before.
func (s *Server) interrupt(id uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.calls[id]
	if !ok {
		return nil
	}
	if c.running {
		select {
		case <-c.cancel:
		default:
			close(c.cancel)
		}
		return nil
	}
	delete(s.calls, id)
	s.code -= c.size()
	c.Code, c.Given = "", nil
	result := frame.Reply{Type: frame.Result, ID: id, Outcome: frame.OutcomeCancelled, ExitCode: 130}
	if c.Keep {
		result.State = frame.StateKept
	}
	return s.out.Write(result)
}

// take marks a call as running. It reports false if the call was cancelled.
func (s *Server) take(c *call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls[c.ID] != c {
		return false
	}
	c.running = true
	s.code -= c.size()
	s.asking.Begin(c.ID)
	return true
}

// answer sends a call's last frames and forgets the call.
func (s *Server) answer(c *call, replies []any) error {
	s.mu.Lock()
	if s.calls[c.ID] == c {
		delete(s.calls, c.ID)
	}
	s.mu.Unlock()
	s.asking.End(c.ID)
	return s.out.Write(replies...)
}
