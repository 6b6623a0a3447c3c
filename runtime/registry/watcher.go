package registry

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"
)

const (
	// pollEvery is the interval between two fingerprints of the folders.
	pollEvery = 500 * time.Millisecond
	// settleEvery is the interval while they change: a change counts when two
	// fingerprints in a row are the same. A link that is replaced by removing
	// it first is absent for less than this.
	settleEvery = 100 * time.Millisecond
	// settleWithin is the time after which a change counts nevertheless.
	settleWithin = time.Second
)

// Watcher keeps a registry current. A change in the folders is in the registry
// within 2 s; an entry that is half written or half replaced is not; and the
// log names a broken entry once for as long as it is broken.
//
// The watcher polls. inotify reports neither a folder that does not exist yet,
// nor a new target of a link that an entry's link leads to (which is how
// `nix build` replaces results), nor a change made by another machine on a
// network file system. One fingerprint covers all three; for a handful of
// sandboxes it takes about 100 µs, twice a second.
type Watcher struct {
	base     *Set
	folders  Folders
	registry *Registry
	log      *slog.Logger

	seen     uint64          // the fingerprint of what was read last
	problems map[string]bool // that the log names already
}

// UnreadHint says what to do about a folder of sandboxes that cannot be read.
const UnreadHint = "let this user read it, or set NIX_SANDBOX_DIR to other folders"

// Watch reads the folders for the first time. Base is the set that the server was built with. A
// folder that cannot be read is left out until it has changed.
func Watch(base *Set, folders Folders, log *slog.Logger) *Watcher {
	w := &Watcher{base: base, folders: folders, log: log, problems: map[string]bool{}}
	// The fingerprint comes first: changes after it are read again.
	w.seen = folders.Fingerprint()
	set, err := base.With(folders)
	if err != nil {
		log.Warn("sandboxes are left out", "error", err, "hint", UnreadHint)
	}
	w.registry = New(set)
	w.report(set)
	for _, entry := range w.registry.Now().AllPending() {
		w.tell(entry)
	}
	return w
}

// Registry is the registry that the watcher keeps current.
func (w *Watcher) Registry() *Registry { return w.registry }

// Run keeps the registry current until ctx ends. A value from again makes it read everything again
// at once, and rebuild the environments that were built beside the server, by calling rebuild.
func (w *Watcher) Run(ctx context.Context, again <-chan os.Signal, rebuild func()) {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-again:
			w.log.Info("reading the sandbox folders again")
			rebuild()
			w.readWhenQuiet(ctx, w.folders.Fingerprint())
		case <-ticker.C:
			if now := w.folders.Fingerprint(); now != w.seen {
				w.readWhenQuiet(ctx, now)
			}
		}
	}
}

// readWhenQuiet waits until the folders stay as they are, and reads them.
func (w *Watcher) readWhenQuiet(ctx context.Context, now uint64) {
	for began := time.Now(); time.Since(began) < settleWithin; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(settleEvery):
		}
		before := now
		if now = w.folders.Fingerprint(); now == before {
			break
		}
	}
	w.seen = now
	set, err := w.base.With(w.folders)
	if err != nil {
		// The environments stay as they were, until the folder has changed.
		w.log.Error("sandboxes not read again", "error", err)
		return
	}
	w.report(set)
	before := w.registry.Now()
	if w.registry.Publish(set) {
		w.changes(before, w.registry.Now())
	}
}

// report logs broken and hidden entries, unless the log contains them already.
func (w *Watcher) report(set *Set) {
	known := w.problems
	w.problems = map[string]bool{}
	fresh := func(problem string) bool {
		logged := w.problems[problem]
		w.problems[problem] = true
		return !logged && !known[problem]
	}
	for _, broken := range set.Broken {
		if fresh(broken.Err.Error()) {
			w.log.Error("environment left out", "env", broken.Name, "error", broken.Err)
		}
	}
	for _, hidden := range set.Overridden {
		by := set.Environments[hidden.Name].Origin
		if fresh(fmt.Sprintf("%s: %s instead of %s", hidden.Name, by, hidden.Origin)) {
			w.log.Warn("environment overridden", "env", hidden.Name, "by", by, "instead_of", hidden.Origin)
		}
	}
}

// changes logs the differences between two states.
func (w *Watcher) changes(before, after *Snapshot) {
	for _, name := range after.Names() {
		env, _ := after.Environment(name)
		earlier, was := before.Environment(name)
		switch {
		case !was:
			w.log.Info("environment ready", "env", name, "from", env.Origin)
		case earlier.Exec != env.Exec || earlier.Closure != env.Closure:
			w.log.Info("environment replaced", "env", name, "from", env.Origin)
		}
	}
	for _, name := range before.Names() {
		if _, is := after.Environment(name); !is {
			w.log.Info("environment gone", "env", name)
		}
	}
	for _, entry := range after.AllPending() {
		if earlier, was := before.Pending(entry.Name); !was || earlier.Failed != entry.Failed {
			w.tell(entry)
		}
	}
}

// tell logs a pending environment. Unreadable ones have been reported already.
func (w *Watcher) tell(entry Build) {
	switch {
	case !entry.Failed:
		w.log.Info("environment is being built", "env", entry.Name)
	case entry.Reason != "":
		w.log.Error("environment not built", "env", entry.Name, "error", entry.Reason)
	}
}
