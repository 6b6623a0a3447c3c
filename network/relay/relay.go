// Package relay carries the connections of a sandbox to the hosts that its policy allows.
//
// It promises that it dials only addresses that were looked up for an allowed name and passed the
// policy; that TLS, whenever it is spoken, names that host readably; that every HTTP request at
// port 80 does; and that each connection is an event, which for a refused one comes before the code
// in the sandbox can see the refusal.
package relay

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/network/limit"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/network/policy"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/network/resolver"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/event"
)

const (
	// rateWait is how long a connection waits for its turn if more begin than the policy's rate
	// allows. Short bursts of honest programs are slowed down rather than refused.
	rateWait = time.Second
	// accepting bounds the connections that are accepted, also to be refused, as a
	// multiple of the policy's rate. Others wait in the kernel's queue.
	accepting = 4
	// minAccepting is the smallest bound on the connections accepted in a second.
	minAccepting = 200
	// retryAfter is the pause after an error of a listener that stays open, such as
	// too many open files.
	retryAfter = 100 * time.Millisecond
	// drainTime and drainBytes bound how much of a refused connection is read, so that the client
	// gets the refusal and not a reset.
	drainTime  = time.Second
	drainBytes = maxHello
)

// times are how long a connection waits. Tests make them shorter.
type times struct {
	hello time.Duration // for a client's first message
	// answer bounds the wait for the first bytes of a server that got a ClientHello. Until they
	// come, code that has left still occupies a connection of the server.
	answer time.Duration
	dial   time.Duration // for a look-up and a connection
	idle   time.Duration // for any byte in either direction
}

var usual = times{hello: 10 * time.Second, answer: 30 * time.Second, dial: 20 * time.Second, idle: 5 * time.Minute}

// Relay serves the connections of one sandbox.
type Relay struct {
	policy *policy.Policy
	names  *resolver.Names
	report func(event.Event)
	ask    Ask
	times  times

	open  atomic.Int64
	begun *rate.Limiter // connections that begin
	pace  *rate.Limiter // connections that are accepted
	bytes *limit.Bytes

	server  *http.Server
	proxy   *httputil.ReverseProxy
	handoff chan net.Conn
	large   chan struct{} // places for requests with large heads

	issuer  *issuer
	secrets []string
	// roots are the authorities for hosts to which the relay itself speaks TLS; nil means the
	// machine's.
	roots *x509.CertPool
}

// Ask asks a user about a connection, and returns why it is refused, or "". It may wait.
type Ask func(name string, port uint16) event.Reason

// New returns a Relay. secrets are those of the policy's credentials, in their order. report must
// not block. ask may be nil if the policy has no hosts to ask about.
func New(p *policy.Policy, names *resolver.Names, secrets []string, report func(event.Event), ask Ask) (*Relay, error) {
	if len(secrets) != len(p.Credentials) {
		return nil, fmt.Errorf("there are %d secrets for %d credentials", len(secrets), len(p.Credentials))
	}
	accepted := max(accepting*p.Rate, minAccepting)
	r := &Relay{
		policy: p, names: names, report: report, ask: ask, times: usual,
		begun:   rate.NewLimiter(rate.Limit(p.Rate), p.Rate),
		pace:    rate.NewLimiter(rate.Limit(accepted), accepted),
		bytes:   limit.NewBytes(p.Bytes, 2*p.Connections),
		handoff: make(chan net.Conn),
		large:   make(chan struct{}, largeHeads),
		secrets: secrets,
	}
	if hosts := p.Read(); len(hosts) > 0 {
		var err error
		if r.issuer, err = newIssuer(hosts); err != nil {
			return nil, fmt.Errorf("make an authority for certificates: %w", err)
		}
	}
	r.startHTTP()
	return r, nil
}

// Certificate returns the certificate, in PEM, of the authority that signs for hosts with TLS that
// ends here. It is nil if the policy has no such hosts.
func (r *Relay) Certificate() []byte {
	if r.issuer == nil {
		return nil
	}
	return r.issuer.certificate
}

// Serve accepts the connections to a port of the sandbox's policy, until the
// listener is closed. All listeners of a sandbox share one Relay.
func (r *Relay) Serve(listener *net.TCPListener, port uint16) {
	for {
		_ = r.pace.Wait(context.Background()) // fails only without a burst
		client, err := listener.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			time.Sleep(retryAfter)
		default:
			r.accept(client, port)
		}
	}
}

