// Package registry contains the environments that can be called: it reads the output of Nix (the
// server's metadata and the artifacts in sandbox folders), provides a snapshot of the environments
// that are ready, building or failed, and polls the folders for changes.
//
// It makes three promises. Each environment that it returns is usable: its metadata was checked
// field by field and its programs exist. A problem of one environment is one error that names the
// file and the field, and the other environments work; unknown fields are ignored, so that an older
// runtime serves the artifacts of a newer builder. A snapshot never changes: its holder can go on
// using its artifacts after they left the registry. Subscribers are called for each change, one at
// a time and in order.
package registry

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Snapshot is the state of all environments at one moment. It is immutable; so are the results of
// its methods.
type Snapshot struct {
	ready     map[string]Environment
	names     []string
	pending   map[string]Build
	languages []*Language
}

// Ready returns the usable environments by name.
func (s *Snapshot) Ready() map[string]Environment { return s.ready }

// Names returns the names of the usable environments in order.
func (s *Snapshot) Names() []string { return s.names }

// Environment returns a usable environment.
func (s *Snapshot) Environment(name string) (Environment, bool) {
	env, ok := s.ready[name]
	return env, ok
}

// Languages returns the known interpreters, whether or not an environment runs them, in order of
// their types. There may be several of one type.
func (s *Snapshot) Languages() []*Language { return s.languages }

// Pending returns an environment that is building or has failed. It returns false if there is none
// of this name, or if it is ready.
func (s *Snapshot) Pending(name string) (Build, bool) {
	build, ok := s.pending[name]
	return build, ok
}

// AllPending returns the environments that are building or have failed, in
// order of their names.
func (s *Snapshot) AllPending() []Build {
	return slices.SortedFunc(maps.Values(s.pending), func(a, b Build) int { return strings.Compare(a.Name, b.Name) })
}

// equal reports whether two snapshots have the same contents.
func (s *Snapshot) equal(other *Snapshot) bool {
	same := func(a, b Environment) bool { return reflect.DeepEqual(a, b) }
	return maps.EqualFunc(s.ready, other.ready, same) &&
		maps.EqualFunc(s.pending, other.pending, func(a, b Build) bool {
			return a.Failed == b.Failed && a.Since.Equal(b.Since) && a.Reason == b.Reason
		})
}

// Registry has the current [Snapshot], and tells subscribers when it changes.
type Registry struct {
	now atomic.Pointer[Snapshot]

	// mu orders publications; readers do not take it.
	mu          sync.Mutex
	subscribers []*subscriber
}

type subscriber struct{ changed func(before, after *Snapshot) }

// New returns a Registry with the contents of a set.
func New(set *Set) *Registry {
	c := &Registry{}
	c.now.Store(snapshot(set))
	return c
}

// snapshot returns the state that a set describes. It shares nothing with the set.
func snapshot(set *Set) *Snapshot {
	s := &Snapshot{
		ready:   maps.Clone(set.Environments),
		names:   set.Names(),
		pending: map[string]Build{},
	}
	s.languages = slices.Collect(maps.Values(set.Languages))
	for _, env := range s.ready {
		if env.Language != nil && !slices.Contains(s.languages, env.Language) {
			s.languages = append(s.languages, env.Language)
		}
	}
	slices.SortStableFunc(s.languages, func(a, b *Language) int { return strings.Compare(a.Type, b.Type) })
	for _, build := range set.Builds {
		if _, usable := s.ready[build.Name]; usable {
			continue
		}
		if build.Failed {
			build.Since, build.Reason = time.Time{}, cmp.Or(build.Reason, "it did not say why")
		}
		s.pending[build.Name] = build
	}
	for _, broken := range set.Broken {
		_, usable := s.ready[broken.Name]
		_, known := s.pending[broken.Name]
		if !usable && !known {
			s.pending[broken.Name] = Build{Name: broken.Name, Failed: true}
		}
	}
	return s
}

// Now returns the state of this moment. It takes no lock.
func (c *Registry) Now() *Snapshot { return c.now.Load() }

// Publish makes a set the state from now on, and reports whether the state changed. It returns
// after the subscribers were called.
func (c *Registry) Publish(set *Set) bool {
	after := snapshot(set)
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.now.Load()
	if before.equal(after) {
		return false
	}
	c.now.Store(after)
	for _, s := range c.subscribers {
		s.changed(before, after)
	}
	return true
}

// Subscribe has changed called after each change, until the returned function
// is called. Calls come one at a time and in order; while one runs, the next
// state waits to be published, so it must not wait for a sandbox. It must not
// call Publish, Subscribe or the returned function.
func (c *Registry) Subscribe(changed func(before, after *Snapshot)) (cancel func()) {
	own := &subscriber{changed}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subscribers = append(slices.Clip(c.subscribers), own)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.subscribers = slices.DeleteFunc(slices.Clone(c.subscribers), func(s *subscriber) bool { return s == own })
	}
}
