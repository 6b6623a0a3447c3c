package sandbox

import (
	"net/netip"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/network/event"
)

// Network is what the proxy of a sandbox reported of a call. Names are host
// names in lower case; nothing in it comes from what the code printed.
type Network struct {
	// Refused, Failed and Reached are each at most [MaxNetwork] entries, in the
	// order in which their first event came. Equal ones are one with a count.
	Refused []Refusal
	Failed  []Failure
	Reached []Reached
	// Omitted is how many events are in none of the lists, because these are
	// full.
	Omitted int64
	// Ended says that the proxy ended, so that the sandbox reaches nothing any
	// more; Problem says why, where that is known.
	Ended   bool
	Problem string
}

// MaxNetwork is how many entries each list of a [Network] has at most: 63 in
// all.
const MaxNetwork = 21

// Refusal is what the policy of the environment does not allow.
type Refusal struct {
	Name string // empty where the code named no host
	// Address is what the code meant where it named no host; the zero Addr
	// otherwise, or where that is not known.
	Address netip.Addr
	Port    int // 0 for a look-up
	Reason  event.Reason
	// Option is the option that would allow it, such as network.domains, and
	// Value the entry that it lacks. Both are empty where no option does, Value
	// also where the option is a limit.
	Option, Value string
	// Detail is the method or path of a request that a rule does not contain, where it
	// is plain.
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

// Reached is a host with which the code exchanged data.
type Reached struct {
	Name     string
	Port     int
	Count    int64 // connections that ended
	Up, Down int64 // bytes
}

// Empty reports whether there is nothing to tell.
func (n *Network) Empty() bool {
	return n == nil || len(n.Refused)+len(n.Failed)+len(n.Reached) == 0 && n.Omitted == 0 && !n.Ended
}
