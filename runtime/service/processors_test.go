package service

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// admission admits calls until it is full.
type admission struct{ free int }

var errFull = errors.New("full")

func (a *admission) Admit(string, int) (func(), error) {
	if a.free == 0 {
		return nil, errFull
	}
	a.free--
	return func() { a.free++ }, nil
}

func TestProcessors_FollowTheCalls(t *testing.T) {
	runtime.SetDefaultGOMAXPROCS()
	t.Cleanup(runtime.SetDefaultGOMAXPROCS)
	all := runtime.GOMAXPROCS(0)
	a := newProcessors(&admission{free: manyCalls})
	comesTo := func(want int, what string) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); runtime.GOMAXPROCS(0) != want; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s, %d processors are used, want %d", what, runtime.GOMAXPROCS(0), want)
			}
		}
	}
	comesTo(1, "without a call")
	for range 2 {
		var releases []func()
		for range manyCalls {
			releases = append(releases, must.Get(a.Admit("", 1))(t))
		}
		comesTo(all, "beside many calls")
		if _, err := a.Admit("", 1); !errors.Is(err, errFull) {
			t.Errorf("one call too many: %v", err)
		}
		for _, release := range releases {
			release()
		}
		comesTo(1, "after them")
	}
}

func TestProcessors_LeaveTheOperatorsNumber(t *testing.T) {
	t.Setenv("GOMAXPROCS", "2")
	a := &admission{}
	if newProcessors(a) != a {
		t.Error("GOMAXPROCS is set, and calls would change it")
	}
}
