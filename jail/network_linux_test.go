package jail

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/handover"
)

// networked is a description with a network.
func networked() Spec {
	spec := valid()
	spec.Network = &Network{Proxy: "/nix/store/p-proxy", Ports: []int{443, 80}}
	spec.Overlay.Flags = append([]string{"--unshare-net"}, spec.Overlay.Flags...)
	return spec
}

// A network needs no bubblewrap for its outer namespace, and an overlay has one for both.
func TestPlan_MakesOneOuterNamespace(t *testing.T) {
	spec := networked()
	spec.Binds = []Bind{{"/srv/data", "/data"}}
	shown := []string{"--ro-bind", "/srv/data", "/host/0", "--ro-bind", "/home/me/project", "/host/1"}
	for name, test := range map[string]struct {
		project       Project
		outer, inside []string
	}{
		"a network": {
			Project{},
			nil,
			[]string{"--ro-bind", "/srv/data", "/data"},
		},
		"a network and a project": {
			Project{Dir: "/home/me/project", Mount: "/project", Overlay: false},
			nil,
			[]string{"--ro-bind", "/srv/data", "/data", "--ro-bind", "/home/me/project", "/project"},
		},
		"a network and an overlay": {
			Project{Dir: "/home/me/project", Mount: "/project", Overlay: true},
			append([]string{"--unshare-net", "--tmpfs", "/layer"}, shown...),
			[]string{"--ro-bind", "/host/0", "/data", "--overlay-src", "/host/1", "--overlay", "/layer/upper", "/layer/work", "/project"},
		},
	} {
		outer, inside := spec.plan(Request{Project: test.project})
		if diff := cmp.Diff(test.outer, outer); diff != "" {
			t.Errorf("%s, outside: %s", name, diff)
		}
		flags := append([]string{"--unshare-user", "--setenv", "A", "with space\nand line"}, test.inside...)
		if diff := cmp.Diff(append(flags, "--remount-ro", "/"), inside); diff != "" {
			t.Errorf("%s, inside: %s", name, diff)
		}
	}
	// The flags did not grow where they are kept.
	if diff := cmp.Diff(networked().Overlay.Flags, spec.Overlay.Flags); diff != "" {
		t.Error(diff)
	}
}

func TestParseSpec_ReadsNetworks(t *testing.T) {
	spec := networked()
	spec.OOMScore = 900
	spec.Network.Secrets = []Secret{{Name: "A", File: "/run/a"}, {Name: "B", Variable: "B"}}
	spec.Network.Authorities, spec.Network.Certificates = "/nix/store/c/bundle", "/certificates.crt"
	got := must.Get(ParseSpec(encode(t, spec)))(t)
	if diff := cmp.Diff(spec, *got); diff != "" {
		t.Error(diff)
	}
}

// encode returns a description as the build writes it.
func encode(t testing.TB, spec Spec) []byte {
	t.Helper()
	return append([]byte("#!/nix/store/j/bin/nix-sandbox-jail\n"), must.Get(json.Marshal(spec))(t)...)
}

// What is missing of the proxy is a sentence before anything starts.
func TestReadProxy(t *testing.T) {
	folder := t.TempDir()
	filter := filepath.Join(folder, "filter")
	must.Do(t, os.WriteFile(filter, nil, 0o644))
	proxy := valid()
	proxy.Seccomp = filter
	for want, change := range map[string]func(*Spec){
		"":                              func(*Spec) {},
		"does not describe a network's": func(s *Spec) { s.Network = networked().Network },
		"which does not exist":          func(s *Spec) { s.Binds = []Bind{{folder + "/resolv.conf", "/etc/resolv.conf"}} },
		"the system call filter":        func(s *Spec) { s.Seccomp += "-none" },
		"proxy does not exist":          nil,
	} {
		name := filepath.Join(t.TempDir(), "proxy")
		if change != nil {
			changed := proxy
			change(&changed)
			must.Do(t, os.WriteFile(name, encode(t, changed), 0o644))
		}
		spec := networked()
		spec.Network.Proxy = name
		_, err := spec.readProxy()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) || HintOf(err) == "") {
			t.Errorf("error %v with hint %q, want one with %q", err, HintOf(err), want)
		}
	}
	none := valid()
	if proxy, err := none.readProxy(); proxy != nil || err != nil {
		t.Errorf("without a network: %v, error %v", proxy, err)
	}
}

