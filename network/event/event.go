// Package event is what a sandbox's network proxy reports to whoever started
// the sandbox: JSON objects, one a line, each at most [MaxLine] bytes.
//
// Code in the sandbox decides which names and how many events there are, so
// that both ends are bounded: a [Writer] never blocks and never sends more than
// its rate, and a [Reader] accepts no line that is longer, and no text with
// other than printable ASCII.
package event

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/network/hostname"
)

// MaxLine is the longest line of a stream, in bytes, its newline included. It
// is PIPE_BUF on Linux: a pipe takes such a line whole or not at all.
const MaxLine = 4096

// maxText is the longest Problem, in bytes.
const maxText = 512

// Kind is what happened.
type Kind string

// The kinds. A reader skips kinds that it does not know.
const (
	// Refused reports a look-up, connection or request that the policy does not
	// allow. It is written before the code in the sandbox can see the refusal.
	Refused Kind = "refused"
	// Closed reports the end of a connection that was allowed.
	Closed Kind = "closed"
	// Failed reports a connection or look-up that was allowed, and whose host did
	// not answer.
	Failed Kind = "failed"
	// Dropped counts events that were not written, because the stream was full or
	// there were too many.
	Dropped Kind = "dropped"
	// Ended reports the end of the proxy, where that has a cause other than the
	// sandbox's end.
	Ended Kind = "ended"
)

// Reason is why something is refused.
type Reason string

// The reasons.
const (
	ByName      Reason = "name"       // no entry of domains allows the name
	ByPort      Reason = "port"       // the name is allowed, at other ports
	ByAddress   Reason = "address"    // an address was meant and no name
	ByPrivate   Reason = "private"    // the name leads to an address that is not public
	BySNI       Reason = "sni"        // TLS names another host
	ByHost      Reason = "host"       // HTTP names another host
	ByNoSNI     Reason = "no-sni"     // TLS names no host
	ByHiddenSNI Reason = "hidden-sni" // TLS encrypts the host's name (ECH)
	ByNotTLS    Reason = "not-tls"    // something else than TLS at port 443
	ByNotHTTP   Reason = "not-http"   // something else than HTTP at port 80
	ByMethod    Reason = "method"     // the host's rule does not contain the method, or it returns a secret
	ByPath      Reason = "path"       // the host's rule does not contain the path
	// ByCredential is a placeholder in a request to a host that gets no such secret.
	ByCredential Reason = "credential"
	ByLimit      Reason = "limit" // Option says which limit
)

// Options of an environment that refusals name.
const (
	OptionDomains     = "network.domains"
	OptionPrivate     = "network.private"
	OptionRules       = "network.rules"
	OptionConnections = "network.connections"
	OptionRate        = "network.rate"
	OptionMegabytes   = "network.megabytes"
	OptionNames       = "network.names"
)

// Event is one line of the stream. Which fields it has follows from its kind:
//
//	refused  Name or Address, Port where it was a connection, Reason, Option, Value, Detail, Count
//	closed   Name, Port, Address, Up, Down, Milliseconds
//	failed   Name, Port where it was a connection, Problem, Count
//	dropped  Count
//	ended    Problem
type Event struct {
	Kind Kind `json:"event"`
	// Name is the host's name in its canonical form, or empty.
	Name string `json:"name,omitempty"`
	// Address is what was dialled or, where Reason is address, what the code in
	// the sandbox meant. The zero Addr where there is none.
	Address netip.Addr `json:"address,omitzero"`
	Port    uint16     `json:"port,omitempty"`
	Reason  Reason     `json:"reason,omitempty"`
	// Option and Value are the option that would allow what was refused and the
	// entry to add to it. Both are empty where nothing would; Value is empty for a
	// limit.
	Option string `json:"option,omitempty"`
	Value  string `json:"value,omitempty"`
	// Detail is the method or the path of a request that a rule refused, where it is
	// short and plain: see [Detail].
	Detail string `json:"detail,omitempty"`
	// Count is how many equal events this one stands for, at least 1.
	Count int64 `json:"count,omitempty"`
	// Up and Down are the bytes that a connection carried from and to the sandbox.
	Up           int64  `json:"up,omitempty"`
	Down         int64  `json:"down,omitempty"`
	Milliseconds int64  `json:"milliseconds,omitempty"`
	Problem      string `json:"problem,omitempty"`
}

// RefusedName returns the refusal of a name that no entry allows.
func RefusedName(name string) Event {
	return Event{Kind: Refused, Name: name, Reason: ByName, Option: OptionDomains, Value: name, Count: 1}
}

// Limited returns the refusal of a connection or look-up beyond a limit, which
// is one of the options' names.
func Limited(name string, port uint16, option string) Event {
	return Event{Kind: Refused, Name: name, Port: port, Reason: ByLimit, Option: option, Count: 1}
}

// Target returns what an event is about: a name or an address, with its port.
func (e Event) Target() string {
	switch {
	case e.Name != "" && e.Port != 0:
		return fmt.Sprintf("%s:%d", e.Name, e.Port)
	case e.Name != "":
		return e.Name
	case e.Address.IsValid() && e.Port != 0:
		return netip.AddrPortFrom(e.Address, e.Port).String()
	case e.Address.IsValid():
		return e.Address.String()
	}
	return "a connection"
}

