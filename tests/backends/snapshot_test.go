package backends

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// cache makes a folder for the launcher's cache, which says that KVM does not work, so
// that all machines of a test are emulated.
func cache(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	fillCache(t, folder)
	return folder
}

// notTried is why KVM does not work, as the launcher remembers it.
const notTried = "it is not tried in this test"

func fillCache(t testing.TB, folder string) {
	t.Helper()
	boot := strings.TrimSpace(string(must.Get(os.ReadFile("/proc/sys/kernel/random/boot_id"))(t)))
	vm := filepath.Join(folder, "nix-sandbox-mcp", "vm")
	must.Do(t, os.MkdirAll(vm, 0o700))
	must.Write(t, filepath.Join(vm, "kvm"), boot+" "+notTried, 0o600)
}

// snapshots returns the folders of the snapshots in a cache.
func snapshots(t *testing.T, cache string) []string {
	t.Helper()
	found := must.Get(filepath.Glob(filepath.Join(cache, "nix-sandbox-mcp/vm/snapshots/*/meta")))(t)
	for i := range found {
		found[i] = filepath.Dir(found[i])
	}
	return found
}

// runs starts a machine with an agent and variables, runs code in it and returns its
// output.
func runs(t *testing.T, folder, cache, code string, variables map[string]string) string {
	t.Helper()
	output, _ := runsAndLogs(t, folder, cache, code, variables)
	return output
}

// runsAndLogs is runs, and returns what the launcher has written to standard error too.
func runsAndLogs(t *testing.T, folder, cache, code string, variables map[string]string) (_, logged string) {
	t.Helper()
	cmd := program(t, folder, "session-run", "")
	cmd.Stdin = nil
	cmd.Env = []string{"XDG_CACHE_HOME=" + cache}
	var log strings.Builder
	cmd.Stderr = &log
	in := must.Get(cmd.StdinPipe())(t)
	out := must.Get(cmd.StdoutPipe())(t)
	must.Do(t, cmd.Start())
	defer func() {
		in.Close()
		_, _ = io.Copy(io.Discard, out)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the launcher ends with %v", err)
		}
		if logged = log.String(); logged != "" {
			t.Logf("the launcher writes %s", logged)
		}
	}()
	requests, replies := frame.NewWriter(in), frame.NewReader(out)
	var reply frame.Reply
	if err := replies.Read(&reply); err != nil || reply.Type != frame.Ready {
		t.Fatalf("its first frame is %+v, error %v: %s", reply, err, &log)
	}
	must.Do(t, requests.Write(
		frame.Request{Type: frame.Configure, Env: variables, OutputBytes: 4096},
		frame.Request{Type: frame.Execute, ID: 7, Code: code, TimeoutMS: machineTime.Milliseconds(), GraceMS: 1000},
	))
	var output strings.Builder
	for {
		reply = frame.Reply{}
		if err := replies.Read(&reply); err != nil {
			t.Fatalf("%v: %s", err, &log)
		}
		switch reply.Type {
		case frame.Output:
			output.WriteString(reply.Data)
		case frame.Result:
			if reply.Outcome != frame.OutcomeOK || reply.ExitCode != 0 {
				t.Fatalf("the code ends with %+v, output %q", reply, &output)
			}
			return output.String(), ""
		default:
			t.Fatalf("the agent answers %+v", reply)
		}
	}
}

// saves has the launcher save a machine, and returns the folder of the snapshot. On a busy
// computer the machine may be late: then the start goes on without one, says so, and the next
// one tries again.
func saves(t *testing.T, folder, cache string) string {
	t.Helper()
	for range 4 {
		_, logged := runsAndLogs(t, folder, cache, "", nil)
		all := snapshots(t, cache)
		if len(all) == 1 {
			return all[0]
		}
		isLate := strings.Contains(logged, " within ") || strings.Contains(logged, "timeout")
		if len(all) > 1 || !isLate {
			t.Fatalf("there are the snapshots %q", all)
		}
	}
	t.Fatal("no start has saved a machine")
	return ""
}

func hash(t *testing.T, name string) string {
	t.Helper()
	file := must.Get(os.Open(name))(t)
	defer file.Close()
	sum := sha256.New()
	must.Get(io.Copy(sum, file))(t)
	return hex.EncodeToString(sum.Sum(nil))
}

// expectTime fails the test unless what code took for the time is that of the host, at
// some moment since the code was asked. What is late by more, the log says: how late
// depends on the host's load.
func expectTime(t *testing.T, who string, now, asked time.Time) {
	t.Helper()
	if late := asked.Sub(now); late > 0 {
		t.Logf("%s is %v behind the time", who, late)
		if late > time.Minute {
			t.Errorf("%s is %v behind the time", who, late)
		}
	}
	if early := time.Since(now); early < -50*time.Millisecond {
		t.Errorf("%s is %v before the time", who, -early)
	}
}

