// Package source keeps the catalog as the places are that environments come
// from: sandbox folders and the folder of the wrapper's builds.
//
// It promises that a change there is in the catalog within 2 s, that what is
// half written or half replaced is not, and that the log names what is wrong
// with an entry once for as long as it is wrong.
//
// It looks instead of being told. inotify reports neither a folder that does
// not exist yet, nor another target of a link that an entry's link leads to
// (as `nix build` replaces them), nor what another machine changes on a
// network file system; one fingerprint covers all of these, and costs some
// 100 µs twice a second for a handful of sandboxes.
package source

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/catalog"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/metadata"
)

const (
	// lookEvery is how often the places are looked at.
	lookEvery = 500 * time.Millisecond
	// settleEvery is how often while they change: a change counts when two
	// looks agree. Whoever replaces a link by removing it first is between
	// the two for less.
	settleEvery = 100 * time.Millisecond
	// settleWithin is after how long it counts nevertheless.
	settleWithin = time.Second
)

// Source reads the places into a catalog.
type Source struct {
	base    *metadata.Set
	places  metadata.Places
	catalog *catalog.Catalog
	log     *slog.Logger

	seen     uint64          // the fingerprint of what was read last
	problems map[string]bool // that the log names already
}

// New reads the places for the first time. Base is what the server was built
// with. The error is for a place that cannot be read.
func New(base *metadata.Set, places metadata.Places, log *slog.Logger) (*Source, error) {
	s := &Source{base: base, places: places, log: log, problems: map[string]bool{}}
	// Before the reading: what changes in between is read again.
	s.seen = places.Fingerprint()
	set, err := base.With(places)
	if err != nil {
		return nil, err
	}
	s.catalog = catalog.New(set)
	s.report(set)
	for _, entry := range s.catalog.Now().AllPending() {
		s.tell(entry)
	}
	return s, nil
}

// Catalog is what the source keeps.
func (s *Source) Catalog() *catalog.Catalog { return s.catalog }

// Keep keeps the catalog current until ctx ends. A value from again has
// everything read again at once, and what was built beside the server built
// again: rebuild asks for that.
func (s *Source) Keep(ctx context.Context, again <-chan os.Signal, rebuild func()) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-again:
			s.log.Info("reading the sandbox folders again")
			rebuild()
			s.settle(ctx, s.places.Fingerprint())
		case <-ticker.C:
			if now := s.places.Fingerprint(); now != s.seen {
				s.settle(ctx, now)
			}
		}
	}
}

// settle waits until the places stay as they are, and reads them.
func (s *Source) settle(ctx context.Context, now uint64) {
	for began := time.Now(); time.Since(began) < settleWithin; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(settleEvery):
		}
		before := now
		if now = s.places.Fingerprint(); now == before {
			break
		}
	}
	s.seen = now
	set, err := s.base.With(s.places)
	if err != nil {
		// The environments stay as they were, until the place has changed.
		s.log.Error("sandboxes not read again", "error", err)
		return
	}
	s.report(set)
	before := s.catalog.Now()
	if s.catalog.Publish(set) {
		s.changes(before, s.catalog.Now())
	}
}

// report logs what is wrong with entries, and what hides what, unless the log
// says so already.
func (s *Source) report(set *metadata.Set) {
	known := s.problems
	s.problems = map[string]bool{}
	fresh := func(problem string) bool {
		told := s.problems[problem]
		s.problems[problem] = true
		return !told && !known[problem]
	}
	for _, broken := range set.Broken {
		if fresh(broken.Err.Error()) {
			s.log.Error("environment left out", "env", broken.Name, "error", broken.Err)
		}
	}
	for _, hidden := range set.Overridden {
		by := set.Environments[hidden.Name].Origin
		if fresh(fmt.Sprintf("%s: %s instead of %s", hidden.Name, by, hidden.Origin)) {
			s.log.Warn("environment overridden", "env", hidden.Name, "by", by, "instead_of", hidden.Origin)
		}
	}
}

// changes logs what has become of environments.
func (s *Source) changes(before, after *catalog.Snapshot) {
	for _, name := range after.Names() {
		env, _ := after.Environment(name)
		earlier, was := before.Environment(name)
		switch {
		case !was:
			s.log.Info("environment ready", "env", name, "from", env.Origin)
		case earlier.Exec != env.Exec || earlier.Closure != env.Closure:
			s.log.Info("environment replaced", "env", name, "from", env.Origin)
		}
	}
	for _, name := range before.Names() {
		if _, is := after.Environment(name); !is {
			s.log.Info("environment gone", "env", name)
		}
	}
	for _, entry := range after.AllPending() {
		if earlier, was := before.Pending(entry.Name); !was || earlier.State != entry.State {
			s.tell(entry)
		}
	}
}

// tell logs what an environment waits for. What is wrong with one that could
// not be read has been reported.
func (s *Source) tell(entry catalog.Entry) {
	switch {
	case entry.State == catalog.Building:
		s.log.Info("environment is being built", "env", entry.Name)
	case entry.Reason != "":
		s.log.Error("environment not built", "env", entry.Name, "error", entry.Reason)
	}
}
