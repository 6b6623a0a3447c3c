package backends

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/store"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/seed"
)

// soakVariable is for how many seconds the soak runs at least, and twice as many as the
// sessions that it begins at least; without it there is none.
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
	// seen are the processes below a server, by what tells each from a later process of
	// the same id.
	seen map[identity]bool
}

// identity tells processes apart.
type identity struct {
	pid   int
	began uint64 // in ticks of the kernel's clock
}

func (k *soak) count(what string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.counts[what]++
}

// begun is how many sessions there have been.
func (k *soak) begun() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.counts["created"] + k.counts["branched"]
}

// note takes down the processes below the server, so that one that outlives it is found
// although it has another parent by then.
func (k *soak) note() {
	for _, pid := range procfs.Tree(k.server.PID()) {
		if p, err := procfs.Read(pid); err == nil {
			k.mu.Lock()
			k.seen[identity{pid, p.Began()}] = true
			k.mu.Unlock()
		}
	}
}

// running are the processes that were noted and run, but for the server.
func (k *soak) running() (running []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for one := range k.seen {
		if p, err := procfs.Read(one.pid); err == nil && one.pid != k.server.PID() && p.Began() == one.began && procfs.Runs(one.pid) {
			running = append(running, fmt.Sprintf("%d %s", one.pid, p.Name()))
		}
	}
	return running
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
	defer s.note()
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
		if _, mine := s.has[one.Session]; mine && one.Holder == nil && one.Remove() == nil {
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
		return !slices.ContainsFunc(left, func(one store.Session) bool { return one.Remove() != nil })
	})
}

// files are those that servers and launchers keep, but for the saved machines that all
// tests share.
func (k *soak) files() (files []string) {
	for _, folder := range []string{k.state, shared(k.t)} {
		must.Do(k.t, filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() && filepath.Base(filepath.Dir(path)) == "snapshots" && !strings.Contains(entry.Name(), "partial") {
				return fs.SkipDir
			}
			files = append(files, path)
			return err
		}))
	}
	return files
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
	k := &soak{t: t, state: t.TempDir(), counts: map[string]int{}, seen: map[identity]bool{}}
	k.server = serve(t, k.state, settings, "bash")
	// What the server has after its first session is what it may have at the end.
	k.say("first", "", "echo begun", "begun\n")
	isIdle := func() bool { return len(procfs.Descendants(k.server.PID())) == 0 }
	patience.Wait(t, machineTime, func() string { return "the first session does not sleep" }, isIdle)
	k.removeAll()
	descriptors, memory := must.Get(procfs.Descriptors(k.server.PID()))(t), must.Get(procfs.Memory(k.server.PID()))(t)
	files := k.files()

	seconds := must.Get(strconv.Atoi(text))(t)
	length, began := time.Duration(seconds)*time.Second, time.Now()
	goesOn := func() bool {
		return !t.Failed() && (time.Since(began) < length || k.begun() < seconds/2)
	}
	var all sync.WaitGroup
	soaking := make([]*soaker, soakers)
	for n := range soaking {
		one := &soaker{soak: k, number: n, random: rand.New(rand.NewPCG(random.Uint64(), 0)), has: map[string]int{}}
		soaking[n] = one
		all.Go(func() {
			for goesOn() {
				one.one()
			}
		})
	}
	// The server is replaced three times, and all sessions go on.
	for range 3 {
		time.Sleep(length / 6)
		k.turn.Lock()
		k.note()
		k.server.end()
		patience.Wait(t, machineTime, func() string { return fmt.Sprintf("%q outlive their server", k.running()) }, func() bool {
			return len(k.running()) == 0
		})
		k.server = serve(t, k.state, settings, "bash")
		k.turn.Unlock()
	}
	all.Wait()
	for _, one := range soaking {
		if t.Failed() {
			break // its figures may be wrong
		}
		for session, value := range one.has {
			k.say(session, "", "echo $n; cat f", fmt.Sprintf("%d\n%d\n", value, value))
			k.note()
		}
	}
	t.Logf("in %v: %v, %d processes", time.Since(began).Round(time.Second), k.counts, len(k.seen))

	patience.Wait(t, machineTime, func() string { return fmt.Sprintf("%q run", k.running()) }, func() bool {
		return isIdle() && len(k.running()) == 0
	})
	k.removeAll()
	for _, file := range k.files() {
		if !slices.Contains(files, file) {
			t.Errorf("%s is left", file)
		}
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
