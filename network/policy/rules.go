package policy

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostname"
)

// Bounds of rules and credentials.
const (
	// MaxRules is the largest number of hosts with rules, and MaxCredentials that of
	// credentials.
	MaxRules       = 100
	MaxCredentials = 32
	// maxPatterns is the largest number of methods, and of paths, of a rule.
	maxPatterns = 100
	// maxText is the longest method, path, header or name, in bytes.
	maxText = 1024
	// A placeholder has from minPlaceholder to maxPlaceholder bytes.
	minPlaceholder = 8
	maxPlaceholder = 128
)

// Ports with a protocol that is checked from the first byte on. A host with requests that are read
// has no others.
const (
	PortHTTP  = 80
	PortHTTPS = 443
)

// Rule says which requests a host gets. TLS to a host with a rule is ended in the
// proxy, which reads them.
type Rule struct {
	// Methods lists the methods that pass; null means all.
	Methods []string `json:"methods"`
	// Paths lists the paths that pass, literally or, with a "*" at the end, by their beginning;
	// null means all.
	Paths []string `json:"paths"`
}

// Credential is a secret that requests to one host get in a header. The secret
// itself is never in a policy.
type Credential struct {
	// Name is the operator's name for it, and the name of the sandbox's variable with the
	// placeholder.
	Name string `json:"name"`
	// Domain is the one host that gets it.
	Domain string `json:"domain"`
	// Header is "NAME: VALUE"; {} in the value stands for the secret.
	Header string `json:"header"`
	// Placeholder is used by programs in the sandbox instead of the secret. A request to another
	// host that carries it is refused. It may be empty.
	Placeholder string `json:"placeholder"`
}

// Field returns the header's name and its value for a secret.
func (c *Credential) Field(secret string) (name, value string) {
	name, value, _ = strings.Cut(c.Header, ":")
	return name, strings.ReplaceAll(strings.Trim(value, " "), "{}", secret)
}

// addRules adds and checks the rules and credentials of a file.
func (p *Policy) addRules(f *file) error {
	if len(f.Rules) > MaxRules || len(f.Credentials) > MaxCredentials {
		return fmt.Errorf("there are %d rules and %d credentials: use at most %d and %d", len(f.Rules), len(f.Credentials), MaxRules, MaxCredentials)
	}
	for name, rule := range f.Rules {
		if err := p.checkRead(name); err != nil {
			return fmt.Errorf("rules has %q: %w", name, err)
		}
		if err := rule.check(); err != nil {
			return fmt.Errorf("rules of %q: %w", name, err)
		}
	}
	p.rules = f.Rules
	var names, fields []string
	for _, c := range f.Credentials {
		if err := c.check(); err != nil {
			return fmt.Errorf("credentials has %q: %w", c.Name, err)
		}
		if err := p.checkRead(c.Domain); err != nil {
			return fmt.Errorf("credentials has %q for %q: %w", c.Name, c.Domain, err)
		}
		field, _ := c.Field("")
		field = c.Domain + " " + strings.ToLower(field)
		if slices.Contains(names, c.Name) || slices.Contains(fields, field) {
			return fmt.Errorf("credentials has %q, whose name or header another one has too", c.Name)
		}
		names, fields = append(names, c.Name), append(fields, field)
	}
	for i, a := range f.Credentials {
		for j, b := range f.Credentials {
			if i != j && a.Placeholder != "" && strings.Contains(b.Placeholder, a.Placeholder) {
				return fmt.Errorf("credentials has %q, whose placeholder is in that of %q", a.Name, b.Name)
			}
		}
	}
	p.Credentials = f.Credentials
	return nil
}

// checkRead returns an error if not every request to a host could be read.
func (p *Policy) checkRead(name string) error {
	at, ok := p.exact[name]
	if !ok {
		return errors.New("use a host that is in domains itself, and not below a \"*.\"")
	}
	if !p.Allows(name, PortHTTPS) {
		return fmt.Errorf("it is not allowed at port %d", PortHTTPS)
	}
	reached := slices.Clone(at.own)
	for _, port := range p.all {
		if p.Allows(name, port) {
			reached = append(reached, port)
		}
	}
	for _, port := range reached {
		if port != PortHTTP && port != PortHTTPS {
			return fmt.Errorf("it is allowed at port %d, where nobody would read its requests", port)
		}
	}
	return nil
}

func (r *Rule) check() error {
	if r == nil || r.Methods == nil && r.Paths == nil {
		return errors.New("set methods, paths or both")
	}
	if r.Methods != nil && len(r.Methods) == 0 || r.Paths != nil && len(r.Paths) == 0 || len(r.Methods) > maxPatterns || len(r.Paths) > maxPatterns {
		return fmt.Errorf("use from 1 to %d methods, and as many paths", maxPatterns)
	}
	for _, method := range r.Methods {
		if len(method) > maxText || !isToken(method) || method != strings.ToUpper(method) {
			return fmt.Errorf("methods has %q: use methods such as \"GET\"", method)
		}
	}
	for _, path := range r.Paths {
		prefix := strings.TrimSuffix(path, "*")
		if plain, ok := PlainPath(prefix); len(path) > maxText || !ok || plain != prefix || strings.ContainsAny(plain, "*?#") {
			return fmt.Errorf("paths has %q: use paths such as \"/v1/items\" or \"/v1/*\"", path)
		}
	}
	return nil
}

