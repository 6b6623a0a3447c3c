package jail_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/jailtest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/event"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/handover"
)

const networkPolicy = `{"schema":1,"domains":["files.example"],"ports":[443,80],"private":[],"connections":8,"rate":50,"megabytes":10,"names":100,"upstream":null}`

// networkedSandbox starts a sandbox with a network as a user, which runs lines of bash
// from its standard input. It returns what its standard output and error come to, and
// the events of its proxy.
type networkedSandbox struct {
	*exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	events *bufio.Reader
}

func startNetworked(t *testing.T, user int, settings ...string) *networkedSandbox {
	t.Helper()
	run := jailtest.Sandbox{Policy: networkPolicy, Program: "/usr/bin/bash"}.Write(t)
	cmd := exec.CommandContext(t.Context(), run)
	read, write, err := os.Pipe()
	must.Do(t, err)
	t.Cleanup(func() { read.Close() })
	defer write.Close()
	cmd.ExtraFiles = []*os.File{write}
	cmd.Env = append([]string{handover.EventsVariable + "=3"}, settings...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if user != os.Geteuid() {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(user), Gid: uint32(user)}
	}
	s := &networkedSandbox{Cmd: cmd, in: must.Get(cmd.StdinPipe())(t), events: bufio.NewReader(read)}
	s.out = bufio.NewReader(must.Get(cmd.StdoutPipe())(t))
	cmd.Stderr = cmd.Stdout
	must.Do(t, cmd.Start())
	t.Cleanup(func() {
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		_ = cmd.Wait()
	})
	return s
}

// do runs a line, and returns the output without its last newline.
func (s *networkedSandbox) do(t *testing.T, line string) string {
	t.Helper()
	fmt.Fprintf(s.in, "{ %s\n} 2>&1; echo; echo done\n", line)
	var out strings.Builder
	for {
		text, err := s.out.ReadString('\n')
		if err != nil {
			t.Fatalf("%s: %v after %q", line, err, out.String()+text)
		}
		if text == "done\n" {
			return strings.TrimSpace(out.String())
		}
		out.WriteString(text)
	}
}

// proxy returns the process of the sandbox's proxy.
func (s *networkedSandbox) proxy(t *testing.T) int {
	t.Helper()
	var found int
	patience.Until(t, "the proxy runs", func() bool {
		for _, pid := range procfs.Descendants(s.Process.Pid) {
			if p, err := procfs.Read(pid); err == nil && p.Name() == jailtest.NetworkProxy && p.State != "Z" {
				found = pid
			}
		}
		return found != 0
	})
	return found
}

func TestNetwork_RefusesWhatThePolicyDoesNotName(t *testing.T) {
	for _, user := range users() {
		t.Run(fmt.Sprint(user), func(t *testing.T) {
			s := startNetworked(t, user)
			const fetch = `exec 4<>/dev/tcp/%s/80 && printf 'GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n' >&4 && head -n 1 <&4; exec 4>&-`
			if got := s.do(t, fmt.Sprintf(fetch, "203.0.113.9", "203.0.113.9")); !strings.Contains(got, " 403 ") {
				t.Errorf("an address: %q", got)
			}
			if got := s.do(t, "getent hosts evil.example || echo none"); got != "none" {
				t.Errorf("a name that is not listed: %q", got)
			}
			if got := s.do(t, "(exec 4<>/dev/tcp/203.0.113.9/22)"); !strings.Contains(got, "Connection refused") {
				t.Errorf("a port that is not listed: %q", got)
			}
			var reasons []event.Reason
			for range 2 {
				var e event.Event
				line := must.Get(s.events.ReadString('\n'))(t)
				must.Do(t, json.Unmarshal([]byte(line), &e))
				reasons = append(reasons, e.Reason)
			}
			if !slices.Equal(reasons, []event.Reason{event.ByAddress, event.ByName}) {
				t.Errorf("events with the reasons %q", reasons)
			}
			if got := s.do(t, "readlink /proc/self/fd/* | grep -v -e pipe: -e /proc/; grep -E 'Cap...:.*[1-9a-f]|NoNewPrivs' /proc/self/status"); got != "NoNewPrivs:\t1" {
				t.Errorf("descriptors and privileges: %q", got)
			}
		})
	}
}

