package registry

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// of is a set of ready environments whose programs tell their generation.
func of(generation int, names ...string) *Set {
	set := &Set{Environments: map[string]Environment{}}
	for _, name := range names {
		set.Environments[name] = Environment{Name: name, Exec: fmt.Sprint(generation)}
	}
	return set
}

func TestStates(t *testing.T) {
	began := time.Now().Add(-time.Minute)
	set := of(1, "ready", "rebuilt")
	set.Builds = []Build{
		{Name: "slow", Since: began},
		{Name: "wrong", Since: began, Failed: true, Reason: "error: syntax error"},
		{Name: "silent", Since: began, Failed: true},
		{Name: "rebuilt", Since: began},
	}
	set.Broken = []Broken{{Name: "broken", Err: errors.New("/etc/x: no name")}, {Name: "ready", Err: errors.New("/etc/y: no name")}}
	now := New(set).Now()
	if diff := cmp.Diff([]string{"ready", "rebuilt"}, now.Names()); diff != "" {
		t.Error(diff)
	}
	want := []Build{
		{Name: "broken", Failed: true},
		{Name: "silent", Failed: true, Reason: "it did not say why"},
		{Name: "slow", Since: began},
		{Name: "wrong", Failed: true, Reason: "error: syntax error"},
	}
	if diff := cmp.Diff(want, now.AllPending()); diff != "" {
		t.Error(diff)
	}
	if _, pending := now.Pending("rebuilt"); pending {
		t.Error("an environment is ready and building")
	}
}

// A snapshot stays as it was when the registry changes, and subscribers are
// called for changes only.
func TestPublish(t *testing.T) {
	set := of(1, "a", "b")
	c := New(set)
	var told []string
	cancel := c.Subscribe(func(before, after *Snapshot) {
		told = append(told, fmt.Sprint(before.Names(), after.Names()))
	})
	before := c.Now()
	delete(set.Environments, "a")
	if len(before.Ready()) != 2 {
		t.Error("the snapshot shares the set's map")
	}
	if !c.Publish(set) {
		t.Error("a removal is no change")
	}
	if c.Publish(of(1, "b")) {
		t.Error("the same again is a change")
	}
	if !c.Publish(of(2, "b")) {
		t.Error("another artifact is no change")
	}
	cancel()
	c.Publish(of(3, "c"))
	if diff := cmp.Diff([]string{"[a b] [b]", "[b] [b]"}, told); diff != "" {
		t.Error(diff)
	}
	if env, ok := before.Environment("a"); !ok || env.Exec != "1" {
		t.Errorf("in the snapshot it is %+v", env)
	}
}

// However many publish, subscribers see one chain of states that ends with
// the present one, and readers never see half of one.
func TestConcurrent(t *testing.T) {
	c := New(of(0, "a", "b"))
	chain := []*Snapshot{c.Now()}
	c.Subscribe(func(before, after *Snapshot) {
		if before != chain[len(chain)-1] {
			t.Error("a state was left out or told out of order")
		}
		chain = append(chain, after)
	})
	var all sync.WaitGroup
	for writer := range 4 {
		all.Go(func() {
			for i := range 50 {
				c.Publish(of(1+writer*100+i, "a", "b"))
			}
		})
		all.Go(func() {
			for range 500 {
				now := c.Now()
				if now.Ready()["a"].Exec != now.Ready()["b"].Exec {
					t.Error("half of a state was seen")
				}
			}
		})
	}
	all.Wait()
	if chain[len(chain)-1] != c.Now() || len(chain) != 201 {
		t.Errorf("%d states were told of 201", len(chain))
	}
}
