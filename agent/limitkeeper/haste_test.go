package limitkeeper

import (
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// A process has the usual time slice, whatever that of the agent is when it starts.
func TestHasten_LeavesStartedProcessesAlone(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	slice := func(pid int) time.Duration {
		return time.Duration(must.Get(unix.SchedGetAttr(pid, 0))(t).Runtime)
	}
	usual := slice(0)
	hasten(shortSlice)
	if got := slice(0); got == usual {
		t.Skip("this kernel has no time slices of threads")
	} else if got != shortSlice {
		t.Errorf("a slice of %v, want %v", got, shortSlice)
	}
	child := exec.Command("sleep", "60")
	must.Do(t, child.Start())
	defer child.Wait()
	defer child.Process.Kill()
	if got := slice(child.Process.Pid); got != usual {
		t.Errorf("a slice of %v of a process that was started, want %v", got, usual)
	}
	hasten(0)
	if got := slice(0); got != usual {
		t.Errorf("afterwards a slice of %v, want %v", got, usual)
	}
}

// The agent takes the short slice if a call is long or code has used much processor time,
// and leaves it when neither is so.
func TestKeeper_HurriesOnlyBesideLongCode(t *testing.T) {
	at := func(ran time.Duration) []process { return []process{{pid: 1 << 22, time: int64(time.Hour + ran)}} }
	k := &Keeper{scanner: &scanner{}}
	for _, step := range []struct {
		call, ran time.Duration
		want      bool
	}{
		{0, longRun, false}, {longCall, 0, false}, {longCall + 1, 0, true}, {0, 0, false}, {0, longRun + 1, true}, {0, 0, false},
	} {
		k.scanner.before, k.scanner.found = at(0), at(step.ran)
		if k.hurry(step.call); k.hurried != step.want {
			t.Errorf("call of %v, of which %v on a processor: %v, want %v", step.call, step.ran, k.hurried, step.want)
		}
	}
}
