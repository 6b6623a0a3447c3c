// Package networktest gives tests of a sandbox's network a machine of their own: a network
// namespace in which every address is local, as in a sandbox. A test can be a client, the proxy and
// any server of the internet there.
package networktest

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// inside is set for the process that is the first one in new namespaces.
const inside = "NIX_SANDBOX_TEST_NETWORK"

// Resolver is the address of a test's resolver; see [UseResolver].
var Resolver = netip.MustParseAddrPort("93.184.216.53:53")

// Own is an address that a route makes local to the namespace although no interface has it.
var Own = netip.MustParseAddr("93.184.217.1")

// Main runs a package's tests in new user, mount and network namespaces. It does
// not return.
func Main(m *testing.M) {
	if os.Getenv(inside) == "" {
		os.Exit(again())
	}
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, "networktest: prepare the namespace:", err)
		os.Exit(1)
	}
	// A fuzzer starts this program again, which then gets namespaces of its own.
	os.Unsetenv(inside)
	os.Exit(m.Run())
}

// again runs this program once more, in the namespaces.
func again() int {
	child := exec.Command("/proc/self/exe", os.Args[1:]...)
	child.Env = append(os.Environ(), inside+"=yes")
	child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
	// A fuzzer speaks with its workers over these.
	for descriptor := 3; descriptor <= 5; descriptor++ {
		if flags, err := unix.FcntlInt(uintptr(descriptor), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			child.ExtraFiles = append(child.ExtraFiles, os.NewFile(uintptr(descriptor), "fuzzer"))
		}
	}
	child.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
	}
	err := child.Run()
	if _, ok := err.(*exec.ExitError); ok || err == nil {
		return child.ProcessState.ExitCode()
	}
	fmt.Fprintln(os.Stderr, "networktest: these tests need user namespaces:", err)
	return 1
}

func prepare() error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	loopback, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	loopback.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, loopback); err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	// Connections have another source than destination, as between two machines.
	if err := addLocalRoute(netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr("127.0.0.1")); err != nil {
		return err
	}
	return addLocalRoute(netip.PrefixFrom(Own, 32), netip.Addr{})
}

// UseResolver makes Resolver the machine's resolver for this process and its children.
func UseResolver(t testing.TB) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "resolv.conf")
	must.Do(t, os.WriteFile(file, []byte("nameserver "+Resolver.Addr().String()+"\noptions timeout:1 attempts:2\n"), 0o644))
	must.Do(t, unix.Mount(file, "/etc/resolv.conf", "", unix.MS_BIND, ""))
	t.Cleanup(func() { must.Do(t, unix.Unmount("/etc/resolv.conf", 0)) })
}

// addLocalRoute makes all addresses of a network local; see rtnetlink(7).
func addLocalRoute(network netip.Prefix, source netip.Addr) error {
	socket, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	const loopback = 1
	native := binary.NativeEndian
	attribute := func(b []byte, kind uint16, data []byte) []byte {
		b = native.AppendUint16(b, uint16(unix.SizeofRtAttr+len(data)))
		return append(native.AppendUint16(b, kind), data...)
	}
	b := make([]byte, unix.SizeofNlMsghdr, 128)
	b = append(b, unix.AF_INET, byte(network.Bits()), 0, 0, unix.RT_TABLE_LOCAL, unix.RTPROT_BOOT, unix.RT_SCOPE_HOST, unix.RTN_LOCAL, 0, 0, 0, 0)
	b = attribute(b, unix.RTA_OIF, native.AppendUint32(nil, loopback))
	b = attribute(b, unix.RTA_DST, network.Addr().AsSlice())
	if source.IsValid() {
		b = attribute(b, unix.RTA_PREFSRC, source.AsSlice())
	}
	native.PutUint32(b, uint32(len(b)))
	native.PutUint16(b[4:], unix.RTM_NEWROUTE)
	native.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK|unix.NLM_F_CREATE)
	if err := unix.Sendto(socket, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	reply := make([]byte, 4096)
	n, _, err := unix.Recvfrom(socket, reply, 0)
	if err != nil || n < unix.SizeofNlMsghdr+4 {
		return fmt.Errorf("read the kernel's answer: %d bytes, %w", n, err)
	}
	if code := int32(native.Uint32(reply[unix.SizeofNlMsghdr:])); code != 0 {
		return fmt.Errorf("add a route to %s: %w", network, syscall.Errno(-code))
	}
	return nil
}

// Listen listens at an address of the namespace until the test ends, and gives
// each connection to serve, which closes it.
func Listen(t testing.TB, address string, serve func(*net.TCPConn)) {
	t.Helper()
	listener := must.Get(net.Listen("tcp", address))(t)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(conn.(*net.TCPConn))
		}
	}()
}
