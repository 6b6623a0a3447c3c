package hostname_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostname"
)

func TestCanonical_AcceptsNamesAndRefusesTheRest(t *testing.T) {
	label := strings.Repeat("a", 63)
	longest := label + "." + label + "." + label + "." + label[:61]
	for in, want := range map[string]string{
		"files.example":         "files.example",
		"Files.EXAMPLE.":        "files.example",
		"a_b.example":           "a_b.example",
		"_dmarc.example":        "_dmarc.example",
		"xn--bcher-kva.example": "xn--bcher-kva.example",
		"1.2.3.example":         "1.2.3.example",
		"intranet":              "intranet",
		longest:                 longest,
		longest + ".":           longest,

		"": "", ".": "", "..": "", "a..b": "", ".a": "", "files.example..": "",
		longest + "a": "", label + "a.example": "",
		"127.0.0.1": "", "127.1": "", "0x7f.1": "", "1": "", "a.1": "", "a.1b": "", "[::1]": "", "::1": "", "fe80::1%eth0": "",
		"evil.example\x00.files.example": "", "evil.example/.files.example": "", "evil.example#.files.example": "",
		"evil.example@files.example": "", "files.example:443": "", "*.example": "", "a b.example": "", "a.example%00": "",
		"-a.example": "", "a-.example": "", "a.-example": "", "a.example-": "", "-": "", "a.-": "",
		"bücher.example": "", "\u212belvin.example": "", "\u0130.example": "", "files\u3002example": "", "\xff.example": "",
	} {
		got, err := hostname.Canonical(in)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("Canonical(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
}

func FuzzCanonical(f *testing.F) {
	for _, seed := range []string{"files.example", "A.b.", "127.1", "a\x00b", "xn--a", "a..b", "-", "_"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		name, err := hostname.Canonical(in)
		if err != nil {
			if name != "" {
				t.Fatalf("%q is refused and returned as %q", in, name)
			}
			return
		}
		if !hostname.IsCanonical(name) {
			t.Fatalf("%q becomes %q, which is not canonical", in, name)
		}
		if len(name) > hostname.MaxLength || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
			t.Fatalf("%q becomes %q", in, name)
		}
		if _, err := netip.ParseAddr(name); err == nil {
			t.Fatalf("%q becomes an address", in)
		}
		if !strings.EqualFold(strings.TrimSuffix(in, "."), name) {
			t.Fatalf("%q becomes another name, %q", in, name)
		}
	})
}
