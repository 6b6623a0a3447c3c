// Package resolver answers the look-ups of a sandbox. It knows only the names that the policy
// allows, and gives each an address of its own, so that the address of a connection tells which
// name was meant.
//
// It promises that only the addresses of allowed names are asked for outside; that any other name
// is answered at once, as one that does not exist; and that every refusal is an event before it is
// an answer.
package resolver

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/network/policy"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/event"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostname"
)

const (
	// ttl is how long programs may cache an answer, in seconds. The address of a name never
	// changes, but the name may cease to exist.
	ttl = 60
	// queryRate and queryBurst bound the queries that are read, in queries a second. The kernel
	// drops queries that do not fit into the socket's queue, so a flood costs only the sandbox's
	// own look-ups.
	queryRate  = 5000
	queryBurst = 2000
	// maxWaiting is how many queries wait for look-ups at once.
	maxWaiting = 256
	// maxSessions is how many TCP connections there are at once, and maxQueries how
	// many queries come over one.
	maxSessions = 8
	maxQueries  = 100
	// queryTimeout is how long a query over TCP may take to arrive, and its response
	// to be taken.
	queryTimeout = 10 * time.Second
	// retryAfter is the pause after an error of a socket that stays open.
	retryAfter = 100 * time.Millisecond
	// pairWithin is the time within which the two questions of one look-up come, for
	// A and for AAAA.
	pairWithin = 50 * time.Millisecond
)

// Server answers queries. It is safe for concurrent use.
type Server struct {
	names  *Names
	report func(event.Event)

	pace     *rate.Limiter
	waiting  chan struct{}
	sessions chan struct{}

	mu   sync.Mutex
	last refusal
}

type refusal struct {
	name string
	kind uint16
	at   time.Time
}

// NewServer returns a Server for the names of a sandbox. report must not block.
func NewServer(names *Names, report func(event.Event)) *Server {
	return &Server{
		names:    names,
		report:   report,
		pace:     rate.NewLimiter(queryRate, queryBurst),
		waiting:  make(chan struct{}, maxWaiting),
		sessions: make(chan struct{}, maxSessions),
	}
}

// ServeUDP answers queries until the socket is closed. IP_PKTINFO must be on: the response must
// come from the address to which the query went.
func (s *Server) ServeUDP(socket *net.UDPConn) {
	message, control, response := make([]byte, maxQuery+1), make([]byte, 128), make([]byte, 0, 512)
	for {
		_ = s.pace.Wait(context.Background()) // fails only without a burst
		n, m, _, from, err := socket.ReadMsgUDPAddrPort(message, control)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(retryAfter)
			continue
		}
		q, problem, answer := parse(message[:n])
		if !answer {
			continue
		}
		verdict, known := s.verdict(&q, problem)
		if known {
			response = q.respond(response[:0], verdict.code, verdict.address, ttl)
			_, _, _ = socket.WriteMsgUDPAddrPort(response, control[:m], from)
			continue
		}
		select {
		case s.waiting <- struct{}{}:
		default:
			continue // it is asked again after some seconds
		}
		q.raw = append([]byte(nil), q.raw...)
		source := append([]byte(nil), control[:m]...)
		go func() {
			defer func() { <-s.waiting }()
			verdict := s.lookUp(&q)
			_, _, _ = socket.WriteMsgUDPAddrPort(q.respond(nil, verdict.code, verdict.address, ttl), source, from)
		}()
	}
}

// ServeTCP answers the queries of TCP connections until the listener is closed.
func (s *Server) ServeTCP(listener *net.TCPListener) {
	for {
		_ = s.pace.Wait(context.Background()) // fails only without a burst
		conn, err := listener.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			time.Sleep(retryAfter)
		default:
			select {
			case s.sessions <- struct{}{}:
				go s.session(conn)
			default:
				conn.Close()
			}
		}
	}
}

// session answers the queries of one connection, each with its length before it
// (RFC 1035, section 4.2.2), and closes it.
func (s *Server) session(conn net.Conn) {
	defer func() {
		conn.Close()
		<-s.sessions
	}()
	message := make([]byte, 2+maxQuery)
	for range maxQueries {
		_ = s.pace.Wait(context.Background()) // fails only without a burst
		if conn.SetDeadline(time.Now().Add(queryTimeout)) != nil {
			return
		}
		if _, err := io.ReadFull(conn, message[:2]); err != nil {
			return
		}
		size := int(binary.BigEndian.Uint16(message))
		if size > maxQuery {
			return
		}
		if _, err := io.ReadFull(conn, message[2:2+size]); err != nil {
			return
		}
		q, problem, answer := parse(message[2 : 2+size])
		if !answer {
			return
		}
		verdict, known := s.verdict(&q, problem)
		if !known {
			verdict = s.lookUp(&q)
		}
		response := q.respond(make([]byte, 2, 512), verdict.code, verdict.address, ttl)
		binary.BigEndian.PutUint16(response, uint16(len(response)-2))
		// The look-up may have taken longer than the query's time.
		if conn.SetDeadline(time.Now().Add(queryTimeout)) != nil {
			return
		}
		if _, err := conn.Write(response); err != nil {
			return
		}
	}
}

