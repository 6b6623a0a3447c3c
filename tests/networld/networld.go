// Package networld makes a small internet for tests.
//
// A [World] is two network namespaces that are joined by one pair of interfaces and lead
// nowhere else. Programs under test run in the first, the host side. The second has every
// address of the internet: a resolver that writes down each question, a server of many
// names at one address (a content delivery network), a private network, the address of a
// cloud's metadata, mirrors of git, pip and npm. What a sandbox may not reach tells the
// world's secret, on the host side's own addresses too, and the world notes that it was
// reached.
//
// No interface, address, route or file of the machine changes, and root is not needed: see
// [Again]. The world is gone when it is closed, when its lifetime is over, or when its
// process ends.
package networld

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Addresses of the world.
var (
	// Host is the outer address of the host side.
	Host  = netip.MustParseAddr("93.184.216.1")
	Host6 = netip.MustParseAddr("2606:2800:220::1")
	// Resolver is what the host side's /etc/resolv.conf names.
	Resolver = netip.MustParseAddr("93.184.216.53")
	// CDN has many names, allowed ones and others.
	CDN  = netip.MustParseAddr("93.184.216.34")
	CDN6 = netip.MustParseAddr("2606:2800:220::34")
	// Git is a server for git over SSH.
	Git = netip.MustParseAddr("93.184.216.22")
	// Unreachable has no host, Silent one that drops every packet, and Stuck one that
	// accepts connections and says nothing.
	Unreachable = netip.MustParseAddr("93.184.216.99")
	Silent      = netip.MustParseAddr("93.184.216.98")
	Stuck       = netip.MustParseAddr("93.184.216.97")
	// Private and Metadata are what a sandbox must not reach through any name.
	Private  = netip.MustParseAddr("10.0.0.5")
	Metadata = netip.MustParseAddr("169.254.169.254")
	// Neighbour is the link-local address of the other side.
	Neighbour = netip.MustParseAddr("fe80::2")

	gateway  = netip.MustParseAddr("93.184.216.2")
	gateway6 = netip.MustParseAddr("2606:2800:220::2")
)

// Interface is the name of the host side's interface.
const Interface = "up0"

// PolicyText is the policy of sandboxes that are tested in a world, as the proxy reads
// it. The environment of the tests has the same file.
//
//go:embed policy.json
var PolicyText []byte

// A Policy is what the world takes for allowed.
type Policy struct {
	Domains     []string
	Ports       []int
	Connections int
	Rate        int
	Megabytes   int
	Names       int
}

// ReadPolicy returns the policy of [PolicyText].
func ReadPolicy() Policy {
	var policy Policy
	if err := json.Unmarshal(PolicyText, &policy); err != nil {
		panic(err) // the file is part of the program
	}
	return policy
}

// Allows reports whether a host name is allowed at any port. The name is in lower case
// and without a dot at its end.
func (p Policy) Allows(name string) bool {
	return slices.ContainsFunc(p.Domains, func(domain string) bool {
		domain, _, _ = strings.Cut(domain, ":")
		if suffix, ok := strings.CutPrefix(domain, "*"); ok {
			return strings.HasSuffix(name, suffix) && len(name) > len(suffix)
		}
		return name == domain
	})
}

// listens reports whether the policy has a port at the server of many names.
func (p Policy) listens(port int) bool {
	return slices.Contains(p.Ports, port) || slices.ContainsFunc(p.Domains, func(domain string) bool {
		return strings.HasSuffix(domain, ":"+strconv.Itoa(port)) && !strings.HasPrefix(domain, "git.")
	})
}

// Options of a world. The zero value is usable.
type Options struct {
	// Secret is what pages and sockets tell that may not be reached; empty is random.
	Secret string
	// NoWire leaves the packets unread, for measurements.
	NoWire bool
	// Mute is a resolver that reads questions and answers none.
	Mute bool
	// Lifetime is after how long the world closes by itself; 0 is 10 minutes.
	Lifetime time.Duration
}

// A World is made by [New] and closed by its caller. Its methods can be called by any
// goroutine.
type World struct {
	Options
	Policy Policy

	dir         string
	host, outer *os.File // the namespaces
	stop        context.CancelFunc
	stopped     context.Context
	closers     []io.Closer
	tasks       sync.WaitGroup
	once        sync.Once
	timer       *time.Timer
	turns       atomic.Int64 // answers about the name that changes
	repository  func() (string, error)
	mirrors     *mirrors

	mu         sync.Mutex
	closed     bool
	questions  []Question
	waiting    int // questions that were not answered
	violations map[string]int
	requests   []Request
	open, most int // connections at the server of many names
	accepted   []time.Time
	sent       int64
	received   int64
	wire       map[string]int
}

