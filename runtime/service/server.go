package service

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/cgroup"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/guard"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/machine"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox/framed"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/tool"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/host"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/order"
)

// maxOneShot bounds the sandboxes of calls without a session of one client.
const maxOneShot = 32

// Server is a server before it has a client: its settings, and the work beside the calls.
type Server struct {
	Settings config.Config
	// Base is the set that the server was built with, Environments all that it serves.
	Base         *registry.Set
	Environments *registry.Registry
	// Context ends with the first SIGTERM or SIGINT, Now with the second.
	Context, Now context.Context
	// Together bounds all sandboxes of a principal; nil if there is one principal.
	Together func(principal string) sandbox.Limits
	// HasGroups says that control groups hold the limits. Start sets it.
	HasGroups bool
	Log       *slog.Logger

	watcher  *registry.Watcher
	hangups  chan os.Signal // SIGHUP
	answered chan struct{}  // closed after the first answer

	background     context.Context // of Go
	stopBackground context.CancelFunc
	running        sync.WaitGroup
	stops          []func() // called by Close, the last one first
}

// Open prepares a server: it takes over the signals of this process, closes its descriptors
// to programs that it starts, and reads the sandbox folders. The caller calls Close.
func Open(settings config.Config, base *registry.Set, log *slog.Logger) *Server {
	slog.SetDefault(log) // for package guard
	s := &Server{Settings: settings, Base: base, Log: log, answered: make(chan struct{})}
	// SIGHUP has everything read again.
	s.hangups = s.notify(syscall.SIGHUP)
	// The builder of the wrapper ends when the other end of its input is closed, so no sandbox
	// may inherit that. If this fails, the jail closes what it inherited.
	host.CloseInherited()
	if os.Getenv("NIX_SANDBOX_DIR") != "" {
		for _, folder := range settings.Folders.Folders {
			if _, err := os.Stat(folder); err != nil {
				log.Warn("NIX_SANDBOX_DIR cannot be read yet; its sandboxes will be served when it can", "error", err)
			}
		}
	}
	s.watcher = registry.Watch(base, settings.Folders, log)
	s.Environments = s.watcher.Registry()
	s.untilSignals()
	s.background, s.stopBackground = context.WithCancel(s.Context)
	return s
}

// Close ends the work beside the calls.
func (s *Server) Close() {
	if s.stopBackground != nil {
		s.stopBackground()
	}
	s.running.Wait()
	for _, stop := range slices.Backward(s.stops) {
		stop()
	}
}

// Go runs a function beside the calls. Its context ends with the server's, or at Close. Close waits
// for the function.
func (s *Server) Go(run func(context.Context)) {
	s.running.Go(func() {
		defer guard.Recover(nil)
		run(s.background)
	})
}

// notify returns a channel of a signal until Close.
func (s *Server) notify(signals ...os.Signal) chan os.Signal {
	channel := make(chan os.Signal, len(signals))
	signal.Notify(channel, signals...)
	s.stops = append(s.stops, func() { signal.Stop(channel) })
	return channel
}

func (s *Server) untilSignals() {
	signals := s.notify(syscall.SIGTERM, syscall.SIGINT)
	var endFirst, endSecond context.CancelFunc
	s.Context, endFirst = context.WithCancel(context.Background())
	s.Now, endSecond = context.WithCancel(context.Background())
	go func() {
		<-signals
		endFirst()
		<-signals
		endSecond()
	}()
	s.stops = append(s.stops, endFirst, endSecond)
}

