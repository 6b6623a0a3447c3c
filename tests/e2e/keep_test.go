package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/seed"
)

// keeping starts a server that keeps the files of sessions in a state folder.
func keeping(t testing.TB, state string, variables ...string) *mcptest.Client {
	t.Helper()
	return start(t, append(variables, "SESSION_KEEP_FILES=1", "XDG_STATE_HOME="+state)...)
}

// end ends a server as a client does, and waits for it.
func end(t testing.TB, c *mcptest.Client) {
	t.Helper()
	c.CloseInput()
	if status := c.Wait(patience.For(10 * time.Second)); status != 0 {
		t.Errorf("the server ended with status %d", status)
	}
}

// everyKind makes an entry of every kind that is kept, and describe prints all of them.
const (
	everyKind = `
mkdir -p deep/er 'odd
name'; printf 'é\0binary' >deep/er/data; printf x >"$(printf 'bytes\377')"
ln -s /etc/passwd absolute; ln -s ../../.. out; ln -s nowhere dangling
ln deep/er/data second; mkfifo pipe
printf '#!/bin/sh\necho ran\n' >tool; chmod 755 tool; chmod 1770 deep; : >empty
truncate -s 1T sparse; printf end | dd of=sparse bs=1 seek=1000000000 conv=notrunc status=none
touch -d '2001-02-03 04:05:06.789' tool; chmod 500 deep/er; mkdir -p gone; : >gone/file
`
	describe = `find . -mindepth 1 -printf '%P %y %m %s %l %n ' \( -type f -printf '%T@' -o -true \) -printf '\0' | LC_ALL=C sort -z | grep -azv '^outputs ' | tr '\0' '|'; echo; cat deep/er/data | od -c; ./tool; tail -c +1000000001 sparse | head -c 3`
)

// What a session left is there again in the next server, for the same environment
// alone, and then goes on being kept.
func TestKeep_SurvivesTheServer(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	metadata := "NIX_SANDBOX_METADATA=" + mcptest.MetadataWith(t, environments(t), map[string]any{
		"session": mcptest.Session(map[string]any{"shared_files": false}),
	})
	c := keeping(t, state, metadata)
	in(c, "s", "bash", "x=1;"+everyKind)
	in(c, "s", "bash", "rm -r gone; mkdir replaced; : >replaced/file; y=2")
	in(c, "s", "bash", "rm -r replaced; : >replaced; echo more >>deep/er/data")
	want := in(c, "s", "bash", describe)
	if want.IsError || !strings.Contains(want.Text(), "ran\nend") || strings.Contains(want.Text(), "gone") {
		t.Fatalf("answer %q", want.Text())
	}
	in(c, "s2", "python", "open('f','w').write('python')")
	end(t, c)

	c = keeping(t, state, metadata)
	answer := in(c, "s", "bash", describe+"; echo $x")
	if answer.IsError || !strings.HasPrefix(answer.Text(), want.Text()+"\n") {
		t.Errorf("answer\n%q\nwant\n%q", answer.Text(), want.Text())
	}
	if !strings.Contains(answer.Text(), "[new session: the earlier one has ended; its variables are gone, its files in /workspace are kept (") {
		t.Errorf("answer %q", answer.Text())
	}
	expect(t, in(c, "s2", "bash", "ls -A"), "outputs\n")
	in(c, "s", "bash", "chmod -R u+w deep; rm -r deep; echo 2 >second")
	end(t, c)

	c = keeping(t, state, metadata)
	if answer := in(c, "s", "bash", "ls; cat second"); answer.IsError || strings.Contains(answer.Text(), "deep") || !strings.Contains(answer.Text(), "tool\n2\n[") {
		t.Errorf("answer %q", answer.Text())
	}
	if answer := in(c, "s2", "python", "open('f').read()"); !strings.HasPrefix(answer.Text(), "'python'\n") {
		t.Errorf("answer %q", answer.Text())
	}
}

