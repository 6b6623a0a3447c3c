package registry

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// watched is a folder of sandboxes with its watcher.
type watched struct {
	*Watcher
	t     *testing.T
	at    string
	again chan os.Signal
	logMu sync.Mutex
	text  bytes.Buffer
}

func (p *watched) Write(text []byte) (int, error) {
	p.logMu.Lock()
	defer p.logMu.Unlock()
	return p.text.Write(text)
}

func (p *watched) logged(text string) int {
	p.logMu.Lock()
	defer p.logMu.Unlock()
	return strings.Count(p.text.String(), text)
}

// watch has a watcher poll a folder, which need not exist, in a bubble of
// synctest: the time between two polls costs nothing.
func watch(t *testing.T, folder string, builds bool) *watched {
	t.Helper()
	p := &watched{t: t, at: folder, again: make(chan os.Signal, 1)}
	folders := Folders{Folders: []string{folder}}
	if builds {
		folders = Folders{Builds: folder}
	}
	p.Watcher = Watch(base(t), folders, slog.New(slog.NewTextHandler(p, nil)))
	ctx, cancel := context.WithCancel(t.Context())
	var polling sync.WaitGroup
	polling.Go(func() { p.Run(ctx, p.again, func() {}) })
	t.Cleanup(func() {
		cancel()
		polling.Wait()
	})
	return p
}

// write makes an artifact and returns its folder.
func write(t *testing.T, folder, name, about string) string {
	t.Helper()
	for _, program := range []string{"run", "session-run"} {
		file(t, filepath.Join(folder, "bin", program), "#!/bin/sh\n", 0o755)
	}
	file(t, filepath.Join(folder, "metadata.json"), fmt.Sprintf(`{"schema":1,"name":%q,"backend":"jail","description":%q}`, name, about), 0o644)
	return folder
}

func file(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	must.Do(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.Do(t, os.WriteFile(path, []byte(text), mode))
}

func link(t *testing.T, target, path string) {
	t.Helper()
	must.Do(t, os.Symlink(target, path))
}

func remove(t *testing.T, path string) {
	t.Helper()
	must.Do(t, os.RemoveAll(path))
}

// becomes waits until the ready environments are these, with the words after
// the colon as their descriptions.
func (p *watched) becomes(want ...string) {
	p.t.Helper()
	var got []string
	patience.Wait(p.t, patience.Long, func() string { return "environments: " + cmp.Diff(want, got) }, func() bool {
		now := p.Registry().Now()
		got = nil
		for _, name := range now.Names() {
			env, _ := now.Environment(name)
			got = append(got, name+":"+env.Description)
		}
		return cmp.Equal(want, got)
	})
}

func TestFolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := watch(t, filepath.Join(t.TempDir(), "not", "yet", "there"), false)
		p.becomes()
		store := t.TempDir()
		first := write(t, filepath.Join(store, "first"), "lua", "5.3")

		// The folder, an entry, a link, a link over a link, each while it runs.
		write(t, filepath.Join(p.at, "own"), "own", "1")
		p.becomes("own:1")
		result := filepath.Join(store, "result")
		link(t, first, result)
		link(t, result, filepath.Join(p.at, "lua"))
		p.becomes("lua:5.3", "own:1")

		// The link that the entry's link leads to is replaced, as nix build
		// replaces it. What was taken before stays what it was.
		before, _ := p.Registry().Now().Environment("lua")
		remove(t, result)
		link(t, write(t, filepath.Join(store, "second"), "lua", "5.4"), result)
		p.becomes("lua:5.4", "own:1")
		if want := filepath.Join(first, "bin", "run"); before.Exec != want {
			t.Errorf("the snapshot's runs %s, want %s", before.Exec, want)
		}

		// One file of an artifact is replaced, with the same size.
		metadata := filepath.Join(p.at, "own", "metadata.json")
		file(t, metadata+".new", `{"schema":1,"name":"own","backend":"jail","description":"2"}`, 0o644)
		must.Do(t, os.Rename(metadata+".new", metadata))
		p.becomes("lua:5.4", "own:2")
		remove(t, filepath.Join(p.at, "lua"))
		p.becomes("own:2")
		remove(t, p.at)
		p.becomes()
	})
}

// What is wrong with an entry is named once while it is wrong, and again when
// it is wrong once more; what is half written becomes an environment when it
// is whole.
func TestBroken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := watch(t, t.TempDir(), false)
		link(t, "/nowhere/at/all", filepath.Join(p.at, "dangling"))
		file(t, filepath.Join(p.at, "half", "metadata.json"), `{"schema":1,"name":"half"`, 0o644)
		named := func(what string, times int) {
			t.Helper()
			patience.Wait(t, patience.Long, func() string {
				return fmt.Sprintf("%q was logged %d times, want %d:\n%s", what, p.logged(what), times, p.text.String())
			}, func() bool {
				return p.logged(what) == times
			})
		}
		const dangling = "leads to /nowhere/at/all, which does not exist: build the sandbox again, or remove the link"
		named(dangling, 1)
		named("half/metadata.json: not valid JSON", 1)
		for i := range 3 {
			write(t, filepath.Join(p.at, "other"), "other", fmt.Sprint(i))
			p.becomes(fmt.Sprintf("other:%d", i))
		}
		named(dangling, 1)
		write(t, filepath.Join(p.at, "half"), "half", "whole")
		p.becomes("half:whole", "other:2")
		remove(t, filepath.Join(p.at, "dangling"))
		link(t, write(t, t.TempDir(), "dangling", "no more"), filepath.Join(p.at, "dangling"))
		p.becomes("dangling:no more", "half:whole", "other:2")
		remove(t, filepath.Join(p.at, "dangling"))
		link(t, "/nowhere/at/all", filepath.Join(p.at, "dangling"))
		named(dangling, 2)
		if got := p.logged("half/metadata.json: not valid JSON"); got != 1 {
			t.Errorf("it was logged %d times", got)
		}
	})
}

