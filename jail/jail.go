// Package jail starts one sandbox: it reads what the build decided (a [Spec]),
// adds what is known only at the start (the project's folder), and replaces its
// process by bubblewrap.
//
// It promises four things. Nothing of the caller reaches the sandbox but the
// standard descriptors and the project: not its environment, its other
// descriptors or its arguments. Where root is the caller, the sandbox runs as a
// user of its own, whom no other sandbox has. A sandbox starts exactly as
// described or not at all. And whatever prevents that is one sentence, before
// anything starts.
package jail

import "errors"

// Hold is the argument with which the launcher only waits for the end of its
// input: a user namespace needs a process until a descriptor refers to it.
const Hold = "--hold"

// Refusal is why no sandbox starts, and what to do about it.
type Refusal struct {
	Problem string
	Hint    string // empty where the problem says it all
}

func (r *Refusal) Error() string { return r.Problem }

// HintOf returns what to do about an error, or "".
func HintOf(err error) string {
	var refusal *Refusal
	if errors.As(err, &refusal) {
		return refusal.Hint
	}
	return ""
}
