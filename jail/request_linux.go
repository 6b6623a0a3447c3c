package jail

import (
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/handover"
)

// Request is what the caller asks for when it starts a sandbox. A descriptor of 0 means
// that the caller did not give it.
type Request struct {
	Project Project
	// Inbox is another folder that the sandbox sees, read-only: an absolute path on the
	// host, or empty.
	Inbox string
	// Workspace is the descriptor of a workspace that other sandboxes use too.
	Workspace int
	// Overlay is the descriptor of a project that is Shared.
	Overlay int
	// Upper is the descriptor of the socket that gets the upper layer of the project's
	// overlay.
	Upper int
	// Events is the descriptor that gets the events of the network's proxy.
	Events int
	// Carrier is the descriptor of the socket that takes the network's sockets in a virtual machine.
	Carrier int
	// CodeGroup is the descriptor of a control group for the code.
	CodeGroup int
	// devices is the plan for the sandbox's devices, or nil.
	devices *DevicePlan
	// logs reports that standard error is a log and not the code's own.
	logs bool
}

// The variables with numbers of descriptors that the launcher inherits.
const (
	workspaceVariable = "NIX_SANDBOX_WORKSPACE"
	overlayVariable   = "NIX_SANDBOX_OVERLAY"
	upperVariable     = "NIX_SANDBOX_UPPER"
	// CarrierVariable is for a socket (package handover) of a virtual machine's first process.
	CarrierVariable = "NIX_SANDBOX_CARRIER"
	// codeGroupVariable is for a folder of a control group. The agent starts the code in
	// that group and reads its events. The sandbox's user may write to its cgroup.procs.
	// Whoever sets the variable has set the group's limits.
	codeGroupVariable = "NIX_SANDBOX_CODE_GROUP"
)

// codeGroupOption tells the agent about the control group.
const codeGroupOption = "--group"

// Hints for variables that users do not set.
const (
	byServer  = "leave it unset: only the server sets it"
	byMachine = "leave it unset: only the first process of a virtual machine sets it"
)

// ReadRequest reads the request from environment variables: get returns the value of a
// variable, or "".
func (s *Spec) ReadRequest(get func(string) string) (Request, error) {
	var request Request
	var err error
	if request.Project, err = s.readProject(get(projectVariable), get("PROJECT_MOUNT"), get("PROJECT_MODE")); err != nil {
		return request, err
	}
	if request.Inbox, err = ReadInbox(get); err != nil {
		return request, err
	}
	if request.Inbox != "" && s.InboxMount == "" {
		return request, &Refusal{Problem: inboxVariable + " is set, and this sandbox shows no inbox", Hint: "leave it unset"}
	}
	for _, given := range []struct {
		to             *int
		variable, want string
		hint           string
		ignored        bool
	}{
		{&request.Workspace, workspaceVariable, "the folder of a workspace", byServer, false},
		{&request.Overlay, overlayVariable, "the folder of an overlay", byServer, !request.Project.Shared},
		{&request.Upper, upperVariable, "a socket", byServer, !request.Project.Overlay},
		{&request.Events, handover.EventsVariable, "a file that can be written to", "leave it unset: refusals are then written to standard error", s.Network == nil},
		{&request.Carrier, CarrierVariable, "a socket", byMachine, s.Network == nil || s.Network.Proxy != ""},
		{&request.CodeGroup, codeGroupVariable, "a control group", byMachine, false},
	} {
		value := get(given.variable)
		if value == "" || given.ignored {
			continue
		}
		fd, err := strconv.Atoi(value)
		if err == nil && fd >= firstExtra {
			_, err = unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		}
		if err != nil || fd < firstExtra {
			return request, &Refusal{
				Problem: fmt.Sprintf("%s is %q, which is not the number of a descriptor of %s", given.variable, value, given.want),
				Hint:    given.hint,
			}
		}
		*given.to = fd
	}
	if request.Project.Shared && (request.Overlay == 0 || request.Workspace == 0) {
		return request, &Refusal{Problem: "PROJECT_MODE is \"shared\", and there is no holder of a workspace that has the project", Hint: "set PROJECT_MODE to readonly or overlay, or leave it unset"}
	}
	if s.Network != nil && s.Network.Proxy == "" && request.Carrier == 0 {
		return request, &Refusal{Problem: "this sandbox has its network from a virtual machine, and " + CarrierVariable + " is not set", Hint: byMachine}
	}
	if request.Workspace != 0 && s.Workspace == nil {
		return request, &Refusal{Problem: "this sandbox cannot share its workspace", Hint: "build the sandbox again with mkSandbox"}
	}
	return request, nil
}

// inherit keeps a descriptor open across execve, unless it is 0.
func inherit(fd int) error {
	if fd == 0 {
		return nil
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
		return fmt.Errorf("keep the descriptor %d open: %w", fd, err)
	}
	return nil
}
