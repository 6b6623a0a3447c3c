// Command nix-sandbox-mcp serves the sandboxes that Nix built over MCP.
//
// It promises to say in one sentence what keeps it from starting, to write
// nothing but messages to its standard output, and to leave no process behind
// however it ends.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/cgroup"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/metadata"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/stdio"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/tool"
)

const usage = `Usage: nix-sandbox-mcp --stdio [--log-format text|json]

Serves sandboxes to a language model over MCP.

      --stdio              speak MCP over standard input and output
      --log-format FORMAT  write the log, on standard error, as text or json
      --version            print the version
      --help               print this

Environment variables:
  PROJECT_DIR            folder to show in every sandbox, read-only
  PROJECT_MOUNT          where it is shown (/project)
  SESSION_IDLE_TIMEOUT   seconds until an unused session ends (300)
  SESSION_MAX_LIFETIME   seconds until a session ends (3600)
  SESSION_MAX            how many sessions live at once (64)
  NIX_SANDBOX_DIR        folder of further sandboxes
  NIX_SANDBOX_METADATA   what the server was built with: JSON, or its path
`

// endWithin is what ending may take after a signal; the promise is 3 s.
const endWithin = 2500 * time.Millisecond

// version is set by the linker; without it the module's is used.
var version string

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is the command; it returns the exit status.
func run(args []string, in io.Reader, out, log io.Writer) int {
	options, err := parse(args)
	switch {
	case err != nil:
		return fail(log, err)
	case options.help:
		fmt.Fprint(out, usage)
		return 0
	case options.version:
		fmt.Fprintln(out, "nix-sandbox-mcp", release())
		return 0
	case !options.stdio:
		return fail(log, &config.Error{Problem: "no transport was chosen", Hint: "start it with --stdio"})
	}
	if err := serve(options, in, out, log); err != nil {
		return fail(log, err)
	}
	return 0
}

// fail tells the operator what went wrong and returns the exit status.
func fail(log io.Writer, err error) int {
	fmt.Fprintf(log, "nix-sandbox-mcp: error: %v\n", err)
	var wrong *config.Error
	if errors.As(err, &wrong) && wrong.Hint != "" {
		fmt.Fprintf(log, "nix-sandbox-mcp: hint: %s\n", wrong.Hint)
	}
	return 1
}

type options struct {
	stdio, version, help bool
	logFormat            string
}

func parse(args []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("nix-sandbox-mcp", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.BoolVar(&o.stdio, "stdio", false, "")
	flags.BoolVar(&o.version, "version", false, "")
	flags.StringVar(&o.logFormat, "log-format", "text", "")
	err := flags.Parse(args)
	const hint = "see nix-sandbox-mcp --help"
	switch {
	case errors.Is(err, flag.ErrHelp):
		o.help = true
		return o, nil
	case err != nil:
		return o, &config.Error{Problem: err.Error(), Hint: hint}
	case flags.NArg() > 0:
		return o, &config.Error{Problem: fmt.Sprintf("unknown argument %q", flags.Arg(0)), Hint: hint}
	case o.logFormat != "text" && o.logFormat != "json":
		return o, &config.Error{Problem: fmt.Sprintf("--log-format is %q", o.logFormat), Hint: "write text or json"}
	}
	return o, nil
}

// release is the version that was built.
func release() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}

// serve serves one client until its input ends or a signal comes.
func serve(o options, in io.Reader, out, logTo io.Writer) error {
	log := slog.New(slog.NewTextHandler(logTo, nil))
	if o.logFormat == "json" {
		log = slog.New(slog.NewJSONHandler(logTo, nil))
	}
	settings, set, err := load(log)
	if err != nil {
		return err
	}
	inherited := map[string]string{}
	for _, name := range set.Project.Inherit {
		if value, ok := os.LookupEnv(name); ok {
			inherited[name] = value
		}
	}
	var environ []string
	var mount string
	if settings.ProjectDir != "" {
		mount = settings.ProjectMount
		environ = []string{"PROJECT_DIR=" + settings.ProjectDir, "PROJECT_MOUNT=" + mount}
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	// A client that is gone is an error of the write, not the end of this
	// process before it has cleaned up. Notify and not Ignore: what is
	// ignored would stay so in every sandbox.
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)
	defer signal.Stop(broken)

	launcher := sandbox.NewLauncher(log, environ, groups(log, set))
	manager := session.New(launcher, session.Limits{
		Idle:     settings.SessionIdle,
		Lifetime: settings.SessionLifetime,
		Max:      settings.SessionMax,
	}, inherited, log)
	run := tool.New(set, mount, manager, log)

	log.Info("serving", "version", release(), "environments", set.Names())
	served := make(chan error, 1)
	go func() { served <- stdio.New(run.Server(release()), run, log).Serve(ctx, in, out) }()

	select {
	case err = <-served:
		manager.Close()
		launcher.Close(endWithin)
	case <-ctx.Done():
		// Everything that runs is killed, which answers the calls; a client
		// that does not read its answers is not waited for.
		manager.Close()
		launcher.Close(endWithin)
		select {
		case err = <-served:
		case <-time.After(endWithin / 5):
		}
	}
	return err
}

// groups prepares control groups for the sandboxes, if there can be any, and
// logs what holds sandboxes to their limits.
func groups(log *slog.Logger, set *metadata.Set) *cgroup.Tree {
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
	for _, name := range set.Names() {
		if cpus := set.Environments[name].CPUs; cpus > 0 {
			log.Warn("cpus has no effect without control groups", "env", name, "cpus", cpus)
		}
	}
	return nil
}

// load reads the configuration and the metadata, and logs what they hold that
// an operator should know.
func load(log *slog.Logger) (config.Config, *metadata.Set, error) {
	settings, err := config.Read(os.Getenv)
	if err != nil {
		return settings, nil, err
	}
	set, err := metadata.Load(settings.Metadata, settings.Folders)
	if err != nil {
		return settings, nil, err
	}
	if settings, err = settings.Complete(set.Session, set.Project); err != nil {
		return settings, nil, err
	}
	if dir := os.Getenv("NIX_SANDBOX_DIR"); dir != "" {
		if _, err := os.Stat(dir); err != nil {
			log.Warn("no sandboxes are read from NIX_SANDBOX_DIR", "error", err)
		}
	}
	for _, broken := range set.Broken {
		log.Error("environment left out", "env", broken.Name, "error", broken.Err)
	}
	for _, hidden := range set.Overridden {
		log.Warn("environment overridden", "env", hidden.Name, "by", set.Environments[hidden.Name].Origin, "instead_of", hidden.Origin)
	}
	return settings, set, nil
}
