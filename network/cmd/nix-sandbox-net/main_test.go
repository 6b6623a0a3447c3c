package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/networktest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/event"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/handover"
)

// asProgram makes this test's binary the program.
const asProgram = "NIX_SANDBOX_TEST_NET_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
	networktest.Main(m)
}

// shift is added to the ports of the sandbox's sockets, because the hosts of the
// tests listen in the same namespace.
const shift = 10000

const host = "93.184.216.34"

const policyText = `{"schema":1,"domains":["files.example","*.host.example","git.example:22"],"ports":[443,80],"private":[],"connections":16,"rate":1000,"megabytes":64,"names":10,"upstream":null}`

// sockets are those that the policy needs.
var sockets = append([]handover.Socket{{Protocol: handover.UDP, Port: 53}}, socketsAt(53, 443, 80, 22)...)

func socketsAt(ports ...uint16) (list []handover.Socket) {
	for _, port := range ports {
		list = append(list, handover.Socket{Protocol: handover.TCP, Port: port})
	}
	return list
}

// program is a running proxy.
type program struct {
	t      testing.TB
	cmd    *exec.Cmd
	over   int // the other end of its descriptor 3
	events *networktest.EventReader
	stderr bytes.Buffer
	parent *exec.Cmd // with which it ends
	exited chan struct{}
}

// startProgram starts the program; withEvents gives it a pipe for events.
func startProgram(t testing.TB, text string, withEvents bool, secrets ...string) *program {
	t.Helper()
	p := &program{t: t, exited: make(chan struct{})}
	file := filepath.Join(t.TempDir(), "policy.json")
	must.Do(t, os.WriteFile(file, []byte(text), 0o644))
	pair := must.Get(unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0))(t)
	p.over = pair[0]
	other := os.NewFile(uintptr(pair[1]), "handover")
	defer other.Close()

	p.parent = exec.Command("sleep", "infinity")
	must.Do(t, p.parent.Start())
	pidfd := os.NewFile(uintptr(must.Get(unix.PidfdOpen(p.parent.Process.Pid, 0))(t)), "pidfd")
	defer pidfd.Close()

	p.cmd = exec.Command("/proc/self/exe", "--policy", file)
	p.cmd.Env = append(os.Environ(), asProgram+"=yes")
	p.cmd.Stderr = &p.stderr
	p.cmd.ExtraFiles = []*os.File{other, nil, pidfd}
	if withEvents {
		r, w, err := os.Pipe()
		must.Do(t, err)
		defer w.Close()
		t.Cleanup(func() { r.Close() })
		p.events = networktest.NewEventReader(r)
		p.cmd.ExtraFiles[1] = w
	}
	for _, secret := range secrets {
		r, w, err := os.Pipe()
		must.Do(t, err)
		defer r.Close()
		must.Get(w.WriteString(secret))(t)
		w.Close()
		p.cmd.ExtraFiles = append(p.cmd.ExtraFiles, r)
	}
	must.Do(t, p.cmd.Start())
	go func() { _ = p.cmd.Wait(); close(p.exited) }()
	t.Cleanup(func() {
		_ = unix.Close(p.over)
		_ = p.parent.Process.Kill()
		_ = p.parent.Wait()
		select {
		case <-p.exited:
		case <-time.After(patience.Long):
			t.Error("the program outlives its parent")
			_ = p.cmd.Process.Kill()
			<-p.exited
		}
	})
	return p
}

// send hands a socket over.
func (p *program) send(socket handover.Socket) { p.sendShifted(socket, shift) }

func (p *program) sendShifted(socket handover.Socket, shift int) {
	p.t.Helper()
	kind, port := unix.SOCK_STREAM, int(socket.Port)+shift
	if socket.Protocol == handover.UDP {
		kind = unix.SOCK_DGRAM
	}
	fd := must.Get(unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0))(p.t)
	defer unix.Close(fd)
	must.Do(p.t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	must.Do(p.t, unix.Bind(fd, &unix.SockaddrInet4{Port: port}))
	if kind == unix.SOCK_STREAM {
		must.Do(p.t, unix.Listen(fd, 128))
	} else {
		must.Do(p.t, unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1))
	}
	must.Do(p.t, handover.Send(p.over, socket, fd))
}

