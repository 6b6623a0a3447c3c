// Package watch keeps what the user's commands show of a server: how many calls it had, and which
// run. Its answer is a snapshot of package status of the gateway, for one client and without the
// audit log; that package has more for many clients.
package watch

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/tool"
)

// Bounds of what is kept: names and reasons in bytes, and principals, calls that run and ended ones.
const (
	maxName       = 128
	maxReason     = 512
	maxPrincipals = 200
	maxRunning    = 200
	maxRecent     = 100
	maxRemarks    = 16
)

// Call is a running call, or one that has ended.
type Call struct {
	Number    uint64        `json:"number"`
	Principal string        `json:"principal,omitempty"`
	Env       string        `json:"env"`
	Session   string        `json:"session,omitempty"`
	Began     time.Time     `json:"began"`
	Outcome   string        `json:"outcome,omitempty"` // "failed" if the code ended with an error
	Reason    string        `json:"reason,omitempty"`
	ExitCode  int           `json:"exit_code"`
	Took      time.Duration `json:"took"` // nanoseconds
	// Remarks are what the server told the model about the call, and Waits is what a running call
	// waits for, or "" while its code runs.
	Remarks []string `json:"remarks,omitempty"`
	Waits   string   `json:"waits,omitempty"`

	progress *sandbox.Progress // of a running call
}

// Principal counts the calls of a principal since the server started.
type Principal struct {
	Name     string  `json:"name"`
	Running  int     `json:"running"`
	Calls    uint64  `json:"calls"`
	Refused  uint64  `json:"refused"`
	Failed   uint64  `json:"failed"` // neither ok nor refused
	Seconds  float64 `json:"seconds"`
	Sessions int     `json:"sessions"`
	MemoryMB int64   `json:"memory_mb"` // the limits of its sandboxes
}

// Calls is an observer of calls.
type Calls struct {
	mu         sync.Mutex
	next       uint64
	running    map[uint64]Call
	recent     []Call // the newest is the last
	principals map[string]*Principal
}

// New returns a Calls that has seen none.
func New() *Calls {
	return &Calls{running: map[uint64]Call{}, principals: map[string]*Principal{}}
}

// Begin implements [call.Observer].
func (w *Calls) Begin(c call.Call) (end func(call.Result, error)) {
	one := Call{
		Principal: bounded.Head(c.Principal, maxName), Env: bounded.Head(c.Env.Name, maxName),
		Session: bounded.Head(c.Session, maxName), Began: time.Now(), progress: c.Progress,
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next++
	one.Number = w.next
	w.running[one.Number] = one
	w.principal(one.Principal).Running++
	return func(result call.Result, err error) { w.end(one, result, err) }
}

func (w *Calls) end(one Call, result call.Result, err error) {
	one.Outcome, one.ExitCode, one.Took = call.Outcome(result, err), result.ExitCode, time.Since(one.Began)
	if one.Outcome == frame.OutcomeOK && one.ExitCode != 0 {
		one.Outcome = "failed"
	}
	one.progress = nil
	if err != nil && call.DiedDuring(err) == nil {
		one.Reason = bounded.Head(tool.Sentence(err), maxReason)
	}
	for _, remark := range result.Remarks[:min(len(result.Remarks), maxRemarks)] {
		one.Remarks = append(one.Remarks, bounded.Head(strings.TrimSuffix(strings.TrimPrefix(remark, "["), "]"), maxReason))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.running, one.Number)
	p := w.principal(one.Principal)
	p.Running--
	p.Calls++
	p.Seconds += one.Took.Seconds()
	switch one.Outcome {
	case frame.OutcomeOK:
	case "refused":
		p.Refused++
	default:
		p.Failed++
	}
	w.recent = append(w.recent, one)
	w.recent = w.recent[max(0, len(w.recent)-maxRecent):]
}

// principal returns the counts of a principal; mu is locked.
func (w *Calls) principal(name string) *Principal {
	if w.principals[name] == nil && len(w.principals) >= maxPrincipals {
		name = "(others)"
	}
	if w.principals[name] == nil {
		w.principals[name] = &Principal{Name: name}
	}
	return w.principals[name]
}

// Now returns the counts of every principal, the calls that run, the oldest first, and the ones
// that have ended, the newest first.
func (w *Calls) Now() (principals []Principal, running, recent []Call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.principals {
		principals = append(principals, *p)
	}
	for _, one := range w.running {
		one.Took, one.Waits = time.Since(one.Began), one.progress.Waits()
		running = append(running, one)
	}
	slices.SortFunc(running, func(a, b Call) int { return int(a.Number) - int(b.Number) })
	recent = slices.Clone(w.recent)
	slices.Reverse(recent)
	return principals, running[:min(len(running), maxRunning)], recent
}