// The files that the environments of a session share are kept for all of them, whichever
// calls first and last.
func TestKeep_SharedFilesAreOfAllEnvironments(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	metadata := "NIX_SANDBOX_METADATA=" + mcptest.MetadataWith(t, environments(t), map[string]any{
		"session": mcptest.Session(map[string]any{"shared_files": true}),
	})
	c := keeping(t, state, metadata)
	in(c, "s", "bash", "echo bash >b")
	expect(t, in(c, "s", "python", "print(open('b').read().strip()); print('python', file=open('p', 'w'))"), "bash\n")
	in(c, "s", "bash", "rm b; echo more >>p")
	end(t, c)

	c = keeping(t, state, metadata)
	answer := in(c, "s", "python", "open('p').read()")
	if want := "'python\\nmore\\n'\n[new session: the earlier one has ended; its variables are gone, its files in /workspace are kept (2, "; !strings.HasPrefix(answer.Text(), want) {
		t.Errorf("answer %q, want %q", answer.Text(), want)
	}
	expect(t, in(c, "s", "bash", "ls -A; echo bash >>p"), "outputs\np\n")
	c.Signal(syscall.SIGKILL)
	c.Wait(patience.For(10 * time.Second))

	c = keeping(t, state, metadata)
	if answer := in(c, "s", "bash", "head -n 2 p | tr '\\n' ' '"); !strings.HasPrefix(answer.Text(), "python more \n[new session: ") {
		t.Errorf("answer %q", answer.Text())
	}
}

// A server that is killed leaves the files as of its last answered call but one, at
// worst.
func TestKeep_SurvivesAKill(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	c := keeping(t, state)
	for i := range 3 {
		in(c, "s", "bash", fmt.Sprintf("echo %d >n", i))
	}
	c.Signal(syscall.SIGKILL)
	c.Wait(patience.For(10 * time.Second))
	c = keeping(t, state)
	if answer := in(c, "s", "bash", "cat n"); answer.IsError || answer.Text()[0] < '1' || answer.Text()[0] > '2' {
		t.Errorf("answer %q", answer.Text())
	}
}

// A session that ended for its idle time has its files.
func TestKeep_SurvivesIdleTime(t *testing.T) {
	t.Parallel()
	c := keeping(t, t.TempDir(), "SESSION_IDLE_TIMEOUT=1")
	in(c, "s", "python", "x = 1; open('f', 'w').write('file')")
	patience.Until(t, "the end of the session", func() bool { return strings.Contains(c.Log(), "session ended") })
	answer := in(c, "s", "python", "print(open('f').read(), 'x' in globals())")
	if want := "file False\n[new session: the earlier one ended after 1 s idle; its variables are gone, its files in /workspace are kept (2, "; !strings.HasPrefix(answer.Text(), want) {
		t.Errorf("answer %q", answer.Text())
	}
}

// The default server keeps the files of sessions, if it has a folder for them, and SESSION_KEEP_FILES=0
// turns that off: then nothing is written.
func TestKeep_IsOnByDefault(t *testing.T) {
	t.Parallel()
	for _, isOn := range []bool{true, false} {
		t.Run(fmt.Sprint(isOn), func(t *testing.T) {
			home, runtime := t.TempDir(), "XDG_RUNTIME_DIR="+t.TempDir()
			variables := []string{"HOME=" + home, "XDG_STATE_HOME=", "SESSION_KEEP_FILES="}
			if !isOn {
				variables[2] += "0"
			}
			c := start(t, append(variables, runtime)...)
			in(c, "s", "bash", "echo 1 >f")
			expect(t, in(c, "s", "bash", "cat f"), "1\n")
			end(t, c)
			c = start(t, append(variables, runtime)...)
			if got := strings.HasPrefix(in(c, "s", "bash", "cat f").Text(), "1\n"); got != isOn {
				t.Errorf("kept: %v", got)
			}
			end(t, c)
			if _, err := os.Lstat(filepath.Join(home, ".local")); (err == nil) != isOn {
				t.Errorf("its folder: %v", err)
			}
		})
	}
	c := start(t, "HOME=", "XDG_STATE_HOME=", "XDG_RUNTIME_DIR="+t.TempDir())
	expect(t, in(c, "s", "bash", "echo 1"), "1\n")
	patience.Until(t, "the log says that files are not kept", func() bool { return strings.Contains(c.Log(), "the files of sessions are not kept") })
}