// sendAll hands all sockets over.
func (p *program) sendAll() {
	p.t.Helper()
	for _, socket := range sockets {
		p.send(socket)
	}
	p.end()
}

// end says that there are no more sockets.
func (p *program) end() {
	p.t.Helper()
	must.Do(p.t, unix.Shutdown(p.over, unix.SHUT_WR))
}

// resolve looks a name up as code in the sandbox does.
func resolve(t testing.TB, name string) (netip.Addr, error) {
	t.Helper()
	r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, fmt.Sprintf("8.8.8.8:%d", 53+shift))
	}}
	list, err := r.LookupNetIP(t.Context(), "ip", name+".")
	if err != nil {
		return netip.Addr{}, err
	}
	return list[0], nil
}

// world starts a resolver that knows *.example, and an HTTP server. It returns
// the names that were looked up.
func world(t testing.TB) func() []string {
	t.Helper()
	networktest.UseResolver(t)
	socket := must.Get(net.ListenUDP("udp4", net.UDPAddrFromAddrPort(networktest.Resolver)))(t)
	t.Cleanup(func() { socket.Close() })
	var mu sync.Mutex
	var asked []string
	go func() {
		message := make([]byte, 2048)
		for {
			n, from, err := socket.ReadFromUDPAddrPort(message)
			if err != nil {
				return
			}
			// The question, and to that of an address the answer.
			name, at := "", 12
			for message[at] != 0 {
				size := int(message[at])
				name += string(message[at+1:at+1+size]) + "."
				at += 1 + size
			}
			kind := binary.BigEndian.Uint16(message[at+1:])
			mu.Lock()
			asked = append(asked, fmt.Sprint(kind, " ", name))
			mu.Unlock()
			if n < at+5 {
				continue
			}
			reply := append([]byte{message[0], message[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, message[12:at+5]...)
			if kind == 1 {
				reply[7] = 1
				address := netip.MustParseAddr(host).As4()
				reply = append(append(reply, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4), address[:]...)
			}
			_, _ = socket.WriteToUDPAddrPort(reply, from)
		}
	}()
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { fmt.Fprint(w, "hello ", q.Host) })}
	listener := must.Get(net.Listen("tcp", host+":80"))(t)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Close() })
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), asked...)
	}
}

func get(t testing.TB, address netip.Addr, name string) (string, error) {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", netip.AddrPortFrom(address, 80+shift).String())
	}}
	client := &http.Client{Transport: transport, Timeout: patience.Long}
	response, err := client.Get("http://" + name + "/")
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return string(text), err
}

func TestProgram_ServesASandbox(t *testing.T) {
	asked := world(t)
	p := startProgram(t, policyText, true)
	p.sendAll()
	address := must.Get(resolve(t, "a.host.example"))(t)
	if text, err := get(t, address, "a.host.example"); text != "hello a.host.example" {
		t.Errorf("%q, %v", text, err)
	}
	if e := must.Get(p.events.Read())(t); e.Kind != event.Closed || e.Name != "a.host.example" || e.Address != netip.MustParseAddr(host) {
		t.Errorf("%+v", e)
	}
	if _, err := resolve(t, "secret.evil.example"); err == nil || !strings.Contains(err.Error(), "no such host") {
		t.Errorf("%v", err)
	}
	if e := must.Get(p.events.Read())(t); e != event.RefusedName("secret.evil.example") {
		t.Errorf("%+v", e)
	}
	if text, err := get(t, netip.MustParseAddr(host), "files.example"); !strings.Contains(text, "93.184.216.34:80 (an address)") {
		t.Errorf("%q, %v", text, err)
	}
	for _, question := range asked() {
		if question != "1 a.host.example." && question != "28 a.host.example." {
			t.Errorf("asked outside: %s", question)
		}
	}
	var data unix.Rlimit
	if must.Do(t, unix.Prlimit(p.cmd.Process.Pid, unix.RLIMIT_DATA, nil, &data)); data.Max != maxData {
		t.Errorf("it may have %d bytes of data, want %d", data.Max, maxData)
	}
	// Nothing is listening once it has ended, and its stream ends.
	must.Do(t, p.parent.Process.Kill())
	<-p.exited
	if _, err := net.Dial("tcp", fmt.Sprintf("198.18.0.1:%d", 80+shift)); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("after its end: %v", err)
	}
	for {
		e, err := p.events.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || e.Kind == event.Ended {
			t.Fatalf("%+v, %v", e, err)
		}
	}
	if p.stderr.Len() > 0 {
		t.Errorf("standard error: %s", &p.stderr)
	}
}

