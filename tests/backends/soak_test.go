package backends

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/suspended"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/seed"
)

// soakVariable is for how many seconds the soak runs; without it there is none.
const soakVariable = "NIX_SANDBOX_TEST_SOAK_SECONDS"

const (
	// soakers is how many begin, use, branch and end sessions at the same time, each those
	// of its own, of which it keeps at most soakSessions.
	soakers      = 3
	soakSessions = 4
	// soakMax is how many sessions live at once: of the others each sleeps.
	soakMax = 6
)

// soak is what the soakers have in common.
type soak struct {
	t     *testing.T
	state string

	turn   sync.RWMutex // is held for writing where the server is another one afterwards
	server *server

	mu     sync.Mutex
	counts map[string]int
}

func (k *soak) count(what string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.counts[what]++
}

// say calls run and fails the test unless it writes want.
func (k *soak) say(session, from, code, want string) {
	answer := k.server.call("bash", session, from, code)
	if texts := answer.Texts(); answer.IsError || len(texts) == 0 || texts[0] != want {
		k.t.Errorf("session %s from %q: %s: answer %q, want %q", session, from, code, texts, want)
		return
	}
	if answer.Fact("resumed") == true {
		k.count("woken")
	}
}

// soaker is one of those that use sessions.
type soaker struct {
	*soak
	number int
	random *rand.Rand
	made   int
	has    map[string]int // what the variable of each session is
}

// any returns a session in an order that only the random numbers decide.
func (s *soaker) any() string {
	names := make([]string, 0, len(s.has))
	for name := range s.has {
		names = append(names, name)
	}
	slices.Sort(names)
	return names[s.random.IntN(len(names))]
}

// one does one thing.
func (s *soaker) one() {
	s.turn.RLock()
	defer s.turn.RUnlock()
	what := s.random.IntN(10)
	switch {
	case len(s.has) >= soakSessions:
		s.end()
	case len(s.has) == 0 || what < 2:
		s.made++
		name := fmt.Sprintf("s%d-%d", s.number, s.made)
		value := s.random.IntN(1000)
		s.say(name, "", fmt.Sprintf("n=%d; echo $n | tee f", value), fmt.Sprintf("%d\n", value))
		s.has[name] = value
		s.count("created")
	case what < 5:
		origin := s.any()
		s.made++
		name := fmt.Sprintf("s%d-%d", s.number, s.made)
		value := s.has[origin]
		s.say(name, origin, "echo $n; cat f", fmt.Sprintf("%d\n%d\n", value, value))
		s.has[name] = value
		s.count("branched")
	default:
		name := s.any()
		s.has[name]++
		s.say(name, "", "n=$((n + 1)); echo $n | tee f", fmt.Sprintf("%d\n", s.has[name]))
		s.count("called")
	}
}

// end deletes one of its sessions that sleeps, if there is one: the others are used, so
// that this one falls asleep sooner or later.
func (s *soaker) end() {
	for _, one := range asleep(s.t, s.state) {
		if _, mine := s.has[one.Session]; mine && !one.InUse && one.Remove() == nil {
			delete(s.has, one.Session)
			s.count("ended")
			return
		}
	}
	time.Sleep(100 * time.Millisecond)
}

// removeAll deletes all sessions that sleep, when the server has written them to the disk.
func (k *soak) removeAll() {
	patience.Wait(k.t, machineTime, func() string { return "a session that sleeps is in use" }, func() bool {
		left := asleep(k.t, k.state)
		return !slices.ContainsFunc(left, func(one suspended.Session) bool { return one.Remove() != nil })
	})
}

// leftovers are the files that servers and launchers have of sessions.
func (k *soak) leftovers() []string {
	var left []string
	for _, pattern := range []string{
		filepath.Join(k.state, "nix-sandbox-mcp/vm/sessions/*"),
		filepath.Join(shared(k.t), "nix-sandbox-mcp/vm/nix-sandbox-project-*"),
		filepath.Join(shared(k.t), "nix-sandbox-mcp/vm/snapshots/*.partial*"),
	} {
		left = append(left, must.Get(filepath.Glob(pattern))(k.t)...)
	}
	return left
}

// Sessions that begin, sleep, wake, branch and end in a random order leave no process, file,
// descriptor or memory, and each has its own variable.
func TestSoak_SessionsLeaveNothing(t *testing.T) {
	text := os.Getenv(soakVariable)
	if text == "" {
		t.Skip(soakVariable + " does not say for how many seconds")
	}
	random := seed.New(t)
	t.Setenv("SESSION_MAX", strconv.Itoa(soakMax))
	settings := map[string]any{"idle_timeout_seconds": 5, "suspend_mb": 1 << 16}
	k := &soak{t: t, state: t.TempDir(), counts: map[string]int{}}
	k.server = serve(t, k.state, settings, "bash")
	// What the server has after its first session is what it may have at the end.
	k.say("first", "", "echo begun", "begun\n")
	isIdle := func() bool { return len(procfs.Descendants(k.server.PID())) == 0 }
	patience.Wait(t, machineTime, func() string { return "the first session does not sleep" }, isIdle)
	k.removeAll()
	descriptors, memory := must.Get(procfs.Descriptors(k.server.PID()))(t), must.Get(procfs.Memory(k.server.PID()))(t)

	length := time.Duration(must.Get(strconv.Atoi(text))(t)) * time.Second
	until := time.Now().Add(length)
	var all sync.WaitGroup
	for n := range soakers {
		one := &soaker{soak: k, number: n, random: rand.New(rand.NewPCG(random.Uint64(), 0)), has: map[string]int{}}
		all.Go(func() {
			for time.Now().Before(until) && !t.Failed() {
				one.one()
			}
		})
	}
	// The server is replaced three times, and all sessions go on.
	for range 3 {
		time.Sleep(length / 6)
		k.turn.Lock()
		processes := procfs.Tree(k.server.PID())
		k.server.end()
		patience.Wait(t, machineTime, func() string { return "processes outlive their server" }, func() bool {
			return !slices.ContainsFunc(processes, procfs.Runs)
		})
		k.server = serve(t, k.state, settings, "bash")
		k.turn.Unlock()
	}
	all.Wait()
	t.Logf("in %v: %v", length, k.counts)

	patience.Wait(t, machineTime, func() string { return "a session does not sleep" }, isIdle)
	k.removeAll()
	if left := k.leftovers(); len(left) > 0 {
		t.Errorf("%q is left", left)
	}
	patience.Wait(t, machineTime, func() string {
		n, _ := procfs.Descriptors(k.server.PID())
		return fmt.Sprintf("the server has %d descriptors, and had %d", n, descriptors)
	}, func() bool {
		n, err := procfs.Descriptors(k.server.PID())
		return err == nil && n <= descriptors
	})
	after := must.Get(procfs.Memory(k.server.PID()))(t)
	t.Logf("descriptors before and after: %d; memory: %d and %d KiB", descriptors, memory>>10, after>>10)
	if after > memory+(32<<20) {
		t.Errorf("the server has %d MiB of memory, and had %d", after>>20, memory>>20)
	}
}
