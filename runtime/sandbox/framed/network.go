package framed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/guard"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/event"
)

const (
	// pipeBytes is the capacity of a pipe (pipe(7)), and so bounds the events that a call reads
	// when it ends: its own have been written by then.
	pipeBytes = 64 << 10
	// maxHosts bounds the connections of a sandbox about which a user is asked at a time.
	maxHosts = 64
	// maxEventLines is how many lines of one sandbox's events reach the log in
	// a minute.
	maxEventLines = 600
)

// network follows the events of a sandbox's proxy. They go to the log, and those during a call also
// into its result. A broken stream costs only the events. A nil network has no events.
type network struct {
	log    *slog.Logger
	events *os.File // the read end of a pipe

	mu     sync.Mutex
	calls  int                                      // that run
	asking int                                      // connections that a user is asked about
	host   func(name string, port int) event.Reason // asks about one for the newest call; nil refuses
	call   *sandbox.Network                         // what came while a call ran; nil while none does
	line   []byte                                   // that has no end yet, at most event.MaxLine bytes
	over   bool                                     // nothing is read any more
	ended  bool                                     // the proxy ended
	why    string                                   // it ended; empty if that is not known
	before int64                                    // events since the start that no call has seen
	lines  int                                      // logged since window
	left   int64                                    // lines left out since window
	window time.Time
}

// follow reads events until their stream ends or [network.stop] is called.
// done is closed when the sandbox ended.
func (n *network) follow(done <-chan struct{}) {
	defer n.events.Close()
	raw, err := n.events.SyscallConn()
	if err != nil {
		return // the file is closed
	}
	// Between two reads the lock is free for a call that ends, and the deadline
	// counts, even if there is always more to read.
	for err == nil && !n.isOver() {
		err = raw.Read(func(fd uintptr) bool { return n.take(int(fd)) || n.isOver() })
	}
	n.mu.Lock()
	ended, why := n.ended, n.why
	n.reportLeftOut()
	n.mu.Unlock()
	if !ended {
		return
	}
	// A proxy ends with its sandbox, and that is no news.
	select {
	case <-done:
	case <-time.After(lastBytesTimeout):
		n.log.Warn("network ended", "problem", why)
	}
}

// stop ends follow when the stream ends, at most after within.
func (n *network) stop(within time.Duration) {
	if n != nil {
		n.events.SetReadDeadline(time.Now().Add(within))
	}
}

func (n *network) isOver() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.over
}

// idle reports whether the proxy runs and code has not used it before any call.
func (n *network) idle() bool {
	if n == nil {
		return true
	}
	n.drain()
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.over && n.before == 0
}

// begin assigns the following events to a call, which host asks the user for until ctx ends.
func (n *network) begin(ctx context.Context, host func(ctx context.Context, name string, port int) event.Reason) {
	if n == nil {
		return
	}
	n.drain()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.calls++; n.calls == 1 {
		n.call = &sandbox.Network{}
	}
	if host != nil {
		n.host = func(name string, port int) event.Reason { return host(ctx, name, port) }
	}
}

// ask answers a question of the proxy. It does not wait.
func (n *network) ask(e event.Event) {
	answer := func(refused event.Reason) {
		text, _ := json.Marshal(event.Answer{Ask: e.Ask, Refused: refused}) // a number and a word
		raw, err := n.events.SyscallConn()
		if err == nil {
			// A proxy that does not read refuses nothing else than its own sandbox.
			_ = raw.Control(func(fd uintptr) { _, err = unix.Write(int(fd), text) })
		}
		if err != nil {
			n.log.Warn("the network did not take an answer", "error", err)
		}
	}
	host := n.host
	if host == nil || n.asking == maxHosts {
		answer(event.ByNobody)
		return
	}
	n.asking++
	go func() {
		by := event.ByNobody
		_ = guard.Run(func() { by = host(e.Name, int(e.Port)) }) // is logged
		answer(by)
		n.mu.Lock()
		defer n.mu.Unlock()
		n.asking--
	}()
}

// end returns the events since begin, or nil if there were none. The proxy writes an event before
// the code sees its effect, so a call's events are in the pipe when its result arrives.
func (n *network) end() *sandbox.Network {
	if n == nil {
		return nil
	}
	n.drain()
	n.mu.Lock()
	defer n.mu.Unlock()
	result := *n.call
	result.Refused, result.Failed, result.Reached = slices.Clone(result.Refused), slices.Clone(result.Failed), slices.Clone(result.Reached)
	result.Ended, result.Problem = n.ended, n.why
	if n.calls--; n.calls == 0 {
		n.call, n.host = nil, nil
	}
	if result.Empty() {
		return nil
	}
	return &result
}

// drain reads the pipe until it is empty, without waiting.
func (n *network) drain() {
	raw, err := n.events.SyscallConn()
	if err != nil {
		return
	}
	// Read would wait for follow, which waits in it.
	_ = raw.Control(func(fd uintptr) { n.take(int(fd)) })
}

