package packages

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/guard"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
)

const (
	// pollEvery is the time between two readings of the builder's report.
	pollEvery = 50 * time.Millisecond
	// retryAfter is how long a failure is answered without building again.
	retryAfter = time.Minute
	// usedEvery is the precision of the time of the last call.
	usedEvery = time.Minute
	// fileClock is how far the times of files may be behind the clock: the kernel uses the time of
	// its last tick.
	fileClock = 20 * time.Millisecond
	// longestBuild bounds how long a silent build is charged for.
	longestBuild = time.Hour
	// askAttempts bounds how often a request is written to a folder that disappears.
	askAttempts = 10
	// maxReport bounds how much of the builder's files is read, in bytes.
	maxReport = 16 << 10
)

// Options configure an executor.
type Options struct {
	// Folder has the environments that are built.
	Folder string
	// Ask asks the builder for the environment of a key. It does not wait. Nil is no
	// builder.
	Ask func(key string) error
	// Turn waits until an environment may be built for a principal, which is over when done
	// is called. If it is nil, the builder is asked at once.
	Turn func(ctx context.Context, principal string) (done func(), err error)
	Log  *slog.Logger
	// Used is called with each environment that a call is about to use; it may be nil.
	Used func(registry.Environment)
}

// Executor delays calls until their environments are built.
type Executor struct {
	next call.Executor
	Options
	began time.Time

	mu     sync.Mutex
	builds map[string]*build // that calls wait for, by key
}

type build struct {
	waiting int // calls
	// cancel withdraws the build as long as it waits for its turn.
	cancel context.CancelFunc
	// asked is closed when the builder was asked; failed gets the error if that failed.
	asked  chan struct{}
	failed chan error
}

var _ call.Executor = (*Executor)(nil)

// NewExecutor returns an executor in front of next.
func NewExecutor(next call.Executor, o Options) *Executor {
	return &Executor{next: next, Options: o, began: time.Now(), builds: map[string]*build{}}
}

// Answer implements [call.Executor]. The error is a [*BuildingError] or a [*BuildError] if the
// environment is not built.
func (e *Executor) Answer(ctx context.Context, c call.Call) (call.Result, error) {
	if c.Env.Base == "" {
		return e.next.Answer(ctx, c)
	}
	if c.Env.SessionExec == "" {
		env, err := e.await(ctx, c)
		if err != nil {
			return call.Result{}, err
		}
		c.Env = env
	}
	e.touch(c)
	if e.Used != nil {
		e.Used(c.Env)
	}
	return e.next.Answer(ctx, c)
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
	if failure := consent(ctx, c); failure != nil {
		return registry.Environment{}, failure
	}
	build, leave := e.join(c, key)
	defer leave()
	began := time.Now()
	e.Log.Info("environment asked for", "env", c.Env.Name)
	limit := time.NewTimer(c.TimeLimit())
	defer limit.Stop()
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	building := &BuildingError{Env: c.Env.Name}
	// Nothing changes before, and many calls may wait for their turn.
	select {
	case <-build.asked:
	case <-ctx.Done():
		return registry.Environment{}, ctx.Err()
	case <-limit.C:
		return registry.Environment{}, building
	}
	for {
		env, err := Read(e.Folder, c.Env, name)
		if err == nil {
			e.Log.Info("environment built", "env", c.Env.Name, "ms", time.Since(began).Milliseconds())
			return env, nil
		}
		// If it was not built a moment ago, it may be now, and be found the next time.
		if _, built := os.Stat(filepath.Join(e.Folder, key, ResultLink, "metadata.json")); built == nil && !errors.Is(err, ErrNotBuilt) {
			e.Log.Error("an environment with packages cannot be used", "env", c.Env.Name, "error", err)
			return registry.Environment{}, &BuildError{Env: c.Env, Kind: Failed, Reason: err.Error()}
		}
		if failure := e.failure(c.Env, key); failure != nil {
			e.Log.Warn("environment not built", "env", c.Env.Name, "kind", failure.Kind, "reason", bounded.Head(failure.Reason, 200))
			return registry.Environment{}, failure
		}
		building.Done, building.Total = e.progress(key)
		c.Progress.Say(line(building))
		select {
		case err := <-build.failed:
			build.failed <- err // for the other calls
			e.Log.Error("an environment with packages is not built", "env", c.Env.Name, "error", err)
			return registry.Environment{}, &BuildError{Env: c.Env, Kind: NoBuild, Reason: err.Error()}
		case <-ctx.Done():
			return registry.Environment{}, ctx.Err()
		case <-limit.C:
			return registry.Environment{}, building
		case <-ticker.C:
		}
	}
}

