// Package tool is what the model sees: the tool run, the files of sessions as
// resources, and the words of every answer.
//
// It promises answers that can be acted on: what the code wrote, what became
// of it, and for a call that cannot run one sentence that says what to do
// instead. It never answers with more than the environment allows.
package tool

import (
	"context"
	"encoding/json"
	"log/slog"
	"reflect"
	"regexp"
	"strings"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
	"github.com/tidwall/gjson"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
)

// name is the tool's.
const name = "run"

// Tool answers calls of run.
type Tool struct {
	catalog *registry.Registry
	project string // where the project is mounted; empty where there is none
	overlay bool   // whether code may write there, and it is thrown away
	manager *session.Manager
	log     *slog.Logger
	every   time.Duration // progressEvery, but for tests
}

// New returns the tool for a catalog of environments. Project is the
// project's place in every sandbox, or empty.
func New(environments *registry.Registry, project string, manager *session.Manager, log *slog.Logger) *Tool {
	return &Tool{catalog: environments, project: project, manager: manager, log: log, every: progressEvery}
}

// ProjectIsOverlaid says that code may write into the project, and that what
// it writes is thrown away. For the time before the tool is served.
func (t *Tool) ProjectIsOverlaid() { t.overlay = true }

// Server returns an MCP server that offers the tool. It tells its clients when
// the list of tools has changed, until the returned function is called.
func (t *Tool) Server(version string) (s *server.MCPServer, stop func()) {
	hooks := &server.Hooks{}
	hooks.AddAfterInitialize(func(_ context.Context, _ any, _ *mcp.InitializeRequest, result *mcp.InitializeResult) {
		result.Instructions = t.list().instructions()
	})
	hooks.AddAfterDiscover(func(_ context.Context, _ any, _ *mcp.DiscoverRequest, result *mcp.DiscoverResult) {
		result.Instructions = t.list().instructions()
	})
	s = server.NewMCPServer("nix-sandbox-mcp", version,
		server.WithHooks(hooks),
		server.WithToolCapabilities(true),
		server.WithResourceCapabilities(false, false),
		server.WithRecovery(),
		server.WithResourceRecovery(),
	)
	s.AddResourceTemplate(template(), t.read)
	// A change that comes before the tool is offered waits until then.
	offered := make(chan struct{})
	var shown mcp.Tool
	stop = t.catalog.Subscribe(func(_, after *registry.Snapshot) {
		<-offered
		// A client that is told fetches the list and pays for it, so it is
		// told of what it would see alone.
		if next := (listing{after, t.project, t.overlay}).definition(); !reflect.DeepEqual(next, shown) {
			shown = next
			s.SetTools(server.ServerTool{Tool: shown, Handler: t.run})
		}
	})
	shown = t.list().definition()
	s.AddTool(shown, t.run)
	close(offered)
	return s, stop
}

// validSession is what a session may be called.
var validSession = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// placeKey and refusalKey mark what the transport put into a call's context.
type (
	placeKey   struct{}
	refusalKey struct{}
	loanKey    struct{}
)

// Admit takes the call's place in the line of its session.
func (t *Tool) Admit(ctx context.Context, method string, params json.RawMessage) (context.Context, func()) {
	var id string
	switch method {
	case string(mcp.MethodToolsCall):
		if gjson.GetBytes(params, "name").Str == name {
			id = gjson.GetBytes(params, "arguments.session").Str
		}
	case string(mcp.MethodResourcesRead):
		id, _, _ = strings.Cut(strings.TrimPrefix(gjson.GetBytes(params, "uri").Str, scheme), "/")
	}
	if !validSession.MatchString(id) {
		return ctx, func() {}
	}
	place := t.manager.Enqueue(id)
	return context.WithValue(ctx, placeKey{}, place), place.Leave
}

// Refuse has the call answered with the reason why it does not run.
func (t *Tool) Refuse(ctx context.Context, reason string) context.Context {
	return context.WithValue(ctx, refusalKey{}, reason)
}

// loan is a text that the arguments name by its stand-in.
type loan struct{ standIn, text string }

// Lend brings a text beside the arguments in which standIn stands for it.
func (t *Tool) Lend(ctx context.Context, standIn, text string) context.Context {
	return context.WithValue(ctx, loanKey{}, loan{standIn, text})
}

// place returns the call's place in the line of a session: the one that it
// was admitted with or, with a transport that admits nothing, the next.
func (t *Tool) place(ctx context.Context, id string) (*session.Place, func()) {
	place, admitted := ctx.Value(placeKey{}).(*session.Place)
	if admitted && place.Session() == id {
		// Left before the answer is written: whoever has read the answer
		// finds the session idle.
		return place, place.Leave
	}
	if admitted {
		// The arguments name two sessions. Nobody stands in two lines: two
		// such calls could wait for each other.
		place.Leave()
	}
	place = t.manager.Enqueue(id)
	return place, place.Leave
}

// run answers a call of the tool. What goes wrong is an answer too: a Go
// error would reach the model as a failure of the protocol.
func (t *Tool) run(ctx context.Context, request mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	began := time.Now()
	if reason, refused := ctx.Value(refusalKey{}).(string); refused {
		t.log.Warn("call refused", "reason", reason)
		return mcp.NewToolResultError(reason), nil
	}
	args, err := t.list().arguments(request.Params.RawArguments, t.started)
	if err != nil {
		t.log.Info("call", "env", bounded(args.Env), "session", bounded(args.Session), "outcome", "refused", "reason", firstLine(err.Error()))
		return mcp.NewToolResultError(err.Error()), nil
	}
	if lent, ok := ctx.Value(loanKey{}).(loan); ok && args.Code == lent.standIn {
		args.Code = lent.text
	}
	answer := t.execute(ctx, request, args)
	result := answer.result()
	t.log.Info("call",
		"env", args.Env,
		"session", args.Session,
		"outcome", answer.outcome(),
		"exit_code", answer.ended.ExitCode,
		"duration_ms", time.Since(began).Milliseconds(),
		"code_bytes", len(args.Code),
		"output_bytes", answer.size(),
	)
	return result, nil
}

// started returns the environment that a live session of this id was started
// from.
func (t *Tool) started(session string) (registry.Environment, bool) {
	if !validSession.MatchString(session) {
		return registry.Environment{}, false
	}
	return t.manager.Environment(session)
}

// firstLine is a sentence without the list after it.
func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// bounded is a client's text as it may stand in a log.
func bounded(text string) string {
	if len(text) > 64 {
		return text[:64]
	}
	return text
}
