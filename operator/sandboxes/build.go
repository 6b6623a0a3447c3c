package sandboxes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/cli"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/packages"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostile"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/order"
)

// lookEvery is the time between two looks at what the wrapper's builder has built.
const lookEvery = 100 * time.Millisecond

// Survey returns the settings, and the environments after the wrapper's builder has built them:
// all of them, or a single named one if it is ready before. The builder writes to standard
// error what it does.
func Survey(log io.Writer, name string) (settings config.Config, set *registry.Set, err error) {
	for told := false; ; told = true {
		settings, set, err = config.Survey()
		if err != nil {
			return settings, set, err
		}
		if set.Unread != nil && !told {
			fmt.Fprintf(log, "%s: warning: sandboxes are left out: %s\n%s: hint: %s\n", cli.Program, hostile.Message(set.Unread.Error()), cli.Program, registry.UnreadHint)
		}
		var building []string
		for _, build := range registry.New(set).Now().AllPending() {
			if !build.Failed {
				building = append(building, build.Name)
			}
		}
		if _, ready := set.Environments[name]; ready || len(building) == 0 {
			return settings, set, nil
		}
		if !told {
			fmt.Fprintf(log, "%s: building %s, which may take minutes; Ctrl-C ends it\n", cli.Program, strings.Join(building, ", "))
		}
		time.Sleep(lookEvery)
	}
}

// withPackages returns the environment that a name with packages means, and has it built if it is
// new. The error says what else there is.
func withPackages(settings config.Config, set *registry.Set, name string) (registry.Environment, error) {
	now := registry.New(set).Now()
	env, ok, err := packages.Catalog{Folder: settings.Packages}.Environment(now, name, nil)
	base, _, _ := strings.Cut(name, "+")
	switch known, usable := now.Environment(base); {
	case !usable:
		return env, unusable(base, now)
	case known.OnDemand == nil:
		return env, command.End(command.NoSandbox, fmt.Sprintf("environment %q takes no packages", base), "allow them with packages_on_demand in [environments."+base+"], and build the server again")
	case err == nil && !ok:
		return env, unusable(name, now)
	case err != nil:
		problem, advice, _ := strings.Cut(err.Error(), ": ") // which is a model's
		return env, command.End(command.NoSandbox, problem, strings.ReplaceAll(advice, "ask the user to ", ""))
	case env.Exec != "":
		return env, nil
	case settings.Builder == "":
		return env, command.End(command.NoSandbox, fmt.Sprintf("environment %q is not built", name), "build it with "+cli.Program+" packages --add "+name)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	var result built
	executor := packages.NewExecutor(&result, packages.Options{
		Folder: settings.Packages, Bounds: set.OnDemand, Log: slog.New(slog.DiscardHandler),
		Place: func(ctx context.Context, o order.Order, progress func(done, total int)) (order.Report, error) {
			return order.Place(ctx, settings.Builder, o, progress)
		},
	})
	_, err = executor.Answer(ctx, call.Call{Env: env, Timeout: 2 * time.Duration(set.OnDemand.BuildSeconds) * time.Second})
	if err != nil {
		reason := err.Error()
		var failed *packages.BuildError
		if errors.As(err, &failed) {
			if _, said := failed.Quoted(); said != "" {
				reason = said
			}
		}
		return env, command.End(command.NoSandbox, fmt.Sprintf("environment %q was not built: %s", name, reason), "see its packages with "+cli.Program+" packages")
	}
	return registry.Environment(result), nil
}

// built is an executor that only keeps the environment of a call.
type built registry.Environment

// Answer implements [call.Executor].
func (b *built) Answer(_ context.Context, c call.Call) (call.Result, error) {
	*b = built(c.Env)
	return call.Result{}, nil
}