// Sentence says what happened, for a user or a model, and how an operator
// allows it where that is possible. It has no full stop at the end.
func (e Event) Sentence() string {
	switch e.Kind {
	case Refused:
		return "the sandbox's network refused this: " + e.refusal()
	case Closed:
		return fmt.Sprintf("connection to %s closed after %d bytes up and %d bytes down", e.Target(), e.Up, e.Down)
	case Failed:
		return e.Target() + " is allowed, and did not answer: " + e.Problem
	case Dropped:
		return fmt.Sprintf("%d events were not reported, because there were too many", e.Count)
	case Ended:
		return "the sandbox's network ended: " + e.Problem
	}
	return string(e.Kind)
}

func (e Event) refusal() string {
	switch e.Reason {
	case ByName:
		if e.Name == "" {
			return "what was looked up is not the name of a host"
		}
		return e.Name + " is not among this environment's domains" + e.allow()
	case ByPort:
		return fmt.Sprintf("%s is not allowed at port %d", e.Name, e.Port) + e.allow()
	case ByAddress:
		return e.Target() + " is an address. Use the name of an allowed host"
	case ByPrivate:
		return e.Name + " leads to an address that is not public" + e.allow()
	case BySNI:
		return "TLS named another host than " + e.Name
	case ByHost:
		return "the HTTP request named another host than " + e.Name
	case ByNoSNI:
		return "TLS to " + e.Target() + " named no host. The program has to send the host's name (SNI)"
	case ByHiddenSNI:
		return "TLS to " + e.Target() + " hid the host's name. Switch Encrypted Client Hello (ECH) off"
	case ByNotTLS:
		return e.Target() + " takes TLS alone"
	case ByNotHTTP:
		return e.Target() + " takes HTTP requests alone"
	case ByMethod:
		if e.Option == "" {
			return e.Name + " would answer this method with the credential that it gets"
		}
		return "the rule of " + e.Name + " does not contain " + e.part("the method") + e.allow()
	case ByPath:
		return "the rule of " + e.Name + " does not contain " + e.part("the path") + e.allow()
	case ByCredential:
		return "the request has the placeholder of a credential that " + e.Name + " does not get"
	case ByLimit:
		return e.Target() + " is beyond the limit that an operator sets with " + e.Option
	}
	return e.Target() + " (" + string(e.Reason) + ")" + e.allow()
}

// part names a part of a request that a rule refused.
func (e Event) part(what string) string {
	if e.Detail == "" {
		return what + " of the request"
	}
	return what + " " + e.Detail
}

func (e Event) allow() string {
	if e.Option == "" || e.Value == "" {
		return ""
	}
	return fmt.Sprintf(". Trying again does not help; an operator allows it with %s: %q", e.Option, e.Value)
}

// check returns an error where an event is not as its type describes it.
func (e *Event) check() error {
	switch {
	case e.Name != "" && !hostname.IsCanonical(e.Name):
		return fmt.Errorf("%w: the name is not canonical", ErrMalformed)
	case e.Address.Zone() != "":
		return fmt.Errorf("%w: the address has a zone", ErrMalformed)
	case e.Count < 0 || e.Up < 0 || e.Down < 0 || e.Milliseconds < 0:
		return fmt.Errorf("%w: a number is negative", ErrMalformed)
	case len(e.Problem) > maxText || !printable(e.Problem):
		return fmt.Errorf("%w: the problem is not a short line of ASCII", ErrMalformed)
	case e.Detail != Detail(e.Detail):
		return fmt.Errorf("%w: the detail is not a plain method or path", ErrMalformed)
	case len(e.Value) > maxText || !printable(e.Value) || strings.ContainsAny(e.Value, "\"\\'` "):
		return fmt.Errorf("%w: the value is not an entry of an option", ErrMalformed)
	}
	for _, word := range []string{string(e.Kind), string(e.Reason), e.Option} {
		if len(word) > 64 || strings.Trim(word, "abcdefghijklmnopqrstuvwxyz-.") != "" {
			return fmt.Errorf("%w: a kind, reason or option is not a word", ErrMalformed)
		}
	}
	return nil
}

// maxDetail is the longest Detail, in bytes.
const maxDetail = 100

// Detail returns a method or path as the Detail of an event, and an empty text where it
// is longer than 100 bytes or has others than letters, digits and "/._~-". The code in
// the sandbox wrote it, and it stands among the server's own words.
func Detail(text string) string {
	const plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789/._~-"
	if len(text) > maxDetail || strings.Trim(text, plain) != "" {
		return ""
	}
	return text
}

func printable(text string) bool {
	for i := range len(text) {
		if text[i] < ' ' || text[i] > '~' {
			return false
		}
	}
	return true
}

// Problem returns an error's text as a Problem: one line of ASCII, cut where it
// is too long.
func Problem(err error) string {
	text := []byte(err.Error())
	for i, c := range text {
		if c < ' ' || c > '~' {
			text[i] = '?'
		}
	}
	return string(text[:min(len(text), maxText)])
}
