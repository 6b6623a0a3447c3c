// Package patience decides how long tests wait for what must happen.
//
// Such a wait makes no test slower that passes. It is generous, so that a busy
// machine fails nothing, and longer still where every instruction takes longer:
// under the race detector, and where [Variable] says so.
package patience

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
)

// Variable names the environment variable that says how many times longer a
// test waits on this machine: a whole number. tests/vm sets it for machines whose
// instructions are emulated.
const Variable = "NIX_SANDBOX_TEST_PATIENCE"

// longest is what [For] stretches a wait to at most. Suites have time limits of
// their own, which a wait must not outlast.
const longest = time.Minute

// Long is the wait for one thing that must happen: an answer, the end of a
// process, a file. No machine takes that long.
const Long = time.Minute

// Answer returns the wait for the answer to a call. Where machines are emulated, it is
// longer than two starts of a sandbox in one of them may take.
func Answer() time.Duration { return Long * time.Duration(min(Factor(), 5)) }

// Factor returns how many times longer this machine takes than others, at least
// 1.
func Factor() int {
	factor, err := strconv.Atoi(os.Getenv(Variable))
	if err != nil || factor < 1 {
		factor = 1
	}
	if raceDetector {
		factor *= 2
	}
	return factor
}

// For returns what takes d on a quick machine as a wait on this one: at most a
// minute, unless d itself is longer.
func For(d time.Duration) time.Duration {
	return max(d, min(d*time.Duration(Factor()), longest))
}

// Main runs the tests of a package that wait more than they work: eight of those
// that are marked as parallel run side by side, however few processors there are.
// It returns the exit status.
func Main(m *testing.M) int {
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	return m.Run()
}

// Until waits until ok returns true, and fails the test after [Long]. The
// description says what is awaited. Until asks again and again; it is for what
// reports no event, such as the end of another program's process.
func Until(t testing.TB, description string, ok func() bool) {
	t.Helper()
	Wait(t, Long, func() string { return "this has not happened: " + description }, ok)
}

// Wait is [Until] with a time of its own, stretched by [For], and a failure that
// says what was found.
func Wait(t testing.TB, within time.Duration, failure func() string, ok func() bool) {
	t.Helper()
	within = For(within)
	for deadline := time.Now().Add(within); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after %v: %s", within, failure())
		}
	}
}

// Gone waits until all of these processes have ended, and fails the test where
// they do not within 20 s. Nothing that a test leaves running for this may end by
// itself so early.
func Gone(t testing.TB, pids ...int) {
	t.Helper()
	left := pids
	Wait(t, 20*time.Second, func() string { return fmt.Sprintf("processes are left: %v", left) }, func() bool {
		left = slices.DeleteFunc(slices.Clone(left), func(pid int) bool { return !procfs.Runs(pid) })
		return len(left) == 0
	})
}
