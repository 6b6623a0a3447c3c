package networld

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// begin makes a world for a test, or says that the caller is to return.
func begin(t *testing.T, options Options) *World {
	t.Helper()
	if !Again(t) {
		return nil
	}
	w, err := New(options)
	if errors.Is(err, ErrImpossible) {
		t.Skip(err)
	}
	must.Do(t, err)
	t.Cleanup(w.Close)
	return w
}

// dial connects from the host side.
func dial(w *World, address string) (conn net.Conn, err error) {
	err = w.Do(func() error {
		conn, err = net.DialTimeout("tcp", address, patience.Long)
		return err
	})
	return conn, err
}

// get fetches a page from the host side: its name is looked up at the world's resolver.
func get(t *testing.T, w *World, url, address string) string {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(must.Get(Authority())(t))
	client := &http.Client{Transport: &http.Transport{
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return dial(w, address) },
		TLSClientConfig:   &tls.Config{RootCAs: pool},
		DisableKeepAlives: true,
	}}
	response := must.Get(client.Get(url))(t)
	defer response.Body.Close()
	return strings.TrimSpace(string(must.Get(io.ReadAll(response.Body))(t)))
}

func TestWorld_TellsItsSecretWhereItMayNotBeReached(t *testing.T) {
	w := begin(t, Options{})
	if w == nil {
		return
	}
	for _, test := range []struct{ url, address, want string }{
		{"http://files.example/small", "93.184.216.34:80", "hello files.example"},
		{"https://files.example/small", "93.184.216.34:443", "hello files.example"},
		{"https://a.host.example/small", "[2606:2800:220::34]:443", "hello a.host.example"},
		{"http://files.example/", "10.0.0.5:80", w.Secret},
		{"http://files.example/", "169.254.169.254:80", w.Secret},
		{"http://files.example/", "[64:ff9b::a00:5]:80", w.Secret},
		{"http://files.example/", "93.184.216.1:80", w.Secret},
		{"http://files.example/", "127.0.0.1:80", w.Secret},
		{"http://files.example/", "[::1]:80", w.Secret},
		{"http://files.example/", "[fe80::2%up0]:80", w.Secret},
		{"http://evil.example/", "93.184.216.34:80", w.Secret},
		{"https://evil.example/", "93.184.216.34:443", w.Secret},
		{"https://host.example/", "93.184.216.34:443", w.Secret},
	} {
		t.Run(test.url+" at "+test.address, func(t *testing.T) {
			before := len(w.Violations())
			if got := get(t, w, test.url, test.address); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if noted := len(w.Violations()) > before; noted != (test.want == w.Secret) {
				t.Errorf("noted: %v; all: %q", noted, w.Violations())
			}
		})
	}
}

func TestWorld_AnswersQuestionsAndNotesThem(t *testing.T) {
	w := begin(t, Options{})
	if w == nil {
		return
	}
	resolver := &net.Resolver{PreferGo: true, Dial: func(_ context.Context, network, _ string) (conn net.Conn, err error) {
		err = w.Do(func() error {
			conn, err = net.Dial(network, "93.184.216.53:53")
			return err
		})
		return conn, err
	}}
	for name, want := range map[string][]string{
		"files.example":           {"93.184.216.34"},
		"private.led.example":     {"10.0.0.5"},
		"both.led.example":        {"2606:2800:220::34", "93.184.216.34"},
		"chain.led.example":       {"10.0.0.5"},
		"truncated.led.example":   {"93.184.216.34"},
		"secret-1.attacker.test":  {"93.184.216.34"},
		"gone.host.example":       nil,
		"nothing.led.example":     nil,
		"nothing.somewhere.other": nil,
	} {
		addresses, err := resolver.LookupNetIP(t.Context(), "ip", name+".")
		var got []string
		for _, address := range addresses {
			got = append(got, address.Unmap().String())
		}
		slices.Sort(got)
		if !slices.Equal(got, want) || (err == nil) != (want != nil) {
			t.Errorf("%s: got %q, %v; want %q", name, got, err, want)
		}
	}
	illegal := map[string]bool{}
	for _, q := range w.Questions() {
		if !q.Legal {
			illegal[q.Name] = true
		}
	}
	if want := (map[string]bool{"secret-1.attacker.test": true, "nothing.somewhere.other": true}); fmt.Sprint(illegal) != fmt.Sprint(want) {
		t.Errorf("questions that are not allowed: %v, want %v", illegal, want)
	}
}

