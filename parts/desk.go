package parts

import (
	"context"
	"os"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/ask"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk/visit"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk/watch"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/service"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
)

// addDesk lets the user's commands ask this server. Each verb is a line of the list; more are those
// of the program that serves.
func addDesk(options *service.Options, server *service.Server, calls *watch.Server, more []desk.Verb) *visit.Visits {
	options.Observers = append(options.Observers, calls)
	visits := visit.New(server.Base.Session.Forward)
	options.Parts = append(options.Parts, visits)
	verbs := []desk.Verb{
		desk.Answer("status", func() any { return calls.Now() }),
		ask.Verb(options.Asking),
	}
	verbs = append(append(verbs, visits.Verbs()...), more...)
	options.OnSessions = append(options.OnSessions, visits.SetSessions, func(m *session.Manager) { calls.SetSessions(m.List) })
	server.AfterAnswer(func(ctx context.Context) {
		desk.Serve(ctx, config.DeskFolders(os.Getenv), server.Settings.Shown(), verbs, server.Log)
	})
	return visits
}
