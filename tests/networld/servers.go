package networld

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// clientTimeout bounds how long a server waits for a client.
const clientTimeout = 30 * time.Second

// listen serves TCP connections at an address, each by a call of handle, which returns
// when the connection is closed.
func (w *World) listen(where netip.AddrPort, handle func(net.Conn)) error {
	listener, err := net.Listen("tcp", where.String())
	if err != nil {
		return err
	}
	w.keep(listener)
	w.tasks.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			w.tasks.Go(func() {
				done := make(chan struct{})
				defer close(done)
				w.tasks.Go(func() { // a connection ends with the world
					select {
					case <-w.stopped.Done():
					case <-done:
					}
					conn.Close()
				})
				handle(conn)
			})
		}
	})
	return nil
}

// handed is a listener of connections that another one has accepted.
type handed struct {
	conns   chan net.Conn
	stopped <-chan struct{}
}

func (h handed) Accept() (net.Conn, error) {
	select {
	case conn := <-h.conns:
		return conn, nil
	case <-h.stopped:
		return nil, net.ErrClosed
	}
}
func (h handed) Close() error   { return nil }
func (h handed) Addr() net.Addr { return &net.TCPAddr{} }

// web serves HTTP at a port of every address of the calling thread's namespace, or at
// one of them: with TLS where config is not nil.
func (w *World) web(where netip.AddrPort, config *tls.Config, handler http.Handler) error {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{
		Handler: handler, Protocols: protocols, TLSConfig: config,
		ReadHeaderTimeout: clientTimeout, IdleTimeout: clientTimeout, ErrorLog: log.New(io.Discard, "", 0),
	}
	listener, err := net.Listen("tcp", where.String())
	if err != nil {
		return err
	}
	w.keep(server)
	w.tasks.Go(func() {
		counting := countingListener{listener, w}
		if config != nil {
			_ = server.ServeTLS(counting, "", "")
			return
		}
		_ = server.Serve(counting)
	})
	return nil
}

// countingListener counts the connections of the server of many names, and leaves those
// of the stuck one alone.
type countingListener struct {
	net.Listener
	w *World
}

func (l countingListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		switch local(conn.LocalAddr()).Addr() {
		case CDN, CDN6:
			return &judged{Conn: l.w.count(conn), w: l.w, port: local(conn.LocalAddr()).Port()}, nil
		case Stuck:
			l.w.keep(l.w.count(conn))
		default:
			return conn, nil
		}
	}
}

func local(address net.Addr) netip.AddrPort {
	at := address.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port())
}

// everywhere is a port of all addresses.
func everywhere(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.IPv6Unspecified(), port) }

// serveHost starts what must not be reached on the host side's own addresses.
func (w *World) serveHost() error {
	secret := http.HandlerFunc(func(out http.ResponseWriter, request *http.Request) {
		w.violate("a request for %q reached the host side at %v", request.Host, request.Context().Value(http.LocalAddrContextKey))
		io.WriteString(out, w.Secret+"\n")
	})
	config, err := w.tlsConfig()
	if err != nil {
		return err
	}
	// Not at every address, so that programs may bind these ports at others.
	for _, at := range []string{"127.0.0.1", "127.0.0.2", "127.8.8.8", "::1", Host.String(), Host6.String()} {
		at := netip.MustParseAddr(at)
		if err := errors.Join(
			w.web(netip.AddrPortFrom(at, 80), nil, secret),
			w.web(netip.AddrPortFrom(at, 443), config, secret),
			w.tellers("the host side", at, 22, 6379),
		); err != nil {
			return err
		}
	}
	return w.abstract()
}

// abstract is a Unix socket without a path, which belongs to the network namespace.
func (w *World) abstract() error {
	listener, err := net.Listen("unix", "@"+w.Abstract())
	if err != nil {
		return err
	}
	w.keep(listener)
	w.tasks.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			w.violate("a connection reached the host side's abstract socket")
			io.WriteString(conn, w.Secret+"\n")
			conn.Close()
		}
	})
	return nil
}

// Abstract is the name of the host side's abstract Unix socket.
func (w *World) Abstract() string { return "networld-host" }