func TestProgram_WritesSentencesForPeople(t *testing.T) {
	world(t)
	p := startProgram(t, policyText, false)
	p.sendAll()
	if _, err := resolve(t, "evil.example"); err == nil {
		t.Error("evil.example is found")
	}
	address := must.Get(resolve(t, "files.example"))(t)
	must.Get(get(t, address, "files.example"))(t)
	must.Do(t, p.parent.Process.Kill())
	<-p.exited
	want := `nix-sandbox-net: the sandbox's network refused evil.example (not among the environment's domains). Trying again does not help; an operator allows it with network.domains: "evil.example"` + "\n"
	if got := p.stderr.String(); got != want {
		t.Errorf("%s", got)
	}
}

func TestProgram_EndsWhereTheSocketsAreNotItsPolicys(t *testing.T) {
	for name, test := range map[string]struct {
		send func(p *program)
		want string
	}{
		"none": {func(p *program) { p.end() }, "handed over no socket for"},
		"too few": {func(p *program) {
			for _, socket := range sockets[1:] {
				p.send(socket)
			}
			p.end()
		}, "handed over no socket for udp port 53"},
		"another port":    {func(p *program) { p.send(handover.Socket{Protocol: "tcp", Port: 8080}) }, "the policy needs none, or not another one, for tcp port 8080"},
		"one twice":       {func(p *program) { p.send(sockets[2]); must.Do(t, handover.Send(p.over, sockets[2], 0)) }, "or not another one, for tcp port 443"},
		"a message alone": {func(p *program) { must.Get(unix.Write(p.over, []byte(`{"protocol":"tcp","port":443}`)))(t) }, "other than one descriptor"},
		"a file": {func(p *program) {
			file := must.Get(os.Open("/dev/null"))(t)
			defer file.Close()
			must.Do(t, handover.Send(p.over, sockets[2], int(file.Fd())))
		}, "use the socket for tcp port 443"},
		"a Unix socket": {func(p *program) { must.Do(t, handover.Send(p.over, sockets[2], p.over)) }, "use the socket for tcp port 443"},
	} {
		p := startProgram(t, policyText, true)
		test.send(p)
		select {
		case <-p.exited:
		case <-time.After(patience.Long):
			t.Fatalf("%s: it goes on", name)
		}
		e := must.Get(p.events.Read())(t)
		if p.cmd.ProcessState.ExitCode() != 1 || e.Kind != event.Ended || !strings.Contains(e.Problem, test.want) || !strings.Contains(p.stderr.String(), "nix-sandbox-net: error: "+e.Problem) {
			t.Errorf("%s: exit status %d, %+v, %s", name, p.cmd.ProcessState.ExitCode(), e, &p.stderr)
		}
	}
}

func TestProgram_RefusesAWrongPolicy(t *testing.T) {
	p := startProgram(t, strings.Replace(policyText, `"schema":1`, `"schema":1,"more":true`, 1), true)
	<-p.exited
	if e := must.Get(p.events.Read())(t); e.Kind != event.Ended || !strings.Contains(e.Problem, `unknown field "more"`) {
		t.Errorf("%+v", e)
	}
}

func TestProgram_ChecksAPolicy(t *testing.T) {
	check := func(text string) (string, error) {
		file := filepath.Join(t.TempDir(), "policy.json")
		must.Do(t, os.WriteFile(file, []byte(text), 0o644))
		cmd := exec.Command("/proc/self/exe", "--check", "--policy", file)
		cmd.Env = append(os.Environ(), asProgram+"=1")
		output, err := cmd.CombinedOutput()
		return string(output), err
	}
	if output, err := check(policyText); err != nil || output != "" {
		t.Errorf("a right policy: %v, %s", err, output)
	}
	output, err := check(strings.Replace(policyText, `"rate":1000`, `"rate":0`, 1))
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(output, "nix-sandbox-net: error: ") || !strings.Contains(output, "rate is 0") {
		t.Errorf("a wrong policy: %v, %s", err, output)
	}
}

