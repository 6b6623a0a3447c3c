package oauth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/hmac"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/principal"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/oauthtest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

const resource = "https://sandbox.example/mcp"

// clock is a time that tests set.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func request(authorization ...string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/mcp?access_token=x", nil)
	for _, value := range authorization {
		r.Header.Add("Authorization", value)
	}
	return r
}

func setUp(t testing.TB) (*Server, *oauthtest.Issuer, *clock, map[string]any) {
	t.Helper()
	i := oauthtest.New(t)
	c := &clock{now: time.Now()}
	a := newServer(Options{Resource: resource, Issuer: i.URL, KeysURL: i.KeysURL(), Claim: "sub", Scope: "run"}, http.DefaultTransport, c.Now)
	claims := map[string]any{"iss": i.URL, "aud": resource, "sub": "alice", "exp": c.now.Add(100 * time.Hour).Unix(), "scope": "read run"}
	return a, i, c, claims
}

func TestOAuth_BelievesTokensForThisServer(t *testing.T) {
	a, i, c, claims := setUp(t)
	key, stranger := oauthtest.NewKey(t), oauthtest.NewKey(t)
	i.Publish(map[string]*ecdsa.PrivateKey{"1": key})
	public := must.Get(key.PublicKey.ECDH())(t).Bytes()
	forged := oauthtest.Unsigned(t, map[string]any{"alg": "HS256", "kid": "1"}, claims)
	mac := hmac.New(crypto.SHA256.New, public)
	mac.Write([]byte(forged))
	for name, test := range map[string]struct{ token, want, scope string }{
		"good":                  {token: oauthtest.Sign(t, key, "1", claims), want: "oauth:alice"},
		"several audiences":     {token: oauthtest.Sign(t, key, "1", oauthtest.With(claims, "aud", []string{"x", resource})), want: "oauth:alice"},
		"scope as a list":       {token: oauthtest.Sign(t, key, "1", oauthtest.With(oauthtest.With(claims, "scope", nil), "scp", []string{"run"})), want: "oauth:alice"},
		"another audience":      {token: oauthtest.Sign(t, key, "1", oauthtest.With(claims, "aud", "https://other.example"))},
		"no audience":           {token: oauthtest.Sign(t, key, "1", oauthtest.With(claims, "aud", nil))},
		"another issuer":        {token: oauthtest.Sign(t, key, "1", oauthtest.With(claims, "iss", "https://other.example"))},
		"expired":               {token: oauthtest.Sign(t, key, "1", oauthtest.With(claims, "exp", c.now.Add(-time.Minute).Unix()))},
		"no expiry":             {token: oauthtest.Sign(t, key, "1", oauthtest.With(claims, "exp", nil))},
		"not yet":               {token: oauthtest.Sign(t, key, "1", oauthtest.With(claims, "nbf", c.now.Add(time.Hour).Unix()))},
		"a stranger's key":      {token: oauthtest.Sign(t, stranger, "1", claims)},
		"signed by public key":  {token: forged + "." + oauthtest.Encode(mac.Sum(nil))},
		"not signed":            {token: oauthtest.Unsigned(t, map[string]any{"alg": "none"}, claims) + "."},
		"no subject":            {token: oauthtest.Sign(t, key, "1", oauthtest.With(claims, "sub", nil))},
		"subject of characters": {token: oauthtest.Sign(t, key, "1", oauthtest.With(claims, "sub", "a\nb"))},
		"subject is a number":   {token: oauthtest.Sign(t, key, "1", oauthtest.With(claims, "sub", 5))},
		"long subject":          {token: oauthtest.Sign(t, key, "1", oauthtest.With(claims, "sub", strings.Repeat("a", principal.MaxName+1)))},
		"scope too small":       {token: oauthtest.Sign(t, key, "1", oauthtest.With(claims, "scope", "read runs")), scope: "run"},
		"no scope":              {token: oauthtest.Sign(t, key, "1", oauthtest.With(claims, "scope", nil)), scope: "run"},
		"audience in capitals":  {token: oauthtest.Sign(t, key, "1", oauthtest.With(oauthtest.With(claims, "aud", "https://other.example"), "AUD", resource))},
		"issuer in capitals":    {token: oauthtest.Sign(t, key, "1", oauthtest.With(oauthtest.With(claims, "iss", "https://other.example"), "ISS", i.URL))},
		"expiry in capitals":    {token: oauthtest.Sign(t, key, "1", oauthtest.With(oauthtest.With(claims, "exp", c.now.Add(-time.Hour).Unix()), "EXP", c.now.Add(100*time.Hour).Unix()))},
		"an ID token":           {token: oauthtest.Sign(t, key, "1", oauthtest.With(claims, "nonce", "x"))},
		"a logout token":        {token: oauthtest.Sign(t, key, "1", oauthtest.With(claims, "events", map[string]any{"http://schemas.openid.net/event/backchannel-logout": map[string]any{}}))},
		"bound to a key":        {token: oauthtest.Sign(t, key, "1", oauthtest.With(claims, "cnf", map[string]any{"jkt": "x"}))},
		"cut":                   {token: oauthtest.Sign(t, key, "1", claims)[:100] + ".x"},
	} {
		p, err := a.Authenticate(request("Bearer " + test.token))
		var refusal *principal.Refusal
		switch {
		case p != test.want || (err == nil) != (test.want != ""):
			t.Errorf("%s: %v, %v, want %q", name, p, err, test.want)
		case err == nil:
		case !errors.As(err, &refusal) || refusal.Scope != test.scope:
			t.Errorf("%s: %v, want a refusal with scope %q", name, err, test.scope)
		case strings.Contains(err.Error(), test.token):
			t.Errorf("%s: the reason has the token", name)
		}
		// The next token that names a key finds it.
		c.advance(keysPause)
	}
	if _, err := a.Authenticate(request("Bearer nsm_x")); !errors.Is(err, principal.ErrNone) {
		t.Errorf("a token of another kind: %v", err)
	}
}

