package policy_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/network/policy"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
)

const whole = `{"schema":1,"domains":["files.example","*.host.example","git.example:22","files.example:8443","*.wide.example:9000"],"ports":[443,80],"private":["10.1.0.0/16","fd00:1::/32"],"connections":64,"rate":50,"megabytes":1024,"names":1000,"upstream":null}`

// with returns the policy file with one field replaced; value is JSON.
func with(t *testing.T, field, value string) string {
	t.Helper()
	var object map[string]json.RawMessage
	must.Do(t, json.Unmarshal([]byte(whole), &object))
	object[field] = json.RawMessage(value)
	return string(must.Get(json.Marshal(object))(t))
}

func parse(t *testing.T, text string) *policy.Policy {
	t.Helper()
	return must.Get(policy.Parse([]byte(text)))(t)
}

func TestParse_ReadsAWholePolicy(t *testing.T) {
	p := parse(t, whole)
	if p.Connections != 64 || p.Rate != 50 || p.Bytes != 1024<<20 || p.Names != 1000 || p.Upstream != "" {
		t.Errorf("limits are %+v", p)
	}
	if diff := cmp.Diff([]uint16{22, 80, 443, 8443, 9000}, p.Ports()); diff != "" {
		t.Error(diff)
	}
	p = parse(t, with(t, "upstream", `"http://proxy.example:3128"`))
	if p.Upstream != "proxy.example:3128" {
		t.Errorf("upstream is %q", p.Upstream)
	}
}

func TestParse_RefusesWithASentence(t *testing.T) {
	many := func(n int, text string) string {
		return "[" + strings.TrimSuffix(strings.Repeat(text+",", n), ",") + "]"
	}
	numbers := func(n int) string {
		var list []int
		for i := range n {
			list = append(list, i+1000)
		}
		return string(must.Get(json.Marshal(list))(t))
	}
	for text, want := range map[string]string{
		``:                         "EOF",
		`{`:                        "EOF",
		whole + `{}`:               "something follows",
		`{"schema":2}`:             "schema is 2",
		with(t, "mode", `"allow"`): `unknown field "mode"`,
		with(t, "domains", `[]`):   "domains has 0 entries",
		with(t, "domains", many(policy.MaxDomains+1, `"a.example"`)):  "domains has 1001 entries",
		with(t, "domains", `["*"]`):                                   `domains has "*"`,
		with(t, "domains", `["*.com"]`):                               "a whole top-level domain",
		with(t, "domains", `["a.*.example"]`):                         "not the name",
		with(t, "domains", `["Files.example"]`):                       "not the name",
		with(t, "domains", `["files.example."]`):                      "not the name",
		with(t, "domains", `["https://files.example"]`):               `domains has "https://files.example": use a port`,
		with(t, "domains", `["10.0.0.5"]`):                            "not the name",
		with(t, "domains", `["[::1]"]`):                               "use a port",
		with(t, "domains", `["a.example:0"]`):                         "use a port",
		with(t, "domains", `["a.example:53"]`):                        "use a port",
		with(t, "domains", `["a.example:+1"]`):                        "use a port",
		with(t, "domains", `["a.example:080"]`):                       "use a port",
		with(t, "domains", `["a.example:65536"]`):                     "use a port",
		with(t, "ports", `[0]`):                                       "ports has 0",
		with(t, "ports", `[53]`):                                      "ports has 53",
		with(t, "ports", `[65536]`):                                   "ports has 65536",
		with(t, "ports", numbers(policy.MaxPorts+1)):                  "different ports",
		with(t, "private", `["10.1.2.3/16"]`):                         `private has "10.1.2.3/16"`,
		with(t, "private", `["10.1.2.3"]`):                            `private has "10.1.2.3"`,
		with(t, "private", `["::ffff:10.0.0.0/104"]`):                 "private has",
		with(t, "private", many(policy.MaxPrivate+1, `"10.0.0.0/8"`)): "private has 101",
		with(t, "connections", `0`):                                   "connections is 0",
		with(t, "connections", `10001`):                               "connections is 10001",
		with(t, "rate", `-1`):                                         "rate is -1",
		with(t, "megabytes", `0`):                                     "megabytes is 0",
		with(t, "names", `100001`):                                    "names is 100001",
		with(t, "upstream", `"https://proxy.example:1"`):              "upstream is",
		with(t, "upstream", `"http://proxy.example"`):                 "upstream is",
		with(t, "upstream", `"http://a:b@proxy.example:1"`):           "without a password",
		with(t, "upstream", `"http://proxy.example:1/path"`):          "upstream is",
		with(t, "upstream", `"http://proxy.example:0"`):               "upstream is",
		with(t, "upstream", `"http://127.1:1"`):                       "upstream is",
	} {
		_, err := policy.Parse([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.120s\n  is answered %v\n  want %q", text, err, want)
		}
	}
	domains := `["only.example:22"]`
	if _, err := policy.Parse([]byte(with(t, "domains", domains))); err != nil {
		t.Errorf("the control, domains = %s: %v", domains, err)
	}
}

func TestReadFile_RefusesALargeFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "policy.json")
	must.Do(t, os.WriteFile(name, bytes.Repeat([]byte(" "), policy.MaxFile+1), 0o600))
	if _, err := policy.ReadFile(name); !errors.Is(err, bounded.ErrTooLarge) {
		t.Errorf("the error is %v", err)
	}
}

