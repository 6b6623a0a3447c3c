package parts

import (
	"context"
	"os"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/ask"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk/visit"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk/watch"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/service"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
)

// addDesk lets the user's commands ask this server. Each verb is a line of the list.
func addDesk(options *service.Options, server *service.Server, book *ask.Book, answer func(call.Call) sandbox.Ask, with With) {
	calls := with.Calls
	if calls == nil {
		calls = watch.New(server.Environments)
	}
	calls.Project = options.Host.Project.Dir
	options.Tool.Observers = append(options.Tool.Observers, calls)
	visits := visit.New(visit.Options{
		Forward: server.Base.Session.Forward, Project: options.Host.Project, Environments: server.Environments.Now, Ask: answer,
	})
	options.Layers = append(options.Layers, service.Layer{Session: visits, OnSessions: func(sessions *session.Manager) {
		visits.SetSessions(sessions)
		calls.SetSessions(sessions.List)
	}})
	verbs := append(append(calls.Verbs(), ask.Verb(book)), visits.Verbs()...)
	server.AfterAnswer(func(ctx context.Context) {
		desk.Serve(ctx, config.DeskFolders(os.Getenv), server.Settings.Shown(), verbs, server.Log)
	})
}
