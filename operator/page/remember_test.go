package page

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

func TestEdit_ChangesOneLine(t *testing.T) {
	const asked = "[environments.shop.network]\ndomains = [\"shop.example\"]"
	for name, test := range map[string]struct{ text, lines, want, wrong string }{
		"a list": {
			"[environments.shop.network]\nmode = \"allow\"\ndomains = [\"a.example\", \"b.example:8443\"]  # of the shop\n\n[environments.other.network]\ndomains = []\n", asked,
			"[environments.shop.network]\nmode = \"allow\"\ndomains = [\"a.example\", \"b.example:8443\", \"shop.example\"]  # of the shop\n\n[environments.other.network]\ndomains = []\n", "",
		},
		"an empty list":    {"# mine\n[environments.shop.network] # here\n  domains=[ ]\n", asked, "# mine\n[environments.shop.network] # here\n  domains=[\"shop.example\"]\n", ""},
		"a comma":          {"[environments.shop.network]\ndomains = [\"a.example\",]\n", asked, "[environments.shop.network]\ndomains = [\"a.example\", \"shop.example\"]\n", ""},
		"no list":          {"[environments.shop.network]\nask = [\"*\"]\n[session]\ndomains = []", asked, "[environments.shop.network]\ndomains = [\"shop.example\"]\nask = [\"*\"]\n[session]\ndomains = []", ""},
		"without line end": {"[environments.shop.network]", asked, "[environments.shop.network]\ndomains = [\"shop.example\"]\n", ""},
		"CRLF":             {"[environments.shop.network]\r\ndomains = [\"a\"]\r\n", asked, "[environments.shop.network]\r\ndomains = [\"a\", \"shop.example\"]\r\n", ""},
		"a switch":         {"[environments.shop]\npackages_ask = true # why\n", "[environments.shop]\npackages_ask = false", "[environments.shop]\npackages_ask = false # why\n", ""},
		"another table":    {"[environments.other.network]\ndomains = []\n", asked, "", "has no [environments.shop.network]"},
		"no file":          {"", asked, "", "has no [environments.shop.network]"},
		"of many lines":    {"[environments.shop.network]\ndomains = [\n  \"a\",\n]\n", asked, "", "by hand"},
		"another value":    {"[environments.shop.network]\ndomains = everything\n", asked, "", "by hand"},
		"texts":            {"[a]\nb = \"\"\"\n[environments.shop.network]\ndomains = []\n\"\"\"\n", asked, "", "by hand"},
		"other lines":      {"[a]\n", "[a]\nb = [\"c\"]\nd = 1", "", "these lines"},
		"a quoted word":    {"[a]\n", "[a]\nb = [\"c\\\"]\\nx = 1 #\"]", "", "these lines"},
		"a program":        {"[a]\n", "[a]\nb = 1", "", "these lines"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "config.toml")
			if test.text != "" {
				must.Do(t, os.WriteFile(file, []byte(test.text), 0o640))
			}
			e, err := newEdit(file, test.lines)
			if test.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), test.wrong) {
					t.Errorf("%v", err)
				}
				return
			}
			must.Do(t, err)
			must.Do(t, e.write())
			if got := string(must.Get(os.ReadFile(file))(t)); got != test.want {
				t.Errorf("%q", got)
			}
			if !strings.Contains(test.text, e.Before) || !strings.Contains(test.want, e.After) || e.After == "" || strings.ContainsAny(e.Before+e.After, "\r\n") {
				t.Errorf("%+v", e)
			}
			if info := must.Get(os.Stat(file))(t); info.Mode() != 0o640 {
				t.Errorf("its mode is %v", info.Mode())
			}
		})
	}
}

func FuzzEdit(f *testing.F) {
	f.Add("[a.b]\nc = [\"d\"]\n", "[a.b]\nc = [\"e\"]")
	f.Add("[a]\nb = true\n[c]", "[a]\nb = false")
	f.Fuzz(func(t *testing.T, text, lines string) {
		file := filepath.Join(t.TempDir(), "config.toml")
		must.Do(t, os.WriteFile(file, []byte(text), 0o600))
		e, err := newEdit(file, lines)
		if err != nil {
			return
		}
		// One line is another one, or there is one more.
		before, after := strings.Split(text, "\n"), strings.Split(e.text, "\n")
		for len(before) > 0 && before[0] == after[0] {
			before, after = before[1:], after[1:]
		}
		rest, whole := strings.Join(before, "\n"), strings.Join(after, "\n")
		if e.Before != "" {
			rest = strings.TrimPrefix(rest, e.Before)
		}
		if whole = strings.TrimPrefix(whole, e.After); strings.TrimSpace(whole) != strings.TrimSpace(rest) {
			t.Errorf("%q became %q", text, e.text)
		}
	})
}

// The user sees the line before it is written, and nothing is written if the file has changed since.
func TestRemember_WritesWhatWasSeen(t *testing.T) {
	_, s, url := alone(t)
	const text, lines = "[environments.shop.network]\ndomains = []\n", "[environments.shop.network]\ndomains = [\"shop.example\"]"
	target := filepath.Join(t.TempDir(), "mine.toml")
	must.Do(t, os.WriteFile(target, []byte(text), 0o600))
	must.Do(t, os.Symlink(target, s.configuration))
	now := func() string { return string(must.Get(os.ReadFile(target))(t)) }
	send := func(sum string) int {
		return post(t, url, "/remember", s.key, map[string]string{"lines": lines, "sum": sum}, nil)
	}
	if got := post(t, url, "/remember", "WRONG", map[string]string{"lines": lines}, nil); got != http.StatusForbidden {
		t.Errorf("without the key: %d", got)
	}
	if got := send(""); got != http.StatusOK || now() != text {
		t.Errorf("a look: %d, and the file is %q", got, now())
	}
	seen := must.Get(newEdit(s.configuration, lines))(t)
	must.Do(t, os.WriteFile(target, []byte(text+"# more\n"), 0o600))
	if got := send(seen.Sum); got != http.StatusConflict || now() != text+"# more\n" {
		t.Errorf("another file: %d, %q", got, now())
	}
	seen = must.Get(newEdit(s.configuration, lines))(t)
	if got := send(seen.Sum); got != http.StatusNoContent || !strings.Contains(now(), "domains = [\"shop.example\"]\n# more") {
		t.Errorf("%d, %q", got, now())
	}
	if info := must.Get(os.Lstat(s.configuration))(t); info.Mode()&os.ModeSymlink == 0 {
		t.Error("the link is gone")
	}
}
