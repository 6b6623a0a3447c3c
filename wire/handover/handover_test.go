package handover_test

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/handover"
)

func pair(t *testing.T) (sender, receiver int) {
	t.Helper()
	both, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	must.Do(t, err)
	t.Cleanup(func() { _ = unix.Close(both[1]) })
	return both[0], both[1]
}

func open(t *testing.T) *os.File {
	t.Helper()
	file := must.Get(os.Open("/dev/null"))(t)
	t.Cleanup(func() { file.Close() })
	return file
}

func descriptors(t *testing.T) int {
	t.Helper()
	return len(must.Get(os.ReadDir("/proc/self/fd"))(t))
}

func TestHandover_BringsListenersAndAnEnd(t *testing.T) {
	sender, receiver := pair(t)
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	file := must.Get(listener.(*net.TCPListener).File())(t)
	want := handover.Socket{Protocol: handover.TCP, Port: uint16(listener.Addr().(*net.TCPAddr).Port)}
	must.Do(t, handover.Send(sender, want, int(file.Fd())))
	file.Close()
	must.Do(t, unix.Shutdown(sender, unix.SHUT_WR))

	socket, file, err := handover.Receive(receiver)
	if err != nil || socket != want {
		t.Fatalf("%v, %v", socket, err)
	}
	again := must.Get(net.FileListener(file))(t)
	file.Close()
	defer again.Close()
	if again.Addr().String() != listener.Addr().String() {
		t.Errorf("the listener is %s", again.Addr())
	}
	if _, _, err := handover.Receive(receiver); !errors.Is(err, io.EOF) {
		t.Errorf("the end is %v", err)
	}
}

func TestReceive_RefusesEverythingElseAndLeavesNothingOpen(t *testing.T) {
	file := int(open(t).Fd())
	good := `{"protocol":"udp","port":53}`
	for _, test := range []struct {
		text  string
		files []int
	}{
		{good, nil},
		{good, []int{file, file}},
		{good, []int{file, file, file}},
		{good + good, []int{file}},
		{"", []int{file}},
		{"x", []int{file}},
		{`{"protocol":"raw","port":53}`, []int{file}},
		{`{"protocol":"udp"}`, []int{file}},
		{`{"protocol":"udp","port":65536}`, []int{file}},
		{`{"protocol":"udp","port":53,"more":1}`, []int{file}},
		{good + strings.Repeat(" ", 256), []int{file}},
		{strings.Repeat("x", 4096), []int{file}},
	} {
		sender, receiver := pair(t)
		before := descriptors(t)
		var rights []byte
		if test.files != nil {
			rights = unix.UnixRights(test.files...)
		}
		must.Do(t, unix.Sendmsg(sender, []byte(test.text), rights, nil, 0))
		if socket, _, err := handover.Receive(receiver); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%.50q with %d descriptors is received as %v, %v", test.text, len(test.files), socket, err)
		}
		if after := descriptors(t); after != before {
			t.Errorf("%.50q with %d descriptors leaves %d open", test.text, len(test.files), after-before)
		}
	}
	sender, receiver := pair(t)
	must.Do(t, unix.Sendmsg(sender, []byte(good), unix.UnixRights(file), nil, 0))
	_, got, err := handover.Receive(receiver)
	if err != nil {
		t.Fatal("the control:", err)
	}
	got.Close()
}

const certificate = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"

func TestReceiveCertificate_TakesOneCertificateAlone(t *testing.T) {
	sender, receiver := pair(t)
	must.Do(t, handover.SendCertificate(sender, []byte(certificate)))
	if got, err := handover.ReceiveCertificate(receiver); string(got) != certificate || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	for _, bad := range []string{
		"x", `{}`, `{"certificate":""}`, `{"certificate":"x"}`, `{"more":1}`, strings.Repeat(" ", 20000),
		`{"certificate":"` + strings.ReplaceAll(certificate+certificate, "\n", `\n`) + `"}`,
		`{"certificate":"` + strings.ReplaceAll(strings.ReplaceAll(certificate, "CERTIFICATE", "PRIVATE KEY"), "\n", `\n`) + `"}`,
	} {
		must.Do(t, unix.Sendmsg(sender, []byte(bad), nil, nil, 0))
		if got, err := handover.ReceiveCertificate(receiver); err == nil {
			t.Errorf("%.60q is received as %q", bad, got)
		}
	}
	file := int(open(t).Fd())
	before := descriptors(t)
	must.Do(t, unix.Sendmsg(sender, []byte(certificate), unix.UnixRights(file), nil, 0))
	if got, err := handover.ReceiveCertificate(receiver); err == nil {
		t.Errorf("with a descriptor: %q", got)
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors are left open", after-before)
	}
	must.Do(t, unix.Close(sender))
	if _, err := handover.ReceiveCertificate(receiver); !errors.Is(err, io.EOF) {
		t.Errorf("the end is %v", err)
	}
}
