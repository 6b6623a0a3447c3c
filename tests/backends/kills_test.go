package backends

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/store"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/seed"
)

// killsVariable says how many times a session is killed while it falls asleep or wakes, for
// the long form of the test.
const killsVariable = "NIX_SANDBOX_TEST_KILLS"

// killing is one session that is killed again and again, and the state folder of its
// servers.
type killing struct {
	t      *testing.T
	state  string
	random *rand.Rand
	// environ is the environment of a tool that finds the session.
	environ []string
	// last is the session's number when it fell asleep last.
	last int
	// bytes is what its state took on disk, and wake the processor time of a wake.
	bytes int64
	wake  time.Duration
}

// moment is when a process is killed: when what it does has come so far.
type moment struct {
	name string
	come func() bool
}

// aWake chooses a moment of a wake by the processor time that everything below the process
// has used, which no load of the computer changes.
func (k *killing) aWake(pid int) moment {
	part := k.random.Float64()
	return moment{fmt.Sprintf("after %.2f of a wake", part), func() bool {
		below := procfs.Descendants(pid)
		return len(below) > 0 && used(below) >= time.Duration(part*float64(k.wake))
	}}
}

// aSave chooses a moment of a save by the files that appear and grow.
func (k *killing) aSave() moment {
	before := k.head().Data
	switch which := k.random.IntN(10); which {
	case 0:
		return moment{"when the state's description is written", func() bool { return len(k.found("data-*.partial/meta")) > 0 }}
	case 1:
		return moment{"when the state has its name", func() bool {
			for _, path := range k.found("data-*") {
				if name := filepath.Base(path); name != before && !strings.HasSuffix(name, ".partial") {
					return true
				}
			}
			return false
		}}
	case 2:
		return moment{"when it counts", func() bool { return k.head().Data != before }}
	}
	part := k.random.Float64()
	return moment{fmt.Sprintf("when %.2f of the state is written", part), func() bool {
		for _, path := range k.found("data-*.partial/memory") {
			var status syscall.Stat_t
			if syscall.Stat(path, &status) == nil && float64(status.Blocks*512) >= part*float64(k.bytes) {
				return true
			}
		}
		return false
	}}
}

// found returns what there is of a name in the session's folder.
func (k *killing) found(pattern string) []string {
	return must.Get(filepath.Glob(filepath.Join(k.state, "nix-sandbox-mcp/vm/sessions/*", pattern)))(k.t)
}

// head describes the session as it sleeps; it is empty where it does not. Nothing is
// locked for it, so that who saves the session is not kept from it.
func (k *killing) head() (head store.Head) {
	for _, path := range k.found("head") {
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted meanwhile
		}
		text, _, _ = bytes.Cut(text, []byte("\n")) // its sum follows
		must.Do(k.t, errors.Join(err, json.Unmarshal(text, &head)))
	}
	return head
}

