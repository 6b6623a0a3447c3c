package backends

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/machines"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// machine is a started machine of a test, which ends with it.
type machine struct {
	*machines.Machine
	t testing.TB
}

// shared is a cache for all tests that do not look at it, so that most of their machines
// are copies.
func shared(t testing.TB) string {
	t.Helper()
	sharedCache.Do(func() {
		folder := must.Get(os.MkdirTemp("", "backends"))(t)
		onEnd = func() { os.RemoveAll(folder) }
		fillCache(t, folder)
		sharedFolder = folder
	})
	return sharedFolder
}

var (
	sharedCache  sync.Once
	sharedFolder string
)

// start starts a machine, from a folder unless that is empty, which has to come up. The
// launcher has these variables too.
func start(t testing.TB, folder, cache, from string, environ ...string) *machine {
	t.Helper()
	m := must.Get(machines.Start(folder, cache, from, environ...))(t)
	t.Cleanup(m.Close)
	return &machine{m, t}
}

// run runs code, whose state is kept, and returns its output.
func (m *machine) run(code string) string {
	m.t.Helper()
	return must.Get(m.Run(code))(m.t)
}

// saved saves the machine, which has to succeed.
func (m *machine) saved(to string, keep bool) {
	m.t.Helper()
	must.Get(m.Saved(to, keep))(m.t)
}

// asBefore prepares a session that has something of everything, and isAsBefore prints
// "as before", the time and the monotonic time where all of it is there.
func asBefore() string {
	size := 20 << 20
	if isLong() {
		size = 100 << 20
	}
	return fmt.Sprintf("SIZE = %d\n", size) + prepare
}

const (
	prepare = `
import hashlib, os, subprocess, sys, threading, time
data = os.urandom(SIZE)
digest = hashlib.sha256(data).hexdigest()
for n in range(50):
    open(f'/workspace/{n}', 'w').write(str(n))
handle = open('/workspace/7', 'r+')
handle.seek(1)
handle.write('!')
handle.flush()
ticks = [0, time.monotonic(), 0.0]
def tick():
    while True:
        now = time.monotonic()
        ticks[0] += 1
        ticks[2] = max(ticks[2], now - ticks[1])
        ticks[1] = now
        time.sleep(0.01)
threading.Thread(target=tick, daemon=True).start()
fired = threading.Event()
threading.Timer(3, fired.set).start()
child = subprocess.Popen(['cat'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
`
	isAsBefore = `
assert hashlib.sha256(data).hexdigest() == digest, 'data'
assert all(open(f'/workspace/{n}').read() == str(n) for n in range(50) if n != 7), 'files'
assert handle.tell() == 2 and open('/workspace/7').read() == '7!', 'handle'
before = ticks[0]
while ticks[0] == before: time.sleep(0.01)
assert fired.wait(100), 'timer'
child.stdin.write(b'child\n'); child.stdin.flush()
assert child.stdout.readline() == b'child\n', 'child'
print('as before', time.time(), time.monotonic())
`
)

// A machine that was saved goes on in another process with everything that was in it,
// at the time of the host.
func TestSaved_GoesOnAsBefore(t *testing.T) {
	t.Parallel()
	folder, cache := artifact(t, "python"), shared(t)
	to := filepath.Join(t.TempDir(), "saved")
	m := start(t, folder, cache, "")
	m.run(asBefore())
	began := time.Now()
	var before float64
	if _, err := fmt.Sscanf(m.run("print(time.monotonic())"), "%f\n", &before); err != nil {
		t.Fatal(err)
	}
	m.saved(to, false)
	ran := time.Since(began)
	for name, want := range map[string]os.FileMode{"": 0o700, "memory": 0o600, "state": 0o600, "meta": 0o400} {
		if info := must.Get(os.Stat(filepath.Join(to, name)))(t); info.Mode().Perm() != want {
			t.Errorf("%q has the mode %v, want %v", name, info.Mode(), want)
		}
	}
	if isLong() {
		time.Sleep(5 * time.Second) // which are none for the machine
	}
	woke := time.Now()
	m = start(t, folder, cache, to)
	var now, after float64
	if _, err := fmt.Sscanf(m.run(isAsBefore), "as before %f %f\n", &now, &after); err != nil {
		t.Fatal(err)
	}
	expectTime(t, "it", time.UnixMicro(int64(now*1e6)), woke)
	ran += time.Since(woke)
	if passed := time.Duration((after - before) * float64(time.Second)); passed < 0 || passed > ran+time.Second {
		t.Errorf("%v have passed in it, which ran for at most %v", passed, ran)
	}
}

