package limitkeeper

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// sock_diag(7) reports the memory of each socket of a network namespace, including
// the overhead of each packet, and of Unix sockets too, for which /proc/net does not
// have it. The jail's system call filter admits this protocol for the agent, and the
// agent's own filter refuses it to the code.

const (
	// fewSockets are too few for a scan: each contains about 8 MB at most.
	fewSockets = 16
	// socketCost is the size of a socket without data, in bytes. A connection that
	// waits to be accepted has no descriptor that would count for it.
	socketCost = 4 << 10
	// maxSockets bounds how much of one table of /proc/net is read, in bytes: 14,000
	// lines.
	maxSockets = 2 << 20
	// pendingCost is how much a connection to a Unix socket may contain before it is
	// accepted, in bytes: a send buffer of the default size (net.core.wmem_default).
	// The sender may have closed its end, so that no descriptor counts for it.
	pendingCost = 212_992

	// diagTime bounds the processor time for one table. This scan leaves out the
	// remaining sockets.
	diagTime = 50 * time.Millisecond
	// diagWait bounds the wait for each part of a table.
	diagWait = time.Second

	// datagrams is how many datagrams can wait in a Unix socket. The kernel reports
	// the size of the first one only. It is net.unix.max_dgram_qlen of every new
	// network namespace.
	datagrams = 10
)

// Of the kernel's linux/sock_diag.h, linux/unix_diag.h and linux/inet_diag.h.
const (
	sockDiagByFamily = 20
	allStates        = 0xffffffff

	unixShowPeer    = 0x04
	unixShowQueue   = 0x10
	unixShowMemory  = 0x20
	unixMessageSize = 16
	unixType        = 1 // where the type is in a message
	unixState       = 2
	unixPeer        = 2 // attributes
	unixQueue       = 4
	unixMemory      = 5
	listening       = 10

	inetShowMemory  = 1 << (inetMemory - 1)
	inetMessageSize = 72
	inetMemory      = 7 // attribute

	// Words of an attribute with the memory of a socket.
	memoryReceived = 0
	memorySent     = 2
	memoryQueued   = 5
	memoryBacklog  = 7
)

// socketTables are the tables to ask for. fallback is a less exact count for kernels
// without that table.
var socketTables = []struct {
	request  []byte
	count    func(message []byte) int64
	fallback func() int64
}{
	{unixRequest(), unixSocket, pending},
	{inetRequest(unix.AF_INET, unix.IPPROTO_TCP), inetSocket, func() int64 { return queued("tcp") }},
	{inetRequest(unix.AF_INET6, unix.IPPROTO_TCP), inetSocket, func() int64 { return queued("tcp6") }},
	{inetRequest(unix.AF_INET, unix.IPPROTO_UDP), inetSocket, func() int64 { return queued("udp") }},
	{inetRequest(unix.AF_INET6, unix.IPPROTO_UDP), inetSocket, func() int64 { return queued("udp6") }},
}

// socketMemory returns the bytes that wait in the sockets of this network namespace.
func socketMemory() (total int64) {
	for _, table := range socketTables {
		size, err := diagnose(table.request, table.count)
		if err != nil {
			size = table.fallback()
		}
		total += size
	}
	return total
}

// unixRequest is a struct unix_diag_req for all sockets.
func unixRequest() []byte {
	request := []byte{unix.AF_UNIX, 0, 0, 0}
	for _, word := range []uint32{allStates, 0, unixShowPeer | unixShowQueue | unixShowMemory, 0, 0} {
		request = binary.NativeEndian.AppendUint32(request, word)
	}
	return request
}

// inetRequest is a struct inet_diag_req_v2 for all sockets of a protocol.
func inetRequest(family, protocol byte) []byte {
	request := []byte{family, protocol, inetShowMemory, 0}
	request = binary.NativeEndian.AppendUint32(request, allStates)
	const socket = 48 // struct inet_diag_sockid
	return append(request, make([]byte, socket)...)
}

// unixSocket returns the bytes in a Unix socket. Bytes that wait to be read count for
// the sender's socket as long as it exists.
func unixSocket(message []byte) (total int64) {
	if len(message) < unixMessageSize {
		return 0
	}
	var peer, waiting int64
	eachAttribute(message[unixMessageSize:], func(kind uint16, words []byte) {
		switch kind {
		case unixPeer:
			peer = word(words, 0)
		case unixQueue:
			waiting = word(words, 0)
		case unixMemory:
			total += word(words, memorySent)
		}
	})
	switch {
	case message[unixState] == listening: // the number of connections that wait
		return total + waiting*pendingCost
	case waiting == 0 || peer != 0:
		return total
	case message[unixType] == unix.SOCK_DGRAM:
		return total + datagrams*pendingCost
	default:
		// The overhead of small packets takes up to the sender's whole buffer.
		return total + max(waiting, pendingCost)
	}
}

