package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/mcphttp"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/keep/changes"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/keep/sessionfiles"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/keep/suspended"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/doctor"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/cgroup"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox/framed"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/service"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
)

// gcPercent is GOGC of a server for many clients: by how much its heap grows, in percent of
// what is used, until the garbage collector runs. Go's default of 100 makes twice of what
// large answers take. A collection of what hundreds of sessions use takes milliseconds.
const gcPercent = 50

type serveOptions struct {
	stdio     bool
	overHTTP  bool
	http      string // an address, or empty for that of the configuration
	logFormat string
}

func (o *serveOptions) serveFlags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&o.stdio, "stdio", false, "speak MCP over standard input and output")
	cmd.Flags().StringVar(&o.logFormat, "log-format", "text", "write the log, on standard error, as `text|json`")
}

// check refuses what the flags cannot be.
func (o *serveOptions) check() error {
	if o.logFormat != "text" && o.logFormat != "json" {
		return &misuse{fmt.Sprintf("--log-format is %q", o.logFormat), "write text or json"}
	}
	return nil
}

// programCommand is the program without a command: it serves one client.
func programCommand(std streams) *cobra.Command {
	var o serveOptions
	var version bool
	cmd := &cobra.Command{
		Use:     program,
		Long:    about,
		Example: "  " + program + " --stdio\n  " + program + " run python -c 'print(6 * 7)'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			switch {
			case version:
				fmt.Fprintln(std.out, versionLine())
				return nil
			// A client has no terminal, and is served even without --stdio.
			case !o.stdio && isTerminal(std.in):
				writeNextSteps(std.out, cmd)
				return nil
			}
			return serve(o, std.in, std.out, std.err)
		},
	}
	o.serveFlags(cmd)
	cmd.Flags().BoolVar(&version, "version", false, "print the version")
	return cmd
}

// serveCommand serves many clients over HTTP, unless it is told to serve one.
func serveCommand(std streams) *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve many clients over HTTP",
		Long: "Serve every client that connects to an address: that of --http, or of NIX_SANDBOX_HTTP, or of the\n" +
			"configuration. Those who call from other machines need a token (" + program + " token new).",
		Example: "  " + program + " serve\n  " + program + " serve --http 127.0.0.1:8080",
		Args:    atMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			if o.stdio && o.http != "" {
				return &misuse{"serve has both --stdio and --http", "leave one of them out"}
			}
			o.overHTTP = !o.stdio
			return serve(o, std.in, std.out, std.err)
		},
	}
	o.serveFlags(cmd)
	cmd.Flags().StringVar(&o.http, "http", "", "listen at `ADDRESS:PORT`, at unix:PATH, or at the socket that systemd passes: systemd")
	return cmd
}

