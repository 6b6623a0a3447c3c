package principal

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

const resource = "https://sandbox.example/mcp"

// issuer is an authorization server that publishes keys.
type issuer struct {
	*httptest.Server
	mu     sync.Mutex
	keys   map[string]*ecdsa.PrivateKey // that are published, by id
	asked  int
	isDown bool
}

func newIssuer(t testing.TB) *issuer {
	t.Helper()
	i := &issuer{keys: map[string]*ecdsa.PrivateKey{}}
	i.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.asked++
		if i.isDown {
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		}
		var keys []map[string]string
		for id, key := range i.keys {
			keys = append(keys, map[string]string{"kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": id, "x": encode(key.X.FillBytes(make([]byte, 32))), "y": encode(key.Y.FillBytes(make([]byte, 32)))})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"keys": keys})
	}))
	t.Cleanup(i.Close)
	return i
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	return must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
}

// publish changes the keys.
func (i *issuer) publish(keys map[string]*ecdsa.PrivateKey) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys = keys
}

func (i *issuer) requests() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.asked
}

func encode(data []byte) string { return base64.RawURLEncoding.EncodeToString(data) }

// sign returns a token.
func sign(t testing.TB, key *ecdsa.PrivateKey, id string, claims map[string]any) string {
	t.Helper()
	text := unsigned(t, map[string]any{"alg": "ES256", "kid": id, "typ": "at+jwt"}, claims)
	digest := sha256.Sum256([]byte(text))
	r, s, err := ecdsa.Sign(rand.Reader, key, digest[:])
	must.Do(t, err)
	return text + "." + encode(append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...))
}

func unsigned(t testing.TB, header, claims map[string]any) string {
	t.Helper()
	return encode(must.Get(json.Marshal(header))(t)) + "." + encode(must.Get(json.Marshal(claims))(t))
}

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

func setUp(t testing.TB) (*OAuth, *issuer, *clock, map[string]any) {
	t.Helper()
	i := newIssuer(t)
	c := &clock{now: time.Now()}
	a := newOAuth(OAuthOptions{Resource: resource, Issuer: i.URL, KeysURL: i.URL + "/keys", Claim: "sub", Scope: "run"}, http.DefaultTransport, c.Now)
	claims := map[string]any{"iss": i.URL, "aud": resource, "sub": "alice", "exp": c.now.Add(100 * time.Hour).Unix(), "scope": "read run"}
	return a, i, c, claims
}

func with(claims map[string]any, name string, value any) map[string]any {
	changed := maps.Clone(claims)
	changed[name] = value
	return changed
}