// consent asks the user about packages if the environment says so, and returns nil if they may be
// built.
func consent(ctx context.Context, c call.Call) error {
	if c.Env.OnDemand == nil || !c.Env.OnDemand.Ask {
		return nil
	}
	matter := call.Matter{
		Kind: call.Packages, Name: c.Env.BaseName() + " + " + strings.Join(c.Env.Added, " + "),
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

// join has an environment built for a call, or joins the calls that wait for it already. If all of
// them leave before its turn comes, it is not built.
func (e *Executor) join(c call.Call, key string) (one *build, leave func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	one = e.builds[key]
	if one == nil {
		ctx, cancel := context.WithCancel(context.Background())
		one = &build{cancel: cancel, asked: make(chan struct{}), failed: make(chan error, 1)}
		e.builds[key] = one
		if e.Turn == nil {
			e.build(ctx, c, key, one)
		} else {
			go e.build(ctx, c, key, one)
		}
	}
	one.waiting++
	return one, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if one.waiting--; one.waiting == 0 {
			one.cancel()
			// A later call asks again.
			if e.builds[key] == one {
				delete(e.builds, key)
			}
		}
	}
}

// build asks the builder when the principal's turn has come. The turn lasts until the
// builder is done, even if no call waits any more.
func (e *Executor) build(ctx context.Context, c call.Call, key string, one *build) {
	defer guard.Recover(nil) // of the end: the request has its own
	if e.Turn != nil {
		done, err := e.Turn(ctx, c.Principal)
		if err != nil {
			return
		}
		defer done()
	}
	err := guard.ErrPanic
	_ = guard.Run(func() { err = e.order(c.Env, key) }) // is logged
	if err != nil {
		one.failed <- err
	}
	close(one.asked)
	if err != nil {
		return
	}
	if e.Turn != nil {
		e.watch(key)
	}
}

// watch returns when the builder is done with an environment, or the environment was given up.
func (e *Executor) watch(key string) {
	for end := time.Now().Add(longestBuild); time.Now().Before(end); time.Sleep(pollEvery) {
		if _, err := os.Stat(filepath.Join(e.Folder, key, RequestFile)); errors.Is(err, fs.ErrNotExist) {
			return
		}
		for _, file := range []string{filepath.Join(ResultLink, "metadata.json"), FailedFile} {
			if _, err := os.Stat(filepath.Join(e.Folder, key, file)); err == nil {
				return
			}
		}
	}
}

// line describes a build, for progress.
func line(b *BuildingError) string {
	if b.Total == 0 {
		return "building " + b.Env
	}
	return fmt.Sprintf("building %s: %d of %d", b.Env, b.Done, b.Total)
}

// order writes the request of a key and has the builder told. An earlier failure is
// forgotten, so that the next one is of this request.
func (e *Executor) order(env registry.Environment, key string) error {
	if e.Ask == nil {
		return errors.New("this server has no builder")
	}
	folder := filepath.Join(e.Folder, key)
	if _, err := os.Lstat(folder); err != nil && isCrowded(e.Folder) {
		return fmt.Errorf("%d other environments with packages were asked for in the last day, and are not built: wait for them, or have the user remove them with nix-sandbox-mcp packages --remove", maxPending)
	}
	request, err := json.Marshal(Request{Base: env.Base, Recipe: recipe(env), Packages: env.Added})
	if err != nil {
		return err
	}
	// The folder of an environment that is given up at this moment disappears.
	for range askAttempts {
		if err = write(folder, request); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if err != nil {
		return err
	}
	return e.Ask(key)
}

// write makes the folder of an environment with its request and without a failure.
func write(folder string, request []byte) error {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	if err := replace(filepath.Join(folder, RequestFile), request); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(folder, FailedFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// replace writes a file atomically.
func replace(path string, data []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), ".new")
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	err = errors.Join(err, file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		os.Remove(file.Name())
	}
	return err
}

// failure returns why an environment was not built, if that was a short time ago, and since this
// executor began: another server may fail for a reason that does not apply here.
func (e *Executor) failure(env registry.Environment, key string) *BuildError {
	path := filepath.Join(e.Folder, key, FailedFile)
	info, err := os.Stat(path)
	if err != nil || info.ModTime().Before(e.began.Add(-fileClock)) || time.Since(info.ModTime()) > retryAfter {
		return nil
	}
	text, err := bounded.ReadFile(path, maxReport)
	if err != nil {
		return nil
	}
	return parseFailure(env, strings.ToValidUTF8(string(text), "\uFFFD"))
}

// progress is how many of how many store paths of an environment are there.
func (e *Executor) progress(key string) (done, total int) {
	text, err := bounded.ReadFile(filepath.Join(e.Folder, key, BuildingFile), maxReport)
	if err != nil {
		return 0, 0
	}
	fields := strings.Fields(string(text))
	if len(fields) != 3 {
		return 0, 0
	}
	done, err1 := strconv.Atoi(fields[1])
	total, err2 := strconv.Atoi(fields[2])
	if err1 != nil || err2 != nil || done < 0 || done > total {
		return 0, 0
	}
	return done, total
}

// touch has the environment's file say that a call uses it now, and whose call.
func (e *Executor) touch(c call.Call) {
	file := filepath.Join(e.Folder, Key(c.Env, nameOf(c.Env)), UsedFile)
	if info, err := os.Stat(file); err == nil && time.Since(info.ModTime()).Abs() < usedEvery {
		return
	}
	who := sha256.Sum256([]byte(c.Principal))
	if err := os.WriteFile(file, fmt.Appendf(nil, "%x\n", who[:8]), 0o600); err != nil {
		e.Log.Warn("the use of an environment is not noted", "env", c.Env.Name, "error", err)
	}
}
