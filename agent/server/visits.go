package server

import (
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/interactive"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/workspace"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

const (
	// maxNamed bounds the files that an answer to look names, and maxName each path, in bytes.
	maxNamed = 16
	maxName  = 1 << 10
)

// beside answers requests about the sandbox rather than its calls.
func (s *Server) answerBeside(req frame.Request) error {
	switch req.Type {
	case frame.Look:
		go func() { // other requests do not wait for it
			s.looks <- struct{}{}
			defer func() { <-s.looks }()
			_ = s.out.Write(look(req.ID, &s.look))
		}()
		return nil
	case frame.Examine:
		reply := frame.Reply{Type: frame.Examined, ID: req.ID, Ports: interactive.Ports()}
		if s.keeper != nil {
			usage, err := s.keeper.Usage()
			if err != nil {
				s.logf("%v", err)
			}
			reply.Size = usage.Memory()
		}
		return s.out.Write(reply)
	}
	if req.Type == frame.Open && req.Port == 0 {
		s.asking.Begin(req.ID)
		if req.Program != nil || req.Terminal != nil {
			s.beginProgram(req.ID)
		}
	}
	if err := s.visits.Request(req); err != nil {
		s.endStream(req.ID)
		return s.out.Write(frame.Reply{Type: frame.Error, ID: req.ID, Message: err.Error()})
	}
	return nil
}

// visited sends frames of streams.
func (s *Server) visited(replies ...any) error {
	for _, one := range replies {
		if reply, is := one.(frame.Reply); is && reply.Type == frame.Closed {
			s.endStream(reply.ID)
		}
	}
	return s.out.Write(replies...)
}

// beginProgram notes that a program begins beside the calls.
func (s *Server) beginProgram(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, twice := s.programs[id]; !twice {
		s.programs[id], s.beside = struct{}{}, true
		s.work(1)
	}
}

// endStream notes the end of a stream.
func (s *Server) endStream(id uint64) {
	s.asking.End(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, is := s.programs[id]; is {
		delete(s.programs, id)
		s.work(-1)
	}
}

// work notes how many calls and programs more run. The caller has the lock.
func (s *Server) work(more int) {
	s.working += more
	if s.keeper != nil {
		s.keeper.Busy(s.working > 0)
	}
}

// look names the files that have changed since the last look.
func look(id uint64, l *workspace.Look) frame.Reply {
	paths, err := l.Changes()
	if err != nil {
		return frame.Reply{Type: frame.Error, ID: id, Message: err.Error()}
	}
	reply := frame.Reply{Type: frame.Looked, ID: id, Size: int64(len(paths))}
	for _, path := range paths {
		if len(reply.Files) < maxNamed && len(path) <= maxName {
			reply.Files = append(reply.Files, frame.File{Path: path})
		}
	}
	return reply
}