// tellers tell the secret to whoever connects to one of the ports of an address.
func (w *World) tellers(what string, at netip.Addr, ports ...uint16) error {
	for _, port := range ports {
		err := w.listen(netip.AddrPortFrom(at, port), func(conn net.Conn) {
			at := local(conn.LocalAddr())
			if port == 22 && at.Addr() == Git {
				w.serveSSH(conn)
				return
			}
			w.violate("a connection reached %s at %v", what, at)
			conn.SetDeadline(time.Now().Add(clientTimeout))
			io.WriteString(conn, w.Secret+"\n")
			_, _ = io.Copy(io.Discard, io.LimitReader(conn, 1<<20)) // a reset would discard the secret
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// serveOuter starts the servers of the other side.
func (w *World) serveOuter() error {
	config, err := w.tlsConfig()
	if err != nil {
		return err
	}
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		w.hello(hello)
		return nil, nil
	}
	handler := http.HandlerFunc(w.page)
	if err := errors.Join(
		w.web(everywhere(80), nil, handler),
		w.web(everywhere(443), config, handler),
		w.tellers("a port that is not listed", netip.IPv6Unspecified(), 22, 25, 853, 3128, 5432, 6379, 8080, 8443),
		w.echo(), w.source(),
	); err != nil {
		return err
	}
	for _, at := range []netip.Addr{Resolver, Private, netip.MustParseAddr("8.8.8.8"), netip.MustParseAddr("1.1.1.1")} {
		if err := w.serveResolver(at); err != nil {
			return err
		}
	}
	return nil
}

// hello notes a ClientHello that the policy does not allow.
func (w *World) hello(hello *tls.ClientHelloInfo) {
	at := local(hello.Conn.LocalAddr()).Addr()
	const encryptedClientHello, encryptedServerName = 0xfe0d, 0xffce
	switch {
	case at != CDN && at != CDN6:
		w.violate("a ClientHello for %q reached %v", hello.ServerName, at)
	case !w.Policy.Allows(strings.ToLower(hello.ServerName)):
		w.violate("a ClientHello for %q reached the server of many names", hello.ServerName)
	case slices.Contains(hello.Extensions, encryptedClientHello), slices.Contains(hello.Extensions, encryptedServerName):
		w.violate("a ClientHello with a hidden name reached the server of many names")
	}
}

// hostname is a Host header's name in its canonical form.
func hostname(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.TrimSuffix(strings.ToLower(host), ".")
}

// page is the server of many names, and what answers at each address that must not be
// reached.
func (w *World) page(out http.ResponseWriter, request *http.Request) {
	at := local(request.Context().Value(http.LocalAddrContextKey).(net.Addr))
	host := hostname(request.Host)
	r := Request{To: at, Host: request.Host, Path: request.URL.Path, Header: request.Header.Clone()}
	// In TLS the name is the one of the handshake: what a request says there is not seen.
	name := host
	if request.TLS != nil {
		r.Name = request.TLS.ServerName
		name = r.Name
	}
	w.mu.Lock()
	if len(w.requests) < maxRequests {
		w.requests = append(w.requests, r)
	}
	w.mu.Unlock()
	if at.Addr() != CDN && at.Addr() != CDN6 || !w.Policy.Allows(name) {
		w.violate("a request for %q reached %v", request.Host, at)
		fmt.Fprintf(out, "%s\n", w.Secret)
		return
	}
	switch {
	case host == "pypi.host.example" || host == "npm.host.example" || host == "go.host.example":
		w.mirrors.ServeHTTP(out, request)
	case host == "git.host.example":
		w.serveGit(out, request)
	case request.URL.Path == "/big":
		size, err := strconv.ParseInt(request.URL.Query().Get("bytes"), 10, 64)
		if err != nil {
			size = 100 << 20
		}
		out.Header().Set("Content-Length", strconv.FormatInt(size, 10))
		_, _ = io.CopyN(out, zeros{}, size)
	case request.URL.Path == "/sink":
		n, _ := io.Copy(io.Discard, request.Body)
		fmt.Fprintln(out, n)
	case request.URL.Path == "/redirect":
		http.Redirect(out, request, request.URL.Query().Get("to"), http.StatusFound)
	case strings.EqualFold(request.Header.Get("Upgrade"), "h2c"):
		w.upgrade(out)
	case request.URL.Path == "/headers":
		for name, values := range request.Header {
			fmt.Fprintf(out, "%s: %q\n", name, values)
		}
	default:
		fmt.Fprintf(out, "hello %s\n", host)
	}
}

// upgrade goes on with HTTP/2 on a connection, as RFC 7540 had it.
func (w *World) upgrade(out http.ResponseWriter) {
	conn, _, err := http.NewResponseController(out).Hijack()
	if err != nil {
		return
	}
	io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: http.HandlerFunc(w.page), Protocols: protocols, IdleTimeout: clientTimeout, ErrorLog: log.New(io.Discard, "", 0)}
	w.keep(server)
	conns := make(chan net.Conn, 1)
	conns <- conn
	w.tasks.Go(func() { _ = server.Serve(handed{conns, w.stopped.Done()}) })
}

// zeros is an endless Reader.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// echo returns what it reads, at port 7007, and datagrams at port 443.
func (w *World) echo() error {
	for _, at := range []netip.Addr{CDN, netip.MustParseAddr("8.8.8.8")} {
		conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, 443)))
		if err != nil {
			return err
		}
		w.keep(conn)
		w.tasks.Go(func() {
			buffer := make([]byte, 2048)
			for {
				_, from, err := conn.ReadFromUDPAddrPort(buffer)
				if err != nil {
					return
				}
				w.violate("a datagram reached %v at port 443", at)
				conn.WriteToUDPAddrPort([]byte(w.Secret), from)
			}
		})
	}
	return w.raw(7007, func(conn net.Conn) { io.Copy(conn, conn) })
}

// source sends 100 MB, at port 7008.
func (w *World) source() error {
	return w.raw(7008, func(conn net.Conn) { io.CopyN(conn, zeros{}, 100<<20) })
}

// raw serves a port of the server of many names, and tells the secret at other addresses.
func (w *World) raw(port uint16, handle func(net.Conn)) error {
	return w.listen(everywhere(port), func(conn net.Conn) {
		switch at := local(conn.LocalAddr()); at.Addr() {
		case CDN, CDN6:
			counted := w.count(conn)
			defer counted.Close()
			if w.NoWire {
				handle(conn) // not counted, so that the kernel copies
			} else {
				handle(counted)
			}
		default:
			w.violate("a connection reached %v", at)
			io.WriteString(conn, w.Secret+"\n")
		}
	})
}
