package interactive

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	// connectSeconds bounds a connection to a port of the sandbox, and maxPorts how many ports are
	// named.
	connectSeconds = 5
	maxPorts       = 64
	// maxTable bounds the kernel's table of sockets, in bytes, of which a line has 150.
	maxTable = 1 << 20
	// tableReads is how often that is read for a socket: the kernel leaves some out while others come and go.
	tableReads = 3
)

var (
	loopback4 = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	loopback6 = netip.IPv6Loopback()
)

// dial connects to a port of this network namespace's loopback: 127.0.0.1, or else the address at
// which a process listens.
func dial(port uint16) (*os.File, error) {
	file, err := dialAddress(netip.AddrPortFrom(loopback4, port))
	for range tableReads {
		if !errors.Is(err, unix.ECONNREFUSED) {
			break
		}
		for _, address := range listening() {
			if address.Port() != port || address.Addr() == loopback4 {
				continue
			}
			if file, other := dialAddress(address); other == nil {
				return file, nil
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("connect to port %d: %w", port, err)
	}
	return file, nil
}

func dialAddress(to netip.AddrPort) (*os.File, error) {
	family, address := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()})
	if to.Addr().Is4() {
		family, address = unix.AF_INET, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	// It bounds connect(2) too (socket(7)): code may leave connections unaccepted.
	err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: connectSeconds})
	if err == nil {
		err = unix.Connect(fd, address)
	}
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "connection"), nil
}

// Ports returns the TCP ports on which processes of this network namespace listen, at its loopback
// or everywhere.
func Ports() (ports []uint16) {
	for _, address := range listening() {
		ports = append(ports, address.Port())
	}
	slices.Sort(ports)
	ports = slices.Compact(ports)
	return ports[:min(len(ports), maxPorts)]
}

// listening returns the addresses by which they are reached.
func listening() (addresses []netip.AddrPort) {
	for _, name := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		table, err := os.Open(name)
		if err != nil {
			continue // without IPv6 there is no second one
		}
		// The kernel lists sockets that listen first, so the end of a long table is not missed.
		addresses = append(addresses, listeners(io.LimitReader(table, maxTable))...)
		table.Close()
	}
	return addresses
}

// listeners reads a table of proc_net_tcp(5): number, local address, remote address, state, …
func listeners(table io.Reader) (addresses []netip.AddrPort) {
	for lines := bufio.NewScanner(table); lines.Scan(); {
		fields := bytes.Fields(lines.Bytes())
		if len(fields) < 4 || string(fields[3]) != "0A" { // TCP_LISTEN
			continue
		}
		text, port, _ := bytes.Cut(fields[1], []byte(":"))
		n, err := strconv.ParseUint(string(port), 16, 16)
		words, wrong := hex.DecodeString(string(text))
		if err != nil || wrong != nil {
			continue
		}
		for word := range slices.Chunk(words, 4) { // are in the order of the machine
			if len(word) == 4 {
				binary.NativeEndian.PutUint32(word, binary.BigEndian.Uint32(word))
			}
		}
		address, _ := netip.AddrFromSlice(words)
		switch address = address.Unmap(); {
		case address.IsUnspecified() && address.Is4():
			address = loopback4
		case address.IsUnspecified():
			address = loopback6
		}
		if address.IsLoopback() {
			addresses = append(addresses, netip.AddrPortFrom(address, uint16(n)))
		}
	}
	return addresses
}
