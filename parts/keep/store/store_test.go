package store

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/seed"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/host"
)

var key = Key{Principal: "p", Session: "s", Env: "e"}

// storeOf makes a store with a folder that does not exist yet.
func storeOf(t testing.TB, limit int64) *Store {
	t.Helper()
	return New(Options{Folder: filepath.Join(t.TempDir(), "state", "sessions"), Limit: limit, Option: "some_mb", About: "project /p", Log: slog.New(slog.DiscardHandler)})
}

// write commits data of some size in a slot, as a file.
func write(slot *Slot, text string, size int64) error {
	path := slot.Next()
	if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Truncate(path, size)); err != nil {
		return err
	}
	if err := slot.Commit(Head{Bytes: size}); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// wantEmpty fails the test if there is a session in a store.
func wantEmpty(t testing.TB, s *Store) {
	t.Helper()
	left := must.Get(os.ReadDir(s.Folder))(t)
	if left = slices.DeleteFunc(left, func(e os.DirEntry) bool { return e.Name() == lockName }); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

// save commits data of a session that nobody has.
func save(t testing.TB, s *Store, key Key, text string, size int64) {
	t.Helper()
	slot := must.Get(s.Acquire(key))(t)
	defer slot.Close()
	must.Do(t, write(slot, text, size))
}

// kept returns the data of a session, without zeros at its end; empty if it has none.
func kept(t testing.TB, s *Store, key Key) string {
	t.Helper()
	slot := must.Get(s.Acquire(key))(t)
	defer slot.Close()
	if slot.Path() == "" {
		return ""
	}
	data := must.Get(os.ReadFile(slot.Path()))(t)
	if end := slices.Index(data, 0); end >= 0 {
		data = data[:end]
	}
	return string(data)
}

func TestStore_HasWhatWasCommittedLast(t *testing.T) {
	s := storeOf(t, 1<<30)
	if s.Has(key) {
		t.Error("an empty store has a session")
	}
	if _, err := os.Stat(s.Folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a look into an empty store wrote something: %v", err)
	}
	save(t, s, key, "old", 10)
	// What a process that was killed had written is not used.
	slot := must.Get(s.Acquire(key))(t)
	must.Write(t, slot.Next(), "half", 0o600)
	must.Write(t, filepath.Join(slot.folder, newHeadPrefix+"1"), "half", 0o600)
	slot.lock.Close()
	if text := kept(t, s, key); text != "old" {
		t.Errorf("after a save that was broken off it has %q", text)
	}
	save(t, s, key, "new", 20)
	if text := kept(t, s, key); text != "new" || !s.Has(key) {
		t.Errorf("it has %q", text)
	}
	if files := must.Get(filepath.Glob(filepath.Join(s.Folder, "*", "*")))(t); len(files) != 3 {
		t.Errorf("there are %q", files)
	}
	for _, other := range []Key{{Session: "s", Env: "e"}, {Principal: "p", Session: "s", Env: "f"}, {Principal: "p", Session: "s", Env: "e", Project: "/p"}} {
		if s.Has(other) || kept(t, s, other) != "" {
			t.Errorf("%+v has data", other)
		}
	}
	list := must.Get(List(s.Folder))(t)
	if len(list) != 1 || list[0].Key != key || list[0].Head.Bytes != 20 || list[0].Holder != nil || list[0].Disk < 20 {
		t.Errorf("the list is %+v", list)
	}
	must.Do(t, list[0].Remove())
	wantEmpty(t, s)
}

// One process has a session. Others are told which one.
func TestAcquire_RefusesASecond(t *testing.T) {
	s := storeOf(t, 1<<30)
	save(t, s, key, "text", 10)
	slot := must.Get(s.Acquire(key))(t)
	var inUse *InUseError
	if _, err := s.Acquire(key); !errors.As(err, &inUse) || inUse.Holder.PID != os.Getpid() || inUse.Holder.About != "project /p" || time.Since(inUse.Holder.Since) > time.Hour {
		t.Errorf("a second process has the error %v, %+v", err, inUse)
	}
	list := must.Get(List(s.Folder))(t)
	if len(list) != 1 || list[0].Holder == nil || list[0].Holder.PID != os.Getpid() || !errors.As(list[0].Remove(), &inUse) {
		t.Errorf("the list is %+v", list)
	}
	must.Do(t, slot.Remove())
	if s.Has(key) {
		t.Error("it was removed, and has data")
	}
	// A session without data leaves nothing.
	must.Get(s.Acquire(key))(t).Close()
	wantEmpty(t, s)
}

// A process that makes room does not stop another one from acquiring a session.
func TestAcquire_WaitsForAMoment(t *testing.T) {
	s := storeOf(t, 1<<30)
	save(t, s, key, "text", 10)
	locked := must.Get(lock(filepath.Join(s.Folder, folderName(key))))(t)
	time.AfterFunc(lockTimeout/4, func() { locked.Close() })
	must.Get(s.Acquire(key))(t).Close()
}

// Without room, a principal loses its own oldest sessions, and others lose nothing.
func TestCommit_RemovesOfThePrincipalWithMost(t *testing.T) {
	s := storeOf(t, 24_000)
	thesis := Key{Principal: "bob", Session: "thesis", Env: "e"}
	save(t, s, thesis, "thesis", 1000)
	for n := range 5 {
		save(t, s, Key{Principal: "alice", Session: fmt.Sprint(n), Env: "e"}, "large", 8000)
	}
	if text := kept(t, s, thesis); text != "thesis" {
		t.Errorf("bob's data is %q", text)
	}
	for n, want := range []string{"", "", "", "large", "large"} {
		if text := kept(t, s, Key{Principal: "alice", Session: fmt.Sprint(n), Env: "e"}); text != want {
			t.Errorf("alice's session %d has %q, want %q", n, text, want)
		}
	}
	// With more principals, each has its share.
	for _, principal := range []string{"carol", "dave"} {
		save(t, s, Key{Principal: principal, Session: "s", Env: "e"}, "other", 7000)
	}
	if text := kept(t, s, thesis); text != "thesis" {
		t.Errorf("bob's data is %q", text)
	}
}

// The next call of a session can say that its data was removed, once.
func TestCommit_LeavesANoteOfWhatItRemoved(t *testing.T) {
	s := storeOf(t, 10_000)
	save(t, s, key, "text", 6000)
	save(t, s, Key{Principal: "p", Session: "other"}, "text", 6000)
	slot := must.Get(s.Acquire(key))(t)
	if head, err := slot.Head(); head != nil || err != nil || !slot.WasRemoved() || slot.Path() != "" {
		t.Errorf("head %+v, error %v, removed %v, path %q", head, err, slot.WasRemoved(), slot.Path())
	}
	slot.Close()
	slot = must.Get(s.Acquire(key))(t)
	defer slot.Close()
	if slot.WasRemoved() {
		t.Error("it is said twice")
	}
}

// Sessions that are in use count, and a principal's own are not removed for another of
// its sessions. Somebody else's are, if they are most.
func TestCommit_IsBoundedByWhatIsInUse(t *testing.T) {
	s := storeOf(t, 20_000)
	acquire := func(principal, session string) *Slot {
		slot := must.Get(s.Acquire(Key{Principal: principal, Session: session}))(t)
		t.Cleanup(slot.Close)
		return slot
	}
	first, second, third := acquire("alice", "1"), acquire("alice", "2"), acquire("alice", "3")
	must.Do(t, write(first, "first", 9000))
	must.Do(t, write(second, "second", 9000))
	var large *TooLargeError
	if err := write(third, "third", 9000); !errors.As(err, &large) || !large.Others {
		t.Errorf("a third session has the error %v", err)
	}
	if err := write(third, "third", 20_001); !errors.As(err, &large) || large.Others {
		t.Errorf("one that is too large has the error %v", err)
	}
	if third.Path() != "" {
		t.Errorf("the third one has %s", third.Path())
	}
	must.Do(t, write(acquire("bob", "1"), "bob's", 5000))
	total := int64(0)
	for _, one := range must.Get(List(s.Folder))(t) {
		total += one.Disk
	}
	if total > 22_000 { // with heads and locks
		t.Errorf("all together take %d bytes", total)
	}
	// What was removed of a session in use is there again after its next commit.
	must.Do(t, write(first, "again", 5000))
	first.Close()
	if text := kept(t, s, first.Key); text != "again" {
		t.Errorf("alice's first session has %q", text)
	}
}

// To make room, no session in use loses data that would free nothing.
func TestCommit_LeavesSmallSessionsInUse(t *testing.T) {
	s := storeOf(t, 100_000)
	s.sessions = 10 // a small one counts as 10,000 bytes
	acquire := func(principal, session string) *Slot {
		slot := must.Get(s.Acquire(Key{Principal: principal, Session: session}))(t)
		t.Cleanup(slot.Close)
		return slot
	}
	small, large := acquire("bob", "small"), acquire("bob", "large")
	must.Do(t, write(small, "small", 1))
	must.Do(t, write(large, "large", 80_000))
	must.Do(t, write(acquire("alice", "1"), "alice's", 40_000))
	data := map[string]string{}
	for _, one := range must.Get(List(s.Folder))(t) {
		data[one.Key.Session] = one.Head.Data
	}
	if data["small"] == "" || data["large"] != "" {
		t.Errorf("the sessions have %q", data)
	}
}

// At random, a principal with less than its share loses nothing, and all together are
// bounded.
func TestCommit_RemovesNothingOfAModestPrincipal(t *testing.T) {
	random := seed.New(t)
	const limit, principals = 100_000, 5
	s := storeOf(t, limit)
	modest := map[Key]bool{}
	left := int64(limit/principals - 2000) // of the share of the modest one
	for n := range 150 {
		who, size := random.IntN(principals), random.Int64N(limit)
		key := Key{Principal: fmt.Sprint(who), Session: fmt.Sprint(random.IntN(8))}
		if who == 0 {
			size = random.Int64N(500)
			if key.Session = fmt.Sprint(n); left < size+500 {
				continue
			}
			left -= size + 500 // with its head and holder
			modest[key] = true
		}
		slot := must.Get(s.Acquire(key))(t)
		var large *TooLargeError
		if err := write(slot, "text", size); err != nil && (who == 0 || !errors.As(err, &large)) {
			t.Fatal(err)
		}
		slot.Close()
		total := int64(0)
		for _, one := range must.Get(List(s.Folder))(t) {
			total += one.Disk
		}
		if total > limit+limit/10 {
			t.Fatalf("all together take %d bytes", total)
		}
	}
	for key := range modest {
		if !s.Has(key) {
			t.Errorf("session %s of the modest principal is gone", key.Session)
		}
	}
	t.Logf("%d sessions of the modest one", len(modest))
}

// Many sessions without data count too.
func TestCommit_BoundsTheNumberOfSessions(t *testing.T) {
	s := storeOf(t, 3000)
	s.sessions = 3
	for n := range 5 {
		save(t, s, Key{Session: fmt.Sprint(n)}, "", 0)
	}
	if list := must.Get(List(s.Folder))(t); len(list) != 3 {
		t.Errorf("there are %d sessions", len(list))
	}
}

// change changes the head of a session.
func change(t testing.TB, s *Store, key Key, change func(*Head)) {
	t.Helper()
	folder := filepath.Join(s.Folder, folderName(key))
	head := must.Get(readHead(folder))(t)
	change(head)
	must.Do(t, os.WriteFile(filepath.Join(folder, headName), must.Get(head.encode())(t), 0o600))
}

// Data that is too old, or was not on disk when the host stopped, does not count.
func TestStore_ForgetsWhatIsOldOrLost(t *testing.T) {
	s := storeOf(t, 1<<30)
	s.MaxAge = time.Hour
	for name, test := range map[string]struct {
		change func(*Head)
		counts bool
	}{
		"too old":                          {func(h *Head) { h.Saved = h.Saved.Add(-s.MaxAge - time.Minute) }, false},
		"not on disk before the last boot": {func(h *Head) { h.Boot = "another" }, false},
		"not on disk yet":                  {func(h *Head) { h.Boot = must.Get(bootID())(t) }, true},
		"on disk":                          {func(*Head) {}, true},
	} {
		save(t, s, key, "text", 10)
		if change(t, s, key, test.change); s.Has(key) != test.counts {
			t.Errorf("one that is %s counts: %v", name, !test.counts)
		}
		if text := kept(t, s, key); (text != "") != test.counts {
			t.Errorf("one that is %s has %q", name, text)
		}
	}
	// Clean removes it, and what was left before the first commit.
	save(t, s, key, "text", 10)
	change(t, s, key, func(h *Head) { h.Saved = h.Saved.Add(-s.MaxAge - time.Minute) })
	partial := must.Get(s.Acquire(Key{Session: "partial"}))(t)
	must.Do(t, os.Mkdir(partial.Next(), 0o700))
	partial.lock.Close()
	must.Do(t, os.Mkdir(filepath.Join(s.Folder, "empty"), 0o700))
	s.Clean()
	wantEmpty(t, s)
}

// An unknown boot is not the same as another unknown boot.
func TestCommitEarly_NeedsABoot(t *testing.T) {
	s := storeOf(t, 1<<30)
	commit := func() *Head {
		t.Helper()
		slot := must.Get(s.Acquire(key))(t)
		defer slot.Close()
		must.Do(t, os.Mkdir(slot.Next(), 0o700))
		must.Do(t, slot.CommitEarly(Head{Bytes: 1}))
		return must.Get(slot.Head())(t)
	}
	if head := commit(); head.Boot != "" || !s.Has(key) {
		t.Errorf("the head is %+v", head)
	}
	change(t, s, key, func(h *Head) { h.Boot = must.Get(bootID())(t) })
	defer func() { bootID = host.BootID }()
	bootID = func() (string, error) { return "", errors.New("a kernel without it") }
	if s.Has(key) {
		t.Error("of an unknown boot, data that may not be on disk counts")
	}
	if head := commit(); head.Boot != "" || !s.Has(key) {
		t.Errorf("of an unknown boot, the head is %+v", head)
	}
}

// Damaged data is set aside, and the session begins with none.
func TestSetAside(t *testing.T) {
	s := storeOf(t, 1<<30)
	save(t, s, key, "text", 10)
	head := filepath.Join(s.Folder, folderName(key), headName)
	for _, text := range []string{"", "{", `{"session":"s"}` + "\n", string(must.Get((&Head{Version: headVersion, Key: key, Data: "data-/../../x"}).encode())(t)),
		string(must.Get((&Head{Version: headVersion, Key: key, Data: "../../etc"}).encode())(t)), string(must.Get((&Head{Version: headVersion, Data: "data-1"}).encode())(t))} {
		must.Do(t, os.WriteFile(head, []byte(text), 0o600))
		slot := must.Get(s.Acquire(key))(t)
		var damaged *DamagedError
		if _, err := slot.Head(); !errors.As(err, &damaged) || s.Has(key) || slot.Path() != "" {
			t.Errorf("%q has the error %v", text, err)
		}
		folder := must.Get(slot.SetAside())(t)
		if got := must.Get(os.ReadFile(filepath.Join(folder, headName)))(t); string(got) != text {
			t.Errorf("what was set aside is %q", got)
		}
		must.Do(t, write(slot, "new", 10))
		slot.Close()
		if got := kept(t, s, key); got != "new" {
			t.Errorf("it has %q", got)
		}
		var names []string
		for _, one := range must.Get(List(s.Folder))(t) {
			names = append(names, fmt.Sprint(one.Key, one.SetAside))
		}
		slices.Sort(names)
		if diff := cmp.Diff(2, len(names)); diff != "" {
			t.Errorf("the list is %q", names)
		}
		must.Do(t, os.RemoveAll(folder))
	}
}

// Whatever bytes a head has, it is the one that was written, or damaged.
func FuzzHead(f *testing.F) {
	text := must.Get((&Head{Version: headVersion, Key: key, Data: "data-1"}).encode())(f)
	f.Add(text)
	f.Add(text[:len(text)/2])
	f.Fuzz(func(t *testing.T, data []byte) {
		head, err := decodeHead(data)
		var damaged *DamagedError
		if err != nil && !errors.As(err, &damaged) || err == nil && head.Data != "" && filepath.Base(head.Data) != head.Data {
			t.Errorf("head %+v, error %v", head, err)
		}
	})
}
