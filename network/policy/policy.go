// Package policy decides which names a sandbox reaches, at which ports, and at which addresses a
// name may be.
//
// It promises that a name passes only if the policy contains it, literally or below a "*." entry;
// and that an address passes only if it is public or in a network that the policy names, and is
// never one of this machine's own.
package policy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostname"
)

// Schema is the version of the policy file that this package reads.
const Schema = 1

// Bounds of a policy file.
const (
	// MaxFile is the largest policy file, in bytes.
	MaxFile = 1 << 20
	// MaxDomains is the largest number of entries of domains.
	MaxDomains = 1000
	// MaxPorts is the largest number of different ports, including those of single entries: each is
	// a listening socket.
	MaxPorts = 64
	// MaxPrivate is the largest number of networks in private.
	MaxPrivate = 100
	// MaxNames is the largest value of names. Every name gets an address of
	// 198.18.0.0/15, which has 131,072.
	MaxNames = 100_000
)

// MaxConnections, MaxRate and MaxMegabytes are the largest values of the limits
// of the same names.
const (
	MaxConnections = 10_000
	MaxRate        = 10_000
	MaxMegabytes   = 1 << 30
)

// ResolverPort is the port of the sandbox's resolver. No entry can have it.
const ResolverPort = 53

// Policy says what one sandbox may reach. It is immutable, and its methods may be called by several
// goroutines.
type Policy struct {
	// Connections is how many connections may be open at once.
	Connections int
	// Rate is how many connections may begin in a second.
	Rate int
	// Bytes is how many bytes the connections of a sandbox's life may carry, up
	// and down together.
	Bytes int64
	// Names is how many different names below "*." entries may be looked up.
	Names int
	// Upstream is the HTTP proxy through which every connection goes, as HOST:PORT. If it is not
	// empty, that proxy looks names up instead of this machine.
	Upstream string
	// Credentials are the secrets that requests to single hosts get, in the order of
	// the file.
	Credentials []Credential

	hosts         // that a sandbox reaches
	asked   hosts // about which a user is asked
	rules   map[string]*Rule
	common  []uint16 // of the entries that have no port
	all     []uint16
	private []netip.Prefix
}

// hosts are names with their ports.
type hosts struct {
	exact map[string]ports // by name
	below map[string]ports // by the name after "*."; that of "*" is empty
}

type ports struct {
	common bool     // those that the policy lists
	own    []uint16 // those that were written with the name
}

type file struct {
	Schema      int      `json:"schema"`
	Domains     []string `json:"domains"`
	Ask         []string `json:"ask"`
	Ports       []int    `json:"ports"`
	Private     []string `json:"private"`
	Connections int      `json:"connections"`
	Rate        int      `json:"rate"`
	Megabytes   int      `json:"megabytes"`
	Names       int      `json:"names"`
	Upstream    *string  `json:"upstream"`

	Rules       map[string]*Rule `json:"rules"`
	Credentials []Credential     `json:"credentials"`
}

// ReadFile reads a policy file of at most [MaxFile] bytes. Its errors name the
// file and the value that is wrong.
func ReadFile(name string) (*Policy, error) {
	text, err := bounded.ReadFile(name, MaxFile)
	if err != nil {
		return nil, err
	}
	p, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("policy %s: %w", name, err)
	}
	return p, nil
}

// Parse reads a policy. It refuses fields that it does not know, because an ignored field could
// forbid something.
func Parse(text []byte) (*Policy, error) {
	var f file
	if err := bounded.JSON(text, &f); err != nil {
		return nil, err
	}
	return f.compile()
}

func (f *file) compile() (*Policy, error) {
	if f.Schema != Schema {
		return nil, fmt.Errorf("schema is %d, and this program reads %d: build the environment and the server from the same version", f.Schema, Schema)
	}
	empty := func() hosts { return hosts{exact: map[string]ports{}, below: map[string]ports{}} }
	p := &Policy{hosts: empty(), asked: empty()}
	for _, limit := range []struct {
		name        string
		value, most int
		set         func(int)
	}{
		{"connections", f.Connections, MaxConnections, func(n int) { p.Connections = n }},
		{"rate", f.Rate, MaxRate, func(n int) { p.Rate = n }},
		{"megabytes", f.Megabytes, MaxMegabytes, func(n int) { p.Bytes = int64(n) << 20 }},
		{"names", f.Names, MaxNames, func(n int) { p.Names = n }},
	} {
		if limit.value < 1 || limit.value > limit.most {
			return nil, fmt.Errorf("%s is %d: use a number from 1 to %d", limit.name, limit.value, limit.most)
		}
		limit.set(limit.value)
	}
	for _, port := range f.Ports {
		if port < 1 || port > 65535 || port == ResolverPort {
			return nil, fmt.Errorf("ports has %d: use numbers from 1 to 65535 without %d, at which the resolver answers", port, ResolverPort)
		}
		p.common = append(p.common, uint16(port))
	}
	if len(f.Domains) == 0 || len(f.Domains)+len(f.Ask) > MaxDomains {
		return nil, fmt.Errorf("domains has %d entries, and ask %d: use from 1 to %d", len(f.Domains), len(f.Ask), MaxDomains)
	}
	p.all = slices.Clone(p.common)
	for _, entry := range f.Domains {
		if err := p.add(p.hosts, entry); err != nil {
			return nil, fmt.Errorf("domains has %q: %w", entry, err)
		}
	}
	for _, entry := range f.Ask {
		if entry == "*" {
			p.asked.below[""] = ports{common: true}
		} else if err := p.add(p.asked, entry); err != nil {
			return nil, fmt.Errorf("ask has %q: %w", entry, err)
		}
	}
	slices.Sort(p.all)
	p.all = slices.Compact(p.all)
	if len(p.all) == 0 || len(p.all) > MaxPorts {
		return nil, fmt.Errorf("domains and ports have %d different ports: use from 1 to %d", len(p.all), MaxPorts)
	}
	if len(f.Private) > MaxPrivate {
		return nil, fmt.Errorf("private has %d networks: use at most %d", len(f.Private), MaxPrivate)
	}
	for _, text := range f.Private {
		network, err := netip.ParsePrefix(text)
		if err != nil || network != network.Masked() || network.Addr().Is4In6() {
			return nil, fmt.Errorf("private has %q: use networks such as \"10.1.0.0/16\"", text)
		}
		p.private = append(p.private, network)
	}
	if f.Upstream != nil {
		address, err := upstream(*f.Upstream)
		if err != nil {
			return nil, fmt.Errorf("upstream is %q: %w", *f.Upstream, err)
		}
		p.Upstream = address
	}
	if err := p.addRules(f); err != nil {
		return nil, err
	}
	return p, nil
}