// What a stranger writes into a token does not reach the log.
func TestOAuth_RefusesInItsOwnWords(t *testing.T) {
	a, i, c, claims := setUp(t)
	i.Publish(map[string]*ecdsa.PrivateKey{"1": oauthtest.NewKey(t)})
	const mark = "STRANGERS-WORDS"
	for _, header := range []map[string]any{
		{"alg": mark}, {"alg": "none", "kid": mark}, {"alg": "ES256", "kid": mark}, {"alg": "ES256", "jwk": map[string]any{"kty": mark}},
		{"alg": "ES256", "x5c": []string{mark}}, {"alg": "ES256", "crit": []string{mark}, mark: mark}, {"alg": "ES256", "typ": mark},
	} {
		_, err := a.Authenticate(request("Bearer " + oauthtest.Unsigned(t, header, oauthtest.With(claims, "iss", mark)) + ".eHg"))
		if err == nil || strings.Contains(err.Error(), mark) {
			t.Errorf("%v: %v", header, err)
		}
		c.advance(keysPause)
	}
	for kind, want := range map[string]bool{"": true, "JWT": true, "at+jwt": true, "application/at+jwt": true, "dpop+jwt": false, "logout+jwt": false} {
		text := oauthtest.Unsigned(t, map[string]any{"alg": "ES256", "typ": kind}, claims)
		if problem := a.wrong(text+".x", map[string]any{"iss": i.URL, "aud": resource, "exp": float64(c.now.Add(time.Hour).Unix())}); (problem == "") != want {
			t.Errorf("a token of type %q: %q", kind, problem)
		}
	}
}

// A new key is believed at once, and one that was taken back no longer than an hour.
func TestOAuth_FollowsItsKeys(t *testing.T) {
	a, i, c, claims := setUp(t)
	old, next := oauthtest.NewKey(t), oauthtest.NewKey(t)
	i.Publish(map[string]*ecdsa.PrivateKey{"old": old})
	isGood := func(key *ecdsa.PrivateKey, id string) bool {
		_, err := a.Authenticate(request("Bearer " + oauthtest.Sign(t, key, id, claims)))
		return err == nil
	}
	if !isGood(old, "old") {
		t.Fatal("the first key is not believed")
	}
	c.advance(keysPause)
	i.Publish(map[string]*ecdsa.PrivateKey{"old": old, "next": next})
	// A set of keys repeats the answer to its last request for a moment. The clock of this
	// test leaves it no such moment.
	patience.Until(t, "the new key is believed", func() bool { return isGood(next, "next") })
	if !isGood(old, "old") {
		t.Error("after a rotation the old key is not believed")
	}
	i.Publish(map[string]*ecdsa.PrivateKey{"next": next})
	c.advance(keysLifetime - time.Second)
	if !isGood(old, "old") {
		t.Error("a known key is asked for before an hour is over")
	}
	c.advance(time.Second)
	if isGood(old, "old") || !isGood(next, "next") {
		t.Error("a key that was taken back is believed after an hour, or the other is not")
	}
	// An operator who does not want to wait has the keys forgotten.
	i.Publish(map[string]*ecdsa.PrivateKey{"other": old})
	a.Forget()
	if isGood(next, "next") || !isGood(old, "other") {
		t.Error("after the keys were forgotten, one that was taken back is believed, or the other is not")
	}
	i.Publish(map[string]*ecdsa.PrivateKey{"next": next})
	a.Forget()
	if !isGood(next, "next") {
		t.Error("a second Forget does not ask at once")
	}
	// Unknown keys do not flood the authorization server.
	before := i.Requests()
	for range 100 {
		isGood(oauthtest.NewKey(t), "unknown")
	}
	if got := i.Requests() - before; got > 1 {
		t.Errorf("%d requests for keys in a moment", got)
	}
	if !isGood(next, "next") {
		t.Error("a known key is not believed beside unknown ones")
	}
}