// accept serves a connection in a goroutine of its own, or refuses it if too many are open.
func (r *Relay) accept(client *net.TCPConn, port uint16) {
	asked := client.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	c := &connection{r: r, client: client, asked: netip.AddrPortFrom(asked, port), began: time.Now()}
	c.name = r.names.Name(asked)
	if r.open.Add(1) > int64(r.policy.Connections) {
		c.limited(event.OptionConnections)
		return
	}
	go c.handle()
}

type connection struct {
	r      *Relay
	client *net.TCPConn
	name   string
	asked  netip.AddrPort
	began  time.Time
	// allowed says that a user allowed a connection that the policy does not, and denied why not.
	allowed bool
	denied  event.Reason

	up, down atomic.Int64
	active   atomic.Int64 // when bytes last came, in nanoseconds since began
	finished sync.Once
	exceeded sync.Once

	mu      sync.Mutex
	address netip.Addr // that was dialled

	http *httpState
}

func (c *connection) handle() {
	turn := c.r.begun.Reserve()
	if turn.Delay() > rateWait {
		turn.Cancel()
		c.limited(event.OptionRate)
		return
	}
	time.Sleep(turn.Delay())
	if c.r.bytes.Piece() == 0 {
		c.limited(event.OptionMegabytes)
		return
	}
	bounded(c.client, 2*c.r.times.idle)
	if c.r.policy.Asks(c.name, c.asked.Port()) {
		c.denied = c.r.ask(c.name, c.asked.Port())
		c.allowed = c.denied == ""
	}
	if c.asked.Port() == policy.PortHTTP {
		c.serveHTTP(c.client)
		return
	}
	if refused := c.refusal(); refused != nil {
		c.r.report(*refused)
		c.deny()
		c.finish()
		return
	}
	if c.isTLS() {
		c.readTLS()
		return
	}
	c.carry()
	c.finish()
}

// limited refuses a connection beyond a limit.
func (c *connection) limited(option string) {
	e := event.Limited(c.name, c.asked.Port(), option)
	if c.name == "" {
		e.Address = c.asked.Addr()
	}
	c.r.report(e)
	reset(c.client)
	c.finish()
}

// finish closes the connection and gives its slot back. It may be called several
// times.
func (c *connection) finish() {
	c.finished.Do(func() {
		c.client.Close()
		c.mu.Lock()
		address := c.address
		c.mu.Unlock()
		if address.IsValid() {
			c.r.report(event.Event{
				Kind: event.Closed, Name: c.name, Port: c.asked.Port(), Address: address,
				Up: c.up.Load(), Down: c.down.Load(), Milliseconds: time.Since(c.began).Milliseconds(),
			})
		}
		c.r.open.Add(-1)
	})
}

// refusal returns the event that refuses the connection by its name and port, or nil if they are
// allowed.
func (c *connection) refusal() *event.Event {
	e := event.Event{Kind: event.Refused, Name: c.name, Port: c.asked.Port(), Count: 1}
	switch {
	case c.name == "":
		e.Reason, e.Address = event.ByAddress, c.asked.Addr()
	case c.allowed:
		return nil
	case c.denied == event.ByUser:
		e.Reason = c.denied
	case !c.r.policy.Allows(c.name, c.asked.Port()):
		e.Reason, e.Option = cmp.Or(c.denied, event.ByPort), event.OptionDomains
		e.Value = e.Target()
	default:
		return nil
	}
	return &e
}

// because returns the refusal of an allowed name for the protocol that the client spoke.
func (c *connection) because(reason event.Reason) event.Event {
	return event.Event{Kind: event.Refused, Name: c.name, Port: c.asked.Port(), Reason: reason, Count: 1}
}

// deny ends a refused connection.
func (c *connection) deny() {
	if c.asked.Port() == policy.PortHTTPS {
		c.alert()
	} else {
		reset(c.client)
	}
}

// alert ends a connection with TLS's alert "access denied" (49 in RFC 8446,
// section 6), which programs print.
func (c *connection) alert() {
	_ = c.client.SetDeadline(time.Now().Add(drainTime))
	if _, err := c.client.Write([]byte{recordAlert, 3, 3, 0, 2, 2, 49}); err != nil {
		return
	}
	_ = c.client.CloseWrite()
	_, _ = io.CopyN(io.Discard, c.client, drainBytes)
}

// connect dials the connection's host. If that fails, it reports why, resets the connection and
// returns nil.
func (c *connection) connect() *net.TCPConn {
	server, err := c.r.dial(context.Background(), c.name, c.asked.Port())
	if err != nil {
		c.r.report(c.explain(err))
		reset(c.client)
		return nil
	}
	bounded(server, 2*c.r.times.idle)
	c.dialled(server)
	return server
}

// dialled notes the address of the connection's host.
func (c *connection) dialled(server *net.TCPConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.address = server.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
}