func (c *Credential) check() error {
	if c.Name == "" || len(c.Name) > maxText || strings.Trim(c.Name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") != "" {
		return errors.New("use a name of letters, digits and _")
	}
	if !hostname.IsCanonical(c.Domain) {
		return hostname.ErrMalformed
	}
	field, value, found := strings.Cut(c.Header, ":")
	if !found || len(c.Header) > maxText || !isToken(field) || !strings.Contains(value, "{}") || !isPrintable(value) {
		return fmt.Errorf("header is %q: use \"Authorization: Bearer {}\", where {} stands for the secret", c.Header)
	}
	switch strings.ToLower(field) {
	case "host", "connection", "content-length", "transfer-encoding", "upgrade", "te", "trailer", "keep-alive", "proxy-connection", "expect":
		return fmt.Errorf("header is %q, which says how the request is sent: use another one", c.Header)
	}
	n := len(c.Placeholder)
	if n != 0 && (n < minPlaceholder || n > maxPlaceholder || !isToken(c.Placeholder)) {
		return fmt.Errorf("placeholder is %q: use from %d to %d letters, digits, - and _", c.Placeholder, minPlaceholder, maxPlaceholder)
	}
	return nil
}

// isToken returns whether a text is a token of HTTP (RFC 9110, section 5.6.2).
func isToken(text string) bool {
	for i := range len(text) {
		if c := text[i]; c <= ' ' || c > '~' || strings.IndexByte("\"(),/:;<=>?@[\\]{}", c) >= 0 {
			return false
		}
	}
	return text != ""
}

func isPrintable(text string) bool {
	for i := range len(text) {
		if text[i] < ' ' || text[i] > '~' {
			return false
		}
	}
	return true
}

// Reads returns whether TLS to a host is ended in the proxy.
func (p *Policy) Reads(name string) bool {
	if p.rules[name] != nil {
		return true
	}
	return slices.ContainsFunc(p.Credentials, func(c Credential) bool { return c.Domain == name })
}

// Read returns the hosts with TLS that ends in the proxy, in ascending order.
func (p *Policy) Read() []string {
	var names []string
	for name := range p.rules {
		names = append(names, name)
	}
	for _, c := range p.Credentials {
		names = append(names, c.Domain)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// HasRule returns whether there is a rule for a host.
func (p *Policy) HasRule(name string) bool { return p.rules[name] != nil }

// AllowsMethod returns whether the rule of a host, if it has one, lets a method
// pass.
func (p *Policy) AllowsMethod(name, method string) bool {
	rule := p.rules[name]
	return rule == nil || rule.Methods == nil || slices.Contains(rule.Methods, method)
}

// AllowsPath returns whether the rule of a host, if it has one, lets a path pass,
// as it is written in a request and without a query. A path that two servers
// could read differently does not pass a rule with paths.
func (p *Policy) AllowsPath(name, path string) bool {
	rule := p.rules[name]
	if rule == nil || rule.Paths == nil {
		return true
	}
	plain, ok := PlainPath(path)
	if !ok {
		return false
	}
	for _, pattern := range rule.Paths {
		if prefix, found := strings.CutSuffix(pattern, "*"); found && strings.HasPrefix(plain, prefix) || plain == pattern {
			return true
		}
	}
	return false
}

// PlainPath returns a path with its escapes decoded. ok is false if another program could take it
// for another path, because it has empty segments, "." or ".." (also before a ";", or with blanks
// and further dots, which Windows leaves out), a backslash, an escaped separator or dot, bytes that
// are not UTF-8, or characters beyond ASCII other than letters and digits: some of these become dots
// and slashes, or nothing, when they are normalized.
func PlainPath(path string) (plain string, ok bool) {
	if !strings.HasPrefix(path, "/") {
		return "", false
	}
	decoded := make([]byte, 0, len(path))
	for i := 0; i < len(path); i++ {
		c := path[i]
		if c == '%' {
			if i+2 >= len(path) {
				return "", false
			}
			n, err := strconv.ParseUint(path[i+1:i+3], 16, 8)
			c = byte(n)
			if err != nil || strings.IndexByte("/\\.%;?#", c) >= 0 {
				return "", false
			}
			i += 2
		}
		if c < ' ' || c == 0x7f || c == '\\' {
			return "", false
		}
		decoded = append(decoded, c)
	}
	if !utf8.Valid(decoded) || strings.ContainsFunc(string(decoded), isOdd) {
		return "", false
	}
	segments := strings.Split(string(decoded[1:]), "/")
	for i, segment := range segments {
		segment, _, parameters := strings.Cut(segment, ";")
		if strings.Trim(segment, " .") == "" && (segment != "" || parameters || i < len(segments)-1) {
			return "", false
		}
	}
	return string(decoded), true
}

// isOdd reports whether a character is beyond ASCII and neither a letter, a mark nor a digit.
func isOdd(c rune) bool {
	return c >= utf8.RuneSelf && !unicode.In(c, unicode.L, unicode.M, unicode.Nd)
}