// credentials are those of a policy that reads the requests to a host.
const credentials = `"credentials":[{"name":"TOKEN","domain":"api.example","header":"X-Token: {}","placeholder":""},{"name":"KEY","domain":"api.example","header":"X-Key: {}","placeholder":""}]`

func readingPolicy() string {
	text := strings.Replace(policyText, `"domains":[`, `"domains":["api.example",`, 1)
	return strings.TrimSuffix(text, "}") + "," + credentials + "}"
}

func TestProgram_ReadsSecretsAndSendsItsCertificate(t *testing.T) {
	p := startProgram(t, readingPolicy(), true, "first\n", "second")
	p.sendAll()
	certificate, err := handover.ReceiveCertificate(p.over)
	if err != nil || !strings.HasPrefix(string(certificate), "-----BEGIN CERTIFICATE-----\n") {
		t.Errorf("%s, %v", certificate, err)
	}
	if _, err := handover.ReceiveCertificate(p.over); !errors.Is(err, io.EOF) {
		t.Errorf("then comes %v", err)
	}
	// No other process of this user reads its memory.
	status := string(must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/limits", p.cmd.Process.Pid)))(t))
	if !strings.Contains(status, "Max core file size        0                    0") {
		t.Errorf("%s", status)
	}
	// Without credentials there is no certificate.
	p = startProgram(t, strings.ReplaceAll(policyText, "[443,80]", "[4430,8000]"), true)
	for _, socket := range []handover.Socket{{Protocol: "udp", Port: 53}, {Protocol: "tcp", Port: 53}, {Protocol: "tcp", Port: 4430}, {Protocol: "tcp", Port: 8000}, {Protocol: "tcp", Port: 22}} {
		p.sendShifted(socket, 2*shift)
	}
	p.end()
	if _, err := handover.ReceiveCertificate(p.over); !errors.Is(err, io.EOF) {
		t.Errorf("without credentials: %v", err)
	}
}

func TestProgram_RefusesWrongSecrets(t *testing.T) {
	const secret = "not-to-be-shown"
	for name, test := range map[string]struct {
		secrets []string
		want    string
	}{
		"one too few": {[]string{secret}, "credential KEY: the launcher gave no descriptor 7"},
		"a large one": {[]string{strings.Repeat("a", 16<<10+1), secret}, "credential TOKEN: larger than its limit of 16384 bytes"},
	} {
		p := startProgram(t, readingPolicy(), true, test.secrets...)
		<-p.exited
		e := must.Get(p.events.Read())(t)
		if e.Kind != event.Ended || !strings.Contains(e.Problem, test.want) || strings.Contains(e.Problem+p.stderr.String(), secret) {
			t.Errorf("%s: %+v, %s", name, e, &p.stderr)
		}
	}
}

func TestProgram_StandsWithoutDescriptors(t *testing.T) {
	world(t)
	p := startProgram(t, policyText, true)
	p.sendAll()
	address := must.Get(resolve(t, "files.example"))(t)
	few := unix.Rlimit{Cur: 16, Max: 16}
	must.Do(t, unix.Prlimit(p.cmd.Process.Pid, unix.RLIMIT_NOFILE, &few, nil))
	var conns []net.Conn
	for range 16 {
		conn, err := net.Dial("tcp", netip.AddrPortFrom(address, 80+shift).String())
		if err != nil {
			break
		}
		fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: files.example\r\n\r\n")
		conns = append(conns, conn)
	}
	for _, conn := range conns {
		conn.Close()
	}
	// As soon as they have ended, there are descriptors again.
	deadline := time.Now().Add(patience.Long)
	for {
		text, err := get(t, address, "files.example")
		if text == "hello files.example" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%q, %v", text, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestProgram_IsNotStoppedByAFullPipe(t *testing.T) {
	world(t)
	p := startProgram(t, policyText, true)
	p.sendAll()
	// Nobody reads the events.
	for i := range 2000 {
		if _, err := resolve(t, fmt.Sprintf("n%d.evil.example", i)); err == nil {
			t.Fatal("found")
		}
	}
	address := must.Get(resolve(t, "files.example"))(t)
	if text, err := get(t, address, "files.example"); text != "hello files.example" {
		t.Errorf("%q, %v", text, err)
	}
}
