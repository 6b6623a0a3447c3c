package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/seed"
)

// soak returns how many rounds a test makes: few, unless NIX_SANDBOX_TEST_SOAK gives
// another number.
func soak(t testing.TB, few int) int {
	t.Helper()
	text := os.Getenv("NIX_SANDBOX_TEST_SOAK")
	if text == "" {
		return few
	}
	n, err := strconv.Atoi(text)
	if err != nil || n <= 0 {
		t.Fatalf("NIX_SANDBOX_TEST_SOAK is %q, want a number of times", text)
	}
	return n
}

// A server that is killed at any moment under load leaves nothing behind.
func TestKilledAtRandom(t *testing.T) {
	random := seed.New(t)
	for range soak(t, 5) {
		mark := seconds()
		c := start(t)
		for n := range 4 {
			arguments := mcptest.Arguments{Code: "trap '' TERM HUP INT; sleep " + mark + " & sleep " + mark, Env: "bash"}
			if n%2 == 1 {
				arguments.Session = fmt.Sprintf("s%d", n)
			}
			c.SendRun(arguments)
		}
		time.Sleep(patience.For(time.Duration(random.Int64N(int64(60 * time.Millisecond)))))
		alive := procfs.Descendants(c.PID())
		c.Signal(syscall.SIGKILL)
		patience.Gone(t, alive...)
		// What was being started when the list was made has ended as well.
		patience.Wait(t, patience.Long, func() string { return fmt.Sprintf("processes are left: %v", procfs.WithCommand(mark)) },
			func() bool { return len(procfs.WithCommand(mark)) == 0 })
	}
}

// The server needs no place to write to: not where /tmp is read-only, and not
// where every disk that it could use is full.
func TestNowhereToWrite(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts take root")
	}
	for name, mounts := range map[string]string{
		"read-only": "mount -t tmpfs -o ro none /tmp && mount -t tmpfs -o ro none /var/tmp",
		"full":      "mount -t tmpfs -o size=4k none /tmp && mount --bind /tmp /var/tmp && head -c 4096 /dev/zero >/tmp/full",
	} {
		t.Run(name, func(t *testing.T) {
			server := command(t)
			wrapped := exec.Command("unshare", "--mount", "sh", "-c", mounts+` && exec "$@"`, "sh", server.Path, "--stdio")
			wrapped.Env = []string{"HOME=/tmp", "TMPDIR=/tmp", "PATH=" + os.Getenv("PATH")}
			c := mcptest.Start(t, wrapped)
			c.Initialize(mcptest.Newest)
			expect(t, run(c, "bash", "mkdir d; echo x >d/file; cat d/file"), "x\n")
		})
	}
}

// description returns the description of bash's sandbox in the server.
func description(t *testing.T) string {
	t.Helper()
	return string(must.Get(os.ReadFile(environments(t)["bash"]["session_exec"].(string)))(t))
}

// artifact writes an artifact with a description of its own.
func artifact(t *testing.T, folder, name, description string) {
	t.Helper()
	for file, text := range map[string]string{
		"bin/run": description, "bin/session-run": description,
		"metadata.json": `{"schema":1,"name":"` + name + `","backend":"jail","interpreter_type":"bash"}`,
	} {
		must.Write(t, filepath.Join(folder, name, file), text, 0o755)
	}
}

// variant writes an artifact like bash's but for its bubblewrap.
func variant(t *testing.T, folder, name, bubblewrap string) {
	t.Helper()
	text := description(t)
	changed := strings.ReplaceAll(text, between(t, text, `"bubblewrap":"`, `"`), bubblewrap)
	artifact(t, folder, name, changed)
	must.Write(t, filepath.Join(folder, name, "bin", "check"), changed, 0o755)
}