// verdict is the answer to a question.
type verdict struct {
	code    code
	address netip.Addr // the zero Addr if there is none
}

var (
	none    = verdict{code: noSuchName}
	nothing = verdict{code: success} // the name exists, and has no such record
)

// verdict returns an answer that needs no look-up. known is false if the question needs one.
func (s *Server) verdict(q *question, problem code) (v verdict, known bool) {
	if problem != success {
		return verdict{code: problem}, true
	}
	name, err := hostname.Canonical(q.name)
	if err != nil || q.class != classIN {
		// Programs look up addresses and the root too; that asks for no host.
		if q.name != "" || q.raw[0] != 0 {
			s.refuse(q, event.Event{Kind: event.Refused, Reason: event.ByName, Count: 1})
		}
		return none, true
	}
	q.name = name
	switch {
	case isBelow(name, "localhost"):
		// RFC 6761, section 6.3. The sandbox's own loopback is meant.
		if q.kind == typeA {
			return verdict{address: netip.AddrFrom4([4]byte{127, 0, 0, 1})}, true
		}
		return nothing, true
	case isBelow(name, "arpa"):
		// This asks for the name of an address; programs do not need it to connect.
		return none, true
	}
	address, known, err := s.names.Inside(name)
	if known || q.kind != typeA && q.kind != typeAAAA {
		// Other types are not looked up and have no records. They include HTTPS and SVCB, the
		// records with keys that hide a name in TLS.
		return s.answer(q, address, err), true
	}
	return verdict{}, false
}

// lookUp answers a question that needs a look-up.
func (s *Server) lookUp(q *question) verdict {
	ctx, stop := context.WithTimeout(context.Background(), lookupTimeout)
	defer stop()
	_, err := s.names.Resolve(ctx, q.name)
	var address netip.Addr
	if err == nil {
		// The name has the same address in the sandbox, even if what was resolved has expired.
		address, _, _ = s.names.Inside(q.name)
	}
	return s.answer(q, address, err)
}

func (s *Server) answer(q *question, address netip.Addr, err error) verdict {
	if err != nil {
		e := Explain(q.name, 0, err)
		s.refuse(q, e)
		if errors.Is(err, ErrNoAnswer) {
			return verdict{code: serverFailure}
		}
		// "No such name" ends a program's attempts at once. "Refused" and silence make
		// it repeat them for seconds.
		return none
	}
	if q.kind != typeA {
		return nothing
	}
	return verdict{address: address}
}

// Explain returns the event for an error of [Names]; port is 0 for a look-up.
func Explain(name string, port uint16, err error) event.Event {
	var refused *policy.AddressError
	switch {
	case errors.Is(err, ErrNotAllowed):
		e := event.RefusedName(name)
		e.Port = port
		return e
	case errors.Is(err, ErrTooManyNames):
		return event.Limited(name, port, event.OptionNames)
	case errors.As(err, &refused):
		e := event.Event{Kind: event.Refused, Name: name, Port: port, Reason: event.ByPrivate, Count: 1}
		if refused.Private.IsValid() {
			e.Option, e.Value = event.OptionPrivate, refused.Private.String()
		}
		return e
	}
	return event.Event{Kind: event.Failed, Name: name, Port: port, Problem: event.Problem(err), Count: 1}
}

// refuse reports a refusal. The questions for A and AAAA of one look-up are one
// event.
func (s *Server) refuse(q *question, e event.Event) {
	now := time.Now()
	s.mu.Lock()
	last := s.last
	s.last = refusal{q.name, q.kind, now}
	pair := last.name == q.name && last.kind+q.kind == typeA+typeAAAA && last.kind != q.kind && now.Sub(last.at) < pairWithin
	if pair {
		s.last = refusal{}
	}
	s.mu.Unlock()
	if !pair {
		s.report(e)
	}
}

// isBelow returns whether a name is a domain or below it.
func isBelow(name, domain string) bool {
	return name == domain || strings.HasSuffix(name, "."+domain)
}
