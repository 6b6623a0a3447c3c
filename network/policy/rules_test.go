package policy_test

import (
	"net/url"
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/network/policy"
)

// ruled is a policy with rules for one host, and credentials for two.
const ruled = `{"schema":1,"domains":["api.example","pay.example:443","files.example","*.host.example","odd.example:8443","odd.example"],"ports":[443,80],"private":[],"connections":64,"rate":50,"megabytes":1024,"names":1000,"upstream":null,
"rules":{"api.example":{"methods":["GET","POST"],"paths":["/v1/*","/health"]}},
"credentials":[{"name":"TOKEN","domain":"api.example","header":"Authorization: Bearer {}","placeholder":"sandbox-TOKEN"},{"name":"KEY","domain":"pay.example","header":"X-Key:{}","placeholder":""}]}`

func change(old, new string) string { return strings.Replace(ruled, old, new, 1) }

func TestParse_ReadsRulesAndCredentials(t *testing.T) {
	p := parse(t, ruled)
	if diff := cmp.Diff([]string{"api.example", "pay.example"}, p.Read()); diff != "" {
		t.Error(diff)
	}
	for name, want := range map[string]bool{"api.example": true, "pay.example": true, "files.example": false, "a.host.example": false} {
		if p.Reads(name) != want {
			t.Errorf("Reads(%q) = %v", name, !want)
		}
	}
	if name, value := p.Credentials[0].Field("s3cret"); name != "Authorization" || value != "Bearer s3cret" {
		t.Errorf("%q: %q", name, value)
	}
	if name, value := p.Credentials[1].Field("s3cret"); name != "X-Key" || value != "s3cret" {
		t.Errorf("%q: %q", name, value)
	}
}

func TestParse_RefusesRulesThatProtectNothing(t *testing.T) {
	for text, want := range map[string]string{
		change(`"rules":{"api.example"`, `"rules":{"a.host.example"`):            `rules has "a.host.example": use a host that is in domains itself`,
		change(`"rules":{"api.example"`, `"rules":{"evil.example"`):              `rules has "evil.example": use a host`,
		change(`"rules":{"api.example"`, `"rules":{"odd.example"`):               "it is allowed at port 8443",
		change(`"ports":[443,80]`, `"ports":[80]`):                               "it is not allowed at port 443",
		change(`{"methods":["GET","POST"],"paths":["/v1/*","/health"]}`, `{}`):   "set methods, paths or both",
		change(`{"methods":["GET","POST"],"paths":["/v1/*","/health"]}`, `null`): "set methods, paths or both",
		change(`["GET","POST"]`, `[]`):                                           "from 1 to",
		change(`["GET","POST"]`, `["get"]`):                                      `methods has "get"`,
		change(`["GET","POST"]`, `["GET "]`):                                     `methods has "GET "`,
		change(`"/health"`, `"health"`):                                          `paths has "health"`,
		change(`"/health"`, `"/a/../b"`):                                         `paths has "/a/../b"`,
		change(`"/health"`, `"/a*b"`):                                            `paths has "/a*b"`,
		change(`"/health"`, `"/a?b"`):                                            `paths has "/a?b"`,
		change(`"/health"`, `"/a%20b"`):                                          `paths has "/a%20b"`,
		change(`"name":"KEY"`, `"name":"K-Y"`):                                   `credentials has "K-Y"`,
		change(`"name":"KEY"`, `"name":"TOKEN"`):                                 "another one has too",
		change(`"domain":"pay.example","header":"X-Key:{}"`, `"domain":"api.example","header":"authorization:{}"`): "another one has too",
		change(`"domain":"pay.example"`, `"domain":"*.host.example"`):                                              "not the name of a host",
		change(`"domain":"pay.example"`, `"domain":"a.host.example"`):                                              "use a host that is in domains itself",
		change(`X-Key:{}`, `X-Key`):                                   "use \"Authorization",
		change(`X-Key:{}`, `X-Key: x`):                                "use \"Authorization",
		change(`X-Key:{}`, `X Key: {}`):                               "use \"Authorization",
		change(`X-Key:{}`, `X-Key: {}\r\nA: b`):                       "use \"Authorization",
		change(`X-Key:{}`, `Host: {}`):                                "how the request is sent",
		change(`"sandbox-TOKEN"`, `"short"`):                          "placeholder is",
		change(`"sandbox-TOKEN"`, `"with space"`):                     "placeholder is",
		change(`"placeholder":""`, `"secret":""`):                     "unknown field",
		change(`"placeholder":""`, `"placeholder":"a-sandbox-TOKEN"`): "whose placeholder is in that of",
	} {
		if _, err := policy.Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n  is answered %v\n  want %q", text, err, want)
		}
	}
}

