package changes_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/seed"
)

// manyVariable is the number of files that a hostile sandbox makes.
const manyVariable = "NIX_SANDBOX_TEST_MANY_FILES"

// More files than are compared make a patch that says so, within a bound of memory.
func TestRecord_OfTooManyFiles(t *testing.T) {
	if !mounts(t) {
		return
	}
	many := 51_000
	if text := os.Getenv(manyVariable); text != "" {
		many = must.Get(strconv.Atoi(text))(t)
	}
	b := newBench(t, func(string) {})
	dir := filepath.Join(b.merged, "many")
	must.Do(t, os.Mkdir(dir, 0o755))
	fd := must.Get(unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0))(t)
	defer unix.Close(fd)
	for i := range many {
		must.Do(t, unix.Mknodat(fd, strconv.Itoa(i), unix.S_IFREG|0o644, 0))
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	summary, _, _ := b.record.Early()
	early := time.Since(began)
	if summary == nil || !summary.Incomplete || summary.Added == 0 || summary.Added > 3000 {
		t.Errorf("before the answer: %+v", summary)
	}
	b.save(began)
	runtime.ReadMemStats(&after)
	t.Logf("%d files: %v before the answer, %v after it, %d MiB of heap", many, early, time.Since(began)-early, (int64(after.HeapSys)-int64(before.HeapSys))>>20)
	entry := b.entry(t)
	if s := entry.Summary; !s.Incomplete || s.Added == 0 || s.Added >= many {
		t.Errorf("%+v", s)
	}
	if grown := int64(after.HeapSys) - int64(before.HeapSys); grown > 256<<20 {
		t.Errorf("it took %d MiB", grown>>20)
	}
}

// What there is no time to compare is left out and named, and compared after the next call.
func TestRecord_WithoutTime(t *testing.T) {
	if !mounts(t) {
		return
	}
	b := newBench(t, func(string) {})
	must.Do(t, os.WriteFile(filepath.Join(b.merged, "file"), []byte("new\n"), 0o644))
	for _, test := range []struct {
		limit          time.Duration
		added, leftOut int
	}{{0, 0, 1}, {time.Hour, 1, 0}} {
		b.record.SetMaxTime(test.limit)
		b.save(time.Now())
		if s := b.entry(t).Summary; s.Added != test.added || s.LeftOutCount != test.leftOut {
			t.Errorf("within %v: %+v, want %d added and %d left out", test.limit, s, test.added, test.leftOut)
		}
	}
}

// What no patch can carry is left out and named, and nothing outside is read or written.
func TestRecord_OfHostileFiles(t *testing.T) {
	if !mounts(t) {
		return
	}
	outside := must.Get(os.MkdirTemp("", "outside"))(t)
	must.Do(t, os.WriteFile(filepath.Join(outside, "secret"), []byte("secret of the host"), 0o644))
	b := newBench(t, func(base string) {
		must.Do(t, os.MkdirAll(filepath.Join(base, "folder"), 0o755))
		must.Do(t, os.WriteFile(filepath.Join(base, "folder", "secret"), []byte("of the project\n"), 0o644))
		must.Do(t, os.Symlink(outside, filepath.Join(base, "out")))
	})
	time.Sleep(30 * time.Millisecond) // the project is older than the call
	at := func(name string) string { return filepath.Join(b.merged, name) }
	// A folder of the project that becomes a link to the host's.
	must.Do(t, os.RemoveAll(at("folder")))
	must.Do(t, os.Symlink(outside, at("folder")))
	must.Do(t, os.Symlink("/etc", at("etc")))
	must.Do(t, unix.Mkfifo(at("fifo"), 0o666))
	must.Do(t, unix.Mknod(at("socket"), unix.S_IFSOCK|0o666, 0))
	sparse := must.Get(os.Create(at("sparse")))(t)
	must.Do(t, sparse.Truncate(1<<40))
	sparse.Close()
	must.Do(t, os.WriteFile(at("set-id"), []byte("x"), 0o755))
	must.Do(t, os.Chmod(at("set-id"), 0o4755|os.ModeSetuid))
	must.Do(t, os.Mkdir(at("GIT~1"), 0o755))
	must.Do(t, os.WriteFile(at("GIT~1/config"), []byte("[core]\n"), 0o644))
	deep := b.merged
	for range 200 {
		deep = filepath.Join(deep, "deeper")
	}
	must.Do(t, os.MkdirAll(deep, 0o755))
	must.Do(t, os.WriteFile(filepath.Join(deep, "deep"), []byte("deep\n"), 0o644))
	// A device of the host cannot be made in a user namespace; a whiteout cannot be faked.
	for _, device := range []uint64{unix.Mkdev(0, 0), unix.Mkdev(1, 3)} {
		if err := unix.Mknod(at("device"), unix.S_IFCHR|0o666, int(device)); err == nil {
			t.Errorf("the device %d was made", device)
		}
	}
	b.save(time.Now())
	entry := b.entry(t)
	var patch bytes.Buffer
	must.Get(patch.ReadFrom(entry.Patch()))(t)
	if strings.Contains(patch.String(), "secret of the host") || strings.Contains(patch.String(), "root:") {
		t.Errorf("the patch has what is outside:\n%s", clip(patch.Bytes()))
	}
	left := map[string]string{}
	for _, l := range entry.Summary.LeftOut {
		left[l.Path] = l.Reason
	}
	want := map[string]string{
		"fifo": "it is neither a file nor a link", "socket": "it is neither a file nor a link", "GIT~1": "it is git's own",
		"set-id": "its set-id bit",
		"sparse": fmt.Sprintf("it cannot be compared: it has %d bytes, more than the %d that are compared", int64(1)<<40, 32<<20),
	}
	if diff := cmp.Diff(want, left); diff != "" {
		t.Errorf("left out: %s", diff)
	}
	// All of it is refused until it is named.
	applied, err := changes.Apply(t.Context(), entry, nil)
	must.Do(t, err)
	if len(applied.Written) > 0 {
		t.Errorf("applied unasked: %+v", applied)
	}
	_, err = changes.Apply(t.Context(), entry, []string{"folder", "folder/secret"})
	must.Do(t, err)
	if diff := cmp.Diff(map[string]string{"secret": "file false secret of the host"}, files(t, outside)); diff != "" {
		t.Errorf("outside: %s", diff)
	}
	got := files(t, b.base)
	if got["folder/secret"] != "" || got["etc"] != "" {
		t.Errorf("applied: %v", got)
	}
}

