// Package builder runs Nix for a server that serves: it builds the environments of the server's configuration, of
// references and of a project when the server starts (start.go), and the orders of calls (package wire/order). The
// server itself calls no Nix.
//
// Orders wait in one queue, in which principals take turns. Two orders of the same thing are one build.
package builder

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/order"
)

const (
	// maxWaiting bounds the orders that wait, and maxEach those of a principal.
	maxWaiting = 1024
	maxEach    = 64
	// maxConnections bounds the orders that are read or reported on at a time: several may be of one build.
	maxConnections = 4096
	// ioTimeout bounds the reading of an order and the writing of a report.
	ioTimeout = 10 * time.Second
)

// Builder builds orders.
type Builder struct {
	nix  *Nix
	made *results
	// again has the environments of the start built again. It does not wait.
	again func()
	// evaluate and private are for flakes.
	evaluate []string
	private  string

	probing  sync.Mutex
	isClosed bool // Nix builds in a sandbox of its own

	mu       sync.Mutex
	jobs     map[string]*job            // that wait or run, by the key of their result
	waiting  []*job                     // in the order in which they came
	building int                        // jobs that run
	telling  int                        // jobs that run and are of facts, which are not among these
	facts    map[string]json.RawMessage // by key
	bounds   order.Bounds
	served   map[string]uint64 // when the last job of each waiting principal began, as a count
	count    uint64
	all      sync.WaitGroup // of the jobs
}

// job is a build, or one that waits for its turn.
type job struct {
	order   order.Order
	begun   bool
	wanted  int // connections
	report  order.Report
	changed chan struct{} // closed with the next report
}

// New returns a builder with its results in a folder.
func New(nix *Nix, folder string, again func()) *Builder {
	return &Builder{nix: nix, made: &results{folder}, again: again, jobs: map[string]*job{}, served: map[string]uint64{}, facts: map[string]json.RawMessage{}}
}

// Serve answers the connections of a listener, until it is closed or ctx ends, and then waits for the end of
// its builds.
func (b *Builder) Serve(ctx context.Context, listener net.Listener) error {
	defer b.all.Wait()
	defer context.AfterFunc(ctx, func() { listener.Close() })()
	places := make(chan struct{}, maxConnections)
	for {
		conn, err := listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case err != nil: // too many files are open
			time.Sleep(10 * time.Millisecond)
			continue
		}
		select {
		case places <- struct{}{}:
			go func() {
				defer func() { <-places }()
				defer conn.Close()
				b.answer(ctx, conn)
			}()
		default:
			conn.Close()
		}
	}
}

// answer reads an order, and reports on it until it is over or the connection ends.
func (b *Builder) answer(ctx context.Context, conn net.Conn) {
	_ = conn.SetReadDeadline(time.Now().Add(ioTimeout))
	in := bufio.NewReaderSize(conn, order.MaxLine)
	line, err := in.ReadSlice('\n')
	var o order.Order
	if err != nil || json.Unmarshal(line, &o) != nil {
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	switch o.Kind {
	case order.Again:
		b.again()
	case order.Expire:
		b.made.expire(o.Bounds)
	case order.Environment, order.Addition, order.Facts, order.Flake:
		if o.Kind != order.Environment {
			o.Key = digest(strings.Join(append([]string{string(o.Kind), b.nix.Start, o.Want, o.Attribute, o.Digest}, o.Packages...), "\x00"))
		}
		b.report(ctx, conn, in, o)
		return
	default:
		_ = write(conn, order.Report{Failure: &order.Failure{Kind: order.Failed, Text: fmt.Sprintf("this builder knows no %q", o.Kind)}})
		return
	}
	_ = write(conn, order.Report{Over: true})
}

// report has an order built.
func (b *Builder) report(ctx context.Context, conn net.Conn, in io.Reader, o order.Order) {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = io.Copy(io.Discard, in)
	}()
	one, failure := b.join(ctx, o)
	if failure != nil {
		_ = write(conn, order.Report{Failure: failure})
		return
	}
	defer b.leave(one)
	for {
		b.mu.Lock()
		report, changed := one.report, one.changed
		b.mu.Unlock()
		if write(conn, report) != nil || report.Over || report.Failure != nil {
			return
		}
		select {
		case <-changed:
		case <-gone:
			return
		case <-ctx.Done():
			return
		}
	}
}

func write(conn net.Conn, report order.Report) error {
	text, err := json.Marshal(report)
	if err != nil {
		return err
	}
	_ = conn.SetWriteDeadline(time.Now().Add(ioTimeout))
	_, err = conn.Write(append(text, '\n'))
	return err
}

