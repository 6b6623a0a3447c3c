// Package account charges principals for what they have the server hold.
//
// It promises that whatever a principal has the server hold is charged to it first, that
// no other principals can use up the least that each may have, and that requests which
// wait are met in turns among principals. So a flood of one is slow for that one.
package account

import (
	"context"
	"errors"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

// What all principals may have together, and the least that each may have beside others.
const (
	// Bytes of requests, messages and answers. A request without a body counts as
	// RequestBytes, which is about what its goroutines and buffers take.
	maxBytes     = 120 << 20
	leastBytes   = 1 << 20
	reserveBytes = 32 << 20
	RequestBytes = 16 << 10
	// Calls and reads of files that run or wait.
	maxCalls     = 1024
	leastCalls   = 4
	reserveCalls = 256
	// Files of sandboxes that are read at a time: one is in memory several times until it
	// has been encoded for the client.
	readsAtOnce = 4
	// Requests that are open. spareRequests is how many a principal may have beside its
	// calls and streams.
	MaxRequests     = 4096
	leastRequests   = 16
	reserveRequests = 1024
	spareRequests   = 32
)

// A record of the audit log is written when its principal may have the bytes: as many as
// recordsBurst at once, and recordsPerSecond later.
const (
	recordsBurst     = 4 << 20
	recordsPerSecond = 8 << 10
	// maxBuckets bounds the principals that the rate is kept of. One that has not called
	// for a time begins anew with the same rights.
	maxBuckets = 4096
)

// Book has the accounts of a server.
type Book struct {
	Bytes    *Pool // of requests, messages and answers
	Requests *Pool // of HTTP that are open
	Streams  *Pool // of notifications
	Calls    *Pool // that run or wait, with reads
	Running  *Pool // calls that run
	Reads    *Pool // files of sandboxes that are read
	Memory   *Pool // bytes of sandboxes, as their limits say it
	Builds   *Pool // environments that are built for calls
	records  *Buckets
	quota    func(principal string) registry.Quota
}

// NewBook returns the accounts of a server whose principals have quotas. Running and builds
// are how many calls may run, and environments be built, at a time.
func NewBook(quota func(principal string) registry.Quota, running, builds int) *Book {
	each := func(of func(registry.Quota) int64) func(string) int64 {
		return func(principal string) int64 { return of(quota(principal)) }
	}
	return &Book{
		Bytes: NewPool(Terms{Total: maxBytes, Least: leastBytes, Reserve: reserveBytes}),
		Requests: NewPool(Terms{Total: MaxRequests, Least: leastRequests, Reserve: reserveRequests, Each: each(func(q registry.Quota) int64 {
			return int64(q.Calls + q.Streams + spareRequests)
		})}),
		Streams: NewPool(Terms{Each: each(func(q registry.Quota) int64 { return int64(q.Streams) })}),
		Calls:   NewPool(Terms{Total: maxCalls, Least: leastCalls, Reserve: reserveCalls, Each: each(func(q registry.Quota) int64 { return int64(q.Calls) })}),
		Running: NewPool(Terms{Total: int64(running), Least: 1}),
		Reads:   NewPool(Terms{Total: readsAtOnce, Least: 1, Each: func(string) int64 { return 1 }}),
		Memory:  NewPool(Terms{Each: each(func(q registry.Quota) int64 { return q.MemoryMB << 20 })}),
		Builds:  NewPool(Terms{Total: int64(builds), Least: 1}),
		records: NewBuckets(recordsPerSecond, recordsBurst, maxBuckets),
		quota:   quota,
	}
}

// Admit charges a principal for a call or a read that runs or waits. The error is a
// [*call.CallsError] or a [*call.BusyError]. What its message takes has been charged by
// the transport.
func (b *Book) Admit(principal string, _ int) (release func(), err error) {
	release, err = b.Calls.Try(principal, 1)
	var own *QuotaError
	if errors.As(err, &own) {
		return nil, &call.CallsError{Max: int(own.Max)}
	}
	if err != nil {
		return nil, &call.BusyError{Calls: maxCalls}
	}
	return release, nil
}

// Sessions returns how many sessions a principal may have.
func (b *Book) Sessions(principal string) int { return b.quota(principal).Sessions }

// Enter waits until a file may be read for a principal.
func (b *Book) Enter(ctx context.Context, principal string) (leave func(), err error) {
	return b.Reads.Take(ctx, principal, 1)
}

// Build waits until an environment may be built for a principal.
func (b *Book) Build(ctx context.Context, principal string) (done func(), err error) {
	return b.Builds.Take(ctx, principal, 1)
}

// Record waits until a principal may add so many bytes to the audit log.
func (b *Book) Record(principal string, bytes int) { b.records.Wait(principal, bytes) }

// Executor returns an executor whose calls take turns: each is charged while it runs, and
// while a sandbox is started for it. A call that waits for others of its session is not.
func (b *Book) Executor(next call.Executor) call.Executor { return &turns{next, b.Running} }

type turns struct {
	next    call.Executor
	running *Pool
}

func (t *turns) Execute(ctx context.Context, one call.Call) (call.Result, error) {
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
	defer leave()
	return t.next.Execute(ctx, one)
}

// Starter returns a starter that charges a principal for the memory of its sandboxes, as
// their limits say it, until nothing is left of them. The error beyond the quota is a
// [*call.MemoryError].
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
