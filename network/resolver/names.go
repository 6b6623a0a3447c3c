package resolver

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/network/policy"
)

// Range contains the addresses that names get inside a sandbox. It is reserved for benchmarks
// between networks (RFC 2544), so no host has one of them.
var Range = netip.MustParsePrefix("198.18.0.0/15")

// How long the result of a look-up is used.
const (
	keepAddresses = time.Minute
	keepNone      = 5 * time.Second
	keepFailure   = time.Second
)

const (
	// maxLookups is how many look-ups go on at once.
	maxLookups = 16
	// lookupTimeout is the longest that one takes. It is above the 10 s that the
	// usual two attempts of 5 s take (resolv.conf(5)).
	lookupTimeout = 12 * time.Second
	// maxAddresses is how many addresses of a name are used.
	maxAddresses = 8
)

// Errors of look-ups, beside *[policy.AddressError].
var (
	// ErrNotAllowed reports a name that no entry of the policy allows.
	ErrNotAllowed = errors.New("the policy does not allow the name")
	// ErrTooManyNames reports a name beyond the policy's names.
	ErrTooManyNames = errors.New("too many different names were looked up")
	// ErrNotFound reports a name that does not exist or has no address.
	ErrNotFound = errors.New("no such host")
	// ErrNoAnswer reports a look-up that failed.
	ErrNoAnswer = errors.New("the name could not be looked up")
)

// Names are the allowed names that a sandbox has asked about. Each has an
// address inside the sandbox, which is given once and kept: whatever a program
// remembers stays true for the sandbox's life. It is safe for concurrent use.
type Names struct {
	policy *policy.Policy
	ask    func(ctx context.Context, name string) ([]netip.Addr, error)
	own    func() ([]netip.Addr, error)
	slots  chan struct{}

	mu      sync.Mutex
	byName  map[string]*entry
	inOrder []*entry
	below   int // how many names are allowed by "*." entries alone
}

type entry struct {
	name    string
	address netip.Addr // inside the sandbox

	// With mu of Names held:
	addresses []netip.Addr
	err       error
	until     time.Time
	pending   chan struct{} // closed when the look-up that goes on has ended
}

// NewNames returns the names of one sandbox. ask looks a name up; nil means that the policy's
// upstream does that and nothing is looked up here. own returns the addresses of this machine.
func NewNames(p *policy.Policy, ask func(ctx context.Context, name string) ([]netip.Addr, error), own func() ([]netip.Addr, error)) *Names {
	return &Names{policy: p, ask: ask, own: own, slots: make(chan struct{}, maxLookups), byName: map[string]*entry{}}
}

// Name returns the name that has an address inside the sandbox, or an empty
// string.
func (n *Names) Name(address netip.Addr) string {
	address = address.Unmap()
	if !Range.Contains(address) {
		return ""
	}
	a, first := address.As4(), Range.Addr().As4()
	i := int64(binary.BigEndian.Uint32(a[:])) - int64(binary.BigEndian.Uint32(first[:])) - 1
	n.mu.Lock()
	defer n.mu.Unlock()
	if i < 0 || i >= int64(len(n.inOrder)) {
		return ""
	}
	return n.inOrder[i].name
}

// entry returns the entry of a canonical name, which is made for the first
// question. n.mu must be held.
func (n *Names) entry(name string) (*entry, error) {
	if e, ok := n.byName[name]; ok {
		return e, nil
	}
	switch n.policy.Name(name) {
	case policy.Unknown:
		return nil, ErrNotAllowed
	case policy.Below:
		// Every question below a "*." entry tells the owner of the domain something, even if the
		// name does not exist.
		if n.below >= n.policy.Names {
			return nil, ErrTooManyNames
		}
		n.below++
	}
	first := Range.Addr().As4()
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(first[:])+uint32(len(n.inOrder))+1)
	e := &entry{name: name, address: netip.AddrFrom4(a)}
	n.byName[name] = e
	n.inOrder = append(n.inOrder, e)
	return e, nil
}