// A project whose folder became a link to somewhere else is not written through.
func TestApply_WritesThroughNoLink(t *testing.T) {
	if !mounts(t) {
		return
	}
	outside := must.Get(os.MkdirTemp("", "outside"))(t)
	b := newBench(t, func(base string) { must.Do(t, os.Mkdir(filepath.Join(base, "folder"), 0o755)) })
	must.Do(t, os.WriteFile(filepath.Join(b.merged, "folder", "file"), []byte("x"), 0o644))
	b.save(time.Now())
	must.Do(t, os.Remove(filepath.Join(b.base, "folder")))
	must.Do(t, os.Symlink(outside, filepath.Join(b.base, "folder")))
	if applied, err := changes.Apply(t.Context(), b.entry(t), []string{"folder/file"}); err == nil {
		t.Errorf("applied: %+v", applied)
	}
	if diff := cmp.Diff(map[string]string{}, files(t, outside)); diff != "" {
		t.Errorf("outside: %s", diff)
	}
}

// Nothing of a patch is applied where a part cannot be written, and what was done before
// is undone.
func TestApply_IsUndoneWhereItFails(t *testing.T) {
	if !mounts(t) {
		return
	}
	b := newBench(t, func(base string) {
		must.Do(t, os.WriteFile(filepath.Join(base, "a"), []byte("1\n"), 0o600))
		must.Do(t, os.WriteFile(filepath.Join(base, "gone"), []byte("gone\n"), 0o644))
		must.Do(t, os.MkdirAll(filepath.Join(base, "folder", "sub"), 0o755))
		must.Do(t, os.WriteFile(filepath.Join(base, "folder", "sub", "file"), []byte("x\n"), 0o644))
	})
	time.Sleep(30 * time.Millisecond) // the project is older than the call
	must.Do(t, os.WriteFile(filepath.Join(b.merged, "a"), []byte("2\n"), 0o644))
	must.Do(t, os.Remove(filepath.Join(b.merged, "gone")))
	must.Do(t, os.RemoveAll(filepath.Join(b.merged, "folder")))
	must.Do(t, os.WriteFile(filepath.Join(b.merged, "folder"), []byte("a file now\n"), 0o644))
	b.save(time.Now())
	// The host has another file in the folder that is to become a file.
	must.Do(t, os.WriteFile(filepath.Join(b.base, "folder", "other"), []byte("of the host\n"), 0o644))
	want := files(t, b.base)
	entry := b.entry(t)
	if applied, err := changes.Apply(t.Context(), entry, all(t, entry)); err == nil {
		t.Errorf("applied: %+v", applied)
	}
	if diff := cmp.Diff(want, files(t, b.base)); diff != "" {
		t.Errorf("the project changed: %s", diff)
	}
	// The control: without it, all is applied.
	must.Do(t, os.Remove(filepath.Join(b.base, "folder", "other")))
	must.Get(changes.Apply(t.Context(), entry, all(t, entry)))(t)
	if diff := cmp.Diff(files(t, b.merged), files(t, b.base)); diff != "" {
		t.Errorf("applied: %s", diff)
	}
	if info := must.Get(os.Stat(filepath.Join(b.base, "a")))(t); info.Mode() != 0o600 {
		t.Errorf("its mode was 0600 and is %v", info.Mode())
	}
}

