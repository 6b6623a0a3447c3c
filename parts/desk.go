package parts

import (
	"context"
	"os"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/ask"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/desk"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/desk/visit"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/desk/watch"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/service"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
)

// addDesk lets the user's commands ask this server. Each verb is a line of the list; more are those
// of the program that serves.
func addDesk(options *service.Options, server *service.Server, more []desk.Verb) {
	calls := watch.New()
	var sessions *session.Manager
	options.Observers = append(options.Observers, calls)
	options.OnSessions = append(options.OnSessions, func(m *session.Manager) { sessions = m })
	visits := visit.New(server.Base.Session.Forward)
	options.Parts = append(options.Parts, visits)
	verbs := []desk.Verb{
		desk.Answer("status", func() any {
			return calls.Status(command.Version(), server.Environments.Now().Names(), sessions.List())
		}),
		ask.Verb(options.Asking),
	}
	verbs = append(append(verbs, visits.Verbs()...), more...)
	options.OnSessions = append(options.OnSessions, visits.SetSessions)
	server.AfterAnswer(func(ctx context.Context) {
		desk.Serve(ctx, config.DeskFolders(os.Getenv), server.Settings.Shown(), verbs, server.Log)
	})
}
