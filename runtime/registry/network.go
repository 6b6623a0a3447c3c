package registry

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Network lists the hosts that an environment reaches. The artifact enforces it; the runtime
// describes it.
type Network struct {
	// Mode is allow. That of an artifact of a later version may be another one.
	Mode string `json:"mode"`
	// Domains are host names such as files.example, *.host.example and git.example:22. The list may
	// be empty if the artifact is of a later version.
	Domains []string `json:"domains"`
	// Ask are hosts like Domains, about which the user is asked.
	Ask []string `json:"ask"`
	// Ports apply to domains without a port.
	Ports []int `json:"ports"`
	// Limits are the numbers of the options that limit connections, by name.
	// Artifacts need not have them.
	Limits map[string]int64 `json:"-"`
	// Secrets name the variables of the server's own environment that contain the credentials of
	// the network. The launcher reads them; sandboxes never do.
	Secrets []string `json:"secrets"`
	// OfDefaults says that the configuration has this network in its defaults, and that
	// the environment has no table of its own.
	OfDefaults bool `json:"of_defaults"`
}

// Hosts names the domains that fit into limit bytes, and says how many there
// are besides, and whether the user may be asked about others.
func (n *Network) Hosts(limit int) string {
	if len(n.Ask) == 0 {
		return n.named(limit)
	}
	if len(n.Domains) == 0 {
		return "hosts that the user is asked about"
	}
	return n.named(limit) + ", and others that the user is asked about"
}

func (n *Network) named(limit int) string {
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

// UnmarshalJSON reads the object, in which the limits are beside the other fields.
func (n *Network) UnmarshalJSON(text []byte) error {
	type Plain Network
	read := struct {
		*Plain
		Connections uint32 `json:"connections"`
		Rate        uint32 `json:"rate"`
		Megabytes   uint32 `json:"megabytes"`
		Names       uint32 `json:"names"`
	}{Plain: (*Plain)(n)}
	err := json.Unmarshal(text, &read)
	for name, limit := range map[string]uint32{"connections": read.Connections, "rate": read.Rate, "megabytes": read.Megabytes, "names": read.Names} {
		if limit == 0 {
			continue
		}
		if n.Limits == nil {
			n.Limits = map[string]int64{}
		}
		n.Limits[name] = int64(limit)
	}
	return err
}