// In a virtual machine, the first process is there in place of a proxy.
func TestReadRequest_Carrier(t *testing.T) {
	spec := valid()
	spec.Network = &Network{}
	if _, err := spec.ReadRequest(only(CarrierVariable, "")); err == nil || !strings.Contains(err.Error(), CarrierVariable) || HintOf(err) == "" {
		t.Errorf("without one: %v", err)
	}
	if request, err := spec.ReadRequest(only(CarrierVariable, "1000")); err == nil {
		t.Errorf("with a descriptor that is not open: %+v", request)
	}
	r, w, err := os.Pipe()
	must.Do(t, err)
	defer r.Close()
	defer w.Close()
	fd := int(w.Fd())
	if request, err := spec.ReadRequest(only(CarrierVariable, fmt.Sprint(fd))); err != nil || request.Carrier != fd {
		t.Errorf("%+v, %v", request, err)
	}
}

func TestReadRequest_Events(t *testing.T) {
	r, w, err := os.Pipe()
	must.Do(t, err)
	defer r.Close()
	defer w.Close()
	spec := valid()
	spec.Network = &Network{Proxy: "/proxy"}
	read := func(value string) (int, error) {
		request, err := spec.ReadRequest(only(handover.EventsVariable, value))
		return request.Events, err
	}
	for value, want := range map[string]int{"": 0, fmt.Sprint(w.Fd()): int(w.Fd())} {
		if fd, err := read(value); fd != want || err != nil {
			t.Errorf("%q: %d, error %v, want %d", value, fd, err, want)
		}
	}
	for _, value := range []string{"x", "-1", "0", "2", "99999", " 3", "3x"} {
		if fd, err := read(value); err == nil || !strings.Contains(err.Error(), handover.EventsVariable) || HintOf(err) == "" {
			t.Errorf("%q: %d, error %v", value, fd, err)
		}
	}
	spec.Network = nil
	if fd, err := read("x"); fd != 0 || err != nil {
		t.Errorf("without a network: %d, error %v", fd, err)
	}
}

// only returns the environment that has one variable.
func only(name, value string) func(string) string {
	return func(asked string) string {
		if asked == name {
			return value
		}
		return ""
	}
}