// The proxy has a user of its own where root starts it, the filter of its own, no
// capability, and none of the host's files but those of the resolver.
func TestNetwork_ConfinesTheProxy(t *testing.T) {
	for _, user := range users() {
		t.Run(fmt.Sprint(user), func(t *testing.T) {
			s := startNetworked(t, user)
			if got := s.do(t, "echo up"); got != "up" {
				t.Fatal(got)
			}
			pid := s.proxy(t)
			status := func(pid int, field string) string {
				text := string(must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))(t))
				_, rest, _ := strings.Cut(text, "\n"+field+":\t")
				value, _, _ := strings.Cut(rest, "\n")
				return value
			}
			for field, want := range map[string]string{
				"CapEff": "0000000000000000", "CapPrm": "0000000000000000", "CapBnd": "0000000000000000",
				"NoNewPrivs": "1", "Seccomp": "2",
			} {
				patience.Until(t, field+" is "+want, func() bool { return status(pid, field) == want })
			}
			if user == 0 && (status(pid, "Uid") == status(s.Process.Pid, "Uid") || strings.HasPrefix(status(pid, "Uid"), "0\t")) {
				t.Errorf("the users of the proxy and the sandbox are %q and %q", status(pid, "Uid"), status(s.Process.Pid, "Uid"))
			}
			if score := string(must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid)))(t)); score != "900\n" {
				t.Errorf("oom_score_adj is %q", score)
			}
			entries := must.Get(os.ReadDir(fmt.Sprintf("/proc/%d/root", pid)))(t)
			var names []string
			for _, entry := range entries {
				names = append(names, entry.Name())
			}
			if !slices.Equal(names, []string{"etc", jailtest.NetworkProxy, "policy.json"}) {
				t.Errorf("the proxy sees %q", names)
			}
			for _, namespace := range []string{"user", "pid", "mnt", "ipc", "uts"} {
				mine := must.Get(os.Readlink("/proc/self/ns/" + namespace))(t)
				if its := must.Get(os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, namespace)))(t); its == mine {
					t.Errorf("the proxy is in the %s namespace of the host", namespace)
				}
			}
			// The host's, and so not the sandbox's.
			if must.Get(os.Readlink("/proc/self/ns/net"))(t) != must.Get(os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid)))(t) {
				t.Error("the proxy is not in the network namespace of the host")
			}
		})
	}
}

// However a sandbox ends, its proxy ends too.
func TestNetwork_EndsWithTheSandbox(t *testing.T) {
	for name, end := range map[string]func(s *networkedSandbox){
		"by itself": func(s *networkedSandbox) { s.in.Close() },
		"killed":    func(s *networkedSandbox) { _ = unix.Kill(s.Process.Pid, unix.SIGKILL) },
	} {
		for _, user := range users() {
			t.Run(fmt.Sprint(name, " ", user), func(t *testing.T) {
				s := startNetworked(t, user)
				s.do(t, "echo up")
				s.proxy(t)
				all := procfs.Descendants(s.Process.Pid)
				end(s)
				_ = s.Wait()
				patience.Gone(t, all...)
			})
		}
	}
}

// While a sandbox runs, its launcher has nothing but the wait: no variable, no descriptor and no
// memory of its start. It passes the status on.
func TestNetwork_LauncherForgetsItsStart(t *testing.T) {
	for _, user := range users() {
		t.Run(fmt.Sprint(user), func(t *testing.T) {
			s := startNetworked(t, user, "OF_THE_START=1")
			s.do(t, "echo up")
			folder := fmt.Sprintf("/proc/%d/", s.Process.Pid)
			patience.Until(t, "the launcher waits", func() bool {
				text, err := os.ReadFile(folder + "cmdline")
				return err == nil && strings.Contains(string(text), "\x00"+jail.Wait+"\x00")
			})
			if text := string(must.Get(os.ReadFile(folder + "environ"))(t)); text != "GOMAXPROCS=1\x00" {
				t.Errorf("its variables are %q", text)
			}
			// Go itself reads files of the kernel when it starts, and keeps those with the
			// limits of the control group.
			patience.Until(t, "it has no descriptors but the first three", func() bool {
				var files []string
				for _, entry := range must.Get(os.ReadDir(folder + "fd"))(t) {
					if target, err := os.Readlink(folder + "fd/" + entry.Name()); err != nil || !strings.HasPrefix(target, "/sys/fs/cgroup/") {
						files = append(files, entry.Name())
					}
				}
				return slices.Equal(files, []string{"0", "1", "2"})
			})
			fmt.Fprintln(s.in, "exit 7")
			_ = s.Wait()
			if status := s.ProcessState.ExitCode(); status != 7 {
				t.Errorf("its status is %d", status)
			}
		})
	}
}