// Inside returns the address of a name inside the sandbox. known is false if the name must be
// looked up first, which [Names.Resolve] does.
func (n *Names) Inside(name string) (address netip.Addr, known bool, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	e, err := n.entry(name)
	if err != nil {
		return netip.Addr{}, true, err
	}
	// The world outside learns of a name only when a user has allowed it.
	if n.policy.AsksName(name) {
		return e.address, true, nil
	}
	if n.ask != nil && !time.Now().Before(e.until) {
		return netip.Addr{}, false, nil
	}
	if e.err != nil {
		return netip.Addr{}, true, e.err
	}
	return e.address, true, nil
}

// Resolve returns the addresses of a canonical name that may be dialled, the preferred one first. A
// single refused address refuses the name, because a mix of public and other addresses is a sign of
// an attack.
//
// Its errors are those of this package and *[policy.AddressError]. It takes no longer than ctx
// lives.
func (n *Names) Resolve(ctx context.Context, name string) ([]netip.Addr, error) {
	for {
		n.mu.Lock()
		e, err := n.entry(name)
		if err != nil {
			n.mu.Unlock()
			return nil, err
		}
		if time.Now().Before(e.until) {
			addresses, err := e.addresses, e.err
			n.mu.Unlock()
			return addresses, err
		}
		pending := e.pending
		if pending == nil {
			pending = make(chan struct{})
			e.pending = pending
			go n.lookUp(e, pending)
		}
		n.mu.Unlock()
		select {
		case <-pending:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: timeout", ErrNoAnswer)
		}
	}
}

// Forget makes the next question about a name a look-up, because none of its addresses answers.
func (n *Names) Forget(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if e, ok := n.byName[name]; ok {
		e.until = time.Time{}
	}
}

// lookUp fills an entry. Each entry has at most one look-up at a time, and a sandbox's names are
// bounded, so the number of waiting look-ups is too.
func (n *Names) lookUp(e *entry, pending chan struct{}) {
	ctx, stop := context.WithTimeout(context.Background(), lookupTimeout)
	defer stop()
	var addresses []netip.Addr
	var err error
	select {
	case n.slots <- struct{}{}:
		addresses, err = n.question(ctx, e.name)
		<-n.slots
	case <-ctx.Done():
		err = fmt.Errorf("%w: too many others are being looked up", ErrNoAnswer)
	}
	keep := keepAddresses
	var refused *policy.AddressError
	switch {
	case err == nil:
	case errors.Is(err, ErrNotFound) || errors.As(err, &refused):
		keep = keepNone
	default:
		keep = keepFailure
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	e.addresses, e.err, e.until, e.pending = addresses, err, time.Now().Add(keep), nil
	close(pending)
}

// question asks for a name's addresses and checks them.
func (n *Names) question(ctx context.Context, name string) ([]netip.Addr, error) {
	addresses, err := n.ask(ctx, name)
	var failure *net.DNSError
	switch {
	case errors.As(err, &failure) && failure.IsNotFound, err == nil && len(addresses) == 0:
		return nil, ErrNotFound
	// The errors themselves would show the sandbox this machine's resolver.
	case errors.As(err, &failure) && failure.IsTimeout:
		return nil, fmt.Errorf("%w: timeout", ErrNoAnswer)
	case err != nil:
		return nil, fmt.Errorf("%w: the resolver failed", ErrNoAnswer)
	}
	own, err := n.own()
	if err != nil {
		return nil, fmt.Errorf("%w: this machine's own addresses are unknown", ErrNoAnswer)
	}
	for i, address := range addresses {
		if err := n.policy.Check(address, own); err != nil {
			return nil, err
		}
		addresses[i] = address.Unmap()
	}
	return addresses[:min(len(addresses), maxAddresses)], nil
}