// join returns the job of an order, which may be of an earlier one.
func (b *Builder) join(ctx context.Context, o order.Order) (*job, *order.Failure) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bounds = o.Bounds
	one := b.jobs[o.Key]
	if one == nil {
		if !validKey.MatchString(o.Key) {
			return nil, &order.Failure{Kind: order.Failed, Text: "the order has no valid key"}
		}
		own := 0
		for _, other := range b.waiting {
			if other.order.Principal == o.Principal {
				own++
			}
		}
		if own >= maxEach || len(b.waiting) >= maxWaiting {
			return nil, &order.Failure{Kind: order.Crowded}
		}
		one = &job{order: o, changed: make(chan struct{})}
		b.jobs[o.Key] = one
		b.waiting = append(b.waiting, one)
		b.begin(ctx)
	}
	one.wanted++
	return one, nil
}

// leave withdraws an order.
func (b *Builder) leave(one *job) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if one.wanted--; one.wanted == 0 && !one.begun {
		b.waiting = slices.DeleteFunc(b.waiting, func(other *job) bool { return other == one })
		delete(b.jobs, one.order.Key)
	}
}

// begin begins as many jobs as may run, each time the oldest of the principal that has waited longest for a turn. The
// caller has the lock.
func (b *Builder) begin(ctx context.Context) {
	for ctx.Err() == nil {
		next := -1
		for i, one := range b.waiting {
			if b.hasRoom(one.order.Kind) && (next < 0 || b.served[one.order.Principal] < b.served[b.waiting[next].order.Principal]) {
				next = i
			}
		}
		if next < 0 {
			return
		}
		one := b.waiting[next]
		b.waiting = slices.Delete(b.waiting, next, next+1)
		b.count++
		b.served[one.order.Principal] = b.count
		maps.DeleteFunc(b.served, func(principal string, _ uint64) bool {
			return principal != one.order.Principal && !slices.ContainsFunc(b.waiting, func(other *job) bool { return other.order.Principal == principal })
		})
		one.begun = true
		*b.running(one.order.Kind)++
		b.all.Go(func() { b.run(ctx, one) })
	}
}

// hasRoom reports whether an order of a kind may begin. A question takes a second and does not wait for builds.
func (b *Builder) hasRoom(kind order.Kind) bool {
	if kind == order.Facts {
		return b.telling == 0
	}
	return b.building < max(1, int(b.bounds.MaxBuilds))
}

// running is the number of jobs that run beside those of a kind.
func (b *Builder) running(kind order.Kind) *int {
	if kind == order.Facts {
		return &b.telling
	}
	return &b.building
}

// run builds a job.
func (b *Builder) run(ctx context.Context, one *job) {
	limit, cancel := context.WithTimeout(ctx, time.Duration(one.order.Bounds.BuildSeconds)*time.Second)
	defer cancel()
	progress := func(done, total int) { b.tell(one, order.Report{Done: done, Total: total}) }
	report, err := b.attempt(limit, one.order, progress)
	report.Over = true
	var found *order.Failure
	var said *nixError
	switch {
	case err == nil:
	case errors.As(err, &found):
		report.Failure = found
	case ctx.Err() != nil:
		report.Failure = &order.Failure{Kind: order.Failed, Text: "the server ended"}
	case isEnd(err):
		report.Failure = &order.Failure{Kind: order.TooSlow}
	case errors.As(err, &said):
		report.Failure = &order.Failure{Kind: order.Failed, Text: said.text}
	default:
		report.Failure = &order.Failure{Kind: order.Failed, Text: err.Error()}
	}
	if one.order.Kind != order.Facts {
		b.made.close(one.order.Key, report.Failure)
	}
	b.mu.Lock()
	delete(b.jobs, one.order.Key)
	*b.running(one.order.Kind)--
	b.begin(ctx)
	b.mu.Unlock()
	b.tell(one, report)
	b.made.expire(one.order.Bounds)
}

// attempt makes the result of an order. A panic, of a hostile archive say, is the end of this order alone.
func (b *Builder) attempt(ctx context.Context, o order.Order, progress func(done, total int)) (report order.Report, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			fmt.Fprintf(b.nix.Log, "nix-sandbox-mcp: error: the builder panicked: %v\n%s", cause, debug.Stack())
			err = errors.New("the builder failed to handle this; the server's log says more")
		}
	}()
	return b.make(ctx, o, progress)
}

func (b *Builder) tell(one *job, report order.Report) {
	b.mu.Lock()
	defer b.mu.Unlock()
	one.report = report
	close(one.changed)
	one.changed = make(chan struct{})
}
