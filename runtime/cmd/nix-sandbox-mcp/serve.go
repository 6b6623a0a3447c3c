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
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/cgroup"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/doctor"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/mcpstdio"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/pool"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/tool"
)

// endWithin is what ending may take after a signal; the promise is 3 s.
const endWithin = 2500 * time.Millisecond

type serveOptions struct {
	stdio     bool
	logFormat string
}

// serveCommand is the program without a command: it serves.
func serveCommand(std streams) *cobra.Command {
	var o serveOptions
	var version bool
	cmd := &cobra.Command{
		Use:     program,
		Long:    about,
		Example: "  " + program + " --stdio\n  " + program + " run python -c 'print(6 * 7)'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case o.logFormat != "text" && o.logFormat != "json":
				return &misuse{fmt.Sprintf("--log-format is %q", o.logFormat), "write text or json"}
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
	cmd.Flags().BoolVar(&o.stdio, "stdio", false, "speak MCP over standard input and output")
	cmd.Flags().StringVar(&o.logFormat, "log-format", "text", "write the log, on standard error, as `text|json`")
	cmd.Flags().BoolVar(&version, "version", false, "print the version")
	return cmd
}

// serve serves one client until its input ends or a signal comes.
func serve(o serveOptions, in io.Reader, out, logTo io.Writer) error {
	log := slog.New(slog.NewTextHandler(logTo, nil))
	if o.logFormat == "json" {
		log = slog.New(slog.NewJSONHandler(logTo, nil))
	}
	// From here on it is no reason to end.
	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGHUP)
	defer signal.Stop(again)
	// What the wrapper left open tells its builder that this process lives, so
	// no sandbox may hold it. An old kernel refuses; then the jail's own closing
	// is what there is.
	unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	settings, base, watcher, err := load(log)
	if err != nil {
		return err
	}
	var mount string
	if settings.ProjectDir != "" {
		mount = settings.ProjectMount
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	// A client that is gone is an error of the write, not the end of this
	// process before it has cleaned up. Notify and not Ignore: what is
	// ignored would stay so in every sandbox.
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)
	defer signal.Stop(broken)

	environments := watcher.Registry()
	launcher := sandbox.NewLauncher(log, projectVariables(settings), groups(log, environments.Now()))
	launcher.Wait(settings.StartWithin)
	stock := pool.New(launcher, pool.Options{Inherit: inherited(base), Project: settings.ProjectDir}, log)
	manager := session.New(stock, session.Limits{
		Idle:     settings.SessionIdle,
		Lifetime: settings.SessionLifetime,
		Max:      settings.SessionMax,
	}, log)
	// What a layer shows of files that change beneath it is undefined
	// (Documentation/filesystems/overlayfs.rst of the kernel): no sandbox waits
	// on top of a project.
	if settings.ProjectDir == "" || settings.ProjectMode != config.Overlay {
		stock.Set(environments.Now().Ready())
		defer environments.Subscribe(func(_, after *registry.Snapshot) { stock.Set(after.Ready()) })()
	}
	run := tool.New(environments, mount, manager, log)
	if settings.ProjectMode == config.Overlay {
		run.ProjectIsOverlaid()
	}
	offer, silence := run.Server(release())
	defer silence()

	log.Info("serving", "version", release(), "environments", environments.Now().Names())
	var keeping sync.WaitGroup
	defer keeping.Wait()
	keep, finish := context.WithCancel(ctx)
	defer finish()
	keeping.Go(func() { watcher.Run(keep, again, func() { rebuild(settings.Builder, log) }) })
	served := make(chan error, 1)
	greeted := make(chan struct{})
	keeping.Go(func() { lookAround(keep, greeted, environments, log) })
	go func() { served <- mcpstdio.New(offer, admission{run, stock, greeted}, log).Serve(ctx, in, out) }()

	end := func() {
		by := time.Now().Add(endWithin)
		manager.Close()
		stock.Close(time.Until(by))
		launcher.Close(time.Until(by))
	}
	select {
	case err = <-served:
		end()
	case <-ctx.Done():
		// Everything that runs is killed, which answers the calls; a client
		// that does not read its answers is not waited for.
		end()
		select {
		case err = <-served:
		case <-time.After(endWithin / 5):
		}
	}
	return err
}

// rebuild asks the wrapper's builder to build again. It does not wait: a pipe
// that is full holds more wishes than there are builds.
func rebuild(builder int, log *slog.Logger) {
	if builder == 0 {
		return
	}
	err := unix.SetNonblock(builder, true)
	if err == nil {
		_, err = unix.Write(builder, []byte("\n"))
	}
	if err != nil && err != unix.EAGAIN {
		log.Error("nothing is built again", "error", fmt.Errorf("ask the builder: %w", err))
	}
}

// projectVariables are those that show the project to a sandbox.
func projectVariables(settings config.Config) []string {
	if settings.ProjectDir == "" {
		return nil
	}
	return []string{"PROJECT_DIR=" + settings.ProjectDir, "PROJECT_MOUNT=" + settings.ProjectMount, "PROJECT_MODE=" + settings.ProjectMode}
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

// admission is the tool's, and opens the pool when the client has its first
// answer.
type admission struct {
	*tool.Tool
	stock   *pool.Pool
	greeted chan<- struct{}
}

func (a admission) Greeted() {
	a.stock.Open()
	close(a.greeted)
}

// settled is how long after its first answer a server has done what comes
// with it: the pool is full, and a first call is not held up.
const settled = time.Second

// lookAround logs what keeps sandboxes from starting, in doctor's words, also
// where no call or pool has met with it.
func lookAround(ctx context.Context, greeted <-chan struct{}, environments *registry.Registry, log *slog.Logger) {
	select {
	case <-greeted:
	case <-ctx.Done():
		return
	}
	select {
	case <-time.After(settled):
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
// logs what holds sandboxes to their limits.
func groups(log *slog.Logger, environments *registry.Snapshot) *cgroup.Tree {
	tree, err := cgroup.Find(cgroup.System)
	if err == nil {
		log.Info("limits", "by", sandbox.ByGroup)
		return tree
	}
	facts := []any{"by", sandbox.ByWatch, "because", err}
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
// they hold that an operator should know. The set is what the server was
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
