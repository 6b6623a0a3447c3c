package jail

import (
	"encoding/json"
	"io"
)

// CheckName is the name of the program of an artifact that checks the machine and starts
// no sandbox.
const CheckName = "check"

// Finding is the state of one requirement of sandboxes on a machine.
type Finding struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Needed reports that no sandbox starts without it.
	Needed bool `json:"needed"`
	// Found describes the state, or the problem.
	Found string `json:"found"`
	// Fix says what to do about a problem, or is empty.
	Fix string `json:"fix,omitempty"`
}

// WriteFindings writes findings as bin/check prints them: one JSON object.
func WriteFindings(w io.Writer, findings []Finding) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(struct {
		Findings []Finding `json:"findings"`
	}{findings})
}

// needed returns the finding about a requirement: its state, or the error.
func needed(name, found string, err error) Finding {
	if err != nil {
		return Finding{Name: name, Needed: true, Found: err.Error(), Fix: HintOf(err)}
	}
	return Finding{Name: name, Needed: true, OK: true, Found: found}
}
