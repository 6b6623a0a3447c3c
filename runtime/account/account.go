// Package account charges principals for the memory and the places that they use in the server.
//
// It promises that everything is charged before it is used, that each principal has a minimum
// which others cannot use up, and that principals take turns if they have to wait. So a flood
// is slow only for its own principal.
package account

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

// Bounds of all principals together, and the minimum of each.
const (
	// Bytes of requests, messages and answers. RequestBytes is charged for the goroutines and
	// buffers of a request until it is answered, even if its client has gone. So the bytes bound
	// the number of requests and calls as well.
	maxBytes     = 120 << 20
	leastBytes   = 1 << 20
	reserveBytes = 32 << 20
	RequestBytes = 32 << 10
	// MaxRequests is how many requests the bytes allow, at most.
	MaxRequests = maxBytes / RequestBytes
	// Files of sandboxes that are read at a time. A file is in memory several times until it
	// is encoded.
	readsAtOnce = 4
)

// Bytes of records that a principal may add to the audit log: recordsBurst at once, and
// recordsPerSecond later.
const (
	recordsBurst     = 4 << 20
	recordsPerSecond = 8 << 10
	// maxRecorders bounds the principals with a remembered rate. One more, and all rates begin
	// again.
	maxRecorders = 4096
)

// Book has the accounts of a server.
type Book struct {
	Bytes   *Pool // of requests, messages and answers
	Streams *Pool // of notifications
	Calls   *Pool // that run or wait, with reads
	Running *Pool // calls that run
	Reads   *Pool // files of sandboxes that are read
	Memory  *Pool // bytes of sandboxes, as their limits say it
	quota   func(principal string) registry.Quota

	mu      sync.Mutex
	records map[string]*rate.Limiter // of the audit log, by principal
}

// NewBook returns the accounts of a server, in which running calls may run at a time.
func NewBook(quota func(principal string) registry.Quota, running int) *Book {
	each := func(of func(registry.Quota) int64) func(string) int64 {
		return func(principal string) int64 { return of(quota(principal)) }
	}
	return &Book{
		Bytes:   NewPool(Terms{Total: maxBytes, Least: leastBytes, Reserve: reserveBytes}),
		Streams: NewPool(Terms{Each: each(func(q registry.Quota) int64 { return int64(q.Streams) })}),
		Calls:   NewPool(Terms{Each: each(func(q registry.Quota) int64 { return int64(q.Calls) })}),
		Running: NewPool(Terms{Total: int64(running), Least: 1}),
		Reads:   NewPool(Terms{Total: readsAtOnce, Least: 1, Each: func(string) int64 { return 1 }}),
		Memory:  NewPool(Terms{Each: each(func(q registry.Quota) int64 { return q.MemoryMB << 20 })}),
		records: map[string]*rate.Limiter{},
		quota:   quota,
	}
}

// Admit charges a principal for a call or a read that runs or waits. The error is a
// [*call.CallsError]. The transport has charged for the request and its message.
func (b *Book) Admit(principal string, _ int) (release func(), err error) {
	release, err = b.Calls.Try(principal, 1)
	var own *QuotaError
	if errors.As(err, &own) {
		return nil, &call.CallsError{Max: int(own.Max)}
	}
	return release, err
}

// Sessions returns how many sessions a principal may have.
func (b *Book) Sessions(principal string) int { return b.quota(principal).Sessions }

// Enter waits until a file may be read for a principal.
func (b *Book) Enter(ctx context.Context, principal string) (leave func(), err error) {
	return b.Reads.Take(ctx, principal, 1)
}

// Record waits until a principal may add so many bytes to the audit log, or until ctx ends. It
// charges for them either way: giving up is not free.
func (b *Book) Record(ctx context.Context, principal string, bytes int) {
	place := b.recorder(principal).ReserveN(time.Now(), bytes)
	if !place.OK() { // more than the burst
		return
	}
	ready := time.NewTimer(place.Delay())
	defer ready.Stop()
	select {
	case <-ready.C:
	case <-ctx.Done():
	}
}

func (b *Book) recorder(principal string) *rate.Limiter {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.records[principal] == nil {
		if len(b.records) >= maxRecorders {
			clear(b.records)
		}
		b.records[principal] = rate.NewLimiter(recordsPerSecond, recordsBurst)
	}
	return b.records[principal]
}

// Executor returns an executor that runs the calls of principals in turns. It charges for a call
// from the start of its sandbox until its answer is encoded, but not while it waits for its session.
func (b *Book) Executor(next call.Executor) call.Executor { return &turns{next, b.Running} }

type turns struct {
	next    call.Executor
	running *Pool
}

func (t *turns) Answer(ctx context.Context, one call.Call) (call.Result, error) {
	if one.Ticket != nil {
		select {
		case <-one.Ticket.Turn:
		case <-ctx.Done():
			return call.Result{}, ctx.Err()
		}
	}
	leave, err := t.running.Take(ctx, one.Principal, 1)
	if err != nil {
		return call.Result{}, err
	}
	isOver := false
	defer func() {
		if !isOver {
			leave() // the executor panicked
		}
	}()
	result, err := t.next.Answer(ctx, one)
	isOver, result.Release = true, leave
	return result, err
}

// Starter returns a starter that charges a principal for the memory limits of its sandboxes,
// until these have ended. It returns a [*call.MemoryError] if the quota is used up.
func (b *Book) Starter(next sandbox.Starter) sandbox.Starter { return &charged{next, b.Memory} }

type charged struct {
	next   sandbox.Starter
	memory *Pool
}

func (c *charged) Start(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	release, err := c.memory.Try(spec.Principal, spec.Limits.Memory)
	var own *QuotaError
	if errors.As(err, &own) {
		return nil, &call.MemoryError{Used: own.Used, Wanted: own.Wanted, Max: own.Max}
	}
	if err != nil {
		return nil, err
	}
	box, err := c.next.Start(ctx, spec)
	if err != nil {
		release()
		return nil, err
	}
	box.OnEnd(release)
	return box, nil
}