// A proxy that ends takes the network with it, and nothing else.
func TestNetwork_FailsClosedWithItsProxy(t *testing.T) {
	for _, user := range users() {
		t.Run(fmt.Sprint(user), func(t *testing.T) {
			s := startNetworked(t, user)
			s.do(t, "echo up")
			pid := s.proxy(t)
			must.Do(t, unix.Kill(pid, unix.SIGKILL))
			patience.Gone(t, pid)
			// Its descriptors are closed when the last of its threads has ended.
			if rest, err := io.ReadAll(s.events); err != nil || len(rest) > 0 {
				t.Errorf("events %q, error %v, want their end", rest, err)
			}
			if got := s.do(t, "(exec 4<>/dev/tcp/203.0.113.9/443); getent hosts files.example || echo none"); !strings.Contains(got, "Connection refused") || !strings.HasSuffix(got, "none") {
				t.Errorf("without a proxy: %q", got)
			}
		})
	}
}

// What prevents the proxy is said before anything starts, and the sandbox of the same
// description with the proxy starts.
func TestNetwork_StartsNothingWithoutItsProxy(t *testing.T) {
	run := jailtest.Sandbox{Policy: networkPolicy, Program: "/usr/bin/bash"}.Write(t)
	if got := runProgram(t, exec.Command(run), "echo started"); got.out != "started\n" {
		t.Errorf("the control: %+v", got)
	}
	must.Do(t, os.Remove(filepath.Join(filepath.Dir(run), "policy")))
	if got := runProgram(t, exec.Command(run), "echo started"); got.status != 125 || got.out != "" || strings.Count(got.err, "error: ") != 1 {
		t.Errorf("without the policy: %+v", got)
	}
	must.Do(t, os.Remove(filepath.Join(filepath.Dir(run), "proxy")))
	if got := runProgram(t, exec.Command(run), "echo started"); got.status != 125 || got.out != "" || !strings.Contains(got.err, "proxy") {
		t.Errorf("without the proxy: %+v", got)
	}
}

// The kernel gives an ordinary user 200 keyrings, and a sandbox has one.
func TestNetwork_TakesOneKeyring(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can choose a user who has no keyrings")
	}
	user := 62000 + os.Getpid()%3000
	s := startNetworked(t, user)
	s.do(t, "echo up")
	s.proxy(t)
	// Those of a sandbox that has ended are collected later.
	patience.Until(t, "the sandbox has one keyring", func() bool {
		text := must.Get(os.ReadFile("/proc/key-users"))(t)
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line) // USER: USED KEYS/THOSE IN USE KEYS/MOST BYTES/MOST, see proc_key-users(5)
			if fields[0] == fmt.Sprint(user, ":") {
				return strings.HasPrefix(fields[3], "1/")
			}
		}
		return false
	})
}

// A secret reaches the proxy alone. A shell takes its place here, and writes what it got
// to standard error.
func TestNetwork_GivesSecretsToTheProxyAlone(t *testing.T) {
	run := jailtest.Sandbox{Policy: networkPolicy, Program: "/usr/bin/bash"}.Write(t)
	folder := filepath.Dir(run)
	secret := fmt.Sprintf("secret-%d-%d", os.Getpid(), rand.Uint64())
	must.Write(t, filepath.Join(folder, "secret"), secret+" of a file", 0o600)
	spec := must.Get(jail.ReadSpec(run))(t)
	spec.Network.Secrets = []jail.Secret{{Name: "A", File: filepath.Join(folder, "secret")}, {Name: "B", Variable: "TOKEN"}}
	proxy := must.Get(jail.ReadSpec(spec.Network.Proxy))(t)
	proxy.Seccomp = spec.Seccomp
	proxy.Command = []string{"/usr/bin/bash", "-c", "cat <&6 >&2; echo >&2; cat <&7 >&2; echo >&2; read -t 5 <&5"}
	for _, folder := range []string{"/usr", "/nix/store"} {
		proxy.Flags = append(proxy.Flags, "--ro-bind-try", folder, folder)
	}
	for _, folder := range []string{"bin", "lib", "lib64"} {
		proxy.Flags = append(proxy.Flags, "--symlink", "usr/"+folder, "/"+folder)
	}
	line := "#!" + jailtest.Launcher(t) + "\n"
	must.Write(t, spec.Network.Proxy, line+string(must.Get(json.Marshal(proxy))(t)), 0o755)
	must.Write(t, run, line+string(must.Get(json.Marshal(spec))(t)), 0o755)
	got := runProgram(t, exec.Command(run), `
		sleep 0.2
		readlink /proc/[0-9]*/fd/*
		cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/mounts | tr '\0' '\n'
		grep -rs secret- /workspace /tmp /etc /dev/shm /run
		echo searched`, "TOKEN="+secret+" of a variable")
	if !strings.HasSuffix(got.out, "searched\n") || strings.Contains(got.out, secret) || strings.Contains(got.out, "memfd:secret") {
		t.Errorf("in the sandbox: %s", got.out)
	}
	for _, want := range []string{" of a file\n", " of a variable\n"} {
		if !strings.Contains(got.err, secret+want) {
			t.Errorf("the proxy got: %s", got.err)
		}
	}
	must.Do(t, os.Remove(filepath.Join(folder, "secret")))
	if got := runProgram(t, exec.Command(run), "echo started", "TOKEN="+secret); got.status != 125 || got.out != "" || !strings.Contains(got.err, "credential A") {
		t.Errorf("without the file: %+v", got)
	}
}

