package e2e

import (
	"crypto/ecdsa"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/httpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/oauthtest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// A server that takes access tokens takes those of its issuer that are for it, tells
// clients where they get one, and follows the issuer's keys.
func TestHTTP_TakesAccessTokens(t *testing.T) {
	t.Parallel()
	const resource = "https://sandbox.example/mcp"
	issuer := oauthtest.New(t)
	first, stranger := oauthtest.NewKey(t), oauthtest.NewKey(t)
	issuer.Publish(map[string]*ecdsa.PrivateKey{"first": first})
	audit := filepath.Join(t.TempDir(), "audit.jsonl")
	s := startHTTP(t, []string{"alice"}, map[string]any{
		"lame_duck_seconds": 0, "audit_file": audit,
		"oauth": map[string]any{"resource": resource, "issuer": issuer.URL, "jwks": issuer.KeysURL(), "claim": "sub", "scope": "run"},
	}, nil)
	claims := map[string]any{"iss": issuer.URL, "aud": resource, "sub": "carol", "exp": time.Now().Add(24 * time.Hour).Unix(), "scope": "read run"}
	var sent []string
	bearer := func(token string) http.Header {
		sent = append(sent, token)
		return http.Header{"Authorization": {"Bearer " + token}}
	}
	good := oauthtest.Sign(t, first, "first", claims)
	if got := s.status(t.Context(), bearer(good)); got != http.StatusOK {
		t.Fatalf("a good token: status %d", got)
	}
	for name, test := range map[string]struct {
		token string
		want  int
	}{
		"another audience":  {oauthtest.Sign(t, first, "first", oauthtest.With(claims, "aud", "https://other.example/mcp")), http.StatusUnauthorized},
		"another issuer":    {oauthtest.Sign(t, first, "first", oauthtest.With(claims, "iss", "https://other.example")), http.StatusUnauthorized},
		"expired":           {oauthtest.Sign(t, first, "first", oauthtest.With(claims, "exp", time.Now().Add(-time.Hour).Unix())), http.StatusUnauthorized},
		"a stranger's key":  {oauthtest.Sign(t, stranger, "first", claims), http.StatusUnauthorized},
		"not signed":        {oauthtest.Unsigned(t, map[string]any{"alg": "none"}, claims) + ".", http.StatusUnauthorized},
		"no name":           {oauthtest.Sign(t, first, "first", oauthtest.With(claims, "sub", nil)), http.StatusUnauthorized},
		"a name of a file":  {oauthtest.Sign(t, first, "first", oauthtest.With(claims, "sub", "alice")), http.StatusOK}, // it is oauth:alice
		"scope too small":   {oauthtest.Sign(t, first, "first", oauthtest.With(claims, "scope", "read")), http.StatusForbidden},
		"a token of a file": {s.tokens["alice"], http.StatusOK},
	} {
		if got := s.status(t.Context(), bearer(test.token)); got != test.want {
			t.Errorf("%s: status %d, want %d", name, got, test.want)
		}
	}

	// A client without a token learns where the server's metadata is, and from this who
	// issues tokens.
	r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/mcp", nil))(t)
	response := must.Get(http.DefaultClient.Do(r))(t)
	response.Body.Close()
	const metadata = "/.well-known/oauth-protected-resource/mcp"
	if got, want := response.Header.Get("WWW-Authenticate"), `Bearer resource_metadata="https://sandbox.example`+metadata+`"`; got != want {
		t.Errorf("the challenge is %s, want %s", got, want)
	}
	response = must.Get(http.Get(s.url + metadata))(t)
	defer response.Body.Close()
	var fields struct {
		Resource             string
		AuthorizationServers []string `json:"authorization_servers"`
	}
	must.Do(t, json.Unmarshal(must.Get(io.ReadAll(response.Body))(t), &fields))
	if fields.Resource != resource || !slices.Equal(fields.AuthorizationServers, []string{issuer.URL}) {
		t.Errorf("the metadata is %+v", fields)
	}

	// Sessions belong to the subject: a renewed token finds them, and neither another
	// subject nor the principal of the same name in the file does.
	in := func(token, code string) mcptest.Answer {
		t.Helper()
		sent = append(sent, token)
		return inHTTP(t, &httpclient.Client{URL: s.url + "/mcp", Token: token, Version: mcptest.Stateless}, "s", "bash", code)
	}
	expect(t, in(good, "secret=42; echo $secret"), "42\n")
	expect(t, in(oauthtest.Sign(t, first, "first", oauthtest.With(claims, "exp", time.Now().Add(48*time.Hour).Unix())), "echo $secret"), "42\n")
	expect(t, in(oauthtest.Sign(t, first, "first", oauthtest.With(claims, "sub", "alice")), "echo [$secret]"), "[]\n")
	expect(t, in(s.tokens["alice"], "echo [$secret]"), "[]\n")

	// A new key is believed when the issuer may be asked again.
	second := oauthtest.NewKey(t)
	issuer.Publish(map[string]*ecdsa.PrivateKey{"first": first, "second": second})
	renewed := oauthtest.Sign(t, second, "second", claims)
	patience.Until(t, "the new key is believed", func() bool { return s.status(t.Context(), bearer(renewed)) == http.StatusOK })
	expect(t, in(renewed, "echo $secret"), "42\n")
	// A key that was taken back is forgotten within an hour, and at once at SIGHUP.
	issuer.Publish(map[string]*ecdsa.PrivateKey{"second": second})
	must.Do(t, s.cmd.Process.Signal(syscall.SIGHUP))
	patience.Until(t, "the server forgets its keys", func() bool { return strings.Contains(s.log.String(), `"msg":"keys forgotten"`) })
	if got := s.status(t.Context(), bearer(good)); got != http.StatusUnauthorized {
		t.Errorf("a key that was taken back: status %d", got)
	}
	if got := s.status(t.Context(), bearer(renewed)); got != http.StatusOK {
		t.Errorf("the other key: status %d", got)
	}

	s.end()
	for _, want := range []string{`"who":"oauth:carol"`, `"who":"oauth:alice"`, `"who":"alice"`} {
		if !strings.Contains(string(must.Get(os.ReadFile(audit))(t)), want) {
			t.Errorf("the audit log lacks %s", want)
		}
	}
	for _, token := range sent {
		if strings.Contains(s.log.String(), token) {
			t.Errorf("the log has the token %s", token)
		}
	}
}