// generation is code that changes many files, in ways that differ between the calls, and
// check prints the one generation that all of them are of.
func generation(n int) string {
	return fmt.Sprintf(`n=%d; rm -rf tree; mkdir -p tree/$n; for i in $(seq 30); do echo $n >tree/$n/$i; echo $n >flat$((i %% 10)); done
head -c $((n * 7919 %% 300000)) /dev/urandom >noise; sha256sum noise >sum; ln -sfn $n link; echo $n >n`, n)
}

const check = `sha256sum -c --quiet sum && cat n flat* tree/*/* | sort -u | tr '\n' ' ' && ls tree && readlink link && ls tree/* | wc -l`

// However a server is killed while calls change files, what is kept is the whole of one
// call's: of the last one that was answered, or the one before, or of one whose answer
// was on its way.
func TestKeep_SurvivesKillsAtRandom(t *testing.T) {
	t.Parallel()
	random := seed.New(t)
	state := t.TempDir()
	// The generations of the last answered call, of the one before, and of the last that
	// was sent.
	last, before, sent, answered := 0, 0, 0, 0
	verify := func(c *mcptest.Client) {
		t.Helper()
		answer := in(c, "s", "bash", "[ -e n ] || exit 9; cat n; "+check)
		if before == 0 && strings.HasPrefix(answer.Text(), "[exit status 9]") {
			last = 0 // only one call was answered, and it is lost
			return
		}
		var n int
		if _, err := fmt.Sscan(answer.Text(), &n); err != nil || n != before && n != last && (n <= last || n > sent) {
			t.Fatalf("the last answered calls are %d and %d, the last sent one is %d: %q", before, last, sent, answer.Text())
		}
		if want := fmt.Sprintf("%d\n%d %d\n%d\n30\n", n, n, n, n); answer.IsError || !strings.HasPrefix(answer.Text(), want) {
			t.Fatalf("half of a call: %q, want %q", answer.Text(), want)
		}
		last, before = n, n
	}
	for round := range soak(t, 5) {
		c := keeping(t, state)
		verify(c)
		kill := time.AfterFunc(time.Hour, func() { c.Signal(syscall.SIGKILL) })
		soon := func() { kill.Reset(time.Duration(random.Int64N(int64(400 * time.Millisecond)))) }
		// A slow machine may answer no call in that time, so that every other kill comes
		// after an answer.
		if round%2 == 0 {
			soon()
		}
		answeredHere := 0
		for {
			sent++
			id := c.SendRun(mcptest.Arguments{Code: generation(sent), Env: "bash", Session: "s"})
			message, err := c.Client.Await(context.Background(), id)
			if err != nil {
				break
			}
			if answer := must.Get(message.Answer())(t); answer.IsError {
				t.Fatalf("answer %q", answer.Text())
			}
			if before, last = last, sent; round%2 == 1 && answeredHere == 0 {
				soon()
			}
			answered++
			answeredHere++
		}
		kill.Stop()
		c.Wait(patience.For(10 * time.Second))
	}
	c := keeping(t, state)
	verify(c)
	end(t, c)
	t.Logf("%d calls were sent, %d answered, and the files are of call %d", sent, answered, last)
	if answered == 0 {
		t.Error("no call was answered before its server was killed")
	}
	if damaged := must.Get(filepath.Glob(filepath.Join(state, "nix-sandbox-mcp", "sessions", "damaged-*")))(t); len(damaged) > 0 {
		t.Errorf("%q", damaged)
	}
}