// An entry that is removed and soon made again was never away, although the
// folder is read in between. One that stays away is.
func TestReplacedInTwoSteps(t *testing.T) {
	for gap, want := range map[time.Duration]int{
		time.Millisecond:                 0,
		settleEvery / 2:                  0,
		settleEvery - 2*time.Millisecond: 0,
		3 * settleEvery:                  1,
	} {
		t.Run(gap.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := watch(t, t.TempDir(), false)
				began := time.Now()
				store := t.TempDir()
				entry := filepath.Join(p.at, "lua")
				link(t, write(t, filepath.Join(store, "0"), "lua", "0"), entry)
				p.becomes("lua:0")
				missing := 0
				p.Registry().Subscribe(func(_, after *Snapshot) {
					if len(after.Names()) == 0 {
						missing++
					}
				})
				next := write(t, filepath.Join(store, "1"), "lua", "1")
				// The watcher polls within the gap.
				poll := time.Since(began).Truncate(pollEvery) + pollEvery
				time.Sleep(poll - gap/2 - time.Since(began))
				remove(t, entry)
				time.Sleep(gap)
				link(t, next, entry)
				p.becomes("lua:1")
				if missing != want {
					t.Errorf("it was away %d times, want %d", missing, want)
				}
			})
		})
	}
}

func TestSignalReadsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := watch(t, t.TempDir(), false)
		p.again <- syscall.SIGHUP
		patience.Until(t, "something is read", func() bool {
			return p.logged("reading the sandbox folders again") == 1
		})
	})
}

// The wrapper's reports: building, failed, ready under the artifact's own
// name or under another.
func TestBuilds(t *testing.T) {
	began := time.Now() // of the file system's clock, which is not simulated
	synctest.Test(t, func(t *testing.T) {
		p := watch(t, t.TempDir(), true)
		for _, name := range []string{"fine", "wrong", "aliased"} {
			file(t, filepath.Join(p.at, name+".building"), fmt.Sprint(os.Getpid()), 0o644)
		}
		state := func(name string, failed bool, reason string) {
			t.Helper()
			var entry Build
			var ok bool
			patience.Wait(t, patience.Long, func() string { return fmt.Sprintf("%s is %+v (%v)", name, entry, ok) }, func() bool {
				entry, ok = p.Registry().Now().Pending(name)
				return ok && entry.Failed == failed && entry.Reason == reason
			})
			if !failed && entry.Since.Sub(began).Abs() > time.Minute {
				t.Errorf("%s builds since %v", name, entry.Since)
			}
		}
		state("fine", false, "")
		state("wrong", false, "")

		store := t.TempDir()
		link(t, write(t, filepath.Join(store, "a"), "its-own-name", "a"), filepath.Join(p.at, "fine"))
		remove(t, filepath.Join(p.at, "fine.building"))
		link(t, write(t, filepath.Join(store, "b"), "its-own-name-too", "b"), filepath.Join(p.at, "aliased.named"))
		remove(t, filepath.Join(p.at, "aliased.building"))
		file(t, filepath.Join(p.at, "wrong.failed"), strings.Repeat("progress of the build\n", 1000)+"error: it did not work\n", 0o644)
		remove(t, filepath.Join(p.at, "wrong.building"))
		p.becomes("aliased:b", "its-own-name:a")
		patience.Until(t, "it fails", func() bool {
			entry, _ := p.Registry().Now().Pending("wrong")
			return entry.Failed && len(entry.Reason) < 5000 && strings.HasSuffix(entry.Reason, "\nerror: it did not work")
		})

		// The builder is gone without a word: no process has this id.
		file(t, filepath.Join(p.at, "killed.building"), "4194305", 0o644)
		state("killed", true, "the build was killed: start the server again to repeat it")

		// Paths that the configuration names: nobody has built one, and what is at
		// the other is of another time.
		link(t, "/nowhere/at/all", filepath.Join(p.at, "absent.named"))
		file(t, filepath.Join(store, "c", "metadata.json"), `{"schema":1,"name":"its-own-name","backend":"abacus"}`, 0o644)
		link(t, filepath.Join(store, "c"), filepath.Join(p.at, "old.named"))
		state("absent", true, "")
		state("old", true, "")
	})
}

func BenchmarkFingerprint(b *testing.B) {
	for _, count := range []int{5, 100} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			folder := b.TempDir()
			for i := range count {
				at := filepath.Join(folder, fmt.Sprint(i))
				must.Do(b, os.MkdirAll(filepath.Join(at, "bin"), 0o755))
				for _, name := range []string{"metadata.json", "bin/run", "bin/session-run"} {
					must.Do(b, os.WriteFile(filepath.Join(at, name), nil, 0o755))
				}
			}
			folders := Folders{Folders: []string{folder}}
			for b.Loop() {
				folders.Fingerprint()
			}
		})
	}
}
