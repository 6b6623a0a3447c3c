package packages

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/order"
)

const (
	// retryAfter is how long a failure is answered without building again, and maxFailures bounds the failures that
	// are remembered.
	retryAfter  = time.Minute
	maxFailures = 1000
	// usedEvery is the precision of the time of the last call.
	usedEvery = time.Minute
)

// Options configure an executor.
type Options struct {
	// Folder has the environments that are built, within Bounds.
	Folder string
	Bounds order.Bounds
	// Place orders an environment of the builder, as [order.Place] does. Nil is no builder.
	Place func(ctx context.Context, o order.Order, progress func(done, total int)) (order.Report, error)
	Log   *slog.Logger
	// Used is called with each environment that a call is about to use; it may be nil.
	Used func(registry.Environment)
}

// Executor delays calls until their environments are built.
type Executor struct {
	next call.Executor
	Options

	mu       sync.Mutex
	failures map[string]failed // by key
}

// failed is a failure, and when it was.
type failed struct {
	order.Failure
	at time.Time
}

var _ call.Executor = (*Executor)(nil)

// NewExecutor returns an executor in front of next.
func NewExecutor(next call.Executor, o Options) *Executor {
	return &Executor{next: next, Options: o, failures: map[string]failed{}}
}

// Around puts the executor in front of another one.
func (e *Executor) Around(next call.Executor) call.Executor {
	e.next = next
	return e
}

// Answer implements [call.Executor]. The error is a [*BuildingError] or a [*BuildError] if the
// environment is not built.
func (e *Executor) Answer(ctx context.Context, c call.Call) (call.Result, error) {
	if c.Env.Base == "" {
		return e.next.Answer(ctx, e.withAsk(c))
	}
	if c.Env.SessionExec == "" {
		env, err := e.await(ctx, c)
		if err != nil {
			return call.Result{}, err
		}
		c.Env = env
	}
	e.mark(filepath.Join(e.Folder, Key(c.Env, nameOf(c.Env)), order.UsedFile), c)
	if e.Used != nil {
		e.Used(c.Env)
	}
	return e.next.Answer(ctx, e.withAsk(c))
}

// withAsk lets the code of a call ask for packages, if its environment has the program for that.
func (e *Executor) withAsk(c call.Call) call.Call {
	if c.Env.Nix {
		c.Ask = e.Ask(c)
		if c.User != nil && c.Env.OnDemand != nil && c.Env.OnDemand.Ask {
			c.User.MayAsk()
		}
	}
	return c
}

// await returns the environment of a call when it is built.
func (e *Executor) await(ctx context.Context, c call.Call) (registry.Environment, error) {
	name := nameOf(c.Env)
	if env, err := Read(e.Folder, c.Env, name); err == nil {
		return env, nil
	}
	key := Key(c.Env, name)
	if failure := e.failure(c.Env, key); failure != nil {
		return registry.Environment{}, failure
	}
	if failure := consent(ctx, c, c.Env.Added); failure != nil {
		return registry.Environment{}, failure
	}
	if e.Place == nil {
		return registry.Environment{}, &BuildError{Env: c.Env, Kind: NoBuild, Reason: "this server has no builder"}
	}
	began := time.Now()
	e.Log.Info("environment asked for", append(c.Origin(), "env", c.Env.Name)...)
	limit, stop := context.WithTimeout(ctx, c.TimeLimit())
	defer stop()
	building := &BuildingError{Env: c.Env.Name}
	_, err := e.Place(limit, order.Order{
		Kind: order.Environment, Principal: digest(c.Principal), Key: key,
		Base: c.Env.Base, Recipe: recipe(c.Env), Packages: c.Env.Added, Bounds: e.Bounds,
	}, func(done, total int) {
		building.Done, building.Total = done, total
		c.Progress.Say(line(building))
	})
	var failure *order.Failure
	switch {
	case ctx.Err() != nil:
		return registry.Environment{}, ctx.Err()
	case limit.Err() != nil:
		return registry.Environment{}, building
	case errors.As(err, &failure):
		e.Log.Warn("environment not built", append(c.Origin(), "env", c.Env.Name, "kind", failure.Kind, "reason", bounded.Head(failure.Text, 200))...)
		e.remember(key, *failure)
		return registry.Environment{}, buildError(c.Env, *failure)
	case err != nil:
		e.Log.Error("an environment with packages is not built", "env", c.Env.Name, "error", err)
		return registry.Environment{}, &BuildError{Env: c.Env, Kind: NoBuild, Reason: err.Error()}
	}
	env, err := Read(e.Folder, c.Env, name)
	if err != nil {
		e.Log.Error("an environment with packages cannot be used", "env", c.Env.Name, "error", err)
		return registry.Environment{}, &BuildError{Env: c.Env, Kind: order.Failed, Reason: err.Error()}
	}
	e.Log.Info("environment built", append(c.Origin(), "env", c.Env.Name, "ms", time.Since(began).Milliseconds())...)
	return env, nil
}

// consent asks the user about packages if the environment says so, and returns nil if they may be
// built.
func consent(ctx context.Context, c call.Call, packages []string) error {
	if c.Env.OnDemand == nil || !c.Env.OnDemand.Ask {
		return nil
	}
	matter := call.Matter{
		Kind: call.Packages, Name: c.Env.BaseName() + " + " + strings.Join(packages, " + "),
		Table: "[environments." + c.Env.BaseName() + "]", Option: "packages_ask = false",
	}
	choice := call.Nobody
	if c.User != nil {
		choice = c.User.Decide(ctx, matter)
	}
	switch choice {
	case call.Nobody:
		return &BuildError{Env: c.Env, Kind: Unasked}
	case call.No:
		return &BuildError{Env: c.Env, Kind: Denied}
	}
	return nil
}

// line describes a build, for progress.
func line(b *BuildingError) string {
	if b.Total == 0 {
		return "building " + b.Env
	}
	return fmt.Sprintf("building %s: %d of %d", b.Env, b.Done, b.Total)
}

// failure returns why an environment was not built, if that was a short time ago.
func (e *Executor) failure(env registry.Environment, key string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if last, known := e.failures[key]; known && time.Since(last.at) <= retryAfter {
		return buildError(env, last.Failure)
	}
	return nil
}

func (e *Executor) remember(key string, failure order.Failure) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.failures) >= maxFailures {
		clear(e.failures)
	}
	e.failures[key] = failed{failure, time.Now()}
}

// digest stands for a principal.
func digest(principal string) string {
	sum := sha256.Sum256([]byte(principal))
	return hex.EncodeToString(sum[:8])
}
