package registry

import (
	"fmt"
	"strings"

	"github.com/tidwall/gjson"
)

// Network lists the hosts that an environment reaches. The artifact enforces it; the runtime
// describes it.
type Network struct {
	// Domains are host names such as files.example, *.host.example and git.example:22. The list may
	// be empty if the artifact is of a later version.
	Domains []string
	// Ask are hosts like Domains, about which the user is asked.
	Ask []string
	// Ports apply to domains without a port.
	Ports []int
	// Limits are the numbers of the options that limit connections, by name.
	// Artifacts need not have them.
	Limits map[string]int64
	// Secrets name the variables of the server's own environment that contain the credentials of
	// the network. The launcher reads them; sandboxes never do.
	Secrets []string
	// OfDefaults says that the configuration has this network in its defaults, and that
	// the environment has no table of its own.
	OfDefaults bool
}

// Hosts names the domains that fit into limit bytes, and says how many there
// are besides.
func (n *Network) Hosts(limit int) string {
	text, shown := "", 0
	for _, domain := range n.Domains {
		longer := strings.TrimPrefix(text+", "+domain, ", ")
		if len(longer) > limit {
			break
		}
		text, shown = longer, shown+1
	}
	switch more := len(n.Domains) - shown; {
	case len(n.Domains) == 0:
		return "hosts that its operator named"
	case shown > 0 && more > 0:
		return fmt.Sprintf("%s +%d", text, more)
	case shown > 0:
		return text
	case more == 1:
		return "1 host"
	default:
		return fmt.Sprintf("%d hosts", more)
	}
}

// Bounds of the fields of a network.
const (
	maxDomain = 300 // bytes: a host name has at most 253
	maxPorts  = 65535
)

// network reads the hosts that an environment reaches, or returns nil if there are none.
func (r *reader) network(field string) *Network {
	value, ok := r.get(field)
	mode := value.Get("mode")
	switch {
	case !ok, value.Str == "none", mode.Str == "none":
		return nil
	case !r.check(field, value, value.IsObject() && mode.Type == gjson.String, `"none" or an object with a mode`):
		return nil
	}
	fields := reader{where: r.where, prefix: r.prefix + field + ".", object: value}
	n := &Network{Secrets: fields.names("secrets"), OfDefaults: fields.flag("of_defaults")}
	isHost := func(name string) bool {
		return name != "" && len(name) <= maxDomain && !strings.ContainsFunc(name, isNoHost)
	}
	n.Domains, n.Ask = fields.list("domains", "a host name", isHost), fields.list("ask", "a host name", isHost)
	if ports, ok := fields.get("ports"); ok && fields.check("ports", ports, ports.IsArray(), "an array of ports") {
		for _, item := range ports.Array() {
			port := int(item.Num)
			if item.Type != gjson.Number || float64(port) != item.Num || port < 1 || port > 65535 || len(n.Ports) == maxPorts {
				fields.fail("ports", fmt.Sprintf("contains %.100s, it must be an array of numbers from 1 to 65535", item.Raw))
				break
			}
			n.Ports = append(n.Ports, port)
		}
	}
	for _, limit := range []string{"connections", "rate", "megabytes", "names"} {
		if _, ok := fields.get(limit); ok {
			if n.Limits == nil {
				n.Limits = map[string]int64{}
			}
			n.Limits[limit] = fields.whole(limit)
		}
	}
	if r.err = fields.err; r.err != nil {
		return nil
	}
	return n
}

// isNoHost reports whether a character is in no entry of domains.
func isNoHost(r rune) bool {
	return !('a' <= r && r <= 'z' || '0' <= r && r <= '9' || strings.ContainsRune("-_.*:", r))
}
