package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/machine"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// pauseAfter is how long a machine that waits for its first call has to be quiet until
// it stands still.
const pauseAfter = 500 * time.Millisecond

// pauser pauses a copy of a machine while it waits for its first call: the timers of an emulated
// kernel alone take a twentieth of a processor. Meanwhile it carries frames to the machine. From
// the first call on it never pauses.
type pauser struct {
	machine *machine.Machine
	// pauses is false if the machine must not be paused.
	pauses bool
	// first, if it is not nil, is called once, before the first call reaches the machine. Its error
	// is sent to failed, which has a buffer.
	first   func() error
	failed  chan error
	written func() int64 // how many bytes the machine has written

	once   sync.Once // of first
	mu     sync.Mutex
	last   time.Time // when a frame went to the machine
	before int64     // written then
	asked  bool      // an answer to a ping is to come
	paused bool
	over   bool // the first call came
}

// carry carries frames up to the first call, and then bytes.
func (p *pauser) carry(to io.Writer, from io.Reader) error {
	quiet := time.AfterFunc(pauseAfter, func() {})
	quiet.Stop()
	quiet = time.AfterFunc(pauseAfter, func() { p.pause(quiet) })
	defer quiet.Stop()
	var header [4]byte
	for !p.isOver() {
		if _, err := io.ReadFull(from, header[:]); err != nil {
			return errors.Join(err, p.resume("", true))
		}
		var request struct {
			Type string `json:"type"`
		}
		request.Type = frame.Execute
		var payload []byte
		var cut error
		if size := binary.BigEndian.Uint32(header[:]); size <= maxQuiet {
			payload = make([]byte, size)
			_, cut = io.ReadFull(from, payload)
			// The agent refuses malformed frames.
			request.Type = ""
			_ = json.Unmarshal(payload, &request)
		}
		over := request.Type != frame.Configure && request.Type != frame.Ping
		if err := errors.Join(cut, p.resume(request.Type, over)); err != nil {
			return err
		}
		if err := p.beforeCall(); err != nil {
			return err
		}
		if _, err := to.Write(append(header[:], payload...)); err != nil {
			return err
		}
		quiet.Reset(pauseAfter)
	}
	_, err := io.Copy(to, from)
	return err
}

// maxQuiet is the size, in bytes, from which a frame counts as a call.
const maxQuiet = 64 << 10

// resume has the machine go on for a frame of a type; over says that it never stands
// still again.
func (p *pauser) resume(kind string, over bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last, p.before, p.over = time.Now(), p.written(), p.over || over
	p.asked = p.asked || kind == frame.Ping
	if !p.paused {
		return nil
	}
	p.paused = false
	return p.machine.Resume()
}

// beforeCall calls first, if a call is next.
func (p *pauser) beforeCall() error {
	if !p.isOver() || p.first == nil {
		return nil
	}
	var err error
	p.once.Do(func() {
		if err = p.first(); err != nil {
			p.failed <- err
		}
	})
	return err
}

func (p *pauser) isOver() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.over
}

// pause pauses the machine if it has answered every request.
func (p *pauser) pause(again *time.Timer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch written := p.written(); {
	case p.over || p.paused || !p.pauses:
	case p.asked && written == p.before, time.Since(p.last) < pauseAfter:
		again.Reset(pauseAfter)
	default:
		p.paused = p.machine.Pause() == nil // otherwise it goes on, which costs time alone
	}
}