// Bounds on what a world remembers. What is beyond is counted and forgotten.
const (
	maxQuestions  = 20000
	maxViolations = 1000
	maxRequests   = 20000
)

// etcFiles are the files of /etc that the host side has of its own.
var etcFiles = []string{"resolv.conf", "hosts"}

// New makes a world. The error is [ErrImpossible] where this process may not.
func New(options Options) (*World, error) {
	if options.Secret == "" {
		random := make([]byte, 16)
		rand.Read(random) // never fails
		options.Secret = hex.EncodeToString(random)
	}
	if options.Lifetime == 0 {
		options.Lifetime = 10 * time.Minute
	}
	dir, err := os.MkdirTemp("", "networld-")
	if err != nil {
		return nil, err
	}
	w := &World{Options: options, Policy: ReadPolicy(), dir: dir, violations: map[string]int{}, wire: map[string]int{}}
	w.stopped, w.stop = context.WithCancel(context.Background())
	w.repository = sync.OnceValues(w.makeRepository)
	if err := w.build(); err != nil {
		w.Close()
		return nil, err
	}
	w.timer = time.AfterFunc(options.Lifetime, w.Close)
	return w, nil
}

func (w *World) build() error {
	resolv := fmt.Sprintf("nameserver %v\noptions timeout:2 attempts:1\n", Resolver)
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	if err := errors.Join(
		os.Chmod(w.dir, 0o755),
		os.WriteFile(filepath.Join(w.dir, "resolv.conf"), []byte(resolv), 0o644),
		os.WriteFile(filepath.Join(w.dir, "hosts"), []byte("127.0.0.1 localhost "+name+"\n::1 localhost\n"), 0o644),
	); err != nil {
		return err
	}
	mirrors, err := newMirrors()
	if err != nil {
		return err
	}
	w.mirrors = mirrors
	return onThread(func() error {
		var err error
		if w.outer, err = newNamespace(); err != nil {
			return err
		}
		if w.host, err = newNamespace(); err != nil {
			return err
		}
		if err := rtnetlink(w.hostRoutes); err != nil {
			return err
		}
		// An ordinary user may listen at every port, which root may in any case.
		_ = os.WriteFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("0"), 0)
		if os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 2147483647"), 0) != nil {
			// A user namespace knows one group.
			_ = os.WriteFile("/proc/sys/net/ipv4/ping_group_range", fmt.Appendf(nil, "%[1]d %[1]d", os.Getegid()), 0)
		}
		_ = os.WriteFile("/proc/sys/net/ipv4/tcp_fastopen", []byte("3"), 0)
		if err := w.serveHost(); err != nil {
			return err
		}
		if err := enterNamespace(w.outer); err != nil {
			return err
		}
		_ = os.WriteFile("/proc/sys/net/ipv4/tcp_fastopen", []byte("3"), 0)
		// Only a router answers that a host is unreachable.
		_ = os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
		if err := rtnetlink(outerRoutes); err != nil {
			return err
		}
		if !w.NoWire {
			if err := w.listenWire(); err != nil {
				return err
			}
		}
		return w.serveOuter()
	})
}

func (w *World) hostRoutes(n *netlink) error {
	if err := n.veth(Interface, "down0", w.outer); err != nil {
		return err
	}
	if err := errors.Join(
		n.address(Interface, netip.PrefixFrom(Host, 30)),
		n.address(Interface, netip.PrefixFrom(Host6, 126)),
		n.up(Interface),
		n.route(route{to: netip.MustParsePrefix("0.0.0.0/0"), device: Interface, via: gateway, table: unix.RT_TABLE_MAIN, kind: unix.RTN_UNICAST}),
	); err != nil {
		return err
	}
	return n.route(route{to: netip.MustParsePrefix("::/0"), device: Interface, via: gateway6, table: unix.RT_TABLE_MAIN, kind: unix.RTN_UNICAST})
}

// outerRoutes makes every address the other side's own but for the host side's.
func outerRoutes(n *netlink) error {
	const local = unix.RT_TABLE_LOCAL
	if err := errors.Join(
		n.address("down0", netip.PrefixFrom(gateway, 30)),
		n.address("down0", netip.PrefixFrom(gateway6, 126)),
		n.address("down0", netip.PrefixFrom(Neighbour, 64)),
		n.up("down0"),
	); err != nil {
		return err
	}
	return errors.Join(
		n.route(route{to: netip.MustParsePrefix("0.0.0.0/0"), device: "lo", table: local, kind: unix.RTN_LOCAL}),
		n.route(route{to: netip.MustParsePrefix("::/0"), device: "lo", table: local, kind: unix.RTN_LOCAL}),
		n.route(route{to: netip.PrefixFrom(Host, 32), device: "down0", table: local, kind: unix.RTN_UNICAST}),
		n.route(route{to: netip.PrefixFrom(Host6, 128), device: "down0", table: local, kind: unix.RTN_UNICAST}),
		n.route(route{to: netip.MustParsePrefix("fe80::/64"), device: "down0", table: local, kind: unix.RTN_UNICAST}),
		n.route(route{to: netip.PrefixFrom(Unreachable, 32), table: local, kind: unix.RTN_UNREACHABLE}),
		n.route(route{to: netip.PrefixFrom(Silent, 32), table: local, kind: unix.RTN_BLACKHOLE}),
	)
}