func TestOAuth_Metadata(t *testing.T) {
	w := httptest.NewRecorder()
	New(Options{Resource: resource, Issuer: "https://login.example", Scope: "run"}).Metadata().ServeHTTP(w, request())
	want := `{"authorization_servers":["https://login.example"],"bearer_methods_supported":["header"],"resource":"https://sandbox.example/mcp","resource_name":"nix-sandbox-mcp","scopes_supported":["run"]}`
	if got := w.Body.String(); got != want {
		t.Errorf("metadata %s", got)
	}
	// A page's browser asks first, because clients of MCP send a field of their own.
	w = httptest.NewRecorder()
	New(Options{Resource: resource}).Metadata().ServeHTTP(w, httptest.NewRequest(http.MethodOptions, "/", nil))
	if h := w.Header(); w.Code != http.StatusNoContent || h.Get("Access-Control-Allow-Origin") != "*" || h.Get("Access-Control-Allow-Headers") != "Mcp-Protocol-Version" {
		t.Errorf("status %d, %v", w.Code, h)
	}
}

// Whatever a token says, it is believed only where the issuer signed it.
func FuzzOAuth(f *testing.F) {
	a, i, _, claims := setUp(f)
	key := oauthtest.NewKey(f)
	i.Publish(map[string]*ecdsa.PrivateKey{"1": key})
	good := oauthtest.Sign(f, key, "1", claims)
	if _, err := a.Authenticate(request("Bearer " + good)); err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(oauthtest.Unsigned(f, map[string]any{"alg": "none"}, claims) + ".")
	signed := good[:strings.LastIndex(good, ".")]
	f.Fuzz(func(t *testing.T, token string) {
		p, err := a.Authenticate(request("Bearer " + token))
		if err == nil && (p != "oauth:alice" || !strings.HasPrefix(strings.TrimSpace(token), signed)) {
			t.Errorf("%q is believed to be of %v", token, p)
		}
	})
}

// Whatever a client sends, nobody is found without a token that is known.
func FuzzAuthenticate(f *testing.F) {
	path := filepath.Join(f.TempDir(), "tokens")
	token, line, err := principal.NewToken("alice", "")
	if err != nil {
		f.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(line), 0o600); err != nil {
		f.Fatal(err)
	}
	tokens, err := principal.ReadTokens(path)
	if err != nil {
		f.Fatal(err)
	}
	chain := principal.Chain{&principal.Proxy{Header: "X-Remote-User"}, tokens, New(Options{Resource: "https://r", Issuer: "https://i", KeysURL: "http://127.0.0.1:1/", Claim: "sub"})}
	f.Add("Bearer "+token, "")
	f.Add("Bearer a.b.c", "alice")
	f.Add("Bearer eyJhbGciOiJub25lIn0.e30.", "")
	f.Fuzz(func(t *testing.T, authorization, user string) {
		r := request(authorization)
		if user != "" {
			r.Header.Set("X-Remote-User", user)
		}
		p, err := chain.Authenticate(r)
		scheme, given, _ := strings.Cut(authorization, " ")
		isGood := strings.EqualFold(scheme, "Bearer") && strings.TrimSpace(given) == token && user == ""
		if (err == nil) != isGood || isGood != (p == "alice") {
			t.Errorf("%q, %q: %v, %v", authorization, user, p, err)
		}
	})
}
