package tool

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/event"
)

const (
	// hostsBytes bounds the hosts that a sentence about an environment names.
	hostsBytes = 64
	// maxNamed is how many refusals or failures a remark names.
	maxNamed = 3
	// maxPortsNamed is how many ports a sentence names.
	maxPortsNamed = 4
	// maxValue bounds a value of an option, in bytes: a host name and a port.
	maxValue = 260
)

// reach says which hosts an environment reaches, and on which ports.
func reach(n *registry.Network) string {
	text := "this env reaches " + n.Hosts(hostsBytes)
	if count := len(n.Ports); count > 0 && count <= maxPortsNamed {
		text += fmt.Sprintf(" on port%s ", plural(int64(count)))
		for i, port := range n.Ports {
			text += separators(i, count) + strconv.Itoa(port)
		}
	}
	return text
}

// separators returns the text before the item at an index in a list of so many.
func separators(i, count int) string {
	switch i {
	case 0:
		return ""
	case count - 1:
		return " and "
	}
	return ", "
}

// plural is the ending of a noun for a number of things.
func plural(count int64) string {
	if count == 1 {
		return ""
	}
	return "s"
}

// endpoint names a host, with its port unless that is 0.
func endpoint(name string, port int) string {
	switch {
	case name == "":
		return "a host without a name"
	case port == 0:
		return name
	}
	return net.JoinHostPort(name, strconv.Itoa(port))
}

// network tells the model about the code's network accesses. The words come only from the proxy's
// reports, so that output of the code cannot be mistaken for them.
func (a answer) network() []string {
	n := a.result.Network
	if n == nil || a.call.Env.Network == nil {
		return nil
	}
	var sentences []string
	if n.Ended && a.err == nil {
		sentences = append(sentences, a.networkEnded())
	}
	if len(n.Refused) > 0 {
		sentences = append(sentences, refused(n, a.call.Env))
	}
	if len(n.Failed) > 0 {
		sentences = append(sentences, unanswered(n))
	}
	return sentences
}

func (a answer) networkEnded() string {
	text := "the proxy of this sandbox ended"
	if problem := a.result.Network.Problem; problem != "" {
		text += ": " + problem
	}
	text += ". This is no denial: "
	if a.call.Session == "" {
		return text + "call again"
	}
	return text + "the session reaches no host any more, and one with another id does"
}

// unanswered says that allowed hosts could not be reached.
func unanswered(n *sandbox.Network) string {
	failures := n.Failed
	var named []string
	for _, f := range failures[:min(len(failures), maxNamed)] {
		text := endpoint(f.Name, f.Port)
		if f.Problem != "" {
			text += " (" + f.Problem + ")"
		}
		named = append(named, text)
	}
	text := joined(named, len(failures)-len(named), n.Omitted > 0)
	if len(failures) == 1 {
		return text + " is allowed, and did not answer"
	}
	return text + " are allowed, and did not answer"
}

// joined lists things, and says how many more there are. atLeast says that further ones were not
// counted.
func joined(named []string, more int, atLeast bool) string {
	if more > 0 && atLeast {
		return fmt.Sprintf("%s and at least %d more", strings.Join(named, ", "), more)
	}
	if more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(named, ", "), more)
	}
	text := ""
	for i, name := range named {
		text += separators(i, len(named)) + name
	}
	return text
}

// limits are the limits of a sandbox on the network, by the option's name: the counted things, and
// the code's way around a refusal.
var limits = map[string]struct{ counts, way string }{
	"connections": {"connections at once", "Close some first"},
	"rate":        {"new connections a second", "Go slower"},
	"megabytes":   {"MB in all", ""},
	"names":       {"names", ""},
}