// inetSocket returns the bytes in a TCP or UDP socket.
func inetSocket(message []byte) (total int64) {
	if len(message) < inetMessageSize {
		return 0
	}
	eachAttribute(message[inetMessageSize:], func(kind uint16, words []byte) {
		if kind == inetMemory {
			total += word(words, memoryReceived) + max(word(words, memorySent), word(words, memoryQueued)) + word(words, memoryBacklog)
		}
	})
	return total
}

// word returns one of an attribute's numbers, or 0 if it has fewer.
func word(words []byte, index int) int64 {
	if len(words) < 4*index+4 {
		return 0
	}
	return int64(binary.NativeEndian.Uint32(words[4*index:]))
}

// eachAttribute calls each with every attribute of a netlink message. An attribute
// consists of its length, its kind and its value, padded to a multiple of four bytes.
func eachAttribute(rest []byte, each func(kind uint16, value []byte)) {
	for len(rest) >= unix.SizeofRtAttr {
		length := int(binary.NativeEndian.Uint16(rest))
		if length < unix.SizeofRtAttr || length > len(rest) {
			return
		}
		each(binary.NativeEndian.Uint16(rest[2:]), rest[unix.SizeofRtAttr:length])
		rest = rest[min((length+3)&^3, len(rest)):]
	}
}

// diagnose adds up count over a table of sockets.
func diagnose(request []byte, count func(message []byte) int64) (total int64, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return 0, fmt.Errorf("ask for sockets: %w", err)
	}
	defer unix.Close(fd)
	wait := unix.NsecToTimeval(int64(diagWait))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		return 0, fmt.Errorf("limit the wait for sockets: %w", err)
	}
	var header bytes.Buffer
	if err := binary.Write(&header, binary.NativeEndian, unix.NlMsghdr{
		Len: uint32(unix.SizeofNlMsghdr + len(request)), Type: sockDiagByFamily, Flags: unix.NLM_F_REQUEST | unix.NLM_F_DUMP,
	}); err != nil {
		return 0, err
	}
	if err := unix.Sendto(fd, append(header.Bytes(), request...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, fmt.Errorf("ask for sockets: %w", err)
	}
	rest := newBudget(diagTime)
	for buf := make([]byte, 32<<10); !rest.over(); {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			return 0, fmt.Errorf("read sockets: %w", err)
		}
		for part := buf[:n]; len(part) >= unix.SizeofNlMsghdr; {
			length := int(binary.NativeEndian.Uint32(part))
			if length < unix.SizeofNlMsghdr || length > len(part) {
				return 0, fmt.Errorf("a message of %d bytes in %d", length, len(part))
			}
			message := part[unix.SizeofNlMsghdr:length]
			switch kind := binary.NativeEndian.Uint16(part[4:]); kind {
			case unix.NLMSG_DONE:
				return total, nil
			case unix.NLMSG_ERROR:
				return 0, fmt.Errorf("ask for sockets: %w", unix.Errno(-int32(word(message, 0))))
			case sockDiagByFamily:
				total += count(message)
			}
			part = part[min((length+3)&^3, len(part)):]
		}
	}
	return total, nil
}

// queued returns the bytes that wait in the sockets of a protocol: the fifth word of
// each line of its table, in hexadecimal.
func queued(protocol string) (total int64) {
	eachLine("/proc/net/"+protocol, maxSockets, func(line []byte) bool {
		words := bytes.Fields(line)
		if len(words) < 5 {
			return true
		}
		sent, received, _ := bytes.Cut(words[4], []byte(":"))
		for _, word := range [][]byte{sent, received} {
			n, _ := strconv.ParseUint(string(word), 16, 32)
			total += int64(n)
		}
		return true
	})
	return total
}

// pending returns how many bytes unaccepted connections to Unix sockets may contain.
// They are in state 2 and have no inode.
func pending() (total int64) {
	eachLine("/proc/net/unix", maxSockets, func(line []byte) bool {
		words := bytes.Fields(line)
		if len(words) >= 7 && string(words[5]) == "02" && string(words[6]) == "0" {
			total += pendingCost
		}
		return true
	})
	return total
}
