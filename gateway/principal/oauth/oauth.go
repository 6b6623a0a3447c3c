// Package oauth believes access tokens of an authorization server. It is apart from package
// principal because the command that makes tokens imports that, and not OAuth.
package oauth

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/principal"
)

const (
	// keysLifetime is how long the keys of an authorization server are used. After that, a key
	// that the server has withdrawn is refused.
	keysLifetime = time.Hour
	// keysPause is the time between two requests for keys: anybody can send a token
	// that names an unknown key.
	keysPause = 10 * time.Second
	// keysTimeout and maxKeys bound such a request, and its response in bytes.
	keysTimeout = 10 * time.Second
	maxKeys     = 1 << 20
	// clockLeeway is how far the clock of the authorization server may be ahead.
	clockLeeway = 5 * time.Minute
)

// Options say which access tokens are valid.
type Options struct {
	// Resource is this server's URL, which must be among a token's audience.
	Resource string
	// Issuer is the authorization server, and KeysURL the URL of its keys (JWKS).
	Issuer, KeysURL string
	// Claim is the claim with the principal's name. Scope is the scope that a token must have;
	// empty if any will do.
	Claim, Scope string
}

// Server is an authorization server. Its access tokens are JSON Web Tokens (RFC 9068), signed
// for this server.
type Server struct {
	o        Options
	now      func() time.Time // another one in tests
	client   *http.Client
	verifier *oidc.IDTokenVerifier

	mu      sync.Mutex
	keys    *oidc.RemoteKeySet
	asked   time.Time // for keys
	fetched time.Time // keys, or the time of the first attempt
}

var _ principal.Authenticator = (*Server)(nil)

// New returns a Server. It fetches keys when a token comes for which it
// needs some.
func New(o Options) *Server { return newServer(o, http.DefaultTransport, time.Now) }

func newServer(o Options, transport http.RoundTripper, now func() time.Time) *Server {
	a := &Server{o: o, now: now}
	a.client = &http.Client{Timeout: keysTimeout, Transport: &keysTransport{a, transport}}
	a.renew()
	a.verifier = oidc.NewVerifier(o.Issuer, a, &oidc.Config{
		ClientID:             o.Resource,
		SupportedSigningAlgs: []string{oidc.RS256, oidc.RS384, oidc.RS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.EdDSA},
		Now:                  now,
	})
	return a
}

// Authenticate implements [principal.Authenticator]. Names begin with "oauth:".
func (a *Server) Authenticate(r *http.Request) (string, error) {
	text, err := principal.Bearer(r)
	if err != nil {
		return "", err
	}
	if strings.Count(text, ".") != 2 {
		return "", principal.ErrNone
	}
	token, err := a.verifier.Verify(r.Context(), text)
	if err != nil {
		return "", &principal.Refusal{Reason: reason(err)}
	}
	var claims map[string]any
	if err := token.Claims(&claims); err != nil {
		return "", &principal.Refusal{Reason: "the token's claims are no JSON object"}
	}
	if problem := a.wrong(text, claims); problem != "" {
		return "", &principal.Refusal{Reason: problem}
	}
	name, _ := claims[a.o.Claim].(string)
	if !principal.IsPlain(name) {
		return "", &principal.Refusal{Reason: fmt.Sprintf("the token's claim %s is not a name of 1 to %d printed ASCII characters", a.o.Claim, principal.MaxName)}
	}
	if a.o.Scope != "" && !slices.Contains(scopes(claims), a.o.Scope) {
		return "", &principal.Refusal{Reason: "the token lacks the scope " + a.o.Scope, Scope: a.o.Scope}
	}
	return "oauth:" + name, nil
}

// reasons word errors of the library, which repeat parts of a token that anybody can send.
var reasons = []struct{ part, words string }{
	{"token is expired", "the token has expired"},
	{"before the nbf", "the token is not valid yet"},
	{"different provider", "the token is of another issuer"},
	{"expected audience", "the token is for another server"},
	{"fetching keys", "the keys of the authorization server could not be fetched"},
	{"verify signature", "the token is not signed with a key of the authorization server"},
}

// reason returns in the server's own words why a token is not believed.
func reason(err error) string {
	for _, one := range reasons {
		if strings.Contains(err.Error(), one.part) {
			return one.words
		}
	}
	return "the token is not a signed JSON Web Token of the form that this server reads"
}

