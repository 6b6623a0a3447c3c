package jail

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/handover"
)

// backlog is how many connections to a port may wait for the proxy, which may still be
// starting.
const backlog = 128

// maxAuthorities bounds the file of public authorities, in bytes. Real ones have 230 KB.
const maxAuthorities = 4 << 20

// networkTimeout bounds each message to the proxy and each answer of the kernel.
const networkTimeout = 10 * time.Second

// networkStep makes the network in the outer namespace.
type networkStep struct {
	// Proxy is the socket to the proxy, and Ports are the TCP ports.
	Proxy int   `json:"proxy"`
	Ports []int `json:"ports"`
	// Authorities is the name of a file of public authorities, or empty. The step fills the
	// anonymous file Certificates with them and with the certificate of the sandbox's own
	// authority, which the proxy sends.
	Authorities  string `json:"authorities,omitempty"`
	Certificates int    `json:"certificates,omitempty"`
	// AppArmor is that of the [Spec].
	AppArmor string `json:"apparmor,omitempty"`
}

// run runs the step, and closes the socket to the proxy.
func (s *networkStep) run() error {
	unix.CloseOnExec(s.Proxy)
	timeout := unix.NsecToTimeval(networkTimeout.Nanoseconds())
	for _, direction := range []int{unix.SO_SNDTIMEO, unix.SO_RCVTIMEO} {
		if err := unix.SetsockoptTimeval(s.Proxy, unix.SOL_SOCKET, direction, &timeout); err != nil {
			return fmt.Errorf("bound the waits for the network's proxy: %w", err)
		}
	}
	if err := makeNetwork(s.Proxy, s.Ports); err != nil {
		return s.networkRefused(appArmorProfile(), err)
	}
	if s.Authorities != "" {
		if err := addAuthority(s.Proxy, s.Certificates, s.Authorities); err != nil {
			return err
		}
	}
	return unix.Close(s.Proxy)
}

// addAuthority waits until the proxy sends the certificate of the sandbox's own authority,
// and writes it to an anonymous file after the public ones.
func addAuthority(proxy, file int, authorities string) error {
	fail := func(err error) error {
		return &Refusal{
			Problem: fmt.Sprintf("the proxy of the sandbox's network sends no certificate: %v", err),
			Hint:    proxyHint,
		}
	}
	// The end of the stream tells the proxy that it has all sockets.
	if err := unix.Shutdown(proxy, unix.SHUT_WR); err != nil {
		return fail(err)
	}
	certificate, err := handover.ReceiveCertificate(proxy)
	switch {
	case errors.Is(err, io.EOF):
		return fail(errors.New("it has ended"))
	case err != nil:
		return fail(err)
	}
	public, err := bounded.ReadFile(authorities, maxAuthorities)
	if err != nil {
		return fmt.Errorf("read the public certificates: %w", err)
	}
	return fill(file, slices.Concat(public, []byte("\n"), certificate))
}

// proxyHint is the hint if the proxy fails while a sandbox starts.
const proxyHint = "see its own messages above; bin/check of the sandbox says what it needs of this machine"

// makeNetwork makes every address local, and hands listening sockets for the resolver and
// the ports to the proxy.
func makeNetwork(proxy int, ports []int) error {
	if err := makeAddressesLocal(); err != nil {
		return err
	}
	lookups, err := bound(unix.SOCK_DGRAM, portDNS)
	if err != nil {
		return err
	}
	// The proxy answers from the address that was asked.
	if err := unix.SetsockoptInt(lookups, unix.IPPROTO_IP, unix.IP_PKTINFO, 1); err != nil {
		return fmt.Errorf("set IP_PKTINFO: %w", err)
	}
	if err := giveSocket(proxy, lookups, handover.Socket{Protocol: handover.UDP, Port: portDNS}); err != nil {
		return err
	}
	for _, port := range append([]int{portDNS}, ports...) {
		listener, err := bound(unix.SOCK_STREAM, port)
		if err != nil {
			return err
		}
		if err := unix.Listen(listener, backlog); err != nil {
			return fmt.Errorf("listen at port %d: %w", port, err)
		}
		if err := giveSocket(proxy, listener, handover.Socket{Protocol: handover.TCP, Port: uint16(port)}); err != nil {
			return err
		}
	}
	return nil
}

// networkHint is the hint if the kernel refuses to make a network and does not say why.
const networkHint = "a container needs user namespaces of its own: start it with --security-opt seccomp=unconfined --security-opt apparmor=unconfined; or set network = \"none\" for this environment"

