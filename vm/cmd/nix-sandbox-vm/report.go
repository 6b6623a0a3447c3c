package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/machine"
)

// reportsVariable names the descriptor for reports, JSON objects, one a line
// (docs/contracts.md, C1). It is no secret, and the machine does not get it.
const reportsVariable = "NIX_SANDBOX_REPORTS"

// startReport is a line about the start of a machine.
type startReport struct {
	Isolation machine.Accelerator `json:"isolation,omitempty"`
	Start     string              `json:"start,omitempty"` // cold, or copy
	// ProjectChanged says of a machine that goes on that it shows its project as it was.
	ProjectChanged bool `json:"project_changed,omitempty"`
}

// openReports returns a function that reports on the descriptor that the variable names. If the
// variable is empty, the function does nothing.
func openReports(value string) (func(startReport), error) {
	if value == "" {
		return func(startReport) {}, nil
	}
	file, err := given(reportsVariable, value)
	if err != nil {
		return nil, err
	}
	encoder := json.NewEncoder(file)
	return func(report startReport) { _ = encoder.Encode(report) }, nil // its reader may be gone
}

// given returns the descriptor that a variable contains the number of.
func given(variable, value string) (*os.File, error) {
	fd, err := number(variable, value)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), variable), nil
}

// number returns the number of a descriptor, which a variable contains.
func number(variable, value string) (int, error) {
	fd, err := strconv.Atoi(value)
	if err == nil && fd > 2 {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC)
	}
	if err != nil || fd <= 2 {
		return 0, &jail.Refusal{
			Problem: fmt.Sprintf("%s is %q, which is not the number of a descriptor", variable, value),
			Hint:    "leave it unset",
		}
	}
	return fd, nil
}
