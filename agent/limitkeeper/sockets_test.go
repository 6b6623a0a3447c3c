package limitkeeper

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// diagnosed returns what one of the tables holds.
func diagnosed(t *testing.T, table int) int64 {
	t.Helper()
	total, err := diagnose(socketTables[table].request, socketTables[table].count)
	if err != nil {
		t.Skipf("this kernel does not tell of sockets: %v", err)
	}
	return total
}

// fill writes to a socket until its buffer is full, and returns how much there is
// in it.
func fill(t *testing.T, fd int) (size int64) {
	t.Helper()
	for block := make([]byte, 16<<10); ; {
		n, err := unix.Write(fd, block)
		if err == unix.EAGAIN {
			return size
		}
		if err != nil {
			t.Fatal(err)
		}
		size += int64(n)
	}
}

func unixPair(t *testing.T) (sender, receiver int) {
	t.Helper()
	pair := must.Get(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0))(t)
	t.Cleanup(func() { unix.Close(pair[1]) })
	return pair[0], pair[1]
}

// aloneVariable tells a test that it is in a network namespace of its own.
const aloneVariable = "LIMITKEEPER_TEST_ALONE"

// alone runs a test again in a network namespace of its own, and returns true there: a
// machine may have more sockets than one scan has time for, and other programs fill and
// empty them meanwhile. It returns true here where there are no user namespaces.
func alone(t *testing.T) bool {
	t.Helper()
	if os.Getenv(aloneVariable) != "" {
		socket := must.Get(unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0))(t)
		defer unix.Close(socket)
		loopback := must.Get(unix.NewIfreq("lo"))(t)
		loopback.SetUint16(unix.IFF_UP)
		must.Do(t, unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, loopback))
		return true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), aloneVariable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
	}
	out, err := cmd.CombinedOutput()
	switch {
	case errors.Is(err, unix.EPERM):
		return true
	case err != nil:
		t.Fatalf("%v: %s", err, out)
	case strings.Contains(string(out), "--- SKIP"):
		t.Skipf("%s", out)
	}
	return false
}

// much is how often the tests do what a scan has to count.
const much = 20

func TestDiagnose_CountsFullUnixSockets(t *testing.T) {
	if !alone(t) {
		return
	}
	before := diagnosed(t, 0)
	var size int64
	for range much {
		sender, _ := unixPair(t)
		defer unix.Close(sender)
		size += fill(t, sender)
	}
	if got := diagnosed(t, 0); got-before < size*3/4 {
		t.Errorf("%d bytes, %d before, want %d more", got, before, size)
	}
}

// A byte of a sender that is gone may be one of many, each in a buffer of its own.
func TestDiagnose_CountsWhatNoSenderStandsFor(t *testing.T) {
	if !alone(t) {
		return
	}
	before := diagnosed(t, 0)
	for range much {
		sender, _ := unixPair(t)
		if _, err := unix.Write(sender, []byte("x")); err != nil {
			t.Fatal(err)
		}
		unix.Close(sender)
	}
	if got, want := diagnosed(t, 0)-before, int64(much*pendingCost*3/4); got < want {
		t.Errorf("%d bytes more, want %d", got, want)
	}
}

func TestDiagnose_CountsConnectionsThatNobodyAccepts(t *testing.T) {
	if !alone(t) {
		return
	}
	before := diagnosed(t, 0)
	path := filepath.Join(t.TempDir(), "socket")
	listener := must.Get(net.Listen("unix", path))(t)
	defer listener.Close()
	for range much {
		sender := must.Get(net.Dial("unix", path))(t)
		sender.Close()
	}
	if got, want := diagnosed(t, 0)-before, int64(much*pendingCost*3/4); got < want {
		t.Errorf("%d bytes more, want %d", got, want)
	}
}

func TestDiagnose_CountsFullConnections(t *testing.T) {
	if !alone(t) {
		return
	}
	listener := must.Get(net.Listen("tcp4", "127.0.0.1:0"))(t)
	defer listener.Close()
	before := diagnosed(t, 1)
	sender := must.Get(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	defer unix.Close(sender)
	address := unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: listener.Addr().(*net.TCPAddr).Port}
	must.Do(t, unix.Connect(sender, &address))
	must.Do(t, unix.SetNonblock(sender, true))
	size := fill(t, sender)
	if got := diagnosed(t, 1); got-before < size/2 {
		t.Errorf("%d bytes, %d before, want about %d more", got, before, size)
	}
}

func TestDiagnose_ReturnsTheKernelsError(t *testing.T) {
	if _, err := diagnose(inetRequest(77, 77), inetSocket); err == nil {
		t.Error("a family that is none has sockets")
	}
}

// What the kernel sends is complete; that nothing else is read beyond its end
// matters where it is not.
func TestSockets_TakeAnyMessage(t *testing.T) {
	attribute := func(kind uint16, length int, value ...uint32) []byte {
		out := binary.NativeEndian.AppendUint16(nil, uint16(length))
		out = binary.NativeEndian.AppendUint16(out, kind)
		for _, word := range value {
			out = binary.NativeEndian.AppendUint32(out, word)
		}
		return out
	}
	message := make([]byte, inetMessageSize)
	whole := append(message, attribute(inetMemory, 4+8*4, 1000, 0, 200, 0, 0, 3000, 0, 40000)...)
	if got := inetSocket(whole); got != 44000 {
		t.Errorf("%d bytes, want 44000", got)
	}
	for size := range whole {
		if got := inetSocket(whole[:size]); got != 0 {
			t.Errorf("%d bytes of the first %d of a message", got, size)
		}
		unixSocket(whole[:size])
	}
	for _, odd := range [][]byte{attribute(inetMemory, 0), attribute(inetMemory, 3), attribute(inetMemory, 65535), attribute(inetMemory, 4), attribute(inetMemory, 5, 7)} {
		if got := inetSocket(append(message[:inetMessageSize:inetMessageSize], odd...)); got != 0 {
			t.Errorf("%d bytes of %x", got, odd)
		}
	}
}
