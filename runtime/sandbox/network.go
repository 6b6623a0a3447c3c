package sandbox

import (
	"net/netip"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/network/event"
)

// Network summarizes the proxy's reports during a call. Names are host names in lower case; no text
// in it comes from the code's output.
type Network struct {
	// Refused, Failed and Reached have at most [MaxNetwork] entries each, in the order of their
	// first events. Equal entries are one with a count.
	Refused []Refusal
	Failed  []Failure
	Reached []Reached
	// Omitted counts events that are in none of the lists because these are full.
	Omitted int64
	// Ended says that the proxy ended, so that the sandbox reaches no host any more. Problem is the
	// reason if it is known.
	Ended   bool
	Problem string
}

// MaxNetwork is how many entries each list of a [Network] has at most: 63 in
// all.
const MaxNetwork = 21

// Refusal is an access that the environment's policy does not allow.
type Refusal struct {
	Name string // empty where the code named no host
	// Address is set if the code connected to an address instead of a name, and the address is
	// known.
	Address netip.Addr
	Port    int // 0 for a look-up
	Reason  event.Reason
	// Option is the option that would allow the access, such as network.domains, and Value the
	// missing entry. Both are "" if no option would; Value also if the option is a limit.
	Option, Value string
	// Detail is the refused method or path of a request, if it is plain.
	Detail string
	Count  int64
}

// Failure is a connection that was allowed, and did not come about or broke.
type Failure struct {
	Name    string
	Port    int
	Problem string
	Count   int64
}

// Reached is a host that the code exchanged data with.
type Reached struct {
	Name     string
	Port     int
	Count    int64 // connections that ended
	Up, Down int64 // bytes
}

// Empty reports whether there were no events.
func (n *Network) Empty() bool {
	return n == nil || len(n.Refused)+len(n.Failed)+len(n.Reached) == 0 && n.Omitted == 0 && !n.Ended
}
