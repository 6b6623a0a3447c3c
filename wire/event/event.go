// Package event defines the reports of a sandbox's network proxy to whoever started the sandbox:
// JSON objects, one a line, each at most [MaxLine] bytes.
//
// Code in the sandbox influences the names in events and their number, so both ends are bounded: a
// [Writer] never blocks and never exceeds its rate, and [Parse] accepts only short lines of
// printable ASCII.
package event

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostname"
)

// MaxLine is the longest line of a stream, in bytes, its newline included. It
// is PIPE_BUF on Linux: a pipe takes such a line whole or not at all.
const MaxLine = 4096

// maxText is the longest Problem, in bytes.
const maxText = 512

// Kind says which event happened.
type Kind string

// The kinds. A reader skips kinds that it does not know.
const (
	// Refused reports a look-up, connection or request that the policy does not
	// allow. It is written before the code in the sandbox can see the refusal.
	Refused Kind = "refused"
	// Closed reports the end of a connection that was allowed.
	Closed Kind = "closed"
	// Failed reports an allowed connection or look-up that the host did not answer.
	Failed Kind = "failed"
	// Dropped counts events that were not written, because the stream was full or
	// there were too many.
	Dropped Kind = "dropped"
	// Ended reports that the proxy ended before the sandbox, and why.
	Ended Kind = "ended"
	// Asked asks whether a connection may be made, and its answer is an [Answer].
	Asked Kind = "asked"
)

// Answer is what a reader of events answers to an [Asked] event, in a JSON object of at most
// [MaxLine] bytes. Without a Refused, the connection may be made.
type Answer struct {
	Ask     uint64 `json:"ask"`
	Refused Reason `json:"refused,omitempty"`
}

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

// Event is one line of the stream. Its kind decides which fields are set:
//
//	refused  Name or Address, Port if it was a connection, Reason, Option, Value, Detail, Count
//	closed   Name, Port, Address, Up, Down, Milliseconds
//	failed   Name, Port if it was a connection, Problem, Count
//	dropped  Count
//	ended    Problem
//	asked    Name, Port, Ask
type Event struct {
	Kind Kind `json:"event"`
	// Name is the host's name in its canonical form, or empty.
	Name string `json:"name,omitempty"`
	// Address was dialled or, if Reason is address, asked for by the code in the sandbox. It is the
	// zero Addr if there was no address.
	Address netip.Addr `json:"address,omitzero"`
	Port    uint16     `json:"port,omitempty"`
	Reason  Reason     `json:"reason,omitempty"`
	// Option and Value are the option that would allow the refused access, and the entry to add to
	// it. Both are empty if no option would allow it. Value is empty for a limit.
	Option string `json:"option,omitempty"`
	Value  string `json:"value,omitempty"`
	// Detail is the method or the path of a request that a rule refused, if it is short and plain:
	// see [Detail].
	Detail string `json:"detail,omitempty"`
	// Count is how many equal events this one stands for, at least 1.
	Count int64 `json:"count,omitempty"`
	// Up and Down are the bytes that a connection carried from and to the sandbox.
	Up           int64  `json:"up,omitempty"`
	Down         int64  `json:"down,omitempty"`
	Milliseconds int64  `json:"milliseconds,omitempty"`
	Problem      string `json:"problem,omitempty"`
	// Ask is repeated in the answer.
	Ask uint64 `json:"ask,omitempty"`
}

// RefusedName returns the refusal of a name that no entry allows.
func RefusedName(name string) Event {
	return Event{Kind: Refused, Name: name, Reason: ByName, Option: OptionDomains, Value: name, Count: 1}
}

// Limited returns the refusal of a connection or look-up beyond a limit, which is named by its
// option.
func Limited(name string, port uint16, option string) Event {
	return Event{Kind: Refused, Name: name, Port: port, Reason: ByLimit, Option: option, Count: 1}
}

// Target returns the subject of an event: a name or an address, with its port.
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

// Sentence describes a refusal or a failure for a user or a model, and says how an operator allows
// the access if that is possible. It has no full stop at the end.
func (e Event) Sentence() string {
	if e.Kind == Failed {
		return e.Target() + " is allowed, and did not answer: " + e.Problem
	}
	return "the sandbox's network refused " + e.Target() + " (" + e.Reason.Why(e.Detail) + ")" + e.advice()
}

// advice says how the code, or an operator, avoids a refusal.
func (e Event) advice() string {
	text := ""
	if way := e.Reason.Way(); way != "" {
		text = ". " + way
	}
	switch {
	case e.Reason == ByLimit:
		text += ". An operator sets the limit with " + e.Option
	case e.Option != "" && e.Value != "":
		text += fmt.Sprintf(". Trying again does not help; an operator allows it with %s: %q", e.Option, e.Value)
	}
	return text
}

// check returns an error if the event contradicts the documentation of its type.
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

// Detail returns a method or path as the Detail of an event. It returns "" if the text is longer
// than 100 bytes or contains anything but letters, digits and "/._~-": code in the sandbox wrote
// it, and it appears among the server's own words.
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

// Problem returns an error's text as a Problem: one line of ASCII, truncated if it is too long.
func Problem(err error) string {
	text := []byte(err.Error())
	for i, c := range text {
		if c < ' ' || c > '~' {
			text[i] = '?'
		}
	}
	return string(text[:min(len(text), maxText)])
}