// take reads at most pipeBytes, without waiting, and reports whether there may
// be more.
func (n *network) take(fd int) (more bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var buffer [event.MaxLine]byte
	for taken := 0; taken < pipeBytes; {
		if n.over {
			return false
		}
		count, err := unix.Read(fd, buffer[:])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return false
		case err != nil || count <= 0:
			n.over, n.ended = true, true
			return false
		}
		taken += count
		n.split(buffer[:count])
	}
	return true
}

// split takes bytes of the stream. A line that makes no sense ends it.
func (n *network) split(data []byte) {
	for len(data) > 0 && !n.over {
		end := bytes.IndexByte(data, '\n')
		whole := end >= 0
		if !whole {
			end = len(data) - 1
		}
		n.line = append(n.line, data[:end+1]...)
		data = data[end+1:]
		if !whole && len(n.line) < event.MaxLine {
			return
		}
		e, err := event.Parse(n.line)
		n.line = n.line[:0]
		if err != nil {
			n.over = true
			n.log.Warn("the network's events are not read any more", "problem", err)
			return
		}
		n.add(e)
	}
}

func (n *network) add(e event.Event) {
	about := []any{"name", e.Name, "port", e.Port}
	switch e.Kind {
	case event.Refused:
		if e.Name == "" && e.Address.IsValid() {
			about[0], about[1] = "address", e.Address
		}
		about = append(about, "reason", e.Reason, "option", e.Option, "value", e.Value, "count", e.Count)
		if e.Detail != "" {
			about = append(about, "detail", e.Detail)
		}
		n.write(slog.LevelWarn, "network refused", about...)
	case event.Failed:
		n.write(slog.LevelInfo, "network failed", append(about, "problem", e.Problem, "count", e.Count)...)
	case event.Closed:
		n.write(slog.LevelInfo, "network connection", append(about, "address", e.Address, "up", e.Up, "down", e.Down, "ms", e.Milliseconds)...)
	case event.Dropped:
		n.write(slog.LevelWarn, "network events lost", "count", e.Count)
	case event.Ended:
		n.why = e.Problem
		return
	case event.Asked:
		n.ask(e)
		return
	default: // of a later version
		return
	}
	if n.call == nil {
		n.before++
		return
	}
	c := n.call
	switch e.Kind {
	case event.Refused:
		merge(c, &c.Refused, e.Count, sandbox.Refusal{Name: e.Name, Address: e.Address, Port: int(e.Port), Reason: e.Reason, Option: e.Option, Value: e.Value, Detail: e.Detail},
			func(r *sandbox.Refusal) *int64 { return &r.Count })
	case event.Failed:
		merge(c, &c.Failed, e.Count, sandbox.Failure{Name: e.Name, Port: int(e.Port), Problem: e.Problem},
			func(f *sandbox.Failure) *int64 { return &f.Count })
	case event.Closed:
		i := slices.IndexFunc(c.Reached, func(r sandbox.Reached) bool { return r.Name == e.Name && r.Port == int(e.Port) })
		if i < 0 && len(c.Reached) == sandbox.MaxNetwork {
			c.Omitted++
			return
		}
		if i < 0 {
			i = len(c.Reached)
			c.Reached = append(c.Reached, sandbox.Reached{Name: e.Name, Port: int(e.Port)})
		}
		c.Reached[i].Count++
		c.Reached[i].Up += e.Up
		c.Reached[i].Down += e.Down
	case event.Dropped:
		c.Omitted += e.Count
	}
}

// merge counts an entry that is there already, or adds it if the list is not full.
// The entry's own count is 0.
func merge[T comparable](call *sandbox.Network, list *[]T, count int64, entry T, counter func(*T) *int64) {
	for i := range *list {
		same := (*list)[i]
		*counter(&same) = 0
		if same == entry {
			*counter(&(*list)[i]) += count
			return
		}
	}
	if len(*list) == sandbox.MaxNetwork {
		call.Omitted += count
		return
	}
	*counter(&entry) = count
	*list = append(*list, entry)
}

// write logs a line, unless there were too many in the last minute.
func (n *network) write(level slog.Level, message string, attributes ...any) {
	if now := time.Now(); now.Sub(n.window) >= time.Minute {
		n.reportLeftOut()
		n.window, n.lines = now, 0
	}
	if n.lines == maxEventLines {
		n.left++
		return
	}
	n.lines++
	n.log.Log(context.Background(), level, message, attributes...)
}

// reportLeftOut logs how many lines were left out.
func (n *network) reportLeftOut() {
	if n.left > 0 {
		n.log.Warn("network lines left out", "lines", n.left, "allowed_a_minute", maxEventLines)
		n.left = 0
	}
}