// Start begins the work beside the calls, and returns the options of a server for one client,
// without parts.
func (s *Server) Start() (*Options, error) {
	// A write to a client that is gone fails, and the server cleans up before it ends. Sandboxes
	// would inherit that a signal is ignored, so it is not.
	s.notify(syscall.SIGPIPE)
	if s.Settings.NoProject != "" {
		s.Log.Warn("there is no project: the server was started in "+s.Settings.NoProject+", and code could read all files in it", "hint", "start the client in the folder of a project")
	}
	if home, err := os.UserHomeDir(); err == nil && s.Settings.ProjectDir == filepath.Clean(home) {
		s.Log.Warn("the project is the home folder: code can read all of its files, such as keys and histories", "hint", "set PROJECT_DIR to a folder in it")
	}
	serving := []any{"version", command.Version(), "environments", s.Environments.Now().Names()}
	if s.Settings.ProjectDir != "" {
		serving = append(serving, "project", s.Settings.ProjectDir, "mode", s.Settings.ProjectMode)
	}
	s.Log.Info("serving", serving...)
	for _, slip := range config.Slips(os.Environ()) {
		s.Log.Warn(slip)
	}
	s.Go(func(ctx context.Context) { s.watcher.Run(ctx, s.hangups, s.rebuild) })
	s.AfterAnswer(s.logMachine)
	if s.Settings.Builder != "" && s.Base.OnDemand != (order.Bounds{}) {
		s.AfterAnswer(func(ctx context.Context) { s.order(ctx, order.Order{Kind: order.Expire, Bounds: s.Base.OnDemand}) })
	}
	start := framed.Options{StartTimeout: s.Settings.StartWithin, Groups: s.groups(), Together: s.Together}
	s.HasGroups = start.Groups != nil
	return &Options{
		Starter:    framed.New(s.Log, start),
		Sessions:   session.Limits{Idle: s.Settings.SessionIdle, Lifetime: s.Settings.SessionLifetime, Max: s.Settings.SessionMax},
		OneShots:   maxOneShot,
		Tool:       tool.Options{Environments: s.Environments, SharedFiles: s.Base.Session.SharedFiles, Log: s.Log},
		Host:       s.Settings.HostFolders(),
		InboxMount: s.Base.InboxMount,
		Variables:  config.Inherited(s.Base.Project.Inherit...),
		Version:    command.Version(),
		AfterFirst: func() { close(s.answered) },
		Layers: []Layer{{OnSessions: func(sessions *session.Manager) {
			s.AfterAnswer(func(ctx context.Context) { sessions.KeepRoom(ctx, isShortOfMemory) })
		}}},
		Log: s.Log,
	}, nil
}

// AfterAnswer runs a function beside the calls, but not before the first answer has been sent: it
// does not delay the start.
func (s *Server) AfterAnswer(run func(context.Context)) {
	s.Go(func(ctx context.Context) {
		select {
		case <-s.answered:
			run(ctx)
		case <-ctx.Done():
		}
	})
}

// Builds reports whether calls can add packages. A server with environments that allow it, but
// without a builder, says so in its log and not to the model, whose calls work as without packages.
func (s *Server) Builds() bool {
	for _, env := range s.Environments.Now().Ready() {
		if s.Settings.Builder == "" && env.OnDemand != nil {
			s.Log.Warn("calls can add no packages", "reason", "nix is not on the server's PATH, or the server has no folder to write to",
				"hint", "install Nix, and set HOME and TMPDIR to folders that the server may write")
			break
		}
	}
	return s.Settings.Builder != ""
}

// rebuild has the environments of the start built again.
func (s *Server) rebuild() {
	if s.Settings.Builder != "" {
		s.Go(func(ctx context.Context) { s.order(ctx, order.Order{Kind: order.Again}) })
	}
}

// order orders something without a result of the builder.
func (s *Server) order(ctx context.Context, o order.Order) {
	if _, err := order.Place(ctx, s.Settings.Builder, o, nil); err != nil && ctx.Err() == nil {
		s.Log.Error("the builder does not do it", "what", o.Kind, "error", err)
	}
}

// settleTime is the time after the first answer until the machine is examined: by then the
// pool is full, and the first call is not delayed.
const settleTime = time.Second

// logMachine logs reasons why sandboxes cannot start, even if no call has tried.
func (s *Server) logMachine(ctx context.Context) {
	select {
	case <-time.After(settleTime):
	case <-ctx.Done():
		return
	}
	for _, f := range machine.Check(ctx, slices.Collect(maps.Values(s.Environments.Now().Ready()))) {
		if f.Needed && !f.OK && ctx.Err() == nil {
			s.Log.Error("what sandboxes need is missing", "what", f.Name, "error", f.Found, "hint", f.Fix)
		}
	}
}

// groups prepares control groups for the sandboxes, and logs whether these enforce their limits. It
// returns nil if this process cannot have control groups.
func (s *Server) groups() *cgroup.Tree {
	tree, err := cgroup.Find(s.Context, cgroup.Managed())
	if err == nil {
		s.Log.Info("limits", "by", sandbox.ByGroup)
		return tree
	}
	facts := []any{"by", sandbox.ByAgent, "because", err}
	var unavailable *cgroup.Unavailable
	if errors.As(err, &unavailable) {
		facts = append(facts, "hint", unavailable.Hint)
	}
	s.Log.Info("limits", facts...)
	environments := s.Environments.Now()
	for _, name := range environments.Names() {
		if cpus := environments.Ready()[name].CPUs; cpus > 0 {
			s.Log.Warn("cpus has no effect without control groups", "env", name, "cpus", cpus)
		}
	}
	return nil
}
