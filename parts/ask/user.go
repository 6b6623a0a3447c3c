package ask

import (
	"context"
	"net"
	"strconv"
	"sync"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/event"
)

// Executor returns an Executor whose calls can ask their users.
func (b *Book) Executor(next call.Executor) call.Executor { return &executor{b, next} }

type executor struct {
	book *Book
	next call.Executor
}

// Answer implements [call.Executor].
func (e *executor) Answer(ctx context.Context, c call.Call) (call.Result, error) {
	u := &user{book: e.book, call: c, waits: map[subject]chan struct{}{}, chosen: map[subject]call.Choice{}}
	u.clock.Most = c.Env.AskWithin
	u.mayAsk = asksHosts(c.Env)
	c.User = u
	return e.next.Answer(ctx, c)
}

func asksHosts(env registry.Environment) bool { return env.Network != nil && len(env.Network.Ask) > 0 }

// user is a call's [call.User].
type user struct {
	book   *Book
	call   call.Call
	clock  sandbox.Clock
	mayAsk bool // the call's clock may stand still

	mu     sync.Mutex
	asked  int
	open   int
	waits  map[subject]chan struct{} // of hosts: closed when the choice is there
	chosen map[subject]call.Choice   // of hosts, for the rest of the call
}

// MayAsk implements [call.User].
func (u *user) MayAsk() { u.mayAsk = true }

// Serve implements [call.User].
func (u *user) Serve(request *sandbox.Request) {
	if u.mayAsk {
		request.Clock = &u.clock
	}
	if !asksHosts(u.call.Env) {
		return
	}
	env := u.call.Env
	table := "[environments." + env.BaseName() + ".network]"
	if env.Network.OfDefaults {
		table = "[defaults.network]"
	}
	request.Host = func(ctx context.Context, name string, port int) event.Reason {
		entry := name
		if port != 443 && port != 80 {
			entry = net.JoinHostPort(name, strconv.Itoa(port))
		}
		// Connections to a host wait for one answer together.
		switch u.shared(ctx, call.Matter{Kind: call.ToHost, Name: net.JoinHostPort(name, strconv.Itoa(port)), Table: table, Option: "domains = [" + strconv.Quote(entry) + "]"}) {
		case call.Nobody:
			return event.ByNobody
		case call.No:
			return event.ByUser
		}
		return ""
	}
}

func (u *user) about(m call.Matter) subject { return subject{u.call.Env.BaseName(), m.Kind, m.Name} }

// shared decides a matter once for the whole call.
func (u *user) shared(ctx context.Context, m call.Matter) call.Choice {
	about := u.about(m)
	u.mu.Lock()
	choice, known := u.chosen[about]
	wait := u.waits[about]
	first := !known && wait == nil
	if first {
		wait = make(chan struct{})
		u.waits[about] = wait
	}
	u.mu.Unlock()
	switch {
	case known:
		return choice
	case first:
		choice = u.Decide(ctx, m)
		u.mu.Lock()
		u.chosen[about] = choice
		delete(u.waits, about)
		u.mu.Unlock()
		close(wait)
		return choice
	}
	select {
	case <-wait:
		u.mu.Lock()
		defer u.mu.Unlock()
		return u.chosen[about]
	case <-ctx.Done():
		return call.Nobody
	}
}

// Decide implements [call.User].
func (u *user) Decide(ctx context.Context, m call.Matter) call.Choice {
	about := u.about(m)
	principal, session := u.call.Principal, u.call.Session
	if u.book.allowed(principal, session, about) {
		return call.Always
	}
	u.mu.Lock()
	u.asked++
	over := u.asked > maxOfCall
	u.mu.Unlock()
	if over {
		return call.Nobody
	}
	ctx, release := u.clock.Hold(ctx)
	defer release()
	u.wait(1)
	defer u.wait(-1)
	q := &question{Question: word(u.call, m), way: u.call.Client}
	choice := u.book.ask(ctx, q)
	u.book.log.Info("asked", append([]any{"kind", m.Kind, "what", m.Name, "env", u.call.Env.Name, "session", session, "choice", name(choice)}, u.call.Origin()...)...)
	switch choice {
	case call.ForSession:
		u.book.allow(principal, session, about)
	case call.Always:
		u.book.allow(principal, "", about)
	}
	return choice
}

// wait counts the open questions of the call, which waits for the user if there are any.
func (u *user) wait(more int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.open += more
	if u.open > 0 {
		u.call.Progress.Say("the user's answer (nix-sandbox-mcp approve)")
	} else {
		u.call.Progress.Say("")
	}
}

// name is a choice for the log.
func name(choice call.Choice) string {
	if choice == call.Nobody {
		return "nobody"
	}
	return string(choice)
}

// Part forgets what was allowed for a session when a sandbox of it ends.
type Part struct{ Book *Book }

// Start implements [session.Part].
func (p Part) Start(ctx context.Context, s *session.Start, next session.StartFunc) (session.Member, error) {
	m, err := next(ctx, s)
	if err != nil {
		return m, err
	}
	return member{m, p.Book, s.Call.Key()}, nil
}

type member struct {
	session.Member
	book *Book
	key  call.Key
}

// End implements [session.Member].
func (m member) End(why call.Cause) {
	if why != "" && why != call.Suspended {
		m.book.forget(m.key)
	}
	m.Member.End(why)
}
