// Package handover passes listening sockets from a sandbox's network namespace to the proxy outside
// it, over a connected AF_UNIX socket of type SOCK_SEQPACKET.
//
// Each message is one JSON object of at most [maxMessage] bytes with one descriptor. The end of the
// stream means that all sockets have been sent. The receiver trusts nothing: any other message is
// an error, and the receiver must stop there.
//
// At most one message goes the other way, after the last socket: the certificate, in PEM, of the
// authority that the proxy presents to the sandbox, if it reads requests inside TLS.
package handover

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/host"
)

// EventsVariable names, in the environment of a sandbox's launcher, the descriptor for the proxy's
// events (package event). The launcher hands it over too.
const EventsVariable = "NIX_SANDBOX_NETWORK_EVENTS"

// maxMessage is the longest message about a socket, in bytes.
const maxMessage = 256

// MaxCertificate is the longest certificate, in bytes of PEM.
const MaxCertificate = 8 << 10

// Protocols of a [Socket].
const (
	UDP = "udp"
	TCP = "tcp"
)

// Socket describes a descriptor.
type Socket struct {
	// Protocol is [UDP] or [TCP]. A TCP socket is listening, and a UDP socket has
	// IP_PKTINFO on.
	Protocol string `json:"protocol"`
	// Port is the socket's port.
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
		n, m, flags, _, err = unix.Recvmsg(over, text, control, host.ReceiveClosed)
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

// decode reads one message about a socket.
func decode(text []byte, socket *Socket) error {
	if err := bounded.JSON(text, socket); err != nil {
		return err
	}
	if socket.Protocol != UDP && socket.Protocol != TCP || socket.Port == 0 {
		return fmt.Errorf("there is no socket of protocol %q and port %d", socket.Protocol, socket.Port)
	}
	return nil
}

// received returns all descriptors of a message, even if the message is refused.
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

// SendCertificate sends the proxy's certificate in PEM.
func SendCertificate(over int, pem []byte) error {
	if err := retry(func() error { return unix.Sendmsg(over, pem, nil, nil, unix.MSG_NOSIGNAL) }); err != nil {
		return fmt.Errorf("hand the certificate over: %w", err)
	}
	return nil
}

// ReceiveCertificate returns the proxy's certificate in PEM, at most [MaxCertificate] bytes. The
// error is io.EOF if the proxy ended without sending one. The socket's SO_RCVTIMEO bounds the wait.
func ReceiveCertificate(over int) ([]byte, error) {
	text := make([]byte, MaxCertificate)
	var n, flags int
	err := retry(func() (err error) {
		n, _, flags, _, err = unix.Recvmsg(over, text, nil, host.ReceiveClosed)
		return err
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("receive a certificate: %w", err)
	case n == 0:
		return nil, io.EOF
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		return nil, errors.New("receive a certificate: the message is too long, or has descriptors")
	}
	block, rest := pem.Decode(text[:n])
	if block == nil || block.Type != "CERTIFICATE" || len(block.Headers) > 0 || len(rest) > 0 {
		return nil, errors.New("receive a certificate: it is not one certificate in PEM")
	}
	// Text around the certificate is not passed on.
	return pem.EncodeToMemory(block), nil
}