// serve serves until its client's input ends or a signal comes.
func serve(o serveOptions, in io.Reader, out, logTo io.Writer) error {
	log := slog.New(slog.NewTextHandler(logTo, nil))
	if o.logFormat == "json" {
		log = slog.New(slog.NewJSONHandler(logTo, nil))
	}
	// From here on SIGHUP asks for everything to be read again.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	// What the wrapper left open tells its builder that this process lives, so
	// no sandbox may inherit it. An old kernel refuses; then the jail's own closing
	// is what there is.
	unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	settings, base, watcher, err := load(log)
	if err != nil {
		return err
	}
	ctx, now, stop := untilSignals()
	defer stop()
	var front *front
	if o.overHTTP {
		if front, err = newFront(o.http, settings, base.Serve); err != nil {
			return err
		}
		defer front.Close()
	}
	// A client that is gone is an error of the write, not the end of this
	// process before it has cleaned up. Notify and not Ignore: what is
	// ignored would stay so in every sandbox.
	brokenPipes := make(chan os.Signal, 1)
	signal.Notify(brokenPipes, syscall.SIGPIPE)
	defer signal.Stop(brokenPipes)

	environments := watcher.Registry()
	if err := canBuild(environments.Now(), settings.Builder); err != nil {
		return err
	}
	builder := builder(settings.Builder)
	if err := builder.bounds(base.OnDemand); err != nil {
		return fmt.Errorf("tell the builder its bounds: %w", err)
	}
	log.Info("serving", "version", release(), "environments", environments.Now().Names())
	background, stopBackground := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer stopBackground()
	answered := make(chan struct{})
	running.Go(func() { watcher.Run(background, hangups, func() { rebuild(builder, log) }) })
	running.Go(func() { logMachine(background, answered, environments, log) })
	keptFiles, err := openKept(settings, log)
	if err != nil {
		return err
	}
	observers, err := observe(settings, base.Serve, environments, log)
	if err != nil {
		return err
	}
	defer observers.Close()
	observers.start(ctx, &running, log)
	sleeping := openSuspended(base.Session, log)
	running.Go(func() { cleanSuspended(background, sleeping) })
	start := framed.Options{StartTimeout: settings.StartWithin, Groups: groups(ctx, log, environments.Now())}
	if front != nil {
		start.Together = front.together
		if start.Groups == nil {
			front.warnUnheld(log)
		}
	}
	options := service.Options{
		Environments: environments,
		Starter:      framed.New(log, start),
		Sessions:     session.Limits{Idle: settings.SessionIdle, Lifetime: settings.SessionLifetime, Max: settings.SessionMax},
		SharedFiles:  base.Session.SharedFiles,
		Changes:      openChanges(settings, log),
		KeptFiles:    keptFiles,
		Suspended:    sleeping,
		Packages:     settings.Folders.Packages,
		Build:        builder.derive,
		Host:         hostFolders(settings),
		InboxMount:   base.InboxMount,
		Variables:    inherited(base),
		Version:      release(),
		AfterFirst:   func() { close(answered) },
		Observers:    observers.all,
		ShowSessions: observers.showSessions,
		Log:          log,
	}
	if front == nil {
		return service.Stdio(ctx, in, out, options)
	}
	// The operator's own setting counts.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	running.Go(func() { front.reload(background, log) })
	options.Quota, options.CallsAtOnce = front.quota, front.callsAtOnce()
	options.Sessions.Max = settings.SessionMaxOfMany
	// systemd names the folder of StateDirectory= so, or several.
	options.State, _, _ = strings.Cut(os.Getenv("STATE_DIRECTORY"), ":")
	transport := front.options()
	transport.Observe = observers.request()
	transport.Ending = func() {
		log.Info("ending", "lame_duck", transport.LameDuck, "drain", transport.DrainTimeout)
		notify("STOPPING=1")
	}
	log.Info("listening", "address", front.Addr().String(), "path", mcphttp.Path, "callers", front.callers())
	notify("READY=1")
	return service.HTTP(ctx, now, front, options, transport)
}

// untilSignals returns a context that ends with the first signal that asks this process
// to end, and one that ends with the second.
func untilSignals() (first, second context.Context, stop func()) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	first, endFirst := context.WithCancel(context.Background())
	second, endSecond := context.WithCancel(context.Background())
	go func() {
		<-signals
		endFirst()
		<-signals
		endSecond()
	}()
	return first, second, func() {
		signal.Stop(signals)
		close(signals)
	}
}