// A network and a workspace that other sandboxes have too are made in one outer
// namespace.
func TestNetwork_WithASharedWorkspace(t *testing.T) {
	for _, user := range users() {
		t.Run(fmt.Sprint(user), func(t *testing.T) {
			run := jailtest.Sandbox{Policy: networkPolicy, Program: "/usr/bin/bash"}.Write(t)
			pair := must.Get(unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0))(t)
			here, there := os.NewFile(uintptr(pair[0]), "here"), os.NewFile(uintptr(pair[1]), "there")
			defer here.Close()
			holder := exec.CommandContext(t.Context(), filepath.Join(filepath.Dir(run), jail.WorkspaceName))
			holder.Stdin, holder.Stderr, holder.Env = there, os.Stderr, []string{}
			attributes := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			if user != os.Geteuid() {
				attributes.Credential = &syscall.Credential{Uid: uint32(user), Gid: uint32(user)}
			}
			holder.SysProcAttr = attributes
			must.Do(t, holder.Start())
			there.Close()
			defer func() { here.Close(); _ = holder.Wait() }()
			for _, line := range []string{"echo of the first > /workspace/file", "cat /workspace/file"} {
				must.Do(t, unix.Send(pair[0], []byte{0}, 0))
				control := make([]byte, unix.CmsgSpace(4))
				_, n, _, _, err := unix.Recvmsg(pair[0], make([]byte, 1), control, unix.MSG_CMSG_CLOEXEC)
				must.Do(t, err)
				messages := must.Get(unix.ParseSocketControlMessage(control[:n]))(t)
				if len(messages) != 1 {
					t.Fatalf("%d messages, want a workspace", len(messages))
				}
				workspace := os.NewFile(uintptr(must.Get(unix.ParseUnixRights(&messages[0]))(t)[0]), "workspace")
				cmd := exec.Command(run)
				cmd.ExtraFiles = []*os.File{workspace}
				cmd.SysProcAttr = attributes
				got := runProgram(t, cmd, line+`
					getent hosts evil.example || echo none
					(exec 4<>/dev/tcp/203.0.113.9/22) 2>/dev/null || echo refused
					grep -E 'Cap(Prm|Eff|Inh|Bnd|Amb):.*[1-9a-f]' /proc/self/status
					readlink /proc/self/fd/* | grep -v -e pipe: -e /proc/`, "NIX_SANDBOX_WORKSPACE=3")
				workspace.Close()
				if want := "none\nrefused\n"; !strings.HasSuffix(got.out, want) || strings.HasPrefix(line, "cat") && got.out != "of the first\n"+want {
					t.Errorf("%s: %+v", line, got)
				}
			}
		})
	}
}

// The proxy has no descriptor of the launcher's but those that it needs.
func TestNetwork_GivesTheProxyNoOtherDescriptors(t *testing.T) {
	s := startNetworked(t, os.Geteuid())
	if got := s.do(t, "getent hosts evil.example || echo none"); got != "none" {
		t.Fatalf("the proxy does not answer: %q", got)
	}
	folder := fmt.Sprintf("/proc/%d/fd", s.proxy(t))
	for _, entry := range must.Get(os.ReadDir(folder))(t) {
		target, err := os.Readlink(filepath.Join(folder, entry.Name()))
		if err != nil {
			continue // it was closed meanwhile
		}
		kind, _, _ := strings.Cut(target, ":")
		if !slices.Contains([]string{os.DevNull, "pipe", "socket", "anon_inode"}, kind) {
			t.Errorf("descriptor %s is %s", entry.Name(), target)
		}
	}
}