func TestOAuth_BelievesTokensForThisServer(t *testing.T) {
	a, i, c, claims := setUp(t)
	key, stranger := newKey(t), newKey(t)
	i.publish(map[string]*ecdsa.PrivateKey{"1": key})
	public := must.Get(key.PublicKey.ECDH())(t).Bytes()
	forged := unsigned(t, map[string]any{"alg": "HS256", "kid": "1"}, claims)
	mac := hmac.New(crypto.SHA256.New, public)
	mac.Write([]byte(forged))
	for name, test := range map[string]struct{ token, want, scope string }{
		"good":                  {token: sign(t, key, "1", claims), want: "oauth:alice"},
		"several audiences":     {token: sign(t, key, "1", with(claims, "aud", []string{"x", resource})), want: "oauth:alice"},
		"scope as a list":       {token: sign(t, key, "1", with(with(claims, "scope", nil), "scp", []string{"run"})), want: "oauth:alice"},
		"another audience":      {token: sign(t, key, "1", with(claims, "aud", "https://other.example"))},
		"no audience":           {token: sign(t, key, "1", with(claims, "aud", nil))},
		"another issuer":        {token: sign(t, key, "1", with(claims, "iss", "https://other.example"))},
		"expired":               {token: sign(t, key, "1", with(claims, "exp", c.now.Add(-time.Minute).Unix()))},
		"no expiry":             {token: sign(t, key, "1", with(claims, "exp", nil))},
		"not yet":               {token: sign(t, key, "1", with(claims, "nbf", c.now.Add(time.Hour).Unix()))},
		"a stranger's key":      {token: sign(t, stranger, "1", claims)},
		"signed by public key":  {token: forged + "." + encode(mac.Sum(nil))},
		"not signed":            {token: unsigned(t, map[string]any{"alg": "none"}, claims) + "."},
		"no subject":            {token: sign(t, key, "1", with(claims, "sub", nil))},
		"subject of characters": {token: sign(t, key, "1", with(claims, "sub", "a\nb"))},
		"subject is a number":   {token: sign(t, key, "1", with(claims, "sub", 5))},
		"long subject":          {token: sign(t, key, "1", with(claims, "sub", strings.Repeat("a", maxName+1)))},
		"scope too small":       {token: sign(t, key, "1", with(claims, "scope", "read runs")), scope: "run"},
		"no scope":              {token: sign(t, key, "1", with(claims, "scope", nil)), scope: "run"},
		"cut":                   {token: sign(t, key, "1", claims)[:100] + ".x"},
	} {
		p, err := a.Authenticate(request("Bearer " + test.token))
		var refusal *Refusal
		switch {
		case p.Name != test.want || (err == nil) != (test.want != ""):
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
	if _, err := a.Authenticate(request("Bearer nsm_x")); !errors.Is(err, ErrNone) {
		t.Errorf("a token of another kind: %v", err)
	}
}

// A new key is believed at once, and one that was taken back no longer than an hour.
func TestOAuth_FollowsItsKeys(t *testing.T) {
	a, i, c, claims := setUp(t)
	old, next := newKey(t), newKey(t)
	i.publish(map[string]*ecdsa.PrivateKey{"old": old})
	isGood := func(key *ecdsa.PrivateKey, id string) bool {
		_, err := a.Authenticate(request("Bearer " + sign(t, key, id, claims)))
		return err == nil
	}
	if !isGood(old, "old") {
		t.Fatal("the first key is not believed")
	}
	c.advance(keysPause)
	i.publish(map[string]*ecdsa.PrivateKey{"old": old, "next": next})
	if !isGood(next, "next") || !isGood(old, "old") {
		t.Error("after a rotation one of the keys is not believed")
	}
	i.publish(map[string]*ecdsa.PrivateKey{"next": next})
	c.advance(keysLifetime - time.Second)
	if !isGood(old, "old") {
		t.Error("a known key is asked for before an hour is over")
	}
	c.advance(time.Second)
	if isGood(old, "old") || !isGood(next, "next") {
		t.Error("a key that was taken back is believed after an hour, or the other is not")
	}
	// Unknown keys do not flood the authorization server.
	before := i.requests()
	for range 100 {
		isGood(newKey(t), "unknown")
	}
	if got := i.requests() - before; got > 1 {
		t.Errorf("%d requests for keys in a moment", got)
	}
	if !isGood(next, "next") {
		t.Error("a known key is not believed beside unknown ones")
	}
}

func TestOAuthOptions_Metadata(t *testing.T) {
	w := httptest.NewRecorder()
	OAuthOptions{Resource: resource, Issuer: "https://login.example", Scope: "run"}.Metadata().ServeHTTP(w, request())
	want := `{"authorization_servers":["https://login.example"],"bearer_methods_supported":["header"],"resource":"https://sandbox.example/mcp","resource_name":"nix-sandbox-mcp","scopes_supported":["run"]}`
	if got := w.Body.String(); got != want {
		t.Errorf("metadata %s", got)
	}
}

// Whatever a token says, it is believed only where the issuer signed it.
func FuzzOAuth(f *testing.F) {
	a, i, _, claims := setUp(f)
	key := newKey(f)
	i.publish(map[string]*ecdsa.PrivateKey{"1": key})
	good := sign(f, key, "1", claims)
	if _, err := a.Authenticate(request("Bearer " + good)); err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(unsigned(f, map[string]any{"alg": "none"}, claims) + ".")
	signed := good[:strings.LastIndex(good, ".")]
	f.Fuzz(func(t *testing.T, token string) {
		p, err := a.Authenticate(request("Bearer " + token))
		if err == nil && (p.Name != "oauth:alice" || !strings.HasPrefix(strings.TrimSpace(token), signed)) {
			t.Errorf("%q is believed to be of %v", token, p)
		}
	})
}
