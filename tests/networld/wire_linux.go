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

// maxWire bounds how many different packets a world remembers.
const maxWire = 4096

// listenWire notes every packet that leaves the host side.
func (w *World) listenWire() error {
	const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in the network's byte order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, all)
	if err != nil {
		return fmt.Errorf("%w: open a packet socket: %w", ErrImpossible, err)
	}
	file := os.NewFile(uintptr(fd), "wire")
	device, err := net.InterfaceByName("down0")
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: device.Index})
	}
	var raw interface {
		Read(func(uintptr) bool) error
	}
	if err == nil {
		raw, err = file.SyscallConn()
	}
	if err != nil {
		file.Close()
		return err
	}
	w.keep(file)
	w.tasks.Go(func() {
		frame := make([]byte, 256)
		for {
			var size int
			var from unix.Sockaddr
			var failed error
			err := raw.Read(func(fd uintptr) bool {
				size, from, failed = unix.Recvfrom(int(fd), frame, 0)
				return !errors.Is(failed, unix.EAGAIN)
			})
			if err != nil || failed != nil && !errors.Is(failed, unix.EINTR) && !errors.Is(failed, unix.ENETDOWN) {
				return
			}
			if link, ok := from.(*unix.SockaddrLinklayer); ok && link.Pkttype != unix.PACKET_OUTGOING {
				w.packet(frame[:max(size, 0)])
			}
		}
	})
	return nil
}

// Protocols of IP that have ports at the same place.
var ported = map[byte]string{6: "tcp", 17: "udp", 33: "dccp", 132: "sctp", 136: "udplite"}

// packet notes one packet, and that it is not allowed unless it is a question to the
// resolver, part of a connection to an allowed port, or something that every host sends
// for itself.
func (w *World) packet(frame []byte) {
	if len(frame) < 14 {
		return
	}
	kind, packet := binary.BigEndian.Uint16(frame[12:]), frame[14:]
	var protocol byte
	var to netip.Addr
	switch {
	case kind == unix.ETH_P_IP && len(packet) >= 20:
		protocol = packet[9]
		to = netip.AddrFrom4([4]byte(packet[16:20]))
		packet = packet[min(len(packet), int(packet[0]&15)*4):]
	case kind == unix.ETH_P_IPV6 && len(packet) >= 40:
		protocol = packet[6]
		to = netip.AddrFrom16([16]byte(packet[24:40]))
		packet = packet[40:]
	case kind == unix.ETH_P_ARP:
		return
	default:
		w.note(fmt.Sprintf("a frame of type %#04x", kind), false)
		return
	}
	if name, ok := ported[protocol]; ok && len(packet) >= 4 {
		port := int(binary.BigEndian.Uint16(packet[2:]))
		w.note(fmt.Sprintf("%s to %v", name, netip.AddrPortFrom(to, uint16(port))), w.carries(name, to, port))
		return
	}
	own := false
	if len(packet) > 0 {
		switch protocol {
		case 1: // ICMP: only errors, which the kernel sends by itself
			own = packet[0] == 3 || packet[0] == 11 || packet[0] == 12
		case 58: // ICMPv6: the same, and neighbour discovery and multicast reports
			own = packet[0] < 128 || packet[0] >= 130
		case 0: // IPv6 hop-by-hop options, of multicast reports
			own = packet[0] == 58
		case 2: // IGMP
			own = true
		}
	}
	w.note(fmt.Sprintf("IP protocol %d to %v", protocol, to), own)
}

// carries reports whether the policy allows packets of a protocol to a port.
func (w *World) carries(protocol string, to netip.Addr, port int) bool {
	switch {
	case to == Resolver && port == 53:
		return protocol == "udp" || protocol == "tcp"
	case protocol != "tcp":
		return false
	case to == CDN || to == CDN6 || to == Unreachable || to == Silent || to == Stuck:
		return w.Policy.listens(port)
	case to == Git:
		return port == 22
	}
	return false
}

func (w *World) note(what string, allowed bool) {
	w.mu.Lock()
	_, known := w.wire[what]
	if known || len(w.wire) < maxWire {
		w.wire[what]++
	}
	w.mu.Unlock()
	if !known && !allowed {
		w.violate("%s left the host", what)
	}
}

// Wire returns how many packets of each kind left the host side, by a description such
// as "udp to 8.8.8.8:53".
func (w *World) Wire() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	copied := make(map[string]int, len(w.wire))
	for what, n := range w.wire {
		copied[what] = n
	}
	return copied
}
