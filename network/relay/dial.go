package relay

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/network/policy"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/network/resolver"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/event"
)

const (
	// connectTimeout is how long one address may take to answer.
	connectTimeout = 10 * time.Second
	// nextAddress is how long an address may stay silent before the next one is tried beside it
	// (RFC 8305, section 5).
	nextAddress = 250 * time.Millisecond
	// maxTunnelHeader bounds the upstream proxy's answer to a CONNECT, in bytes.
	maxTunnelHeader = 16 << 10
)

// dial connects to an allowed name. [connection.explain] words its errors.
func (r *Relay) dial(ctx context.Context, name string, port uint16) (*net.TCPConn, error) {
	if r.policy.Upstream != "" {
		return r.tunnel(ctx, name, port)
	}
	ctx, stop := context.WithTimeout(ctx, r.times.dial)
	defer stop()
	addresses, err := r.names.Resolve(ctx, name)
	if err != nil {
		return nil, err
	}
	conn, err := r.first(ctx, addresses, port)
	if err != nil {
		r.names.Forget(name)
		return nil, err
	}
	return conn, nil
}

func (r *Relay) first(ctx context.Context, addresses []netip.Addr, port uint16) (*net.TCPConn, error) {
	if len(addresses) == 1 {
		return r.connect(ctx, addresses[0], port)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	type result struct {
		conn *net.TCPConn
		err  error
	}
	results := make(chan result)
	next := time.NewTimer(0)
	defer next.Stop()
	var failed error
	running := 0
	for {
		select {
		case <-next.C:
			if len(addresses) == 0 {
				continue
			}
			address := addresses[0]
			addresses = addresses[1:]
			running++
			go func() {
				conn, err := r.connect(ctx, address, port)
				select {
				case results <- result{conn, err}:
				case <-ctx.Done():
					if conn != nil {
						conn.Close()
					}
				}
			}()
			next.Reset(nextAddress)
		case got := <-results:
			if got.err == nil {
				return got.conn, nil
			}
			running--
			if failed == nil {
				failed = got.err
			}
			if running == 0 && len(addresses) == 0 {
				return nil, failed
			}
			next.Reset(0)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// connect connects to one address, which is checked once more: the kernel is
// given a number, and no name is looked up between the check and its use.
func (r *Relay) connect(ctx context.Context, address netip.Addr, port uint16) (*net.TCPConn, error) {
	dialer := net.Dialer{
		Timeout: connectTimeout,
		// A connection without bytes ends by itself.
		KeepAlive: -1,
		Control: func(_, text string, _ syscall.RawConn) error {
			to, err := netip.ParseAddrPort(text)
			if err != nil {
				return err
			}
			return r.policy.Check(to.Addr(), nil)
		},
	}
	dialed, err := dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(address, port).String())
	if err != nil {
		return nil, err
	}
	conn := dialed.(*net.TCPConn)
	// No interface has an address that a route makes local.
	if conn.LocalAddr().(*net.TCPAddr).AddrPort().Addr() == conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr() {
		reset(conn)
		return nil, &policy.AddressError{Address: address, Kind: "this machine's own address"}
	}
	return conn, nil
}

// upstream connects to the policy's upstream proxy. An operator chose it, so
// that neither its name nor its address is checked.
func (r *Relay) upstream(ctx context.Context) (*net.TCPConn, error) {
	dialer := net.Dialer{Timeout: connectTimeout, KeepAlive: -1}
	conn, err := dialer.DialContext(ctx, "tcp", r.policy.Upstream)
	if err != nil {
		return nil, problem("the upstream proxy cannot be reached")
	}
	return conn.(*net.TCPConn), nil
}

// tunnel connects to a name through the upstream proxy.
func (r *Relay) tunnel(ctx context.Context, name string, port uint16) (*net.TCPConn, error) {
	ctx, stop := context.WithTimeout(ctx, r.times.dial)
	defer stop()
	conn, err := r.upstream(ctx)
	if err != nil {
		return nil, err
	}
	deadline, _ := ctx.Deadline()
	if err := connectThrough(conn, net.JoinHostPort(name, strconv.Itoa(int(port))), deadline); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// connectThrough asks an HTTP proxy for a connection to HOST:PORT.
func connectThrough(conn net.Conn, target string, deadline time.Time) error {
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	request := http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: target}, Host: target, Header: http.Header{"User-Agent": nil}}
	if err := request.Write(conn); err != nil {
		return errNoTunnel
	}
	// Bytes are read singly, because those after the header belong to the host.
	in := bufio.NewReaderSize(&single{conn, maxTunnelHeader}, 16)
	response, err := http.ReadResponse(in, &request)
	if err != nil || in.Buffered() > 0 {
		return errNoTunnel
	}
	if response.StatusCode != http.StatusOK {
		return problem(fmt.Sprintf("the upstream proxy answers CONNECT with status %d", response.StatusCode))
	}
	return conn.SetDeadline(time.Time{})
}

const errNoTunnel = problem("the upstream proxy does not answer CONNECT")

// single reads one byte at a time, and at most left of them.
type single struct {
	net.Conn
	left int
}

func (s *single) Read(b []byte) (int, error) {
	if s.left <= 0 {
		return 0, errors.New("the answer is too long")
	}
	if len(b) == 0 {
		return 0, nil
	}
	s.left--
	return s.Conn.Read(b[:1])
}

// problem is a reason why an allowed host did not answer. Its words are this package's own, because
// errors of libraries quote hosts and resolvers.
type problem string

func (p problem) Error() string { return string(p) }

// explain returns the event for an error of dial or of a request.
func (c *connection) explain(err error) event.Event {
	var refused *policy.AddressError
	var errno syscall.Errno
	var known problem
	var timeout net.Error
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.As(err, &certificate):
		err = problem("its certificate is not valid")
	case errors.As(err, &known):
		err = known
	case errors.As(err, &refused), errors.Is(err, resolver.ErrNotAllowed), errors.Is(err, resolver.ErrTooManyNames),
		errors.Is(err, resolver.ErrNotFound), errors.Is(err, resolver.ErrNoAnswer):
	case errors.As(err, &errno):
		err = errno
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		err = problem("timeout")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		err = problem("it closed the connection")
	default:
		err = problem("the connection failed")
	}
	return resolver.Explain(c.name, c.asked.Port(), err)
}

// bounded makes the kernel end a connection if its other end takes no bytes for so long
// (TCP_USER_TIMEOUT in tcp(7)).
func bounded(conn *net.TCPConn, after time.Duration) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(after.Milliseconds()))
	})
}

// reset ends a connection so that its other end learns that it was not finished.
func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	conn.Close()
}
