// Package oauthtest is an authorization server for tests: it publishes keys, and signs
// access tokens with them.
package oauthtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// Issuer is an authorization server on the loopback device. Every path of it answers
// with the keys that are published. Its methods may be called at the same time.
type Issuer struct {
	*httptest.Server
	mu    sync.Mutex
	keys  map[string]*ecdsa.PrivateKey // that are published, by id
	asked int
}

// New starts an issuer without keys, which ends with the test.
func New(t testing.TB) *Issuer {
	t.Helper()
	i := &Issuer{}
	i.Server = httptest.NewServer(http.HandlerFunc(i.answer))
	t.Cleanup(i.Close)
	return i
}

// answer answers with a set of keys (RFC 7517).
func (i *Issuer) answer(w http.ResponseWriter, _ *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.asked++
	var keys []map[string]string
	for id, key := range i.keys {
		keys = append(keys, map[string]string{"kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": id, "x": Encode(key.X.FillBytes(make([]byte, 32))), "y": Encode(key.Y.FillBytes(make([]byte, 32)))})
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"keys": keys}) // to a client that may have gone
}

// KeysURL is where the keys are.
func (i *Issuer) KeysURL() string { return i.URL + "/keys" }

// Publish replaces the keys that are published; they have the ids of the map.
func (i *Issuer) Publish(keys map[string]*ecdsa.PrivateKey) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys = keys
}

// Requests is how often somebody asked for the keys.
func (i *Issuer) Requests() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.asked
}

// NewKey returns a key to sign with.
func NewKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	return must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
}

// Encode encodes as JSON Web Tokens do.
func Encode(data []byte) string { return base64.RawURLEncoding.EncodeToString(data) }

// Sign returns a token of these claims that names the id of a key.
func Sign(t testing.TB, key *ecdsa.PrivateKey, id string, claims map[string]any) string {
	t.Helper()
	text := Unsigned(t, map[string]any{"alg": "ES256", "kid": id, "typ": "at+jwt"}, claims)
	digest := sha256.Sum256([]byte(text))
	r, s, err := ecdsa.Sign(rand.Reader, key, digest[:])
	must.Do(t, err)
	return text + "." + Encode(append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...))
}

// Unsigned returns a token up to its signature, without the dot before it.
func Unsigned(t testing.TB, header, claims map[string]any) string {
	t.Helper()
	return Encode(must.Get(json.Marshal(header))(t)) + "." + Encode(must.Get(json.Marshal(claims))(t))
}

// With returns claims of which one has another value; nil leaves it out.
func With(claims map[string]any, name string, value any) map[string]any {
	changed := maps.Clone(claims)
	changed[name] = value
	if value == nil {
		delete(changed, name)
	}
	return changed
}
