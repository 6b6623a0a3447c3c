package account

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/seed"
)

// waiting is how many requests wait.
func waiting(p *Pool) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, queue := range p.waiting {
		n += len(queue)
	}
	return n
}

// users has n users of a principal ask for a slot each, and use it for a second.
func users(t *testing.T, g *Pool, all *sync.WaitGroup, principal string, n int, seen func()) {
	for range n {
		all.Go(func() {
			leave, err := g.Take(t.Context(), principal, 1)
			if err != nil {
				t.Error(err)
				return
			}
			seen()
			time.Sleep(time.Second)
			leave()
			leave() // does nothing
		})
		synctest.Wait()
	}
}

// One who asks for everything has half of the slots at most, and one who comes then has
// a slot at once.
func TestPool_KeepsSlotsForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewPool(Terms{Total: 8, Least: 1})
		var all sync.WaitGroup
		var mu sync.Mutex
		inside := map[string]int{}
		enter := func(principal string) func() {
			return func() {
				mu.Lock()
				defer mu.Unlock()
				inside[principal]++
			}
		}
		entered := func(principal string) int {
			mu.Lock()
			defer mu.Unlock()
			return inside[principal]
		}
		users(t, g, &all, "flood", 100, enter("flood"))
		if n := entered("flood"); n != 4 || waiting(g) != 96 {
			t.Errorf("the flood has %d slots, %d wait", n, waiting(g))
		}
		began := time.Now()
		users(t, g, &all, "other", 1, enter("other"))
		if entered("other") != 1 || time.Since(began) != 0 {
			t.Errorf("another one waits beside %d of a flood", entered("flood"))
		}
		all.Wait()
		if g.used+g.small != 0 || len(g.held)+len(g.waiting)+len(g.order) != 0 {
			t.Errorf("afterwards: %+v", g)
		}
	})
}

// Where all slots are in use, they go from one principal to the next.
func TestPool_TakesTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewPool(Terms{Total: 1, Least: 1})
		var all sync.WaitGroup
		var order []string
		for i, principal := range []string{"a", "b", "c"} {
			users(t, g, &all, principal, 3-i, func() { order = append(order, principal) })
		}
		all.Wait()
		if got := strings.Join(order, ""); got != "aabcab" && got != "abcaba" {
			t.Errorf("order %s", got)
		}
	})
}

// Who gives up leaves nothing behind, whether it had a slot by then or not.
func TestPool_GivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewPool(Terms{Total: 2, Least: 1, Each: func(string) int64 { return 1 }})
		leave, _ := g.Take(t.Context(), "a", 1)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				if _, err := g.Take(ctx, "a", 1); !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if waiting(g) != 3 {
			t.Errorf("%d wait", waiting(g))
		}
		cancel()
		all.Wait()
		leave()
		if g.used+g.small != 0 || len(g.held)+len(g.waiting)+len(g.order) != 0 {
			t.Errorf("afterwards: %+v", g)
		}
	})
}

// executor notes the calls that run.
type executor struct {
	mu      sync.Mutex
	running []string
}

func (e *executor) Answer(_ context.Context, c call.Call) (call.Result, error) {
	e.mu.Lock()
	e.running = append(e.running, c.Principal+c.Session)
	e.mu.Unlock()
	time.Sleep(time.Second)
	return call.Result{}, nil
}

// A call that waits for others of its session takes no slot from calls that could run.
func TestCalls_WaitForTheirTurnFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &executor{}
		calls := (&Book{Running: NewPool(Terms{Total: 2, Least: 1})}).Executor(e)
		turn := make(chan struct{})
		var all sync.WaitGroup
		run := func(c call.Call) {
			all.Go(func() {
				result, err := calls.Answer(t.Context(), c)
				if err != nil {
					t.Error(err)
				}
				result.Release()
			})
			synctest.Wait()
		}
		for range 5 {
			run(call.Call{Principal: "a", Session: "s", Ticket: call.NewTicket(call.Key{}, turn, func() {})})
		}
		run(call.Call{Principal: "a", Session: "t"})
		run(call.Call{Principal: "b"})
		if !slices.Equal(e.running, []string{"at", "b"}) {
			t.Errorf("running %q", e.running)
		}
		close(turn)
		all.Wait()
		if len(e.running) != 7 {
			t.Errorf("ran %s", fmt.Sprint(e.running))
		}
	})
}

// Whatever greedy principals take, each of others has its least, as far as the reserve
// reaches, and one alone has half of what is not reserved.
func TestPool_KeepsTheLeastForEach(t *testing.T) {
	const total, least, reserve = 1000, 10, 210 // for twenty greedy ones and another
	source := seed.New(t)
	for range 200 {
		p := NewPool(Terms{Total: total, Least: least, Reserve: reserve})
		for source.IntN(300) > 0 {
			_, _ = p.Try(fmt.Sprint("greedy-", source.IntN(20)), 1+source.Int64N(total)) // it takes what it gets
		}
		alone := NewPool(Terms{Total: total, Least: least, Reserve: reserve})
		for alone.Held("one") < total {
			if _, err := alone.Try("one", 1+source.Int64N(50)); err != nil {
				break
			}
		}
		if held := alone.Held("one"); held > (total-reserve+least)/2 {
			t.Errorf("one alone has %d of %d", held, total)
		}
		if _, err := p.Try("modest", least); err != nil {
			t.Errorf("a modest one has not its least beside %v", p.held)
		}
		if p.used > total {
			t.Fatalf("%d of %d are in use", p.used, total)
		}
	}
}
