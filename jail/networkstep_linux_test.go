package jail_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/jailtest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/handover"
)

// capabilities are those of the outer namespace.
var capabilities = []string{"--cap-add", "CAP_NET_ADMIN", "--cap-add", "CAP_NET_BIND_SERVICE"}

// step returns a command that a user starts, and that runs a script of bash in an outer
// namespace with a network; and the socket at which its sockets arrive. fields are more fields of
// the step in JSON.
func step(t *testing.T, user int, capabilities []string, script, fields string) (*exec.Cmd, *os.File) {
	t.Helper()
	pair := must.Get(unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0))(t)
	here, there := os.NewFile(uintptr(pair[0]), "proxy"), os.NewFile(uintptr(pair[1]), "launcher")
	t.Cleanup(func() { here.Close(); there.Close() })
	flags := slices.Concat([]string{
		"--unshare-user", "--unshare-net", "--unshare-pid", "--as-pid-1", "--die-with-parent", "--uid", "1000", "--gid", "1000",
		"--cap-drop", "ALL",
	}, capabilities, []string{
		"--ro-bind", "/", "/", "--dev-bind", "/dev", "/dev", "--proc", "/proc", "--",
		jailtest.Launcher(t), jail.Step, `{"network":{"proxy":3,"ports":[443,8080]` + fields + `}}`, "/bin/bash", "-c", script,
	})
	cmd := exec.CommandContext(t.Context(), jailtest.Bubblewrap(t), flags...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{there}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if user != os.Geteuid() {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(user), Gid: uint32(user)}
	}
	return cmd, here
}

// users are whoever tests, and an ordinary user where that is root.
func users() []int {
	if os.Geteuid() == 0 {
		return []int{0, 61001}
	}
	return []int{os.Geteuid()}
}