// A session belongs to one server at a time.
func TestKeep_HasOneWriter(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	project := sample(t, "project")
	first, second := keeping(t, state, "PROJECT_DIR="+project), keeping(t, state)
	in(first, "s", "bash", "echo first >f")
	want := fmt.Sprintf("other\n[new session: another server of this user (process %d, project %s) has a session \"s\" with its kept files; this one begins without them, and its own are not kept]", first.PID(), project)
	if answer := in(second, "s", "bash", "echo other >f; cat f"); answer.Text() != want {
		t.Errorf("answer %q, want %q", answer.Text(), want)
	}
	expect(t, in(second, "s", "python", "print(open('f').read(), end='')"), "other\n")
	expect(t, in(first, "s", "bash", "cat f"), "first\n")
	end(t, first)
	expect(t, in(second, "s", "bash", "cat f"), "other\n")
	end(t, second)
	second = keeping(t, state)
	if answer := in(second, "s", "bash", "cat f"); answer.IsError || !strings.HasPrefix(answer.Text(), "first\n") {
		t.Errorf("answer %q", answer.Text())
	}
}

// Files that are not as they were saved are set aside, and the model is told.
func TestKeep_SetsDamagedFilesAside(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	c := keeping(t, state)
	in(c, "s", "bash", "echo 1 >f")
	end(t, c)
	archives := must.Get(filepath.Glob(filepath.Join(state, "nix-sandbox-mcp", "sessions", "*", "data-*")))(t)
	data := must.Get(os.ReadFile(archives[0]))(t)
	data[len(data)-1] ^= 1
	must.Do(t, os.WriteFile(archives[0], data, 0o600))
	c = keeping(t, state)
	answer := in(c, "s", "bash", "ls -A; echo 2 >f")
	if want := "outputs\n[new session: the earlier one has ended; its kept files cannot be used and are set aside, so that this one begins without: its archive "; !strings.HasPrefix(answer.Text(), want) {
		t.Errorf("answer %q, want %q", answer.Text(), want)
	}
	end(t, c)
	aside := must.Get(filepath.Glob(filepath.Join(state, "nix-sandbox-mcp", "sessions", "damaged-*", "data-*")))(t)
	if len(aside) != 1 || !bytes.Equal(must.Get(os.ReadFile(aside[0]))(t), data) {
		t.Errorf("set aside: %q", aside)
	}
	c = keeping(t, state)
	if answer := in(c, "s", "bash", "cat f"); answer.IsError || !strings.HasPrefix(answer.Text(), "2\n[new session: the earlier one has ended; its variables are gone") {
		t.Errorf("answer %q", answer.Text())
	}
}

// Where the files cannot be saved, calls go on, the next answer says so, and what was
// saved before is there.
func TestKeep_SaysWhatIsNotSaved(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts take root")
	}
	t.Parallel()
	server := command(t, "SESSION_KEEP_FILES=1", "XDG_STATE_HOME=/mnt")
	// A process has the small disk, in a mount namespace that the servers enter.
	holder := exec.Command("unshare", "--mount", "sh", "-c", "mount -t tmpfs -o size=1m none /mnt && echo mounted && cat")
	input := must.Get(holder.StdinPipe())(t)
	output := must.Get(holder.StdoutPipe())(t)
	must.Do(t, holder.Start())
	t.Cleanup(func() { input.Close(); _ = holder.Wait() })
	must.Get(output.Read(make([]byte, 1)))(t)
	next := func() *mcptest.Client {
		t.Helper()
		wrapped := exec.Command("nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", holder.Process.Pid), server.Path, "--stdio")
		wrapped.Env = append(server.Env, "PATH="+os.Getenv("PATH"))
		c := mcptest.Start(t, wrapped)
		c.Initialize(mcptest.Newest)
		return c
	}
	c := next()
	in(c, "s", "bash", "echo 1 >f")
	in(c, "s", "bash", "head -c 3M /dev/urandom >large; echo 2 >f")
	if answer := in(c, "s", "bash", "cat f"); answer.Text() != "2\n[files are not kept: the disk of the server is full]" {
		t.Errorf("answer %q", answer.Text())
	}
	c.Signal(syscall.SIGKILL)
	c.Wait(patience.For(10 * time.Second))
	c = next()
	if answer := in(c, "s", "bash", "cat f; ls large"); !strings.HasPrefix(answer.Text(), "1\n--- stderr") {
		t.Errorf("answer %q", answer.Text())
	}
	// With less, they are saved again.
	in(c, "s", "bash", "head -c 3M /dev/urandom >large; echo 3 >f")
	in(c, "s", "bash", "rm large")
	expect(t, in(c, "s", "bash", "cat f"), "3\n")
	end(t, c)
	if answer := in(next(), "s", "bash", "cat f"); !strings.HasPrefix(answer.Text(), "3\n") {
		t.Errorf("answer %q", answer.Text())
	}
}