func TestWorld_TakesOnlyPlainQuestionsForLegal(t *testing.T) {
	w := &World{Policy: ReadPolicy()}
	question := func(name string, kind byte, rest ...byte) []byte {
		message := []byte{1, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}
		message = append(append(message, wireName(name)...), 0, kind, 0, 1)
		if len(rest) > 0 {
			message[11] = 1
		}
		return append(message, rest...)
	}
	for name, test := range map[string]struct {
		message []byte
		want    bool
	}{
		"plain":         {question("files.example", TypeA), true},
		"IPv6":          {question("a.host.example", TypeAAAA), true},
		"size":          {question("files.example", TypeA, 0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0), true},
		"option":        {question("files.example", TypeA, 0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 5, 0, 65, 0, 1, 7), false},
		"rest":          {append(question("files.example", TypeA), 1), false},
		"type":          {question("files.example", 16), false},
		"name":          {question("evil.example", TypeA), false},
		"upper case":    {question("fileS.example", TypeA), false},
		"the domain":    {question("host.example", TypeA), false},
		"dot in label":  {append([]byte{1, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}, "\x06a.host\x07example\x00\x00\x01\x00\x01"...), false},
		"two questions": {append([]byte{1, 2, 1, 0, 0, 2}, question("files.example", TypeA)[6:]...), false},
	} {
		q, rest, err := parse(test.message)
		must.Do(t, err)
		q.To = Resolver
		if got := w.legal(q, rest); got != test.want {
			t.Errorf("%s: legal is %v, want %v", name, got, test.want)
		}
	}
}

// Whatever leaves the host side is noted, also what no server answers.
func TestWorld_NotesEveryPacket(t *testing.T) {
	w := begin(t, Options{})
	if w == nil {
		return
	}
	for _, address := range []string{"8.8.8.8:53", "224.0.0.251:5353", "[2001:db8::1]:443"} {
		var conn net.Conn
		must.Do(t, w.Do(func() (err error) {
			conn, err = net.Dial("udp", address)
			return err
		}))
		defer conn.Close()
		// The kernel drops what is sent before it has put the new device into operation. An
		// error would be the answer to an earlier packet: that the port is closed.
		patience.Until(t, "udp to "+address, func() bool {
			_, _ = conn.Write([]byte("hello"))
			return slices.Contains(w.Violations(), "udp to "+address+" left the host")
		})
	}
}

func TestWorld_CountsTheLoadOfASandbox(t *testing.T) {
	w := begin(t, Options{})
	if w == nil {
		return
	}
	var conns []net.Conn
	for range 7 {
		conn := must.Get(dial(w, "93.184.216.34:7007"))(t)
		defer conn.Close()
		must.Get(conn.Write([]byte("hello")))(t)
		must.Get(io.ReadFull(conn, make([]byte, 5)))(t)
		conns = append(conns, conn)
	}
	// What was sent is counted a moment after it has come.
	patience.Wait(t, patience.Long, func() string { return fmt.Sprintf("%+v", w.Load()) }, func() bool {
		load := w.Load()
		return load.Connections == 7 && load.Accepted == 7 && load.Sent == 35 && load.Received == 35 && load.Rate > 0
	})
	for _, conn := range conns {
		conn.Close()
	}
}

// An address without a host is refused at once, one that drops packets is not answered.
func TestWorld_HasAddressesThatDoNotAnswer(t *testing.T) {
	w := begin(t, Options{})
	if w == nil {
		return
	}
	if _, err := dial(w, netip.AddrPortFrom(Unreachable, 80).String()); !errors.Is(err, unix.EHOSTUNREACH) {
		t.Errorf("unreachable: %v", err)
	}
	conn := must.Get(dial(w, netip.AddrPortFrom(Stuck, 80).String()))(t)
	defer conn.Close()
	must.Do(t, conn.SetDeadline(time.Now().Add(100*time.Millisecond)))
	if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("stuck: %d bytes, %v", n, err)
	}
}