// add adds one entry to hosts: NAME, *.NAME, NAME:PORT or *.NAME:PORT.
func (p *Policy) add(to hosts, entry string) error {
	name, text, hasPort := strings.Cut(entry, ":")
	var port uint16
	if hasPort {
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil || n == 0 || n == ResolverPort || strconv.FormatUint(n, 10) != text {
			return fmt.Errorf("use a port from 1 to 65535 after the colon, and not %d", ResolverPort)
		}
		port = uint16(n)
	}
	entries := to.exact
	name, below := strings.CutPrefix(name, "*.")
	if below {
		entries = to.below
	}
	if !hostname.IsCanonical(name) {
		return hostname.ErrMalformed
	}
	if below && !strings.Contains(name, ".") {
		return errors.New("it would allow a whole top-level domain")
	}
	at := entries[name]
	if hasPort {
		at.own = append(at.own, port)
		p.all = append(p.all, port)
	} else {
		at.common = true
	}
	entries[name] = at
	return nil
}

func upstream(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" || u.User != nil || u.Hostname() == "" || u.Port() == "" ||
		u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "" {
		return "", errors.New(`write "http://HOST:PORT" without a password: everybody on the machine can read the policy`)
	}
	if n, err := strconv.ParseUint(u.Port(), 10, 16); err != nil || n == 0 {
		return "", errors.New("use a port from 1 to 65535")
	}
	if _, err := netip.ParseAddr(u.Hostname()); err != nil {
		if _, err := hostname.Canonical(u.Hostname()); err != nil {
			return "", err
		}
	}
	return net.JoinHostPort(u.Hostname(), u.Port()), nil
}

// Ports returns every port that is allowed for at least one name, in ascending order.
func (p *Policy) Ports() []uint16 { return slices.Clone(p.all) }

// Name is the verdict on a name at any port.
type Name int

// The verdicts of [Policy.Name].
const (
	Unknown Name = iota // no entry allows it
	Below               // the name is allowed by "*." entries alone
	Exact               // an entry contains the name itself
)

// Name returns whether a canonical name is allowed at any port, or may be if a user allows it.
func (p *Policy) Name(name string) Name {
	return max(p.hosts.name(name), p.asked.name(name))
}

// AsksName returns whether a canonical name is allowed at no port unless a user allows it.
func (p *Policy) AsksName(name string) bool {
	return p.hosts.name(name) == Unknown && p.asked.name(name) != Unknown
}

// Allows returns whether a canonical name is allowed at a port.
func (p *Policy) Allows(name string, port uint16) bool { return p.contains(p.hosts, name, port) }

// Asks returns whether a user is asked about a canonical name at a port that is not allowed.
func (p *Policy) Asks(name string, port uint16) bool {
	return !p.Allows(name, port) && p.contains(p.asked, name, port)
}

func (h hosts) name(name string) Name {
	if _, ok := h.exact[name]; ok {
		return Exact
	}
	for range h.parents(name) {
		return Below
	}
	return Unknown
}

func (p *Policy) contains(h hosts, name string, port uint16) bool {
	if at, ok := h.exact[name]; ok && p.has(at, port) {
		return true
	}
	for at := range h.parents(name) {
		if p.has(at, port) {
			return true
		}
	}
	return false
}

func (p *Policy) has(at ports, port uint16) bool {
	return at.common && slices.Contains(p.common, port) || slices.Contains(at.own, port)
}

// parents yields the "*." entries that a name is below of. "*.example.com"
// does not contain example.com itself.
func (h hosts) parents(name string) func(func(ports) bool) {
	return func(yield func(ports) bool) {
		if len(h.below) == 0 {
			return
		}
		for name != "" {
			_, name, _ = strings.Cut(name, ".")
			if at, ok := h.below[name]; ok && !yield(at) {
				return
			}
		}
	}
}