func TestPolicy_AllowsNamesAtTheirPorts(t *testing.T) {
	p := parse(t, whole)
	for _, test := range []struct {
		name string
		port uint16
		want bool
	}{
		{"files.example", 443, true},
		{"files.example", 80, true},
		{"files.example", 8443, true},
		{"files.example", 22, false},
		{"git.example", 22, true},
		{"git.example", 443, false},
		{"a.host.example", 443, true},
		{"a.b.c.host.example", 80, true},
		{"a.host.example", 8443, false},
		{"host.example", 443, false},
		{"evilhost.example", 443, false},
		{"files.example.evil.example", 443, false},
		{"evilfiles.example", 443, false},
		{"example", 443, false},
		{"a.wide.example", 9000, true},
		{"a.wide.example", 443, false},
		{"", 443, false},
	} {
		if got := p.Allows(test.name, test.port); got != test.want {
			t.Errorf("Allows(%q, %d) = %v", test.name, test.port, got)
		}
	}
	for name, want := range map[string]policy.Name{
		"files.example": policy.Exact, "git.example": policy.Exact, "a.host.example": policy.Below, "a.b.wide.example": policy.Below,
		"host.example": policy.Unknown, "wide.example": policy.Unknown, "evil.example": policy.Unknown, "example": policy.Unknown, "": policy.Unknown,
	} {
		if got := p.Name(name); got != want {
			t.Errorf("Name(%q) = %v, want %v", name, got, want)
		}
	}
}

func TestCheck_RefusesEveryAddressThatIsNotPublic(t *testing.T) {
	p := parse(t, with(t, "private", `["10.1.0.0/16","169.254.0.0/16","fd00:ec2::/32","192.0.0.0/24","100.64.0.0/10","127.0.0.0/8","::/0"]`))
	narrow := parse(t, whole)
	own := []netip.Addr{netip.MustParseAddr("93.184.216.1"), netip.MustParseAddr("2a00::1"), netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("fe80::5%lo")}

	for _, text := range []string{
		"127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "224.0.0.1", "255.255.255.255",
		"::", "::1", "::ffff:127.0.0.1", "::127.0.0.1", "ff02::1", "fe80::1%lo", "64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:1::80ff:fffe",
		"169.254.169.254", "169.254.170.2", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::", "fd00:ec2::254", "100.100.100.200", "192.0.0.192", "168.63.129.16", "169.254.0.23", "169.254.42.42",
		"93.184.216.1", "::ffff:93.184.216.1", "2a00::1", "10.1.0.1", "64:ff9b::5db8:d801", "fe80::5",
	} {
		if p.Check(netip.MustParseAddr(text), own) == nil {
			t.Errorf("%s passes, although private contains everything", text)
		}
	}
	for _, text := range []string{
		"10.0.0.1", "10.2.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "192.0.0.1", "192.0.2.1", "192.88.99.1", "198.18.0.1", "198.19.255.255",
		"198.51.100.1", "203.0.113.1", "240.0.0.1", "254.255.255.255", "169.254.1.1",
		"::ffff:10.0.0.1", "::8.8.8.8", "fe80::1", "fc00::1", "fd12::1", "fec0::1", "100::1", "5f00::1", "4000::1", "2001:db8::1", "3fff::1", "2001:2::1", "2001:10::1",
		"64:ff9b::a00:1", "64:ff9b::808:808", "64:ff9b:1::808:808", "2002:808:808::1", "2001:0:1::f7f7:f7f7",
	} {
		err := narrow.Check(netip.MustParseAddr(text), nil)
		var refused *policy.AddressError
		if !errors.As(err, &refused) || refused.Kind == "" {
			t.Errorf("%s passes: %v", text, err)
		}
	}
	for _, text := range []string{"93.184.216.34", "8.8.8.8", "172.32.0.1", "100.128.0.1", "198.20.0.1", "2606:2800::1", "2001:4860::1", "::ffff:8.8.8.8", "10.1.2.3", "::ffff:10.1.2.3", "fd00:1::1"} {
		if err := narrow.Check(netip.MustParseAddr(text), own); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestCheck_NamesTheEntryThatWouldAllowIt(t *testing.T) {
	for text, entry := range map[string]string{
		"10.0.0.5": "10.0.0.0/24", "fd12::1:2:3:4": "fd12::/64", "169.254.169.254": "169.254.169.254/32", "64:ff9b::808:808": "64:ff9b::/96",
	} {
		address := netip.MustParseAddr(text)
		var refused *policy.AddressError
		if err := parse(t, whole).Check(address, nil); !errors.As(err, &refused) || refused.Private.String() != entry {
			t.Errorf("%s: %v, %v", text, err, refused)
			continue
		}
		if err := parse(t, with(t, "private", `["`+entry+`"]`)).Check(address, nil); err != nil {
			t.Errorf("private = %q does not allow %s: %v", entry, text, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(whole))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := policy.Parse(text)
		if err != nil {
			return
		}
		if len(p.Ports()) == 0 || len(p.Ports()) > policy.MaxPorts || p.Connections < 1 || p.Bytes < 1 || p.Names < 1 || p.Rate < 1 {
			t.Fatalf("%s is accepted as %+v", text, p)
		}
	})
}