func TestSecret_Open(t *testing.T) {
	folder := t.TempDir()
	file := func(name string, size int) string {
		path := filepath.Join(folder, name)
		must.Do(t, os.WriteFile(path, bytes.Repeat([]byte("x"), size), 0o600))
		return path
	}
	written := func(name, text string) string {
		path := filepath.Join(folder, name)
		must.Do(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	must.Do(t, unix.Mkfifo(filepath.Join(folder, "pipe"), 0o600))
	t.Setenv("SECRET_LINES", "a\nb")
	t.Setenv("SECRET_HERE", "of a variable")
	t.Setenv("SECRET_LARGE", strings.Repeat("x", maxSecret+1))
	for _, test := range []struct {
		secret Secret
		want   string // the contents, or after ! a part of the error
	}{
		{Secret{File: file("small", 3)}, "xxx"},
		{Secret{Variable: "SECRET_HERE"}, "of a variable"},
		{Secret{File: file("largest", maxSecret)}, strings.Repeat("x", maxSecret)},
		{Secret{File: file("large", maxSecret+1)}, "!a file of 1 to"},
		{Secret{File: file("empty", 0)}, "!a file of 1 to"},
		{Secret{File: folder}, "!a file of 1 to"},
		{Secret{File: folder + "/pipe"}, "!a file of 1 to"},
		{Secret{File: folder + "/none"}, "!cannot be read: no such file"},
		{Secret{File: written("line", "xxx\r\n")}, "xxx\r\n"},
		{Secret{File: written("lines", "xxx\nyyy\n")}, "!one line of printable ASCII"},
		{Secret{File: written("empty-line", "\n")}, "!one line of printable ASCII"},
		{Secret{File: written("no-text", "x\xff")}, "!one line of printable ASCII"},
		{Secret{Variable: "SECRET_LINES"}, "!the variable SECRET_LINES, which has to be one line"},
		{Secret{Variable: "SECRET_NONE"}, "!which is empty or not set"},
		{Secret{Variable: "SECRET_LARGE"}, "!which has 16385 bytes, more than 16384"},
	} {
		test.secret.Name = "TOKEN"
		fd, err := test.secret.open()
		if part, fails := strings.CutPrefix(test.want, "!"); fails {
			if err == nil || !strings.Contains(err.Error(), part) || !strings.Contains(err.Error(), "TOKEN") || HintOf(err) == "" {
				t.Errorf("%+v: error %v, want one with %q", test.secret, err, part)
			}
			continue
		}
		must.Do(t, err)
		f := os.NewFile(uintptr(fd), "secret")
		text := must.Get(io.ReadAll(f))(t)
		flags := must.Get(unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0))(t)
		if string(text) != test.want || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("%+v: %d bytes, descriptor flags %d", test.secret, len(text), flags)
		}
		f.Close()
	}
}

func TestNetworkRefused(t *testing.T) {
	step := &networkStep{AppArmor: "/nix/store/p-nix-sandbox-0a1b2c3d"}
	for _, test := range []struct {
		profile       string
		err           error
		problem, hint string
	}{
		{"unpriv_bwrap", unix.EPERM, `AppArmor's profile "unpriv_bwrap"`, "apparmor_parser --replace /etc/apparmor.d/nix-sandbox-0a1b2c3d; or set network"},
		{"unprivileged_userns", unix.EACCES, `AppArmor's profile "unprivileged_userns"`, "sudo install -m 644 /nix/store/p-nix-sandbox-0a1b2c3d "},
		{"", fmt.Errorf("bind port 443: %w", unix.EACCES), "bind port 443", "--security-opt"},
		{"nix-sandbox-0a1b2c3d", unix.EPERM, "no power over its own network", "--security-opt"},
		{"unconfined", unix.EPERM, "no power over its own network", "--security-opt"},
		{"unpriv_bwrap", unix.ENOMEM, "make the sandbox's network: cannot allocate memory", ""},
		{"", &Refusal{"the proxy", "read this"}, "the proxy", "read this"},
	} {
		err := step.networkRefused(test.profile, test.err)
		if !strings.Contains(err.Error(), test.problem) || !strings.Contains(HintOf(err), test.hint) || (HintOf(err) == "") != (test.hint == "") {
			t.Errorf("%q, %v: %v, hint %q", test.profile, test.err, err, HintOf(err))
		}
	}
}

// bin/check repeats what the launcher says in the outer namespace.
func TestParseMessages(t *testing.T) {
	var out bytes.Buffer
	WriteError(&out, &Refusal{"the problem: is here", "the hint"})
	if problem, hint := parseMessages("noise\n" + out.String()); problem != "the problem: is here" || hint != "the hint" {
		t.Errorf("problem %q, hint %q", problem, hint)
	}
	out.Reset()
	WriteError(&out, errors.New("the problem"))
	if problem, hint := parseMessages(out.String()); problem != "the problem" || hint != "" {
		t.Errorf("problem %q, hint %q", problem, hint)
	}
	if problem, _ := parseMessages("bwrap: loopback: Failed RTM_NEWADDR\n"); !strings.HasSuffix(problem, ": bwrap: loopback: Failed RTM_NEWADDR") {
		t.Errorf("problem %q", problem)
	}
}