// Whatever address the code connects to, the connection comes to the sockets that
// were handed over, and tells the address. Nothing else of the step is left.
func TestStep_NetworkHandsItsSocketsOver(t *testing.T) {
	for _, user := range users() {
		t.Run(fmt.Sprint(user), func(t *testing.T) {
			cmd, over := step(t, user, capabilities, `
				exec 2>&1
				exec 4<>/dev/tcp/203.0.113.9/443; read -r answer <&4; echo "$answer"; exec 4>&-
				exec 4<>/dev/tcp/127.0.0.1/8080; read -r answer <&4; echo "$answer"; exec 4>&-
				exec 4<>/dev/udp/192.0.2.53/53; echo question >&4; head -n 1 <&4; exec 4>&-
				(exec 4<>/dev/tcp/203.0.113.9/8443) 2>/dev/null || echo refused
				(exec 4<>/dev/tcp/2001:db8::9/443) 2>/dev/null || echo refused
				grep -E '^Cap(Inh|Prm|Eff|Amb)' /proc/self/status
				readlink /proc/$$/fd/* | grep -c socket`, "")
			out := must.Get(cmd.StdoutPipe())(t)
			must.Do(t, cmd.Start())
			cmd.ExtraFiles[0].Close()
			var sockets []handover.Socket
			for {
				socket, file, err := handover.Receive(int(over.Fd()))
				if errors.Is(err, io.EOF) {
					break
				}
				must.Do(t, err)
				defer file.Close()
				sockets = append(sockets, socket)
				if socket.Protocol == handover.UDP {
					packets := must.Get(net.FilePacketConn(file))(t).(*net.UDPConn)
					defer packets.Close()
					go answer(packets)
					continue
				}
				listener := must.Get(net.FileListener(file))(t)
				defer listener.Close()
				go greet(listener)
			}
			want := []handover.Socket{{Protocol: "udp", Port: 53}, {Protocol: "tcp", Port: 53}, {Protocol: "tcp", Port: 443}, {Protocol: "tcp", Port: 8080}}
			if diff := cmp.Diff(want, sockets); diff != "" {
				t.Error(diff)
			}
			timer := time.AfterFunc(patience.Long, func() { _ = cmd.Process.Kill() })
			defer timer.Stop()
			text, _ := io.ReadAll(out)
			_ = cmd.Wait() // the status of grep, which counts none
			const none = "\t0000000000000000\n"
			if diff := cmp.Diff("203.0.113.9:443\n127.0.0.1:8080\n192.0.2.53\nrefused\nrefused\n"+
				"CapInh:"+none+"CapPrm:"+none+"CapEff:"+none+"CapAmb:"+none+"0\n", string(text)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// greet tells each connection the address to which it was made.
func greet(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		fmt.Fprintln(conn, conn.LocalAddr())
		conn.Close()
	}
}

// answer tells each packet the address to which it was sent, from that address.
func answer(packets *net.UDPConn) {
	text, control := make([]byte, 100), make([]byte, 100)
	for {
		_, n, _, from, err := packets.ReadMsgUDP(text, control)
		if err != nil {
			return
		}
		messages, err := unix.ParseSocketControlMessage(control[:n])
		if err != nil || len(messages) != 1 {
			return
		}
		info := messages[0].Data // struct in_pktinfo: the index, the local address, the one in the packet
		_, _, _ = packets.WriteMsgUDP(fmt.Appendln(nil, net.IP(info[8:12])), control[:n], from)
	}
}

// Without the two capabilities, or without a proxy, nothing starts.
func TestStep_NetworkFailsClosed(t *testing.T) {
	for name, test := range map[string]struct {
		capabilities []string
		proxy        bool
		want         string
	}{
		"the control":       {capabilities, true, "started"},
		"no capability":     {nil, true, "operation not permitted"},
		"no low ports":      {capabilities[:2], true, "bind port 53: permission denied"},
		"no route":          {capabilities[2:], true, "start the loopback interface: operation not permitted"},
		"the proxy is gone": {capabilities, false, "does not take its sockets"},
	} {
		for _, user := range users() {
			t.Run(fmt.Sprint(name, " ", user), func(t *testing.T) {
				cmd, over := step(t, user, test.capabilities, "echo started", "")
				if !test.proxy {
					over.Close()
				}
				out, err := cmd.CombinedOutput()
				if !strings.Contains(string(out), test.want) {
					t.Errorf("error %v: %s", err, out)
				}
				if name == "the control" {
					return
				}
				var exit *exec.ExitError
				if !errors.As(err, &exit) || exit.ExitCode() != 125 || strings.Contains(string(out), "started") || !strings.Contains(string(out), "hint: ") {
					t.Errorf("error %v: %s", err, out)
				}
			})
		}
	}
}

// Where the proxy ends TLS for some hosts, the sandbox waits for its certificate.
func TestStep_NetworkAddsTheAuthority(t *testing.T) {
	public := filepath.Join(t.TempDir(), "public")
	must.Write(t, public, "the public ones", 0o644)
	must.Do(t, errors.Join(os.Chmod(filepath.Dir(public), 0o755), os.Chmod(filepath.Dir(filepath.Dir(public)), 0o755)))
	const own = "-----BEGIN CERTIFICATE-----\nb3du\n-----END CERTIFICATE-----\n"
	for name, test := range map[string]struct {
		certificate string
		want        string
	}{
		"a certificate":  {own, "the public ones\n" + own},
		"another text":   {"certificate", "it is not one certificate in PEM"},
		"no certificate": {"", "it has ended"},
	} {
		for _, user := range users() {
			t.Run(fmt.Sprint(name, " ", user), func(t *testing.T) {
				cmd, over := step(t, user, capabilities, "cat <&4", fmt.Sprintf(`,"certificates":4,"authorities":%q`, public))
				file := os.NewFile(uintptr(must.Get(unix.MemfdCreate("certificates", unix.MFD_CLOEXEC))(t)), "certificates")
				defer file.Close()
				cmd.ExtraFiles = append(cmd.ExtraFiles, file)
				out := must.Get(cmd.StdoutPipe())(t)
				cmd.Stderr = cmd.Stdout
				must.Do(t, cmd.Start())
				cmd.ExtraFiles[0].Close()
				for {
					_, socket, err := handover.Receive(int(over.Fd()))
					if err != nil {
						if !errors.Is(err, io.EOF) {
							t.Error(err)
						}
						break
					}
					defer socket.Close()
				}
				if test.certificate != "" {
					must.Do(t, handover.SendCertificate(int(over.Fd()), []byte(test.certificate)))
				}
				over.Close()
				text := must.Get(io.ReadAll(out))(t)
				if err := cmd.Wait(); !strings.HasSuffix(strings.Split(string(text), "\nnix-sandbox-jail: hint")[0], test.want) || (err == nil) != (name == "a certificate") {
					t.Errorf("error %v: %.300s", err, text)
				}
			})
		}
	}
}