func TestRules_PassMethodsAndPlainPathsAlone(t *testing.T) {
	p := parse(t, ruled)
	for method, want := range map[string]bool{"GET": true, "POST": true, "DELETE": false, "get": false, "": false} {
		if p.AllowsMethod("api.example", method) != want {
			t.Errorf("AllowsMethod(%q) = %v", method, !want)
		}
	}
	for path, want := range map[string]bool{
		"/v1/": true, "/v1/items": true, "/v1/a%20b": true, "/v1/a;x=1": true, "/health": true, "/v1/%C3%A4": true,
		"/v1": false, "/v2/": false, "/health/": false, "/healthy": false, "/": false, "": false, "*": false, "v1/": false,
		"/v1/../admin": false, "/v1/..": false, "/v1/.": false, "/v1/./x": false, "/v1//x": false, "//v1/x": false, "/v1/%2e%2e/admin": false,
		"/v1/..%2fadmin": false, "/v1/%2F..%2Fadmin": false, "/v1/..\\admin": false, "/v1/..%5cadmin": false, "/v1/..;/admin": false, "/v1/;/admin": false,
		"/v1/%252e%252e/admin": false, "/v1/%00": false, "/v1/%0a": false, "/v1/%": false, "/v1/%2": false, "/v1/%zz": false, "/v1/a%3f": false, "/v1/a%23": false,
		// Decoders that take longer forms than the shortest read "/v1/../admin".
		"/v1/%c0%ae%c0%ae/admin": false, "/v1/..%c0%afadmin": false, "/v1/%e0%80%af": false, "/v1/\xff": false,
		// Windows leaves out blanks and dots at the end of a name.
		"/v1/..%20/admin": false, "/v1/%20../admin": false, "/v1/.../x": false, "/v1/%20/x": false,
		// These become dots and slashes, or nothing, in the normal form NFKC.
		"/v1/%ef%bc%8e%ef%bc%8e/admin": false, "/v1/%e2%80%a5/admin": false, "/v1/..%e2%81%84admin": false, "/v1/.%e2%80%8b./admin": false,
	} {
		if p.AllowsPath("api.example", path) != want {
			t.Errorf("AllowsPath(%q) = %v", path, !want)
		}
	}
	if !p.AllowsMethod("pay.example", "DELETE") || !p.AllowsPath("pay.example", "/a/../b") {
		t.Error("a host without a rule has one")
	}
}

// A path that passes below a folder stays below it for whoever decodes and cleans
// it, once or twice.
func FuzzPlainPath(f *testing.F) {
	for _, seed := range []string{"/v1/x", "/v1/../x", "/v1/%2e%2e/x", "/v1/%252e", "/v1/a;b/..;/x", "/v1/\\..\\"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		plain, ok := policy.PlainPath(text)
		if !ok || !strings.HasPrefix(plain, "/v1/") {
			return
		}
		for range 3 {
			if cleaned := path.Clean(strings.ReplaceAll(text, "\\", "/")); !strings.HasPrefix(cleaned+"/", "/v1/") {
				t.Fatalf("%q becomes %q", text, cleaned)
			}
			decoded, err := url.PathUnescape(text)
			if err != nil {
				return
			}
			text = decoded
		}
	})
}