// Do runs f on a thread of the host side: programs that f starts are there, and sockets
// that it opens. Do returns when f does, and with it end the processes of f that are to
// end with the thread that started them (PR_SET_PDEATHSIG).
func (w *World) Do(f func() error) error {
	return onThread(func() error {
		if err := w.enter(); err != nil {
			return err
		}
		return f()
	})
}

// enter moves the calling thread, to which the goroutine is locked, to the host side.
func (w *World) enter() error {
	if err := privateFiles(w.dir); err != nil {
		return err
	}
	if err := enterNamespace(w.host); err != nil {
		return err
	}
	return dropAmbient()
}

// Close ends the world's servers and waits for them.
func (w *World) Close() {
	w.once.Do(func() {
		w.mu.Lock()
		w.closed = true
		closers := w.closers
		w.mu.Unlock()
		w.stop()
		if w.timer != nil {
			w.timer.Stop()
		}
		for _, closer := range closers {
			closer.Close()
		}
		w.tasks.Wait()
		for _, namespace := range []*os.File{w.host, w.outer} {
			if namespace != nil {
				namespace.Close()
			}
		}
		os.RemoveAll(w.dir)
	})
}

// keep has c closed with the world.
func (w *World) keep(c io.Closer) {
	w.mu.Lock()
	closed := w.closed
	w.closers = append(w.closers, c)
	w.mu.Unlock()
	if closed {
		c.Close()
	}
}

// violate notes that something was reached which is not allowed.
func (w *World) violate(format string, arguments ...any) {
	text := fmt.Sprintf(format, arguments...)
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.violations) < maxViolations || w.violations[text] > 0 {
		w.violations[text]++
	}
}

// Violations returns what was reached that the policy does not allow, in order: one
// sentence each.
func (w *World) Violations() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for text := range w.violations {
		all = append(all, text)
	}
	slices.Sort(all)
	return all
}

// A Request is one that came to a server for HTTP.
type Request struct {
	To   netip.AddrPort
	Name string // in TLS; empty where that was not used
	Host string
	Path string
	// Header is as the server received it.
	Header http.Header
}

// Requests returns those that came, the oldest first.
func (w *World) Requests() []Request {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.requests)
}

// Questions returns those that came to the resolver, the oldest first.
func (w *World) Questions() []Question {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.questions)
}

// Load is what a sandbox costs the world.
type Load struct {
	Connections int   // to the server of many names, at once at most
	Accepted    int   // connections in all
	Rate        int   // most of them in one second
	Sent        int64 // bytes that were sent on its connections, also those that wait in a buffer
	Received    int64 // bytes that its connections brought
	Names       int   // different names that were asked for
	Waiting     int   // questions that were never answered, at once at most
}

// Load returns what has been measured so far.
func (w *World) Load() Load {
	w.mu.Lock()
	defer w.mu.Unlock()
	names := map[string]bool{}
	for _, q := range w.questions {
		names[strings.ToLower(q.Name)] = true
	}
	load := Load{Connections: w.most, Accepted: len(w.accepted), Sent: w.sent, Received: w.received, Names: len(names), Waiting: w.waiting}
	first := 0
	for i, at := range w.accepted {
		for at.Sub(w.accepted[first]) > time.Second {
			first++
		}
		load.Rate = max(load.Rate, i-first+1)
	}
	return load
}

// counted is a connection of the server of many names.
type counted struct {
	net.Conn
	w    *World
	once sync.Once
}

func (w *World) count(conn net.Conn) net.Conn {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open++
	w.most = max(w.most, w.open)
	if len(w.accepted) < maxRequests {
		w.accepted = append(w.accepted, time.Now())
	}
	return &counted{Conn: conn, w: w}
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.w.mu.Lock()
	c.w.received += int64(n)
	c.w.mu.Unlock()
	return n, err
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.w.mu.Lock()
	c.w.sent += int64(n)
	c.w.mu.Unlock()
	return n, err
}

func (c *counted) Close() error {
	c.once.Do(func() {
		c.w.mu.Lock()
		c.w.open--
		c.w.mu.Unlock()
	})
	return c.Conn.Close()
}