// A bubblewrap that is missing, too old or another program starts no code, and
// the others go on.
func TestWrongBubblewrap(t *testing.T) {
	folder := t.TempDir()
	// Root's sandboxes are other users', who must be able to run these programs.
	must.Do(t, os.Chmod(filepath.Dir(folder), 0o755))
	write := func(name, script string) string {
		path := filepath.Join(folder, name)
		must.Write(t, path, "#!/bin/sh\n"+script, 0o755)
		return path
	}
	sandboxes := filepath.Join(folder, "sandboxes")
	variant(t, sandboxes, "missing", filepath.Join(folder, "none"))
	variant(t, sandboxes, "old", write("old", "[ \"$1\" = --version ] && exec echo bubblewrap 0.7.0\necho 'bwrap: Unknown option --disable-userns' >&2; exit 1\n"))
	variant(t, sandboxes, "silent", write("silent", "exit 0\n"))
	// One that makes no jail and starts the command all the same.
	variant(t, sandboxes, "open", write("open", "while [ \"$1\" != -- ]; do shift; done; shift; exec \"$@\"\n"))
	c := start(t, "NIX_SANDBOX_DIR="+sandboxes)
	for name, want := range map[string]string{
		"missing": "no such file", "old": "Unknown option --disable-userns", "silent": "the agent ended", "open": "not the first of a sandbox",
	} {
		answer := run(c, name, "echo ran")
		if !answer.IsError || strings.Contains(answer.Text(), "ran\n") || !strings.Contains(answer.Text()+c.Log(), want) {
			t.Errorf("%s: %+v", name, answer)
		}
	}
	expect(t, run(c, "bash", "echo ran"), "ran\n")
}

// A sandbox whose artifact is deleted while it runs goes on; a new one is
// refused or gone from the list, and others are served.
func TestDeletedArtifact(t *testing.T) {
	folder := t.TempDir()
	artifact(t, folder, "short-lived", description(t))
	c := start(t, "NIX_SANDBOX_DIR="+folder)
	in(c, "s", "short-lived", "x=kept")
	must.Do(t, os.RemoveAll(filepath.Join(folder, "short-lived")))
	if answer := in(c, "s", "short-lived", "echo $x"); !answer.IsError && answer.Text() != "kept\n" {
		t.Errorf("the running one: %+v", answer)
	}
	if answer := run(c, "short-lived", "echo ran"); !answer.IsError && answer.Text() != "ran\n" {
		t.Errorf("a new one: %+v", answer)
	}
	expect(t, run(c, "bash", "echo ran"), "ran\n")
}

