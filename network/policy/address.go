package policy

import (
	"fmt"
	"net/netip"
	"slices"
)

// AddressError is the refusal of an address.
type AddressError struct {
	Address netip.Addr
	// Kind describes the address, such as "a loopback address".
	Kind string
	// Private is the entry of private that would allow the address; it is invalid if no entry
	// would.
	Private netip.Prefix
}

func (e *AddressError) Error() string { return fmt.Sprintf("%s is %s", e.Address, e.Kind) }

// special are networks that are not of the public internet.
type special struct {
	network netip.Prefix
	kind    string
}

// never lists the addresses that no entry of private allows, because they lead to this machine or
// to everyone.
var never = networks(
	"0.0.0.0/8", "an address of this machine",
	"127.0.0.0/8", "a loopback address",
	"224.0.0.0/4", "a multicast address",
	"255.255.255.255/32", "the broadcast address",
	"::/128", "an address of this machine",
	"::1/128", "a loopback address",
	"ff00::/8", "a multicast address",
)

// metadata lists the addresses where clouds give credentials to any client, as the manuals of AWS
// (also for containers), Azure, Google, Alibaba, Oracle, Tencent and Scaleway state them. Only an entry of private
// with exactly such an address allows it, because an operator who writes 169.254.0.0/16 does not
// mean it.
var metadata = addresses(
	"169.254.169.254", "169.254.170.2", "169.254.170.23", "fd00:ec2::254", "fd00:ec2::23",
	"168.63.129.16", "fd20:ce::254", "100.100.100.200", "192.0.0.192",
	"169.254.0.23", "169.254.42.42",
)

// notPublic are the networks of IANA's registries of special-purpose addresses
// that are not globally reachable (RFC 6890 and its updates). IPv6 addresses
// outside of 2000::/3 are refused without being listed.
var notPublic = networks(
	"10.0.0.0/8", "a private address",
	"100.64.0.0/10", "an address of a provider's own network",
	"169.254.0.0/16", "a link-local address",
	"172.16.0.0/12", "a private address",
	"192.0.0.0/24", "an address for protocols",
	"192.0.2.0/24", "an address for documentation",
	"192.88.99.0/24", "an address of 6to4 relays",
	"192.168.0.0/16", "a private address",
	"198.18.0.0/15", "an address for benchmarks",
	"198.51.100.0/24", "an address for documentation",
	"203.0.113.0/24", "an address for documentation",
	"240.0.0.0/4", "a reserved address",
	"fc00::/7", "a private address",
	"fe80::/10", "a link-local address",
	"64:ff9b::/96", "an IPv4 address behind NAT64",
	"64:ff9b:1::/48", "an IPv4 address behind NAT64",
	"2001::/32", "an IPv4 address in Teredo",
	"2001::/23", "an address for protocols",
	"2001:db8::/32", "an address for documentation",
	"2002::/16", "an IPv4 address in 6to4",
	"3fff::/20", "an address for documentation",
)

// globalUnicast contains all public IPv6 addresses (RFC 4291, section 2.4).
var globalUnicast = netip.MustParsePrefix("2000::/3")

// Check returns an [AddressError] if an address may not be dialled. own lists the addresses of this
// machine's interfaces, which are never dialled.
func (p *Policy) Check(address netip.Addr, own []netip.Addr) error {
	if address.Zone() != "" || !address.IsValid() {
		return &AddressError{Address: address, Kind: "an address of one link alone"}
	}
	// The kernel dials an IPv4-mapped address as the IPv4 address in it.
	a := address.Unmap()
	if kind := kindIn(never, a); kind != "" {
		return &AddressError{Address: a, Kind: kind}
	}
	for _, mine := range own {
		if a == mine.Unmap().WithZone("") {
			return &AddressError{Address: a, Kind: "this machine's own address"}
		}
	}
	single := netip.PrefixFrom(a, a.BitLen())
	if slices.Contains(metadata, a) {
		if slices.Contains(p.private, single) {
			return nil
		}
		return &AddressError{Address: a, Kind: "the address of a cloud's metadata service", Private: single}
	}
	// An address that embeds another one is judged by that one.
	if inner, ok := embedded(a); ok {
		if err := p.Check(inner, own); err != nil {
			return &AddressError{Address: a, Kind: "another form of " + err.Error()}
		}
	}
	for _, network := range p.private {
		if network.Contains(a) {
			return nil
		}
	}
	kind := kindIn(notPublic, a)
	if kind == "" && a.Is6() && !globalUnicast.Contains(a) {
		kind = "not a public address"
	}
	if kind == "" {
		return nil
	}
	bits := 24
	if a.Is6() {
		bits = 64
	}
	if nat64.Contains(a) {
		bits = nat64.Bits()
	}
	around, _ := a.Prefix(bits)
	return &AddressError{Address: a, Kind: kind, Private: around}
}

// embedded returns the IPv4 address that a translator or a tunnel would forward an IPv6 address to.
func embedded(a netip.Addr) (netip.Addr, bool) {
	if !a.Is6() {
		return netip.Addr{}, false
	}
	b := a.As16()
	last := netip.AddrFrom4([4]byte(b[12:]))
	switch {
	case nat64.Contains(a), nat64Local.Contains(a), compatible.Contains(a):
		return last, true
	case sixToFour.Contains(a):
		return netip.AddrFrom4([4]byte(b[2:6])), true
	case teredo.Contains(a):
		// The client's address is kept inverted (RFC 4380, section 4).
		return netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]}), true
	}
	return netip.Addr{}, false
}

var (
	nat64      = netip.MustParsePrefix("64:ff9b::/96")   // RFC 6052
	nat64Local = netip.MustParsePrefix("64:ff9b:1::/48") // RFC 8215
	compatible = netip.MustParsePrefix("::/96")          // RFC 4291, section 2.5.5.1
	sixToFour  = netip.MustParsePrefix("2002::/16")      // RFC 3056
	teredo     = netip.MustParsePrefix("2001::/32")      // RFC 4380
)

func kindIn(list []special, a netip.Addr) string {
	for _, s := range list {
		if s.network.Contains(a) {
			return s.kind
		}
	}
	return ""
}

func networks(pairs ...string) []special {
	var list []special
	for pair := range slices.Chunk(pairs, 2) {
		list = append(list, special{netip.MustParsePrefix(pair[0]), pair[1]})
	}
	return list
}

func addresses(texts ...string) []netip.Addr {
	var list []netip.Addr
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}