// openChanges opens what saves the changes of sessions; nil where no project is an
// overlay, or where they cannot be saved.
func openChanges(settings config.Config, log *slog.Logger) *changes.Store {
	if settings.ProjectDir == "" || settings.ProjectMode != config.Overlay {
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

// openKept opens what keeps the files of sessions; nil where nothing does.
func openKept(settings config.Config, log *slog.Logger) (*sessionfiles.Store, error) {
	if settings.Keep == "" {
		return nil, nil
	}
	about := ""
	if settings.ProjectDir != "" {
		about = "project " + settings.ProjectDir
	}
	store, err := sessionfiles.Open(settings.KeepFolder, settings.KeepBytes, about, log)
	if err != nil {
		return nil, &config.Error{Problem: err.Error(), Hint: "have this user own the folder, set XDG_STATE_HOME to another one, or turn keep_files off"}
	}
	return store, nil
}

// openSuspended returns what keeps sessions that sleep; nil where the operator wants none
// to, or there is no folder for them. Nothing is written before one falls asleep.
func openSuspended(session registry.Session, log *slog.Logger) *suspended.Store {
	folder := config.SuspendedFolder(os.Getenv)
	if !session.Suspend || session.SharedFiles || folder == "" {
		return nil
	}
	return suspended.New(folder, session.SuspendBytes, log)
}

// cleanInterval is the time between two deletions of sessions that have slept for too long.
const cleanInterval = time.Hour

// cleanSuspended deletes sessions that have slept for too long, again and again until
// the context ends. The store may be nil.
func cleanSuspended(ctx context.Context, store *suspended.Store) {
	if store == nil {
		return
	}
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

// rebuild asks the wrapper's builder to build again.
func rebuild(builder builder, log *slog.Logger) {
	if err := builder.ask(""); err != nil {
		log.Error("nothing is built again", "error", fmt.Errorf("ask the builder: %w", err))
	}
}

// hostFolders are the folders that every sandbox shows.
func hostFolders(settings config.Config) sandbox.HostFolders {
	folders := sandbox.HostFolders{Inbox: settings.Inbox}
	if settings.ProjectDir != "" {
		folders.Project = sandbox.Project{Dir: settings.ProjectDir, Mount: settings.ProjectMount, Mode: settings.ProjectMode}
	}
	return folders
}

// inherited are the variables of this process that code is to have.
func inherited(set *registry.Set) map[string]string {
	variables := map[string]string{}
	for _, name := range set.Project.Inherit {
		if value, ok := os.LookupEnv(name); ok {
			variables[name] = value
		}
	}
	return variables
}

// settleTime is how long after its first answer a server has done what comes
// with it: the pool is full, and a first call is not delayed.
const settleTime = time.Second

// logMachine logs what keeps sandboxes from starting, in doctor's words, also
// where no call or pool has met with it. It begins after the first answer.
func logMachine(ctx context.Context, answered <-chan struct{}, environments *registry.Registry, log *slog.Logger) {
	select {
	case <-answered:
	case <-ctx.Done():
		return
	}
	select {
	case <-time.After(settleTime):
	case <-ctx.Done():
		return
	}
	found := doctor.Machine(ctx, slices.Collect(maps.Values(environments.Now().Ready())))
	for _, f := range found {
		if f.Needed && !f.OK && ctx.Err() == nil {
			log.Error("what sandboxes need is missing", "what", f.Name, "error", f.Found, "hint", f.Fix)
		}
	}
}

// groups prepares control groups for the sandboxes, if there can be any, and
// logs what enforces their limits.
func groups(ctx context.Context, log *slog.Logger, environments *registry.Snapshot) *cgroup.Tree {
	tree, err := cgroup.Find(ctx, cgroup.Managed())
	if err == nil {
		log.Info("limits", "by", sandbox.ByGroup)
		return tree
	}
	facts := []any{"by", sandbox.ByAgent, "because", err}
	var unavailable *cgroup.Unavailable
	if errors.As(err, &unavailable) {
		facts = append(facts, "hint", unavailable.Hint)
	}
	log.Info("limits", facts...)
	for _, name := range environments.Names() {
		if cpus := environments.Ready()[name].CPUs; cpus > 0 {
			log.Warn("cpus has no effect without control groups", "env", name, "cpus", cpus)
		}
	}
	return nil
}

// load reads the configuration and the sandbox folders, and logs what
// they have that an operator should know. The set is what the server was
// built with.
func load(log *slog.Logger) (config.Config, *registry.Set, *registry.Watcher, error) {
	settings, base, err := configured()
	if err != nil {
		return settings, nil, nil, err
	}
	if os.Getenv("NIX_SANDBOX_DIR") != "" {
		for _, folder := range settings.Folders.Folders {
			if _, err := os.Stat(folder); err != nil {
				log.Warn("NIX_SANDBOX_DIR cannot be read yet; its sandboxes will be served when it can", "error", err)
			}
		}
	}
	watcher, err := registry.Watch(base, settings.Folders, log)
	return settings, base, watcher, err
}

// configured reads the configuration, and what the server was built with.
func configured() (config.Config, *registry.Set, error) {
	settings, err := config.Read(os.Getenv)
	if err != nil {
		return settings, nil, err
	}
	base, err := registry.Read(settings.Metadata)
	if err != nil {
		return settings, nil, &config.Error{
			Problem: err.Error(),
			Hint:    "unset NIX_SANDBOX_METADATA to serve what the server was built with, or build the server again",
		}
	}
	settings, err = settings.Complete(base.Session, base.Project)
	return settings, base, err
}

// survey is what there is at this moment: the configuration, and the set of
// all environments.
func survey() (config.Config, *registry.Set, error) {
	settings, base, err := configured()
	if err != nil {
		return settings, nil, err
	}
	set, err := base.With(settings.Folders)
	return settings, set, err
}