// The first of these variables tells a test that it is the program that applies, and the
// folder of the patch; the second says before which step it is killed, or 0.
const (
	applyVariable = "NIX_SANDBOX_TEST_APPLY"
	stepsVariable = "NIX_SANDBOX_TEST_APPLY_STEPS"
)

// fatalContext kills this process when it is asked for its error for the last of so many
// times. Apply asks before each step.
type fatalContext struct {
	context.Context
	steps int
}

func (c *fatalContext) Err() error {
	if c.steps--; c.steps == 0 {
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		select {}
	}
	return c.Context.Err()
}

// Where an apply is killed, between two steps or at any moment, each file is as before or as
// the patch makes it, and the same apply does the rest and leaves nothing behind.
func TestApply_IsFinishedWhereItWasKilled(t *testing.T) {
	if folder := os.Getenv(applyVariable); folder != "" {
		entries, _ := changes.List(folder)
		names := all(t, entries[0])
		fmt.Println("begins")
		_, err := changes.Apply(&fatalContext{t.Context(), must.Get(strconv.Atoi(os.Getenv(stepsVariable)))(t)}, entries[0], names)
		t.Fatalf("it was not killed: error %v", err)
	}
	if !mounts(t) {
		return
	}
	random := seed.New(t)
	b := newBench(t, func(base string) {
		must.Do(t, os.MkdirAll(filepath.Join(base, "folder"), 0o755))
		for i := range 200 {
			must.Do(t, os.WriteFile(filepath.Join(base, "folder", fmt.Sprint(i)), []byte("before\n"), 0o644))
			must.Do(t, os.WriteFile(filepath.Join(base, fmt.Sprint("file", i)), []byte("before\n"), 0o644))
		}
	})
	time.Sleep(30 * time.Millisecond) // the project is older than the call
	must.Do(t, os.RemoveAll(filepath.Join(b.merged, "folder")))
	must.Do(t, os.WriteFile(filepath.Join(b.merged, "folder"), []byte("a file now\n"), 0o644))
	for i := range 200 {
		must.Do(t, os.WriteFile(filepath.Join(b.merged, fmt.Sprint("file", i)), []byte("after\n"), 0o644))
		must.Do(t, os.MkdirAll(filepath.Join(b.merged, "new", fmt.Sprint(i)), 0o755))
		must.Do(t, os.WriteFile(filepath.Join(b.merged, "new", fmt.Sprint(i), "file"), []byte("new\n"), 0o644))
	}
	b.save(time.Now())
	entry := b.entry(t)
	before, after := files(t, b.base), files(t, b.merged)
	half := 0
	for i := range 10 {
		// Each of the 601 paths is a step. Before the second one, the first was made.
		steps := 0
		if i%2 == 0 {
			steps = 2 + random.IntN(600)
		}
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), applyVariable+"="+b.folder, stepsVariable+"="+strconv.Itoa(steps))
		out := must.Get(cmd.StdoutPipe())(t)
		must.Do(t, cmd.Start())
		must.Get(out.Read(make([]byte, len("begins\n"))))(t)
		if steps == 0 {
			time.Sleep(time.Duration(random.Int64N(int64(60 * time.Millisecond))))
			_ = cmd.Process.Kill()
		}
		_ = cmd.Wait()
		if status := cmd.ProcessState.Sys().(syscall.WaitStatus); steps > 0 && status.Signal() != unix.SIGKILL {
			t.Fatalf("it was not killed: %v", cmd.ProcessState)
		}
		now := files(t, b.base)
		for name, content := range now {
			if content != before[name] && content != after[name] && !strings.Contains(name, ".nix-sandbox-mcp-") {
				t.Fatalf("killed before step %d, %s has %.100q", steps, name, content)
			}
		}
		if !cmp.Equal(now, before) && !cmp.Equal(now, after) {
			half++
		} else if steps > 0 {
			t.Fatalf("it was not killed half way, but before step %d", steps)
		}
		must.Get(changes.Apply(t.Context(), entry, all(t, entry)))(t)
		if diff := cmp.Diff(after, files(t, b.base)); diff != "" {
			t.Fatalf("applied again: %s", diff)
		}
		// Back to the beginning.
		must.Do(t, os.RemoveAll(filepath.Join(b.base, "new")))
		must.Do(t, os.Remove(filepath.Join(b.base, "folder")))
		for name, text := range before {
			must.Do(t, os.MkdirAll(filepath.Dir(filepath.Join(b.base, name)), 0o755))
			must.Do(t, os.WriteFile(filepath.Join(b.base, name), []byte(strings.TrimPrefix(text, "file false ")), 0o644))
		}
	}
	t.Logf("killed half way %d times of 10", half)
}