// refused lists the refusals of the policy, with advice.
func refused(n *sandbox.Network, env registry.Environment) string {
	var named, advice []string
	var wanted options
	unknown := false // hosts were asked for that are not the environment's
	again := true    // it may go better the next time
	ruled := ""      // a host whose rule refused a request
	for i, r := range n.Refused {
		if i < maxNamed {
			named = append(named, refusal(r, env))
			wanted.add(r, env)
			if r.Option == event.OptionRules {
				ruled = r.Value
			}
		}
		unknown = unknown || r.Reason == event.ByName || r.Reason == event.ByPort || r.Reason == event.ByAddress
		way := r.Reason.Way()
		if r.Reason == event.ByLimit {
			way = limits[optionName(r)].way
		}
		again = again && (r.Reason == event.ByLimit || r.Reason == event.ByNobody) && way != ""
		if way != "" && !slices.Contains(advice, way) && len(advice) < maxNamed {
			advice = append(advice, way)
		}
	}
	text := "refused " + joined(named, len(n.Refused)-len(named), n.Omitted > 0)
	if unknown {
		text += "; " + reach(env.Network)
	}
	if len(advice) > 0 {
		text += ". " + strings.Join(advice, ". ")
	}
	table := "[environments." + env.Name + ".network"
	if env.Network.OfDefaults {
		table = "[defaults.network"
	}
	ask := ". Trying again does not help: do without, or ask the user to "
	switch settings := wanted.String(); {
	case settings != "" && again:
		text += ", or ask the user to add " + table + "] " + settings
	case settings != "":
		text += ask + "add " + table + "] " + settings
	case ruled != "":
		text += ask + "widen " + table + ".rules." + strconv.Quote(ruled) + "]"
	}
	return text
}

// refusal names a refused host, and says why unless the name says it.
func refusal(r sandbox.Refusal, env registry.Environment) string {
	where, why := endpoint(r.Name, r.Port), r.Reason.Why(short(r.Detail))
	switch r.Reason {
	case event.ByName:
		return cmp.Or(r.Name, "something that is no host's name")
	case event.ByAddress:
		if !r.Address.IsValid() {
			return why
		}
		where = endpoint(r.Address.String(), r.Port)
	case event.ByPrivate:
		where = r.Name
	case event.ByLimit:
		why = "over the limit of " + optionName(r)
		if now := env.Network.Limits[optionName(r)]; now > 0 {
			why = fmt.Sprintf("over the limit of %d %s", now, limits[optionName(r)].counts)
		}
	}
	return where + " (" + why + ")"
}

// maxDetail is the longest method or path that a remark quotes, in bytes. Code chose it, and a
// longer one could be a sentence among the server's words; facts for programs have all of it.
const maxDetail = 24

func short(detail string) string {
	if len(detail) > maxDetail {
		return ""
	}
	return detail
}

// optionName is the name of the option that would allow the access, as it is written in a network,
// or "" if no option would.
func optionName(r sandbox.Refusal) string { return strings.TrimPrefix(r.Option, "network.") }

// options are settings of a network that would allow refused accesses.
type options []option

type option struct {
	name   string
	values []string // in TOML; more than one are an array
	list   bool
}

// add takes the setting that a refusal asks for: an entry for a list, or twice
// the limit.
func (o *options) add(r sandbox.Refusal, env registry.Environment) {
	name := optionName(r)
	wanted := option{name: name, values: []string{strconv.Quote(r.Value)}, list: true}
	switch _, isLimit := limits[name]; {
	case isLimit && env.Network.Limits[name] > 0:
		wanted = option{name: name, values: []string{strconv.FormatInt(2*env.Network.Limits[name], 10)}}
	case name != "domains" && name != "private", r.Value == "", len(r.Value) > maxValue:
		return
	}
	i := slices.IndexFunc(*o, func(other option) bool { return other.name == name })
	switch {
	case i < 0:
		*o = append(*o, wanted)
	case !slices.Contains((*o)[i].values, wanted.values[0]):
		(*o)[i].values = append((*o)[i].values, wanted.values...)
	}
}

// String is the settings in TOML, in one line.
func (o options) String() string {
	var settings []string
	for _, option := range o {
		value := strings.Join(option.values, ", ")
		if option.list {
			value = "[" + value + "]"
		}
		settings = append(settings, option.name+" = "+value)
	}
	return strings.Join(settings, ", ")
}
