package sandbox

import (
	"net/netip"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/event"
)

// Network summarizes the proxy's reports during a call. Names are host names in lower case; no text
// in it comes from the code's output. Its JSON is a fact of the call for programs.
type Network struct {
	// Refused, Failed and Reached have at most [MaxNetwork] entries each, in the order of their
	// first events. Equal entries are one with a count.
	Refused []Refusal `json:"refused,omitempty"`
	Failed  []Failure `json:"failed,omitempty"`
	Reached []Reached `json:"reached,omitempty"`
	// Omitted counts events that are in none of the lists because these are full.
	Omitted int64 `json:"omitted,omitempty"`
	// Ended says that the proxy ended, so that the sandbox reaches no host any more. Problem is the
	// reason if it is known.
	Ended   bool   `json:"ended,omitempty"`
	Problem string `json:"-"`
}

// MaxNetwork is how many entries each list of a [Network] has at most: 63 in
// all.
const MaxNetwork = 21

// Refusal is an access that the environment's policy does not allow.
type Refusal struct {
	Name string `json:"name,omitempty"` // empty if the code named no host
	// Address is set if the code connected to an address instead of a name, and the address is
	// known.
	Address netip.Addr   `json:"address,omitzero"`
	Port    int          `json:"port,omitempty"` // 0 for a look-up
	Reason  event.Reason `json:"reason"`
	// Option is the option that would allow the access, such as network.domains, and Value the
	// missing entry. Both are "" if no option would; Value also if the option is a limit.
	Option string `json:"-"`
	Value  string `json:"-"`
	// Detail is the refused method or path of a request, if it is plain.
	Detail string `json:"detail,omitempty"`
	Count  int64  `json:"count"`
}

// Failure is a connection that was allowed, and did not come about or broke.
type Failure struct {
	Name    string `json:"name,omitempty"`
	Port    int    `json:"port,omitempty"`
	Problem string `json:"problem"`
	Count   int64  `json:"count"`
}

// Reached is a host that the code exchanged data with.
type Reached struct {
	Name  string `json:"name,omitempty"`
	Port  int    `json:"port,omitempty"`
	Count int64  `json:"count"`      // connections that ended
	Up    int64  `json:"bytes_up"`   // bytes
	Down  int64  `json:"bytes_down"` // bytes
}

// Empty reports whether there were no events.
func (n *Network) Empty() bool {
	return n == nil || len(n.Refused)+len(n.Failed)+len(n.Reached) == 0 && n.Omitted == 0 && !n.Ended
}