// expectOwn fails the test unless a machine's output is three random numbers that are not
// in seen, to which it adds them, and the time in seconds since 1970, at some moment since
// it was asked.
func expectOwn(t *testing.T, machine int, lines []string, seen map[string]bool, asked time.Time) {
	t.Helper()
	if len(lines) != 4 {
		t.Fatalf("machine %d prints %q", machine, lines)
	}
	for _, line := range lines[:3] {
		if seen[line] {
			t.Errorf("machine %d has %s again, of %q", machine, line, lines)
		}
		seen[line] = true
	}
	now := must.Get(strconv.ParseFloat(lines[3], 64))(t)
	expectTime(t, fmt.Sprintf("machine %d", machine), time.UnixMicro(int64(now*1e6)), asked)
}

// Copies of one machine have random numbers and a time of their own, and do not change
// what they are copies of. The code prints a line for each of its generators, and the
// time. It sees variables of its server, whose values are in none of the files that are
// kept of the machine.
func TestSnapshot_CopiesDiffer(t *testing.T) {
	t.Parallel()
	for kind, code := range map[string]string{
		"bash":   "echo $RANDOM$RANDOM$RANDOM; echo $SRANDOM$SRANDOM; cat /proc/sys/kernel/random/uuid; echo $EPOCHREALTIME",
		"python": "import os, random, uuid, time\nprint(random.random())\nprint(os.urandom(8).hex())\nprint(uuid.uuid4())\nprint(time.time())",
		"node":   "const c = require('crypto'); console.log(Math.random()); console.log(c.randomBytes(8).toString('hex')); console.log(c.randomUUID()); console.log(Date.now() / 1000)",
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			folder, cache := artifact(t, kind), cache(t)
			saved := saves(t, folder, cache)
			memory, meta := hash(t, saved+"/memory"), hash(t, saved+"/meta")
			seen := map[string]bool{}
			value := rand.Text()
			var variables map[string]string
			if kind == "bash" || isLong() { // an interpreter starts again for them
				variables = map[string]string{"INHERITED": value}
				code = fmt.Sprintf(seesVariable[kind], value) + "\n" + code
			}
			for i := range 3 {
				asked := time.Now()
				lines := strings.Fields(runs(t, folder, cache, code, variables))
				expectOwn(t, i, lines, seen, asked)
				if found := snapshots(t, cache); len(found) != 1 || found[0] != saved ||
					hash(t, saved+"/memory") != memory || hash(t, saved+"/meta") != meta {
					t.Errorf("copy %d has changed the snapshot, or made another of %q", i, found)
				}
			}
			if variables != nil {
				isNowhere(t, cache, value)
			}
		})
	}
}

// seesVariable is code that fails where a variable has another value.
var seesVariable = map[string]string{
	"bash":   `[ "$INHERITED" = %s ] || exit 1`,
	"python": `import os; assert os.environ["INHERITED"] == "%s"`,
	"node":   `require("assert").equal(process.env.INHERITED, "%s")`,
}

// isNowhere fails the test where a text is in a file below a cache. What is in the memory
// of each saved machine is found there: the control.
func isNowhere(t *testing.T, cache, text string) {
	t.Helper()
	saved := filepath.Join(cache, "nix-sandbox-mcp/vm")
	search := procfs.NewSearch(text)
	search.Files(saved)
	if len(search.Found) > 0 || len(search.Unread) > 0 {
		t.Errorf("the value is in %q, unread: %v", search.Found, search.Unread)
	}
	control := procfs.NewSearch("org.nix-sandbox-mcp.control")
	for _, one := range snapshots(t, cache) {
		control.File(filepath.Join(one, "memory"))
	}
	if len(control.Found) == 0 || len(control.Found) != len(control.Read) {
		t.Errorf("of the files %v, the name of a port is in %q", control.Read, control.Found)
	}
}

// A snapshot that is whole and of which no machine comes up costs one start more, and
// is replaced.
func TestSnapshot_IsReplacedWhereNoCopyStarts(t *testing.T) {
	t.Parallel()
	folder, cache := artifact(t, "bash"), cache(t)
	saved := saves(t, folder, cache)
	before := string(must.Get(os.ReadFile(saved + "/meta"))(t))
	// Another state, with the hash that belongs to it.
	state := must.Get(os.ReadFile(saved + "/state"))(t)
	old := sha256.Sum256(state)
	for i := range state[100:] {
		state[100+i] ^= 0x5a
	}
	now := sha256.Sum256(state)
	_, object, _ := strings.Cut(before, "\n")
	object = strings.Replace(object, hex.EncodeToString(old[:]), hex.EncodeToString(now[:]), 1)
	for name, text := range map[string]string{"state": string(state), "meta": fmt.Sprintf("%x\n%s", sha256.Sum256([]byte(object)), object)} {
		must.Do(t, os.Remove(filepath.Join(saved, name)))
		must.Write(t, filepath.Join(saved, name), text, 0o400)
	}
	if output := runs(t, folder, cache, "echo right", nil); output != "right\n" {
		t.Errorf("it prints %q", output)
	}
	// A new one may be late on a busy computer, and then this start had none.
	for _, found := range snapshots(t, cache) {
		if hash(t, found+"/state") == hex.EncodeToString(now[:]) {
			t.Error("the broken snapshot is still there")
		}
	}
}