// networkRefused returns the error for a step of the network that failed with err. profile
// is this process's AppArmor profile.
func (s *networkStep) networkRefused(profile string, err error) error {
	switch {
	case !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES):
		return fmt.Errorf("make the sandbox's network: %w", err)
	case profile == "" || profile == unconfined || strings.HasPrefix(profile, profileNames):
		return &Refusal{
			Problem: fmt.Sprintf("this system gives a new user namespace no power over its own network: %v", err),
			Hint:    networkHint,
		}
	}
	return &Refusal{
		Problem: fmt.Sprintf("AppArmor's profile %q takes the capabilities from a new user namespace, and a sandbox's network is made with two of them: %v", profile, err),
		Hint:    loadProfile(s.AppArmor) + "; or set network = \"none\" for this environment",
	}
}

// makeAddressesLocal makes every address local to the network namespace: packets to any
// address reach only sockets in the namespace.
func makeAddressesLocal() error {
	if err := startLoopback(); err != nil {
		return fmt.Errorf("start the loopback interface: %w", err)
	}
	socket, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open a socket for routes: %w", err)
	}
	defer unix.Close(socket)
	timeout := unix.NsecToTimeval(networkTimeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return fmt.Errorf("bound the waits for routes: %w", err)
	}
	if err := addLocalRoute(socket, unix.AF_INET); err != nil {
		return fmt.Errorf("make all addresses local: %w", err)
	}
	// A kernel without IPv6 reaches no IPv6 address anyway.
	_ = addLocalRoute(socket, unix.AF_INET6)
	return nil
}

// startLoopback does the same as "ip link set lo up", and the kernel adds the addresses of
// lo. In bubblewrap's network namespaces lo is up already.
func startLoopback() error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP | unix.IFF_LOOPBACK)
	return unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, request)
}

// addLocalRoute does the same as "ip route add local default dev lo" for a family of
// addresses. See rtnetlink(7).
func addLocalRoute(socket int, family uint8) error {
	const loopback = 1 // the index of lo in every network namespace
	request := struct {
		Header    unix.NlMsghdr
		Route     unix.RtMsg
		Attribute unix.RtAttr
		Interface uint32
	}{
		Header: unix.NlMsghdr{
			Type:  unix.RTM_NEWROUTE,
			Flags: unix.NLM_F_REQUEST | unix.NLM_F_ACK | unix.NLM_F_CREATE,
		},
		Route: unix.RtMsg{
			Family:   family,
			Table:    unix.RT_TABLE_LOCAL,
			Protocol: unix.RTPROT_BOOT,
			Scope:    unix.RT_SCOPE_HOST,
			Type:     unix.RTN_LOCAL,
		},
		Attribute: unix.RtAttr{Len: unix.SizeofRtAttr + 4, Type: unix.RTA_OIF},
		Interface: loopback,
	}
	request.Header.Len = uint32(binary.Size(request))
	message, err := binary.Append(nil, binary.NativeEndian, request)
	if err != nil {
		return err
	}
	if err := unix.Sendto(socket, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	var answer struct {
		Header unix.NlMsghdr
		Error  int32
	}
	reply := make([]byte, unix.Getpagesize())
	n, _, err := unix.Recvfrom(socket, reply, 0)
	if err != nil {
		return err
	}
	if _, err := binary.Decode(reply[:n], binary.NativeEndian, &answer); err != nil {
		return err
	}
	if answer.Header.Type != unix.NLMSG_ERROR {
		return fmt.Errorf("the kernel answers with a message of type %d", answer.Header.Type)
	}
	if answer.Error != 0 {
		return unix.Errno(-answer.Error)
	}
	return nil
}

// bound returns a socket that is bound to a port of every IPv4 address.
func bound(kind, port int) (int, error) {
	socket, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open a socket for port %d: %w", port, err)
	}
	if err := unix.Bind(socket, &unix.SockaddrInet4{Port: port}); err != nil {
		return 0, fmt.Errorf("bind port %d: %w", port, err)
	}
	return socket, nil
}

func giveSocket(proxy, socket int, what handover.Socket) error {
	defer unix.Close(socket)
	if err := handover.Send(proxy, what, socket); err != nil {
		return &Refusal{
			Problem: fmt.Sprintf("the proxy of the sandbox's network does not take its sockets: %v", err),
			Hint:    proxyHint,
		}
	}
	return nil
}

// dropCapabilities gives up every capability of this thread and of programs that it
// executes. Two capabilities stay in the bounding set, because removing them takes
// CAP_SETPCAP; no program can gain them from there, because no_new_privs is set.
func dropCapabilities() error {
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("give up the ambient capabilities: %w", err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&header, &none[0]); err != nil {
		return fmt.Errorf("give up the capabilities: %w", err)
	}
	return nil
}