// A branch has what its origin had, and neither has what the other does afterwards. It
// outlives its origin, and has branches of its own.
func TestSaved_Branches(t *testing.T) {
	t.Parallel()
	folder, cache, parent := artifact(t, "bash"), shared(t), t.TempDir()
	a := start(t, folder, cache, "")
	a.run("x=1; echo 1 > file")
	first, second := filepath.Join(parent, "first"), filepath.Join(parent, "second")
	a.saved(first, true)
	a.run("x=2; echo 2 > file")
	b := start(t, folder, cache, first)
	if output := b.run("echo $x $(cat file)"); output != "1 1\n" {
		t.Errorf("the branch has %q", output)
	}
	b.run("x=3; echo 3 > file")
	if output := a.run("echo $x $(cat file)"); output != "2 2\n" {
		t.Errorf("its origin has %q", output)
	}
	b.saved(second, true)
	// Those who go on have what they need of the folders.
	must.Do(t, os.RemoveAll(first))
	for _, m := range []*machine{a, b} {
		must.Do(t, m.Cmd.Process.Kill())
		_ = m.Cmd.Wait()
	}
	if output := start(t, folder, cache, second).run("echo $x $(cat file)"); output != "3 3\n" {
		t.Errorf("the branch of the branch has %q", output)
	}
}

// Two branches and their origin go on with different random numbers, also those of
// OpenSSL. The code prints a line for each generator.
func TestSaved_BranchesDifferInRandomNumbers(t *testing.T) {
	t.Parallel()
	for kind, code := range map[string]string{
		"bash":   "echo $RANDOM$RANDOM$RANDOM; echo $SRANDOM$SRANDOM; cat /proc/sys/kernel/random/uuid; echo $EPOCHREALTIME",
		"python": "import os, random, ssl, time\nprint(random.random())\nprint(os.urandom(8).hex())\nprint(ssl.RAND_bytes(8).hex())\nprint(time.time())",
		"node":   "var c = require('crypto'); console.log(Math.random()); console.log(c.randomBytes(8).toString('hex')); console.log(c.randomUUID()); console.log(Date.now() / 1000)",
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			folder, cache, parent := artifact(t, kind), shared(t), t.TempDir()
			origin := start(t, folder, cache, "")
			// All of them have a seed when the branches begin.
			origin.run(code)
			to := filepath.Join(parent, "branch")
			origin.saved(to, true)
			seen := map[string]bool{}
			for i, m := range []*machine{origin, start(t, folder, cache, to), start(t, folder, cache, to)} {
				asked := time.Now()
				expectOwn(t, i, strings.Fields(m.run(code)), seen, asked)
			}
		})
	}
}

// A session whose server was killed after it was resumed is resumed again from the same state. What
// the first machine drew may have been seen.
func TestSaved_DiffersInRandomNumbersWhenResumedAgain(t *testing.T) {
	t.Parallel()
	const code = "import os, random, ssl, time\nprint(random.random())\nprint(os.urandom(8).hex())\nprint(ssl.RAND_bytes(8).hex())\nprint(time.time())"
	folder, cache, to := artifact(t, "python"), shared(t), filepath.Join(t.TempDir(), "saved")
	origin := start(t, folder, cache, "")
	origin.run(code)
	origin.saved(to, false)
	seen := map[string]bool{}
	for i := range 2 {
		asked := time.Now()
		m := start(t, folder, cache, to)
		expectOwn(t, i, strings.Fields(m.run(code)), seen, asked)
		must.Do(t, m.Cmd.Process.Kill())
		_ = m.Cmd.Wait()
	}
}

