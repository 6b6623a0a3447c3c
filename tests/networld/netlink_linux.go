package networld

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// netlink is a socket to the kernel's routing tables (rtnetlink(7)).
type netlink struct{ fd int }

// rtnetlink runs f with a socket of the calling thread's network namespace.
func rtnetlink(f func(*netlink) error) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open a netlink socket: %w", err)
	}
	defer unix.Close(fd)
	return f(&netlink{fd})
}

var native = binary.NativeEndian

// attribute appends an attribute, padded to four bytes.
func attribute(message []byte, kind uint16, value []byte) []byte {
	message = native.AppendUint16(message, uint16(4+len(value)))
	message = native.AppendUint16(message, kind)
	message = append(message, value...)
	return append(message, make([]byte, -len(value)&3)...)
}

func number(n uint32) []byte { return native.AppendUint32(nil, n) }

// request sends a message and returns the kernel's answer.
func (n *netlink) request(kind, flags uint16, body []byte) error {
	message := native.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	message = native.AppendUint16(message, kind)
	message = native.AppendUint16(message, unix.NLM_F_REQUEST|unix.NLM_F_ACK|flags)
	message = append(message, make([]byte, 8)...) // sequence number, port
	message = append(message, body...)
	if err := unix.Sendto(n.fd, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	reply := make([]byte, 4096)
	size, _, err := unix.Recvfrom(n.fd, reply, 0)
	if err != nil {
		return err
	}
	if size < unix.SizeofNlMsghdr+4 {
		return errors.New("the kernel's answer is too short")
	}
	if code := int32(native.Uint32(reply[unix.SizeofNlMsghdr:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

const create = unix.NLM_F_CREATE | unix.NLM_F_EXCL

// link is the header of messages about interfaces.
func link(index int, up uint32) []byte {
	header := []byte{unix.AF_UNSPEC, 0, 0, 0}
	header = native.AppendUint32(header, uint32(index))
	header = native.AppendUint32(header, up)
	return native.AppendUint32(header, up)
}

// veth makes two interfaces that are joined: here in the calling thread's namespace,
// there in another one.
func (n *netlink) veth(here, there string, namespace *os.File) error {
	peer := attribute(link(0, 0), unix.IFLA_IFNAME, append([]byte(there), 0))
	peer = attribute(peer, unix.IFLA_NET_NS_FD, number(uint32(namespace.Fd())))
	const infoPeer = 1 // VETH_INFO_PEER
	data := attribute(nil, infoPeer, peer)
	info := attribute(nil, unix.IFLA_INFO_KIND, []byte("veth"))
	info = attribute(info, unix.IFLA_INFO_DATA, data)
	body := attribute(link(0, 0), unix.IFLA_IFNAME, append([]byte(here), 0))
	body = attribute(body, unix.IFLA_LINKINFO, info)
	if err := n.request(unix.RTM_NEWLINK, create, body); err != nil {
		return fmt.Errorf("%w: make a veth pair: %w", ErrImpossible, err)
	}
	return nil
}

func index(name string) (int, error) {
	device, err := net.InterfaceByName(name)
	if err != nil {
		return 0, fmt.Errorf("interface %s: %w", name, err)
	}
	return device.Index, nil
}

func (n *netlink) up(name string) error {
	i, err := index(name)
	if err != nil {
		return err
	}
	if err := n.request(unix.RTM_NEWLINK, 0, link(i, unix.IFF_UP)); err != nil {
		return fmt.Errorf("bring %s up: %w", name, err)
	}
	return nil
}

// address gives an interface an address, which is usable at once.
func (n *netlink) address(name string, prefix netip.Prefix) error {
	i, err := index(name)
	if err != nil {
		return err
	}
	body := []byte{family(prefix.Addr()), byte(prefix.Bits()), unix.IFA_F_NODAD, unix.RT_SCOPE_UNIVERSE}
	body = native.AppendUint32(body, uint32(i))
	body = attribute(body, unix.IFA_LOCAL, prefix.Addr().AsSlice())
	body = attribute(body, unix.IFA_ADDRESS, prefix.Addr().AsSlice())
	if err := n.request(unix.RTM_NEWADDR, create, body); err != nil {
		return fmt.Errorf("give %s the address %v: %w", name, prefix, err)
	}
	return nil
}

func family(a netip.Addr) byte {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// A route says where packets to a network go.
type route struct {
	to     netip.Prefix
	device string     // empty for none
	via    netip.Addr // invalid for none
	table  byte
	kind   byte
}

func (n *netlink) route(r route) error {
	scope := byte(unix.RT_SCOPE_LINK)
	switch {
	case r.kind == unix.RTN_LOCAL:
		scope = unix.RT_SCOPE_HOST
	case r.via.IsValid() || r.device == "":
		scope = unix.RT_SCOPE_UNIVERSE
	}
	body := []byte{family(r.to.Addr()), byte(r.to.Bits()), 0, 0, r.table, unix.RTPROT_BOOT, scope, r.kind, 0, 0, 0, 0}
	if r.to.Bits() > 0 {
		body = attribute(body, unix.RTA_DST, r.to.Addr().AsSlice())
	}
	if r.via.IsValid() {
		body = attribute(body, unix.RTA_GATEWAY, r.via.AsSlice())
	}
	if r.device != "" {
		i, err := index(r.device)
		if err != nil {
			return err
		}
		body = attribute(body, unix.RTA_OIF, number(uint32(i)))
	}
	if err := n.request(unix.RTM_NEWROUTE, create, body); err != nil {
		return fmt.Errorf("route %v by %s: %w", r.to, r.device, err)
	}
	return nil
}
