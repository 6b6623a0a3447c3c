package deploy_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// enteredVariable is set in the process that has a network namespace of its own.
const enteredVariable = "NIX_SANDBOX_TEST_NETWORK"

// longVariable has tests expect what they measure to be within its time.
const longVariable = "NIX_SANDBOX_TEST_LONG"

const (
	nearAddress = "10.77.0.1"
	farAddress  = "10.77.0.2"
)

// alone runs the test again in a network namespace of its own, and reports whether this
// is that second process.
func alone(t *testing.T) bool {
	t.Helper()
	if os.Getenv(enteredVariable) != "" {
		return true
	}
	undertest.Server(t)
	if os.Geteuid() != 0 {
		t.Skip("only root makes the network namespaces of this test")
	}
	for _, program := range []string{"haproxy", "ip", "nsenter", "unshare"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(program + " is not installed")
		}
	}
	self := must.Get(os.Executable())(t)
	cmd := exec.CommandContext(t.Context(), "unshare", "--net", "--", self, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), enteredVariable+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		t.Errorf("the test failed in its network namespace: %v", err)
	}
	return false
}

func command(t *testing.T, line string) {
	t.Helper()
	words := strings.Fields(line)
	if output, err := exec.CommandContext(t.Context(), words[0], words[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", line, err, output)
	}
}

// When a machine can no longer be reached, the callers of the other one notice little,
// and its own callers are answered by the other after the calls that it took along.
func TestHAProxy_GoesOnWhenAMachineIsCutOff(t *testing.T) {
	t.Parallel()
	if !alone(t) {
		return
	}
	// The other machine is a second namespace, at the end of a cable.
	far := exec.Command("unshare", "--net", "sleep", "infinity")
	start(t, far)
	pid := strconv.Itoa(far.Process.Pid)
	own := must.Get(os.Readlink("/proc/self/ns/net"))(t)
	patience.Wait(t, 5*time.Second, func() string { return "there is no second namespace" }, func() bool {
		other, err := os.Readlink("/proc/" + pid + "/ns/net")
		return err == nil && other != own
	})
	enter := "nsenter --net=/proc/" + pid + "/ns/net "
	command(t, "ip link set lo up")
	command(t, enter+"ip link set lo up")
	command(t, "ip link add near type veth peer name far netns "+pid)
	command(t, "ip address add "+nearAddress+"/24 dev near")
	command(t, "ip link set near up")
	command(t, enter+"ip address add "+farAddress+"/24 dev far")
	command(t, enter+"ip link set far up")

	w := servers(t, nil, strings.Fields(enter))
	ctx, cancel := context.WithTimeout(t.Context(), patience.For(3*time.Minute))
	defer cancel()

	const callers = 8
	var answered, failed [callers]atomic.Int64
	var slowest [callers]time.Duration
	stop := make(chan struct{})
	var running sync.WaitGroup
	for i := range callers {
		running.Go(func() {
			client := w.client(i, mcpclient.Stateless)
			for {
				select {
				case <-stop:
					return
				default:
				}
				began := time.Now()
				answer, err := client.Run(ctx, mcpclient.Arguments{Env: "bash", Code: "echo done", Session: "s"})
				if ctx.Err() != nil {
					return
				}
				slowest[i] = max(slowest[i], time.Since(began))
				if err != nil || answer.IsError {
					failed[i].Add(1)
					time.Sleep(100 * time.Millisecond)
					continue
				}
				answered[i].Add(1)
			}
		})
	}
	more := func(n int64) func() bool {
		var before [callers]int64
		for i := range callers {
			before[i] = answered[i].Load()
		}
		return func() bool {
			for i := range callers {
				if answered[i].Load() < before[i]+n {
					return false
				}
			}
			return true
		}
	}
	counts := func() string {
		var text strings.Builder
		for i := range callers {
			fmt.Fprintf(&text, "%d ", answered[i].Load())
		}
		return "answers by caller: " + text.String()
	}
	patience.Wait(t, time.Minute, counts, more(3))
	// The log of the machine that will be cut off names those whose sessions it has.
	var isFar [callers]bool
	moved := 0
	for i := range callers {
		if n := failed[i].Load(); n != 0 {
			t.Errorf("%d calls of caller %d failed while both machines were there", n, i)
		}
		isFar[i] = strings.Contains(w.logs[1].String(), fmt.Sprintf("principal=principal-%d\n", i))
		if isFar[i] {
			moved++
		}
	}
	command(t, "ip link set near down")
	patience.Wait(t, 2*time.Minute, counts, more(3))
	close(stop)
	running.Wait()
	for i := range callers {
		t.Logf("caller %d, on the machine that was cut off %v: %d answers, the slowest after %v, %d failed", i, isFar[i], answered[i].Load(), slowest[i].Round(time.Millisecond), failed[i].Load())
		// One call of each may have been under way there.
		if most := map[bool]int64{true: 1}[isFar[i]]; failed[i].Load() > most {
			t.Errorf("%d calls of caller %d failed, want %d at most", failed[i].Load(), i, most)
		}
	}
	for i := range callers {
		// Only a machine that does nothing else is that quick.
		if !isFar[i] && os.Getenv(longVariable) != "" && slowest[i] > 5*time.Second {
			t.Errorf("caller %d of the other machine waited for %v, want 5 s at most", i, slowest[i])
		}
	}
	if moved == 0 || moved == callers {
		t.Errorf("%d of %d callers were on the machine that was cut off", moved, callers)
	}
	_ = far.Process.Signal(syscall.SIGTERM)
}