// What was saved of another machine, or is damaged, is refused with a sentence, and what
// is right goes on: the control.
func TestSaved_RefusesWhatIsNotItsOwn(t *testing.T) {
	t.Parallel()
	folder, cache, parent := artifact(t, "bash"), shared(t), t.TempDir()
	to := filepath.Join(parent, "saved")
	m := start(t, folder, cache, "")
	m.run("x=1")
	m.saved(to, false)
	meta := string(must.Get(os.ReadFile(filepath.Join(to, "meta")))(t))
	state := must.Get(os.ReadFile(filepath.Join(to, "state")))(t)
	_, object, _ := strings.Cut(meta, "\n")
	var fields map[string]any
	must.Do(t, json.Unmarshal([]byte(object), &fields))
	other := strings.Replace(object, fields["key"].(string), strings.Repeat("0", 32), 1)
	for _, test := range []struct{ name, file, text, says string }{
		{"another key", "meta", fmt.Sprintf("%x\n%s", sha256.Sum256([]byte(other)), other), "another build of its environment"},
		{"a damaged description", "meta", strings.ToUpper(meta), "description is damaged"},
		{"a damaged state", "state", string(state[:len(state)-1]), "state was changed"},
		{"no description", "meta", "", "damaged"},
	} {
		write := func(meta string, state []byte) {
			must.Do(t, os.Remove(filepath.Join(to, "meta")))
			must.Write(t, filepath.Join(to, "meta"), meta, 0o400)
			must.Do(t, os.WriteFile(filepath.Join(to, "state"), state, 0o600))
		}
		if test.file == "meta" {
			write(test.text, state)
		} else {
			write(meta, []byte(test.text))
		}
		if _, err := machines.Start(folder, cache, to); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: error %v, want %q", test.name, err, test.says)
		}
		write(meta, state)
	}
	if output := start(t, folder, cache, to).run("echo $x"); output != "1\n" {
		t.Errorf("what is right has %q", output)
	}
}

// A machine that cannot be saved goes on, and can be saved when there is space.
func TestSaved_LivesOnWhereTheDiskIsFull(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root mounts a small file system")
	}
	folder, cache, small := artifact(t, "bash"), shared(t), t.TempDir()
	// The thread ends with this test, and the mounts with what runs in them.
	runtime.LockOSThread()
	must.Do(t, unix.Unshare(unix.CLONE_NEWNS))
	must.Do(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	must.Do(t, unix.Mount("small", small, "tmpfs", 0, "size=8m,mode=0700"))
	t.Cleanup(func() { must.Do(t, unix.Unmount(small, unix.MNT_DETACH)) })
	for _, keep := range []bool{true, false} {
		m := start(t, folder, cache, "")
		m.run("x=1")
		to := filepath.Join(small, "saved")
		a := must.Get(m.Save(to, keep))(t)
		if !strings.Contains(a.Error, "no space left on device") || strings.Contains(a.Error, "\n") {
			t.Errorf("keep %v: the answer is %+v", keep, a)
		}
		if left := must.Get(os.ReadDir(small))(t); len(left) != 0 {
			t.Errorf("keep %v: %v is left", keep, left)
		}
		if output := m.run("echo $x"); output != "1\n" {
			t.Errorf("keep %v: it goes on with %q", keep, output)
		}
		must.Do(t, unix.Mount("small", small, "tmpfs", unix.MS_REMOUNT, "size=1g,mode=0700"))
		m.saved(to, keep)
		must.Do(t, os.RemoveAll(to))
		must.Do(t, unix.Mount("small", small, "tmpfs", unix.MS_REMOUNT, "size=8m,mode=0700"))
	}
}

// A request that makes no sense is answered with a sentence, and the machine goes on.
func TestControl_RefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	m := start(t, artifact(t, "bash"), shared(t), "")
	for request, says := range map[string]string{
		`{"do":"fly"}`:               `does not know the request "fly"`,
		`{"do":"save","to":"here"}`:  `"here" is no absolute path`,
		`{"do":"save","to":"/proc"}`: "/proc exists already",
	} {
		a := must.Get(m.Ask(request))(t)
		if !strings.Contains(a.Error, says) {
			t.Errorf("%s gets %+v, want %q", request, a, says)
		}
	}
	if output := m.run("echo right"); output != "right\n" {
		t.Errorf("it goes on with %q", output)
	}
}
