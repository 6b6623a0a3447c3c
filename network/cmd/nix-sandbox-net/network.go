package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/network/policy"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/network/relay"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/network/resolver"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/event"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/handover"
)

const (
	// gcPercent trades processor time for memory: there is one such process for each
	// sandbox, and most of them do nothing.
	gcPercent = 50
	// memoryLimit, in bytes, is where the garbage collector starts to work harder. The control
	// group of a sandbox has 32 MiB more for this process.
	memoryLimit = 24 << 20
	// processors is how many goroutines run at once. The work for a connection takes microseconds
	// between two waits, less than waking a second processor, and a flood occupies only one of
	// them.
	processors = 1
)

type network struct {
	policy *policy.Policy
	names  *resolver.Names
	dns    *resolver.Server
	relay  *relay.Relay
}

func newNetwork(p *policy.Policy, secrets []string, report func(event.Event), ask relay.Ask) (*network, error) {
	runtime.GOMAXPROCS(processors)
	debug.SetGCPercent(gcPercent)
	debug.SetMemoryLimit(memoryLimit)
	var resolve func(context.Context, string) ([]netip.Addr, error)
	if p.Upstream == "" {
		resolve = lookUp
	}
	n := &network{policy: p, names: resolver.NewNames(p, resolve, own)}
	n.dns = resolver.NewServer(n.names, report)
	var err error
	n.relay, err = relay.New(p, n.names, secrets, report, ask)
	return n, err
}

// lookUp asks this machine's resolver for the addresses of a name. The dot at
// the end keeps the search list of resolv.conf(5) out of it.
func lookUp(ctx context.Context, name string) ([]netip.Addr, error) {
	machine := net.Resolver{PreferGo: true}
	return machine.LookupNetIP(ctx, "ip", name+".")
}

// own returns the addresses of this machine's interfaces.
func own() ([]netip.Addr, error) {
	interfaces, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var list []netip.Addr
	for _, address := range interfaces {
		if network, ok := address.(*net.IPNet); ok {
			if a, ok := netip.AddrFromSlice(network.IP); ok {
				list = append(list, a.Unmap())
			}
		}
	}
	return list, nil
}

// receive takes the listening sockets from the sandbox's network namespace and serves them. If they
// are not exactly the sockets that the policy needs, it returns an error and serves none.
func (n *network) receive(over int) error {
	wanted := map[handover.Socket]bool{
		{Protocol: handover.UDP, Port: policy.ResolverPort}: true,
		{Protocol: handover.TCP, Port: policy.ResolverPort}: true,
	}
	for _, port := range n.policy.Ports() {
		wanted[handover.Socket{Protocol: handover.TCP, Port: port}] = true
	}
	var serve []func()
	for {
		socket, file, err := handover.Receive(over)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if !wanted[socket] {
			return fmt.Errorf("receive a socket: the policy needs none, or not another one, for %s port %d", socket.Protocol, socket.Port)
		}
		delete(wanted, socket)
		one, err := n.server(socket, file)
		file.Close()
		if err != nil {
			return fmt.Errorf("use the socket for %s port %d: %w", socket.Protocol, socket.Port, err)
		}
		serve = append(serve, one)
	}
	for socket := range wanted {
		return fmt.Errorf("the sandbox's namespace handed over no socket for %s port %d", socket.Protocol, socket.Port)
	}
	if certificate := n.relay.Certificate(); certificate != nil {
		if err := handover.SendCertificate(over, certificate); err != nil {
			return err
		}
	}
	if err := unix.Close(over); err != nil {
		return fmt.Errorf("close the socket of descriptors: %w", err)
	}
	for _, one := range serve {
		go one()
	}
	return nil
}

// server returns the function that serves a socket.
func (n *network) server(socket handover.Socket, file *os.File) (func(), error) {
	if socket.Protocol == handover.UDP {
		packets, err := net.FilePacketConn(file)
		if err != nil {
			return nil, err
		}
		udp, ok := packets.(*net.UDPConn)
		if !ok {
			return nil, errors.New("it is of another protocol")
		}
		return func() { n.dns.ServeUDP(udp) }, nil
	}
	listener, err := net.FileListener(file)
	if err != nil {
		return nil, err
	}
	tcp, ok := listener.(*net.TCPListener)
	if !ok {
		return nil, errors.New("it is of another protocol")
	}
	if socket.Port == policy.ResolverPort {
		return func() { n.dns.ServeTCP(tcp) }, nil
	}
	return func() { n.relay.Serve(tcp, socket.Port) }, nil
}