// wrong returns why a signed token is not an access token for this server, or "" if it is one.
// It compares the exact names of claims, while the library ignores their case as encoding/json
// does.
func (a *Server) wrong(text string, claims map[string]any) string {
	encoded, _, _ := strings.Cut(text, ".")
	var header map[string]any
	if decoded, err := base64.RawURLEncoding.DecodeString(encoded); err != nil || json.Unmarshal(decoded, &header) != nil {
		return "the token's header is no JSON object"
	}
	kind, _ := header["typ"].(string)
	switch strings.TrimPrefix(strings.ToLower(kind), "application/") {
	case "", "jwt", "at+jwt": // not every authorization server follows RFC 9068
	default:
		return "the token is not an access token, as its type says"
	}
	now := a.now()
	expires, hasEnd := claims["exp"].(float64)
	begins, hasBeginning := claims["nbf"].(float64)
	switch {
	case claims["iss"] != a.o.Issuer:
		return "the token is of another issuer"
	case claims["aud"] != a.o.Resource && !contains(claims["aud"], a.o.Resource):
		return "the token is for another server"
	case !hasEnd || !now.Before(time.Unix(int64(expires), 0)):
		return "the token has expired"
	case hasBeginning && now.Add(clockLeeway).Before(time.Unix(int64(begins), 0)):
		return "the token is not valid yet"
	case claims["cnf"] != nil:
		return "the token is bound to a key of the client (RFC 9449), which this server does not check"
	}
	for _, name := range []string{"nonce", "at_hash", "c_hash", "s_hash", "events"} {
		if claims[name] != nil {
			return "the token is not an access token: it has a claim of an ID token or a logout token"
		}
	}
	return ""
}

func contains(claim any, text string) bool {
	list, _ := claim.([]any)
	return slices.Contains(list, any(text))
}

// scopes returns the scopes of a token. Some servers have a list in the claim scp instead of
// the text of RFC 9068.
func scopes(claims map[string]any) []string {
	var all []string
	for _, name := range []string{"scope", "scp"} {
		switch value := claims[name].(type) {
		case string:
			all = append(all, strings.Fields(value)...)
		case []any:
			for _, one := range value {
				if text, ok := one.(string); ok {
					all = append(all, text)
				}
			}
		}
	}
	return all
}

// VerifySignature implements [oidc.KeySet].
func (a *Server) VerifySignature(ctx context.Context, text string) ([]byte, error) {
	a.mu.Lock()
	// A set of keys only fetches missing keys, so an old set is replaced, unless a new set
	// could not fetch any yet.
	if a.now().Sub(a.fetched) >= keysLifetime && a.now().Sub(a.asked) >= keysPause {
		a.renew()
	}
	keys := a.keys
	a.mu.Unlock()
	return keys.VerifySignature(ctx, text)
}

// Forget forgets the keys, so that a withdrawn key is refused at once. The next token has them
// fetched again.
func (a *Server) Forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = time.Time{}
	a.renew()
}

func (a *Server) renew() {
	a.keys = oidc.NewRemoteKeySet(oidc.ClientContext(context.Background(), a.client), a.o.KeysURL)
	a.fetched = a.now()
}

// keysTransport bounds the requests for keys.
type keysTransport struct {
	a    *Server
	next http.RoundTripper
}

func (t *keysTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	t.a.mu.Lock()
	now := t.a.now()
	tooSoon := !t.a.asked.IsZero() && now.Sub(t.a.asked) < keysPause
	if !tooSoon {
		t.a.asked = now
	}
	t.a.mu.Unlock()
	if tooSoon {
		return nil, errors.New("the keys were asked for a moment ago")
	}
	response, err := t.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if response.StatusCode == http.StatusOK {
		t.a.mu.Lock()
		t.a.fetched = now
		t.a.mu.Unlock()
	}
	response.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(response.Body, maxKeys), response.Body}
	return response, nil
}

// Metadata answers clients that ask who authorizes them (RFC 9728, section 3.2).
func (a *Server) Metadata() http.Handler {
	o := a.o
	fields := map[string]any{
		"resource":                 o.Resource,
		"authorization_servers":    []string{o.Issuer},
		"bearer_methods_supported": []string{"header"},
		"resource_name":            "nix-sandbox-mcp",
	}
	if o.Scope != "" {
		fields["scopes_supported"] = []string{o.Scope}
	}
	text, err := json.Marshal(fields)
	if err != nil {
		panic(err) // strings alone
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// It is public, and pages need it to get a token.
		w.Header().Set("Access-Control-Allow-Origin", "*")
		if r.Method == http.MethodOptions {
			w.Header().Set("Access-Control-Allow-Methods", "GET")
			w.Header().Set("Access-Control-Allow-Headers", "Mcp-Protocol-Version") // clients send it with each request
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(text) // to a client that may have gone
	})
}
