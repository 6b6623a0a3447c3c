package call

import (
	"context"
	"slices"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

// Choice is what a user answers to a question.
type Choice string

// The choices. Nobody says that no user could be asked, or answered in time.
const (
	No         Choice = "no"
	Once       Choice = "once"
	ForSession Choice = "session"
	Always     Choice = "always" // as long as the server runs
	Nobody     Choice = ""
)

// Matter is what a user is asked about. Its texts may come from code: package ask quotes them in
// words of its own.
type Matter struct {
	Kind MatterKind
	// Name is the host with its port, the tool with its server, or the environment.
	Name string
	// Arguments are those of a tool, or the packages.
	Arguments string
	// Option is the line of the configuration that allows it without a question, and Table the
	// table that the line belongs to.
	Table, Option string
}

// MatterKind says what happens if the user allows it.
type MatterKind string

// The kinds.
const (
	ToHost   MatterKind = "host"     // the code connects to a host; once is as long as the call runs
	ToTool   MatterKind = "tool"     // the code calls a tool with these arguments
	Packages MatterKind = "packages" // packages are built and added
)

// Question is a question to a user. Its words are the server's own; what is quoted in them has no
// character that could hide or change others.
type Question struct {
	ID                      string
	Principal, Session, Env string
	Kind                    MatterKind
	// Text says what is about to happen, in a few lines.
	Text string
	// Choices are the question's own.
	Choices []Labelled
	// Lines are for the configuration, to allow it without a question.
	Lines string
	// Asked is when it was asked, and Until when it is refused.
	Asked, Until time.Time
}

// Labelled is a choice in words.
type Labelled struct {
	Choice Choice
	Label  string
}

// Offers reports whether a question has a choice.
func (q Question) Offers(choice Choice) bool {
	return slices.ContainsFunc(q.Choices, func(one Labelled) bool { return one.Choice == choice })
}

// Way asks a user.
type Way interface {
	// Put shows a question until ctx ends, and returns the user's choice. The error says that the
	// question was not answered this way.
	Put(ctx context.Context, question Question) (Choice, error)
}

// User is asked for one call. Its methods may be called at the same time.
type User interface {
	// Decide waits for the user's choice, until ctx ends.
	Decide(ctx context.Context, matter Matter) Choice
	// Serve has a request ask the user, if its environment may.
	Serve(request *sandbox.Request)
	// MayAsk says that the code of the call may have to wait for the user.
	MayAsk()
}