// at kills a process at a moment, and reports whether the moment came before the process
// had ended, or what it did was over.
func (k *killing) at(m moment, pid int, over <-chan struct{}) (hit bool) {
	limit := time.NewTimer(machineTime)
	defer limit.Stop()
	for !m.come() {
		select {
		case <-over:
			_ = syscall.Kill(pid, syscall.SIGKILL)
			return false
		case <-limit.C:
			k.t.Fatalf("the moment %s did not come", m.name)
		case <-time.After(200 * time.Microsecond): // processor time and sizes of files have no event
		}
	}
	select {
	case <-over:
		hit = false
	default:
		hit = true
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	return hit
}

// used is the processor time of processes.
func used(pids []int) (sum time.Duration) {
	for _, pid := range pids {
		if p, err := procfs.Read(pid); err == nil {
			own, ended := p.Times()
			sum += own + ended
		}
	}
	return sum
}

// increment is a call of the session.
const increment = "n=$((n+1)); echo $n"

// A way has a process do something, kills it at a moment, and returns the numbers that
// the session may have afterwards; gone is one of them.
type way struct {
	name string
	run  func(k *killing) (m moment, hit bool, may []int)
}

// gone is the number of a session that was awake in a server that was killed.
const gone = -1

var ways = []way{
	// A call that does not end: what slept sleeps on, however far the wake has come.
	{"waking", func(k *killing) (moment, bool, []int) {
		s := serve(k.t, k.state, nil, "bash")
		m := k.aWake(s.PID())
		s.begin("bash", "s", endless)
		hit := k.at(m, s.PID(), s.Exited())
		<-s.Exited()
		return m, hit, []int{k.last}
	}},
	// The server ends, and with it its only session falls asleep.
	{"falling asleep", func(k *killing) (moment, bool, []int) {
		s := serve(k.t, k.state, nil, "bash")
		s.in("bash", "s", increment, fmt.Sprintf("%d\n", k.last+1))
		patience.Wait(k.t, machineTime, func() string { return "what it slept in is not deleted" }, func() bool { return len(k.found("data-*")) == 0 })
		m := k.aSave()
		must.Do(k.t, s.CloseInput())
		hit := k.at(m, s.PID(), s.Exited())
		<-s.Exited()
		if k.head().Data == "" {
			return m, hit, []int{gone}
		}
		return m, hit, []int{k.last + 1}
	}},
	// A call that ends, about the time of its answer, after which nothing sleeps.
	{"having woken", func(k *killing) (moment, bool, []int) {
		s := serve(k.t, k.state, nil, "bash")
		part := 0.7 + k.random.Float64()*0.6
		m := moment{fmt.Sprintf("after %.2f of a wake and its call", part), func() bool {
			below := procfs.Descendants(s.PID())
			return len(below) > 0 && used(below) >= time.Duration(part*float64(k.wake))
		}}
		over := make(chan struct{})
		go func() {
			defer close(over)
			// It may be killed before it answers.
			_, _ = s.Call(s.t.Context(), "tools/call", mcpclient.RunParams(mcpclient.Arguments{Code: increment, Env: "bash", Session: "s"}))
		}()
		hit := k.at(m, s.PID(), over)
		<-s.Exited()
		<-over
		if k.head().Data == "" {
			return m, hit, []int{gone}
		}
		return m, hit, []int{k.last}
	}},
}

// A server that is killed while a session falls asleep or wakes leaves the old
// state or the new one, which goes on with its own number: never a broken one, nor a part
// of one.
func TestSession_SurvivesKills(t *testing.T) {
	kills := 3
	if text := os.Getenv(killsVariable); text != "" {
		kills = must.Get(strconv.Atoi(text))(t)
	}
	k := &killing{t: t, state: t.TempDir(), random: seed.New(t)}
	s := serve(t, k.state, nil, "bash")
	begin := func(s *server) { s.in("bash", "s", "n=0; echo $n", "0\n") }
	begin(s)
	s.end()
	// A wake that nobody disturbs is what the moments are parts of.
	s = serve(t, k.state, nil, "bash")
	s.in("bash", "s", "echo $n", "0\n")
	k.wake = used(procfs.Descendants(s.PID()))
	s.end()
	k.bytes = k.head().Bytes
	k.environ = s.environ
	t.Logf("a wake takes %v of processor time, the state %d MiB", k.wake, k.bytes>>20)

	hits, went := map[string]int{}, map[string]int{}
	tries := 0
	for done := 0; done < kills; tries++ {
		if tries == 4*kills {
			t.Fatalf("of %d kills %v hit", tries, hits)
		}
		w := ways[tries%len(ways)]
		m, hit, may := w.run(k)
		if hit {
			done++
			hits[w.name]++
		}
		s := serve(t, k.state, nil, "bash")
		answer := s.call("bash", "s", "", "echo none$n")
		text := answer.Texts()[0]
		switch {
		case answer.IsError:
			t.Fatalf("%s, killed %s: the answer is %q", w.name, m.name, answer.Text())
		case may[0] == gone && text == "none\n" && answer.Fact("resumed") == nil:
			went["gone"]++
			begin(s)
			k.last = 0
		case may[0] != gone && text == fmt.Sprintf("none%d\n", may[0]) && answer.Fact("resumed") == true:
			went[map[bool]string{true: "old", false: "new"}[may[0] == k.last]]++
			k.last = may[0]
		default:
			t.Fatalf("%s, killed %s: the session has %q, %+v, after %d; want %v", w.name, m.name, text, answer.Meta, k.last, may)
		}
		t.Logf("%s, killed %s: hit %v, the session has %q", w.name, m.name, hit, text)
		s.end()
		if sessions := asleep(t, k.state); len(sessions) != 1 {
			t.Fatalf("%s, killed %s: there sleep %+v; the log:\n%s", w.name, m.name, sessions, s.log)
		}
		// Nothing of an attempt that was killed is left.
		if states := must.Get(filepath.Glob(filepath.Join(k.state, "nix-sandbox-mcp/vm/sessions/*/data-*")))(t); len(states) != 1 {
			t.Fatalf("%s, killed %s: there are the states %q", w.name, m.name, states)
		}
	}
	t.Logf("%d kills, of which these hit: %v; the session went on as: %v", tries, hits, went)
}
