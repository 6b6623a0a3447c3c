package service

import (
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/guard"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/rpc"
)

const (
	// manyCalls is how many calls have to run at once for more than one processor to be worth it.
	manyCalls = 3
	// fewTime is how long fewer run before one processor is enough again.
	fewTime = time.Second
)

// processors is an [rpc.Admission] that has Go use one processor while few calls run. A small call is a chain of
// goroutines, each of which wakes the next: on one processor that runs at once, on several a system call
// wakes a thread for it. That was a fifth of the server's time for a call of a session. A GOMAXPROCS of the
// operator's stays as it is.
type processors struct {
	rpc.Admission

	mu    sync.Mutex
	calls int
	many  bool
	lower *time.Timer
}

func newProcessors(admission rpc.Admission) rpc.Admission {
	if os.Getenv("GOMAXPROCS") != "" {
		return admission
	}
	p := &processors{Admission: admission}
	p.lower = time.AfterFunc(0, p.settle)
	return p
}

// Admit implements [rpc.Admission].
func (p *processors) Admit(principal string, bytes int) (release func(), _ error) {
	admitted, err := p.Admission.Admit(principal, bytes)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.calls++; p.calls >= manyCalls {
		p.lower.Stop()
		if !p.many {
			p.many = true
			runtime.SetDefaultGOMAXPROCS()
		}
	}
	return func() {
		admitted()
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.calls--; p.calls == manyCalls-1 {
			p.lower.Reset(fewTime)
		}
	}, nil
}

// settle has one processor used, unless many calls run.
func (p *processors) settle() {
	defer guard.Recover(nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.calls < manyCalls {
		p.many = false
		runtime.GOMAXPROCS(1)
	}
}