func TestWorld_ServesGitAndMirrors(t *testing.T) {
	w := begin(t, Options{})
	if w == nil {
		return
	}
	ca := filepath.Join(t.TempDir(), "ca.pem")
	must.Write(t, ca, string(must.Get(Authority())(t)), 0o644)
	for name, words := range map[string][]string{
		"git https": {"git", "clone", "-q", "https://git.host.example/hello.git", "$OUT"},
		"git ssh":   {"git", "clone", "-q", "ssh://git@git.example/hello.git", "$OUT"},
		"pip":       {"python3", "-m", "pip", "download", "-q", "--no-cache-dir", "--no-deps", "-d", "$OUT", "--index-url", "https://pypi.host.example/simple", Package},
		"npm":       {"npm", "install", "--prefix", "$OUT", "--cache", "$OUT/cache", "--registry", "https://npm.host.example/", Package},
	} {
		t.Run(name, func(t *testing.T) {
			program, err := exec.LookPath(words[0])
			if err != nil {
				t.Skip(err)
			}
			out := filepath.Join(t.TempDir(), "out")
			for i := range words {
				words[i] = strings.ReplaceAll(words[i], "$OUT", out)
			}
			cmd := exec.CommandContext(t.Context(), program, words[1:]...)
			cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "GIT_SSL_CAINFO=" + ca, "REQUESTS_CA_BUNDLE=" + ca, "NODE_EXTRA_CA_CERTS=" + ca,
				"GIT_SSH_COMMAND=ssh -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -F /dev/null", "GIT_CONFIG_NOSYSTEM=1"}
			var output []byte
			err = w.Do(func() error {
				output, err = cmd.CombinedOutput()
				return err
			})
			if err != nil && strings.Contains(string(output), "No module named pip") {
				t.Skip("python3 has no pip")
			}
			if err != nil && strings.Contains(string(output), "No user exists") {
				t.Skip("ssh wants a user with an entry in /etc/passwd")
			}
			if err != nil {
				t.Fatalf("%v: %s", err, output)
			}
		})
	}
	if found := w.Violations(); len(found) > 0 {
		t.Errorf("not allowed: %q", found)
	}
}

// A world leaves nothing behind: no goroutine, descriptor, namespace, file.
func TestWorld_IsGoneAfterwards(t *testing.T) {
	if w := begin(t, Options{}); w == nil {
		return
	}
	t.Setenv("TMPDIR", t.TempDir())
	descriptors := func() int { return len(must.Get(os.ReadDir("/proc/self/fd"))(t)) }
	interfaces := must.Get(net.Interfaces())(t)
	resolv := must.Get(os.ReadFile("/etc/resolv.conf"))(t)
	goroutines, open := runtime.NumGoroutine(), descriptors()
	for range 3 {
		w := must.Get(New(Options{}))(t)
		conn := must.Get(dial(w, "93.184.216.34:80"))(t) // open, and says nothing
		w.Close()
		conn.Close()
	}
	patience.Until(t, "goroutines end", func() bool { return runtime.NumGoroutine() <= goroutines })
	patience.Until(t, "descriptors are closed", func() bool { return descriptors() <= open })
	if left := must.Get(filepath.Glob(filepath.Join(os.Getenv("TMPDIR"), "*")))(t); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if now := must.Get(net.Interfaces())(t); len(now) != len(interfaces) {
		t.Errorf("the machine has interfaces %v, and had %v", now, interfaces)
	}
	if now := must.Get(os.ReadFile("/etc/resolv.conf"))(t); string(now) != string(resolv) {
		t.Error("the machine's resolv.conf has changed")
	}
}

func TestWorld_EndsWithItsLifetime(t *testing.T) {
	if w := begin(t, Options{}); w == nil {
		return
	}
	w := must.Get(New(Options{Lifetime: time.Millisecond}))(t)
	<-w.stopped.Done()
	w.Close()
}

// Programs of the host side have no capability that this process was given for worlds.
func TestWorld_GivesProgramsNoCapability(t *testing.T) {
	w := begin(t, Options{})
	if w == nil || os.Geteuid() == 0 {
		return
	}
	var status []byte
	must.Do(t, w.Do(func() (err error) {
		status, err = exec.Command("cat", "/proc/self/status").Output()
		return err
	}))
	for line := range strings.Lines(string(status)) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), ":"); slices.Contains([]string{"CapPrm", "CapEff", "CapAmb"}, name) {
			if strings.Trim(value, " \t0") != "" {
				t.Errorf("%s is %s", name, value)
			}
		}
	}
}
