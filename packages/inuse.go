package packages

import (
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
)

// maxInUse bounds the environments with packages for which the pool keeps sandboxes.
const maxInUse = 8

// inUse remembers the environments with packages that calls use: the last maxInUse of them, each
// until idle has passed since its last call.
type inUse struct {
	idle time.Duration

	mu      sync.Mutex
	order   []*used // by the time of their last call
	changed func()  // may be nil
}

// used is an environment and the timer that ends its use.
type used struct {
	env   registry.Environment
	timer *time.Timer
}

func newInUse(idle time.Duration) *inUse { return &inUse{idle: idle} }

// use notes a call of an environment.
func (u *inUse) use(env registry.Environment) {
	u.mu.Lock()
	one := u.take(func(other *used) bool { return other.env.Name == env.Name })
	if one != nil {
		one.timer.Stop()
	}
	next := &used{env: env}
	next.timer = time.AfterFunc(u.idle, func() {
		u.mu.Lock()
		gone := u.take(func(other *used) bool { return other == next })
		u.tell(gone != nil)
	})
	u.order = append(u.order, next)
	changed := one == nil || one.env.SessionExec != env.SessionExec
	if len(u.order) > maxInUse {
		u.order[0].timer.Stop()
		u.order = u.order[1:]
	}
	u.tell(changed)
}

// take removes the first environment that matches, and returns it or nil.
func (u *inUse) take(matches func(*used) bool) *used {
	for i, one := range u.order {
		if matches(one) {
			u.order = append(u.order[:i:i], u.order[i+1:]...)
			return one
		}
	}
	return nil
}

// tell unlocks u.mu, and calls the subscriber if the environments have changed.
func (u *inUse) tell(changed bool) {
	subscriber := u.changed
	u.mu.Unlock()
	if changed && subscriber != nil {
		subscriber()
	}
}

func (u *inUse) environments() []registry.Environment {
	u.mu.Lock()
	defer u.mu.Unlock()
	var all []registry.Environment
	for _, one := range u.order {
		all = append(all, one.env)
	}
	return all
}

// subscribe has changed called after each change until stop is called.
func (u *inUse) subscribe(changed func()) (stop func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.changed = changed
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.changed = nil
		for _, one := range u.order {
			one.timer.Stop()
		}
		u.order = nil
	}
}