// What was applied is not in the patch any more, and the session goes on from there.
func TestRecord_GoesOnFromWhatWasApplied(t *testing.T) {
	if !mounts(t) {
		return
	}
	b := newBench(t, func(base string) {
		for name, text := range map[string]string{"a": "1\n2\n3\n", "b": "1\n", "gone": "gone\n"} {
			must.Do(t, os.WriteFile(filepath.Join(base, name), []byte(text), 0o644))
		}
	})
	step := func(code func(), apply bool, want changes.Summary) {
		t.Helper()
		time.Sleep(30 * time.Millisecond) // the project is older than the call
		began := time.Now()
		code()
		b.save(began)
		entry := b.entry(t)
		if entry == nil {
			if want.Files() > 0 {
				t.Errorf("there is no patch, want %+v", want)
			}
			return
		}
		got := entry.Summary
		if got.Added != want.Added || got.Changed != want.Changed || got.Deleted != want.Deleted {
			t.Errorf("the patch has %+v, want %+v", got, want)
		}
		if apply {
			must.Get(changes.Apply(t.Context(), entry, all(t, entry)))(t)
		}
	}
	write := func(name, text string) { must.Do(t, os.WriteFile(filepath.Join(b.merged, name), []byte(text), 0o644)) }
	step(func() {
		write("a", "1\ntwo\n3\n")
		write("new", "new\n")
		must.Do(t, os.Remove(filepath.Join(b.merged, "gone")))
	}, true, changes.Summary{Added: 1, Changed: 1, Deleted: 1})
	step(func() { write("b", "2\n") }, false, changes.Summary{Changed: 1})
	step(func() { write("a", "1\ntwo\nthree\n") }, true, changes.Summary{Changed: 2})
	step(func() {}, false, changes.Summary{})
	if diff := cmp.Diff(files(t, b.merged), files(t, b.base)); diff != "" {
		t.Errorf("applied: %s", diff)
	}
}

// A process in the background changes a file between two calls, and then the user does. The
// next call does not take the user's version for the one that the session saw.
func TestRecord_OfABackgroundProcess(t *testing.T) {
	if !mounts(t) {
		return
	}
	b := newBench(t, func(base string) {
		must.Do(t, os.WriteFile(filepath.Join(base, "a.py"), []byte("1\n2\n"), 0o644))
		must.Do(t, os.WriteFile(filepath.Join(base, "b.py"), []byte("1\n2\n"), 0o644))
	})
	must.Do(t, os.WriteFile(filepath.Join(b.merged, "a.py"), []byte("1\nbackground\n"), 0o644))
	time.Sleep(30 * time.Millisecond)
	for _, name := range []string{"a.py", "b.py"} {
		must.Do(t, os.WriteFile(filepath.Join(b.base, name), []byte("user\n2\n"), 0o644))
	}
	time.Sleep(30 * time.Millisecond)
	began := time.Now()
	must.Do(t, os.WriteFile(filepath.Join(b.merged, "b.py"), []byte("user\ncall\n"), 0o644))
	b.save(began)
	if diff := cmp.Diff([]string{"a.py"}, b.entry(t).Summary.Doubtful); diff != "" {
		t.Error(diff)
	}
	if applied := must.Get(changes.Apply(t.Context(), b.entry(t), nil))(t); len(applied.Conflicts) != 1 || applied.Conflicts[0].Path != "a.py" {
		t.Errorf("applied: %+v", applied)
	}
}

// A write through a mapping leaves no times on a file in memory.
func TestRecord_OfMappedFiles(t *testing.T) {
	if !mounts(t) {
		return
	}
	b := newBench(t, func(string) {})
	name := filepath.Join(b.merged, "mapped")
	must.Do(t, os.WriteFile(name, bytes.Repeat([]byte("a"), 4096), 0o644))
	file := must.Get(os.OpenFile(name, os.O_RDWR, 0))(t)
	defer file.Close()
	memory := must.Get(unix.Mmap(int(file.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))(t)
	defer unix.Munmap(memory)
	copy(memory, "first")
	time.Sleep(30 * time.Millisecond)
	b.save(time.Now())
	copy(memory, "second")
	b.save(time.Now())
	var patch bytes.Buffer
	must.Get(patch.ReadFrom(b.entry(t).Patch()))(t)
	if !strings.Contains(patch.String(), "+second") {
		t.Errorf("the patch has not what was written last:\n%.300s", &patch)
	}
}
