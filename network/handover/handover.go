// Package handover brings listening sockets from a sandbox's network namespace
// to the proxy outside of it, over a connected AF_UNIX socket of the type
// SOCK_SEQPACKET.
//
// Each message is one JSON object of at most [maxMessage] bytes and one
// descriptor. The end of the stream says that there are no more. The receiver
// trusts nothing of it: a message that is not exactly that is an error, after
// which the receiver must not go on.
package handover

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// maxMessage is the longest message, in bytes.
const maxMessage = 256

// Protocols of a [Socket].
const (
	UDP = "udp"
	TCP = "tcp"
)

// Socket says what a descriptor is.
type Socket struct {
	// Protocol is [UDP] or [TCP]. A TCP socket is listening, and a UDP socket has
	// IP_PKTINFO on.
	Protocol string `json:"protocol"`
	// Port is the port to which the socket is bound.
	Port uint16 `json:"port"`
}

// Send hands one descriptor over, which stays open here.
func Send(over int, socket Socket, descriptor int) error {
	text, err := json.Marshal(socket)
	if err != nil {
		return err
	}
	err = retry(func() error { return unix.Sendmsg(over, text, unix.UnixRights(descriptor), nil, 0) })
	if err != nil {
		return fmt.Errorf("hand %s port %d over: %w", socket.Protocol, socket.Port, err)
	}
	return nil
}

// Receive returns the next socket and its descriptor, which is the caller's and
// is closed on exec. The error is io.EOF at the end of the stream.
func Receive(over int) (Socket, *os.File, error) {
	// One descriptor more than is allowed, so that two are seen as two.
	text, control := make([]byte, maxMessage+1), make([]byte, unix.CmsgSpace(2*4))
	var n, m, flags int
	err := retry(func() (err error) {
		n, m, flags, _, err = unix.Recvmsg(over, text, control, unix.MSG_CMSG_CLOEXEC)
		return err
	})
	if err != nil {
		return Socket{}, nil, fmt.Errorf("receive a socket: %w", err)
	}
	descriptors, err := received(control[:m])
	if n == 0 && m == 0 && err == nil {
		return Socket{}, nil, io.EOF
	}
	var socket Socket
	if err == nil {
		err = decode(text[:n], &socket)
	}
	if err == nil && (len(descriptors) != 1 || n > maxMessage || flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0) {
		err = errors.New("a message has other than one descriptor, or is too long")
	}
	if err != nil {
		for _, descriptor := range descriptors {
			_ = unix.Close(descriptor)
		}
		return Socket{}, nil, fmt.Errorf("receive a socket: %w", err)
	}
	return socket, os.NewFile(uintptr(descriptors[0]), fmt.Sprintf("%s port %d", socket.Protocol, socket.Port)), nil
}

// decode reads one message.
func decode(text []byte, socket *Socket) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(socket); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the JSON object")
	}
	if socket.Protocol != UDP && socket.Protocol != TCP || socket.Port == 0 {
		return fmt.Errorf("there is no socket of protocol %q and port %d", socket.Protocol, socket.Port)
	}
	return nil
}

// received returns all descriptors of a message, also where it is refused.
func received(control []byte) ([]int, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, err
	}
	var all []int
	for i := range messages {
		descriptors, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return all, err
		}
		all = append(all, descriptors...)
	}
	return all, nil
}

// retry repeats a system call that a signal interrupts.
func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
