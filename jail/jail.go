// Package jail starts one sandbox: it reads the description that the build wrote (a
// [Spec]), adds the facts that only the start knows, such as the project's folder, and
// replaces its process by bubblewrap.
//
// It promises four things. The sandbox gets the caller's standard descriptors and the
// project, but not its environment, other descriptors or arguments. If root is the
// caller, the sandbox runs as a user that no other sandbox has. A sandbox starts exactly
// as described or not at all. An error is one sentence, before anything starts.
package jail

import (
	"errors"
	"os"
)

// Hold is the argument that has the launcher only wait for the end of its input:
// until a descriptor refers to a user namespace, the namespace needs a process.
const Hold = "--hold"

// Step is the argument that has the launcher, in the outer namespace, do what only a process there
// can, and then become the sandbox's bubblewrap. A step in JSON and a command line follow it.
const Step = "--step"

// WatchStep is the argument that has the launcher watch the process that started it: see [Watch].
const WatchStep = "--watch"

// firstExtra is the first descriptor after the standard ones.
const firstExtra = 3

// CarrierFD is the descriptor of the program that [Spec.StartCarrier] starts.
const CarrierFD = firstExtra + 1

// certificatesFD is its next one, the certificates that the sandbox trusts, if the network has any.
const certificatesFD = CarrierFD + 1

// CarrierCertificates returns these certificates in the program that [Spec.StartCarrier] started, or nil.
func CarrierCertificates() ([]byte, error) {
	file := os.NewFile(certificatesFD, "certificates")
	info, err := file.Stat()
	if err != nil {
		return nil, nil // it is closed
	}
	text := make([]byte, info.Size())
	_, err = file.ReadAt(text, 0)
	return text, err
}

// Refusal is an error that says why no sandbox starts and what to do about it.
type Refusal struct {
	Problem string
	Hint    string // may be empty
}

// rebuild is the hint if a file of the build is missing.
const rebuild = "build the sandbox again, so that its parts are in the store"

func (r *Refusal) Error() string { return r.Problem }

// HintOf returns the hint of an error, or "".
func HintOf(err error) string {
	var refusal *Refusal
	if errors.As(err, &refusal) {
		return refusal.Hint
	}
	return ""
}