// A session larger than keep_mb is not saved; a server that cannot keep files says so
// when it starts, and only if it has to.
func TestKeep_IsBounded(t *testing.T) {
	t.Parallel()
	metadata := "NIX_SANDBOX_METADATA=" + mcptest.MetadataWith(t, environments(t), map[string]any{
		"session": mcptest.Session(map[string]any{"keep_files": true, "keep_mb": 1}),
	})
	c := start(t, metadata)
	in(c, "s", "bash", "head -c 2M /dev/urandom >large")
	if answer := in(c, "s", "bash", "ls"); !strings.Contains(answer.Text(), "[files are not kept: the session's files are larger than keep_mb, which is 1]") {
		t.Errorf("answer %q", answer.Text())
	}
	for i := range 3 {
		in(c, fmt.Sprint("s", i), "bash", "head -c 400K /dev/urandom >f")
		c.Run(mcptest.Arguments{Code: ":", Env: "bash", Session: fmt.Sprint("s", i)})
	}
	if strings.Contains(c.Log(), "data of a session removed") {
		t.Error("files of a session in use are removed")
	}
	end(t, c)
}

func TestKeep_NeedsAFolder(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	must.Do(t, os.WriteFile(file, nil, 0o600))
	expectRefusal(t, command(t, "SESSION_KEEP_FILES=1", "XDG_STATE_HOME="+file), "keep files of sessions: mkdir "+file, "hint: ")
	expectRefusal(t, command(t, "SESSION_KEEP_FILES=1", "HOME="), "SESSION_KEEP_FILES is 1, and there is no folder to keep files in", "set XDG_STATE_HOME or HOME to an absolute path")
	expectRefusal(t, command(t, "SESSION_KEEP_FILES=yes"), `SESSION_KEEP_FILES is "yes"`, "set it to 1")
	// The same folder does no harm where nothing is kept.
	c := start(t, "XDG_STATE_HOME="+file)
	expect(t, in(c, "s", "bash", "echo 1"), "1\n")
}

// What is written through a mapping that an earlier call made is kept too, although it
// changes no time of the file.
func TestKeep_SeesMappings(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	c := keeping(t, state)
	in(c, "s", "python", "import mmap; f = open('f', 'wb+'); f.write(bytes(10000)); f.flush(); m = mmap.mmap(f.fileno(), 0); f.close()")
	in(c, "s", "python", "1")
	in(c, "s", "python", "m[5000:5005] = b'mmap!'")
	end(t, c)
	if answer := in(keeping(t, state), "s", "python", "open('f', 'rb').read()[5000:5005]"); !strings.HasPrefix(answer.Text(), "b'mmap!'\n") {
		t.Errorf("answer %q", answer.Text())
	}
}

// Many files below a long path take no memory of the server to speak of, neither when they are saved
// nor when the session begins again.
func TestKeep_TakesLittleMemory(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	c := keeping(t, state)
	in(c, "s", "bash", "name=$(printf 'x%.0s' {1..250}); for i in {1..15}; do mkdir $name && cd $name; done; seq 20000 | xargs touch; cd /workspace")
	in(c, "s", "bash", ":") // when they are saved
	saving := c.PeakMemory()
	end(t, c)
	c = keeping(t, state)
	answer := in(c, "s", "bash", "find . -type f | wc -l")
	if !strings.HasPrefix(answer.Text(), "20000\n") || !strings.Contains(answer.Text(), "are kept (20016, ") {
		t.Errorf("answer %.300q", answer.Text())
	}
	restoring := c.PeakMemory()
	t.Logf("%d MB when they are saved, %d MB when they are restored", saving>>20, restoring>>20)
	if max(saving, restoring) >= 64<<20 {
		t.Error("the server has 64 MB or more")
	}
}