// A client that closes its end of the server's output ends the server, and
// everything in it.
func TestClientStopsReading(t *testing.T) {
	server := command(t)
	in := must.Get(server.StdinPipe())(t)
	out := must.Get(server.StdoutPipe())(t)
	must.Do(t, server.Start())
	out.Close()
	fmt.Fprintln(in, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"`+mcptest.Newest+`","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
	mark := seconds()
	fmt.Fprintln(in, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"run","arguments":{"code":"sleep `+mark+`","env":"bash"}}}`)
	ended := make(chan struct{})
	go func() { _ = server.Wait(); close(ended) }()
	// The server ends at once, where it writes an answer, or has begun the call.
	patience.Until(t, "the call runs, or the server has ended", func() bool {
		return len(procfs.WithCommand(mark)) > 0 || !procfs.Runs(server.Process.Pid)
	})
	in.Close()
	select {
	case <-ended:
	case <-time.After(patience.For(10 * time.Second)):
		_ = server.Process.Kill()
		t.Error("the server lives on")
	}
	patience.Gone(t, procfs.WithCommand(mark)...)
}

// groups are the control groups of a server's sandboxes.
func groups(t *testing.T, server int) []string {
	t.Helper()
	const top = "/sys/fs/cgroup"
	text := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", server)))(t)
	_, own, found := strings.Cut("\n"+string(text), "\n0::")
	if !found {
		return nil // no version 2
	}
	own, _, _ = strings.Cut(own, "\n")
	// Beside the server's own, or, where root started it, at the top.
	var all []string
	for _, folder := range []string{filepath.Dir(filepath.Join(top, own)), top} {
		for _, pattern := range []string{"sandbox-%d-*", "principal-%d-*"} {
			made := must.Get(filepath.Glob(filepath.Join(folder, fmt.Sprintf(pattern, server))))(t)
			all = append(all, made...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// The server is, after many calls and sessions, what it was at the start:
// descriptors, processes, memory, temporary files, control groups. A tenth as
// many sessions as calls, no two of one name.
func TestSoak(t *testing.T) {
	t.Parallel()
	const (
		few  = 100
		most = 32 // sessions at a time
	)
	calls := soak(t, few)
	// What builds packages has its folders elsewhere.
	cmd := command(t, fmt.Sprintf("SESSION_MAX=%d", most), "SESSION_IDLE_TIMEOUT=1", "SESSION_KEEP_FILES=0", "XDG_RUNTIME_DIR="+t.TempDir(), "XDG_CACHE_HOME="+t.TempDir())
	home := ""
	for _, variable := range cmd.Env {
		if value, ok := strings.CutPrefix(variable, "HOME="); ok {
			home = value
		}
	}
	c := mcptest.Start(t, cmd)
	c.Initialize(mcptest.Newest)
	batch := func(calls int, session func(n int) string) {
		const together = 4
		for n := 0; n < calls; n += together {
			var ids []string
			for k := n; k < min(n+together, calls); k++ {
				ids = append(ids, c.SendRun(mcptest.Arguments{Code: "echo $((6 * 7))", Env: "bash", Session: session(k)}))
			}
			for _, id := range ids {
				if answer := c.AwaitRun(id); answer.Text() != "42\n" {
					t.Fatalf("call %d: %+v", n, answer)
				}
			}
		}
	}
	none := func(int) string { return "" }
	// Sessions end a second after their last call. What a burst made ready
	// beyond what is kept ends after 10 s, for which the long run has time; and
	// where everything is emulated, what is kept takes seconds to start.
	looks := 3
	if calls > few || patience.Factor() > 1 {
		looks = 8
	}
	still := func() (processes, descriptors, made int) {
		last, same := -1, 0
		patience.Until(t, "the server comes to rest", func() bool {
			time.Sleep(1500 * time.Millisecond)
			now := len(procfs.Descendants(c.PID()))
			if same++; now != last {
				last, same = now, 0
			}
			return same >= looks
		})
		return last, c.Descriptors(), len(groups(t, c.PID()))
	}
	batch(20, none)
	processes, descriptors, made := still()
	if byGroup := strings.Contains(c.Log(), "limits by=cgroup"); byGroup != (made > 0) {
		t.Fatalf("limits by control groups: %v, and there are %d", byGroup, made)
	}
	batch(calls, none)
	sessions := calls / 10
	for begun := 0; begun < sessions; {
		now := min(most, sessions-begun)
		batch(now, func(k int) string { return fmt.Sprintf("s%d", begun+k) })
		begun += now
		patience.Until(t, "idle sessions end", func() bool { return strings.Count(c.Log(), `msg="session ended"`) == begun })
	}
	nowProcesses, nowDescriptors, nowMade := still()
	patience.Wait(t, patience.Long, func() string {
		return fmt.Sprintf("%d processes, %d descriptors and %d control groups, at the start %d, %d and %d",
			nowProcesses, nowDescriptors, nowMade, processes, descriptors, made)
	}, func() bool {
		if nowProcesses > processes || nowDescriptors > descriptors || nowMade > made { // more may be ready after a burst
			nowProcesses, nowDescriptors, nowMade = still()
		}
		return nowProcesses <= processes && nowDescriptors <= descriptors && nowMade <= made
	})
	peak := c.PeakMemory()
	if peak > 64<<20 {
		t.Errorf("the server used %d MiB", peak>>20)
	}
	if left, err := os.ReadDir(home); err != nil || len(left) > 0 {
		t.Errorf("left in its folder: %v, %v", left, err)
	}
	t.Logf("%d calls, %d sessions: %d processes, %d descriptors, %d control groups (at the start %d, %d, %d), peak %d MiB",
		calls, sessions, nowProcesses, nowDescriptors, nowMade, processes, descriptors, made, peak>>20)
}

// A client that is killed while a call runs takes the server with it, however long the call would
// take. One that has only sent its last message gets its answer: see TestPipedHeredoc.
func TestKilledClient_EndsTheServer(t *testing.T) {
	t.Parallel()
	mark := seconds()
	client := exec.Command("bash", "-c", `coproc "$@"; printf '%s\n' "$MESSAGES" >&"${COPROC[1]}"; echo "$COPROC_PID"; read -r _; :`, "bash", command(t).Path, "--stdio")
	client.Env = append(command(t).Env, "PATH="+os.Getenv("PATH"), `MESSAGES={"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"run","arguments":{"env":"bash","code":"sleep `+mark+`"}}}`)
	must.Get(client.StdinPipe())(t)
	out := must.Get(client.StdoutPipe())(t)
	must.Do(t, client.Start())
	var server int
	must.Get(fmt.Fscan(out, &server))(t)
	patience.Until(t, "the call runs", func() bool { return len(procfs.WithCommand("sleep\x00"+mark)) == 1 })
	must.Do(t, client.Process.Kill())
	_ = client.Wait()
	patience.Gone(t, server)
}
