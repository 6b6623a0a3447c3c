package event

// Reason says why something was refused.
type Reason string

// The reasons.
const (
	ByName       Reason = "name"
	ByPort       Reason = "port"
	ByAddress    Reason = "address" // the code connected to an address instead of a name
	ByPrivate    Reason = "private"
	BySNI        Reason = "sni"
	ByHost       Reason = "host"
	ByNoSNI      Reason = "no-sni"
	ByHiddenSNI  Reason = "hidden-sni" // Encrypted Client Hello
	ByNotTLS     Reason = "not-tls"    // at port 443
	ByNotHTTP    Reason = "not-http"   // at port 80
	ByMethod     Reason = "method"     // the host's rule lacks the method, or it would return a secret
	ByPath       Reason = "path"       // the host's rule lacks the path
	ByCredential Reason = "credential" // the request has the placeholder of another host's secret
	ByLimit      Reason = "limit"      // Option says which limit
	ByUser       Reason = "user"       // was asked, and said no
	ByNobody     Reason = "nobody"     // no user answered
)

// words are the words for a reason. why follows the refused host in parentheses. way is what the
// code itself can do about it, or "" if only an operator can do something.
var words = map[Reason]struct{ why, way string }{
	ByName:       {"not among the environment's domains", ""},
	ByPort:       {"the port", ""},
	ByAddress:    {"an address", "Connect to hosts by name"},
	ByPrivate:    {"its address is not public", ""},
	BySNI:        {"TLS for another host", "Connect to each host by its own name"},
	ByHost:       {"HTTP for another host", "Connect to each host by its own name"},
	ByNoSNI:      {"TLS without a host's name", "Send the host's name in TLS (SNI)"},
	ByHiddenSNI:  {"TLS with an encrypted name", "Send the host's name in TLS without encryption (no ECH)"},
	ByNotTLS:     {"no TLS", "Port 443 is for TLS alone"},
	ByNotHTTP:    {"no HTTP/1", "Port 80 is for HTTP/1 alone"},
	ByMethod:     {"the method", ""},
	ByPath:       {"the path", ""},
	ByCredential: {"a credential of another host", "Send the credential to its own host alone"},
	ByLimit:      {"over a limit", ""},
	ByUser:       {"the user said no", ""},
	ByNobody:     {"a user has to allow it, and none answered", "Ask the user to run nix-sandbox-mcp page, which shows the question, and call again"},
}

// Why says in a few words why something was refused. detail is the Detail of the event, or "".
func (r Reason) Why(detail string) string {
	known, ok := words[r]
	switch {
	case !ok:
		return string(r) // of a later version
	case r != ByMethod && r != ByPath:
		return known.why
	case detail == "":
		return known.why + " of the request"
	}
	return known.why + " " + detail
}

// Way says what the code itself can do about a refusal, or "" if only an operator can do something.
func (r Reason) Way() string { return words[r].way }
