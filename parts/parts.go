// Package parts lists the parts of sessions. The programs that serve import it; the packages of
// the runtime do not.
package parts

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/ask"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk/watch"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/callfiles"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/outputs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/sessionfiles"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/store"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/suspended"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/packages"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/service"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/order"
)

// maxCalls and maxCallBytes bound the calls without a session whose files are kept, and these
// files together, on disk.
const (
	maxCalls     = 256
	maxCallBytes = 256 << 20
)

// With is what a program that serves adds to the parts. All fields are optional.
type With struct {
	// Calls shows the calls; nil is for the user's commands alone.
	Calls *watch.Server
	// Charge charges principals.
	Charge service.Layer
	// Tools lets code call tools.
	Tools Tools
}

// Tools adds the calling of tools to a server (package parts/toolbox). It is nil in programs of servers without tools,
// which then have nothing of it.
type Tools func(options *service.Options, server *service.Server) error

// Add adds the parts that the settings of a server switch on, the outermost first.
func Add(options *service.Options, server *service.Server, with With) error {
	add := func(layer service.Layer) { options.Layers = append(options.Layers, layer) }
	book := ask.New(server.Log)
	add(service.Layer{Session: ask.Part{Book: book}, Executor: book.Executor})
	if store := patches(server.Settings, server.Log); store != nil {
		part := changes.NewPart(store, options.Host.Project)
		options.Tool.Changes = part
		add(service.Layer{Session: part})
	}
	if store := suspension(server.Base.Session, server.Log); store != nil {
		options.Suspends, options.Tool.Branches = true, true
		add(service.Layer{Session: suspended.NewPart(store, options.Host.Project.Dir, server.Log)})
		server.Go(func(ctx context.Context) { clean(ctx, store) })
	}
	store, err := files(server.Settings, server.Log)
	if err != nil {
		return err
	}
	if store != nil {
		options.Tool.KeptFiles = true
		add(service.Layer{Session: sessionfiles.NewPart(store, server.Log)})
	}
	onDemand := packages.Options{Folder: server.Settings.Packages, Bounds: server.Base.OnDemand, Used: options.Warm, Log: server.Log}
	if server.Builds() {
		onDemand.Place = func(ctx context.Context, o order.Order, progress func(done, total int)) (order.Report, error) {
			return order.Place(ctx, server.Settings.Builder, o, progress)
		}
		options.Tool.Packages = packages.Catalog{Folder: onDemand.Folder}
		add(service.Layer{Session: packages.Grow{}})
	}
	// Without a builder, code that asks for packages is told so.
	asked := packages.NewExecutor(nil, onDemand)
	add(service.Layer{Executor: asked.Around})
	add(with.Charge)
	if err := addFiles(options, server, add); err != nil {
		return err
	}
	addDesk(options, server, book, asked.Ask, with)
	if with.Tools == nil {
		return nil
	}
	return with.Tools(options, server)
}

// addFiles keeps what calls leave in /workspace/outputs, and copies it to a folder of the user's.
func addFiles(options *service.Options, server *service.Server, add func(service.Layer)) error {
	kept := callfiles.New(callfiles.Limits{
		Idle: options.Sessions.Idle, Lifetime: options.Sessions.Lifetime, Calls: maxCalls, Bytes: maxCallBytes,
	}, os.TempDir(), server.Log)
	options.CallFiles, options.Tool.Kept = kept, kept
	add(service.Layer{Close: kept.Close})
	folder, err := outputFolder(server.Settings, server.Log)
	if err == nil && folder != nil {
		options.CallFiles = folder.OfCalls(kept)
		add(service.Layer{Session: folder})
	}
	return err
}

// patches saves the changes of sessions in a project that is an overlay. It returns nil for a
// project of another mode, and if the changes cannot be saved.
func patches(settings config.Config, log *slog.Logger) *changes.Store {
	if settings.ProjectDir == "" || settings.ProjectMode != config.Overlay && settings.ProjectMode != config.Write {
		return nil
	}
	folder := config.ChangesFolder(os.Getenv)
	if folder == "" {
		log.Warn("what sessions change in the project is not saved", "hint", "set XDG_STATE_HOME or HOME to an absolute path")
		return nil
	}
	store, err := changes.Open(folder, log)
	if err != nil {
		log.Warn("what sessions change in the project is not saved", "error", err, "hint", "have this user own the folder, or set XDG_STATE_HOME to another one")
		return nil
	}
	return store
}

// files keeps the files of sessions. It returns nil unless that is turned on. If there is no folder for
// them, it fails if the variable asked for them: what a configuration says must not keep a server
// from starting, because the same one is used in many places.
func files(settings config.Config, log *slog.Logger) (*store.Store, error) {
	if settings.Keep == "" {
		return nil, nil
	}
	if settings.KeepFolder == "" {
		log.Warn("the files of sessions are not kept", "error", "there is no folder for them", "hint", "set XDG_STATE_HOME or HOME to an absolute path")
		return nil, nil
	}
	about := ""
	if settings.ProjectDir != "" {
		about = "project " + settings.ProjectDir
	}
	files, err := sessionfiles.Open(store.Options{Folder: settings.KeepFolder, Limit: settings.KeepBytes, About: about, Log: log})
	const hint = "have this user own the folder, set XDG_STATE_HOME to another one, or turn keep_files off"
	switch {
	case err != nil && settings.MustKeep:
		return nil, &config.Error{Problem: err.Error(), Hint: hint}
	case err != nil:
		log.Warn("the files of sessions are not kept", "error", err, "hint", hint)
		return nil, nil
	}
	return files, nil
}

// outputFolder copies what code writes to /workspace/outputs. It returns nil unless the operator
// names a folder.
func outputFolder(settings config.Config, log *slog.Logger) (*outputs.Folder, error) {
	if settings.Outputs == "" {
		return nil, nil
	}
	folder, err := outputs.Open(settings.Outputs, outputs.DefaultLimits, log)
	if err != nil {
		return nil, &config.Error{Problem: err.Error(), Hint: "set NIX_SANDBOX_OUTPUTS to a folder that this user can write to, or leave it unset"}
	}
	return folder, nil
}

// suspension saves idle sessions to disk, unless the operator turned that off or there is no
// folder for them. The first suspended session makes it.
func suspension(session registry.Session, log *slog.Logger) *store.Store {
	folder := config.SuspendedFolder(os.Getenv)
	if !session.Suspend || session.SharedFiles || folder == "" {
		return nil
	}
	return suspended.NewStore(folder, session.SuspendBytes, log)
}

// cleanInterval is the time between two deletions of old suspended sessions.
const cleanInterval = time.Hour

// clean deletes old suspended sessions until ctx ends.
func clean(ctx context.Context, store *store.Store) {
	ticks := time.NewTicker(cleanInterval)
	defer ticks.Stop()
	for {
		store.Clean()
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return
		}
	}
}
