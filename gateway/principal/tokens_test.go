package principal

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// request is a request with these values of the field Authorization.
func request(authorization ...string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/mcp?access_token=x", nil)
	for _, value := range authorization {
		r.Header.Add("Authorization", value)
	}
	return r
}

func TestTokens_FindsPrincipals(t *testing.T) {
	alice, aliceLine := newToken(t, "alice", "")
	again, againLine := newToken(t, "alice", "")
	bob, bobLine := newToken(t, "bob@example.org", "large")
	path := filepath.Join(t.TempDir(), "tokens")
	must.Do(t, os.WriteFile(path, []byte("# people\n\n"+aliceLine+"\n  "+againLine+"\r\n"+bobLine), 0o600))
	tokens := must.Get(ReadTokens(path))(t)
	chain := Chain{tokens}
	for token, want := range map[string]string{alice: "alice", again: "alice", bob: "bob@example.org"} {
		for _, scheme := range []string{"Bearer ", "bearer "} {
			if p, err := chain.Authenticate(request(scheme + token)); err != nil || p != want {
				t.Errorf("%v, %v, want %v", p, err, want)
			}
		}
	}
	if alice, bob, carol := tokens.Class("alice"), tokens.Class("bob@example.org"), tokens.Class("carol"); alice != "" || bob != "large" || carol != "" {
		t.Errorf("the classes are %q, %q and %q", alice, bob, carol)
	}
	for name, values := range map[string][]string{
		"wrong":          {"Bearer nsm_wrong"},
		"empty":          {"Bearer "},
		"nothing":        {""},
		"scheme alone":   {"Bearer"},
		"another scheme": {"Basic " + alice},
		"doubled":        {"Bearer " + alice, "Bearer " + alice},
		"two in one":     {"Bearer " + alice + ", Bearer " + alice},
		"longer":         {"Bearer " + alice + "a"},
		"its hash":       {"Bearer " + strings.TrimPrefix(strings.Fields(aliceLine)[1], hashPrefix)},
	} {
		var refusal *Refusal
		p, err := chain.Authenticate(request(values...))
		if p != "" || !errors.As(err, &refusal) {
			t.Errorf("%s: %v, %v, want a refusal", name, p, err)
		} else if strings.Contains(err.Error(), alice) {
			t.Errorf("%s: the reason has the token", name)
		}
	}
	if p, err := chain.Authenticate(request()); p != "" || !errors.Is(err, ErrNone) {
		t.Errorf("a token in the address: %v, %v", p, err)
	}
}

func newToken(t testing.TB, name, class string) (token, line string) {
	t.Helper()
	token, line, err := NewToken(name, class)
	must.Do(t, err)
	return token, line
}

func TestReadTokens_RefusesFiles(t *testing.T) {
	_, line := newToken(t, "alice", "")
	hash := strings.Fields(line)[1]
	for name, test := range map[string]struct {
		text string
		mode os.FileMode
		want string
	}{
		"good":              {line, 0o600, ""},
		"for all to read":   {line, 0o444, ""},
		"for a group":       {line, 0o620, "can be written by others than its owner (mode 0620)"},
		"for all":           {line, 0o602, "can be written by others than its owner (mode 0602)"},
		"token as it is":    {line + "\nbob nsm_secret\n", 0o600, "tokens: line 2: it is not NAME sha256:HASH"},
		"half a hash":       {"# x\n" + line[:len(line)-2], 0o600, "line 2: it is not NAME"},
		"odd hash":          {line[:len(line)-1], 0o600, "line 1: it is not NAME"},
		"no hash":           {"alice " + strings.Repeat("x", 71), 0o600, "line 1: it is not NAME"},
		"colon in the name": {"oauth:alice " + hash, 0o600, "line 1: it is not NAME"},
		"words after it":    {line + " class=a b", 0o600, "line 1: it is not NAME"},
		"no class":          {line + " large", 0o600, "line 1: it is not NAME"},
		"hash twice":        {line + "\nbob " + hash, 0o600, "line 2: it has the hash of another line, of alice"},
		"two classes":       {line + "\nalice sha256:" + strings.Repeat("0", 64) + " class=large", 0o600, "line 2: alice has another class"},
		"too large":         {strings.Repeat("#", maxTokenFile+1), 0o600, "more than 1048576"},
	} {
		path := filepath.Join(t.TempDir(), "tokens")
		must.Do(t, os.WriteFile(path, []byte(test.text), test.mode))
		must.Do(t, os.Chmod(path, test.mode))
		_, err := ReadTokens(path)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
		if err != nil && (strings.Contains(err.Error(), "nsm_secret") || !strings.Contains(err.Error(), path)) {
			t.Errorf("%s: the error has the token, or lacks the file: %v", name, err)
		}
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	must.Do(t, syscall.Mkfifo(pipe, 0o600))
	if _, err := ReadTokens(pipe); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a pipe: %v", err)
	}
	if os.Geteuid() == 0 {
		path := filepath.Join(t.TempDir(), "tokens")
		must.Do(t, os.WriteFile(path, []byte(line), 0o600))
		must.Do(t, os.Chown(path, 12345, -1))
		if _, err := ReadTokens(path); err == nil || !strings.Contains(err.Error(), "belongs to user 12345") {
			t.Errorf("a file of another user: %v", err)
		}
	}
}

// A file that cannot be read again leaves the tokens as they were.
func TestTokens_ReloadKeepsTheOldOnError(t *testing.T) {
	alice, aliceLine := newToken(t, "alice", "")
	bob, bobLine := newToken(t, "bob", "")
	path := filepath.Join(t.TempDir(), "tokens")
	must.Do(t, os.WriteFile(path, []byte(aliceLine), 0o600))
	tokens := must.Get(ReadTokens(path))(t)
	knows := func(token string) bool {
		_, err := tokens.Authenticate(request("Bearer " + token))
		return err == nil
	}
	must.Do(t, os.WriteFile(path, []byte("broken"), 0o600))
	if err := tokens.Reload(); err == nil || !knows(alice) {
		t.Errorf("after a broken file: %v, alice is known %v", err, knows(alice))
	}
	must.Do(t, os.WriteFile(path, []byte(bobLine), 0o600))
	if err := tokens.Reload(); err != nil || knows(alice) || !knows(bob) {
		t.Errorf("after another file: %v, alice is known %v, bob %v", err, knows(alice), knows(bob))
	}
}

func TestNewToken_RefusesNames(t *testing.T) {
	for name, class := range map[string]string{"": "", "a b": "", "oauth:a": "", "é": "", strings.Repeat("a", 65): "", "alice": "A"} {
		if _, line, err := NewToken(name, class); err == nil {
			t.Errorf("%q, %q: %s", name, class, line)
		}
	}
}

// Whatever is in the file, reading it ends, and what it has are hashes.
func FuzzParseTokens(f *testing.F) {
	_, line, err := NewToken("alice", "large")
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte("# x\n" + line + "\n"))
	f.Add([]byte("alice sha256:"))
	f.Fuzz(func(t *testing.T, text []byte) {
		known, err := parseTokens(text)
		if err != nil && known != nil {
			t.Error("both an error and tokens")
		}
		if err != nil {
			return
		}
		for _, name := range known.byHash {
			if class := known.classes[name]; !validName.MatchString(name) || class != "" && !validClass.MatchString(class) {
				t.Errorf("%q is a principal of class %q", name, class)
			}
		}
	})
}
