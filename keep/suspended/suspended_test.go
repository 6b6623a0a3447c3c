package suspended

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/keep/lockedfolder"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

var key = Key{Principal: "p", Session: "s", Env: "e"}

func store(t *testing.T, limit int64) *Store {
	t.Helper()
	return New(filepath.Join(t.TempDir(), "state", "sessions"), limit, slog.New(slog.DiscardHandler))
}

// suspend has a session sleep with some text.
func suspend(t *testing.T, s *Store, key Key, text string, bytes int64) {
	t.Helper()
	state := must.Get(s.Acquire(key))(t)
	defer state.Close()
	must.Do(t, os.Mkdir(state.Next(), 0o700))
	must.Write(t, filepath.Join(state.folder, state.next, "text"), text, 0o600)
	must.Do(t, state.Commit(bytes))
}

// woken returns the text with which a session sleeps; empty where it does not.
func woken(t *testing.T, s *Store, key Key) string {
	t.Helper()
	state := must.Get(s.Find(key))(t)
	if state == nil {
		return ""
	}
	defer state.Close()
	return string(must.Get(os.ReadFile(filepath.Join(state.Folder(), "text")))(t))
}

func TestStore_HasWhatWasCommittedLast(t *testing.T) {
	s := store(t, 1<<30)
	if text := woken(t, s, key); text != "" {
		t.Errorf("an empty store has %q", text)
	}
	if _, err := os.Stat(s.folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a look into an empty store wrote something: %v", err)
	}
	suspend(t, s, key, "old", 10)
	// A save that is not finished leaves the one before.
	state := must.Get(s.Acquire(key))(t)
	must.Do(t, os.Mkdir(state.Next(), 0o700))
	state.Close()
	if text := woken(t, s, key); text != "old" {
		t.Errorf("after a save that was broken off it has %q", text)
	}
	suspend(t, s, key, "new", 20)
	if text := woken(t, s, key); text != "new" {
		t.Errorf("it has %q", text)
	}
	if states := must.Get(filepath.Glob(filepath.Join(s.folder, "*", "state-*")))(t); len(states) != 1 {
		t.Errorf("there are the states %q", states)
	}
	for _, other := range []Key{{Session: "s", Env: "e"}, {Principal: "p", Session: "s", Env: "f"}, {Principal: "p", Session: "s", Env: "e", Project: "/p"}} {
		if text := woken(t, s, other); text != "" {
			t.Errorf("%+v has %q", other, text)
		}
	}
	list := must.Get(List(s.folder))(t)
	if len(list) != 1 || list[0].Key != key || list[0].Bytes != 20 || list[0].InUse {
		t.Errorf("the list is %+v", list)
	}
	must.Do(t, list[0].Remove())
	if left := must.Get(os.ReadDir(s.folder))(t); len(left) != 0 {
		t.Errorf("%v is left", left)
	}
}

func TestStore_OneProcessAtATime(t *testing.T) {
	s := store(t, 1<<30)
	suspend(t, s, key, "text", 10)
	state := must.Get(s.Find(key))(t)
	var inUse *InUseError
	if _, err := s.Find(key); !errors.As(err, &inUse) {
		t.Errorf("a second process has the error %v", err)
	}
	list := must.Get(List(s.folder))(t)
	if len(list) != 1 || !list[0].InUse || !errors.As(list[0].Remove(), &inUse) {
		t.Errorf("the list is %+v", list)
	}
	must.Do(t, state.Remove())
	if text := woken(t, s, key); text != "" {
		t.Errorf("after it was removed it has %q", text)
	}
}

func TestStore_DeletesThoseThatHaveSleptLongest(t *testing.T) {
	s := store(t, 25)
	named := func(name string) Key { return Key{Session: name, Env: "e"} }
	suspend(t, s, named("a"), "a", 10)
	suspend(t, s, named("b"), "b", 10)
	suspend(t, s, named("c"), "c", 10)
	for name, want := range map[string]string{"a": "", "b": "b", "c": "c"} {
		if text := woken(t, s, named(name)); text != want {
			t.Errorf("%s has %q, want %q", name, text, want)
		}
	}
	if !s.Fits(25) || s.Fits(26) {
		t.Error("it does not say what fits")
	}
}

// What is too old is not woken, and what a process left that was killed before its first
// commit goes when the next session falls asleep.
func TestStore_DeletesWhatIsOldOrPartial(t *testing.T) {
	s := store(t, 1<<30)
	suspend(t, s, key, "old", 10)
	head := must.Get(readHead(filepath.Join(s.folder, lockedfolder.Name(key))))(t)
	if !head.Synced || head.Boot == "" {
		t.Errorf("the head is %+v", head)
	}
	change := func(change func(*Head)) {
		changed := *head
		change(&changed)
		must.Do(t, os.WriteFile(filepath.Join(s.folder, lockedfolder.Name(key), headName), must.Get(json.Marshal(changed))(t), 0o600))
	}
	for name, to := range map[string]func(*Head){
		"too old":                          func(h *Head) { h.Suspended = h.Suspended.Add(-MaxAge - time.Minute) },
		"not on disk before the last boot": func(h *Head) { h.Synced, h.Boot = false, "another" },
	} {
		if change(to); s.Has(key) {
			t.Errorf("one that is %s can be woken", name)
		}
	}
	for name, to := range map[string]func(*Head){
		"on disk before the last boot": func(h *Head) { h.Boot = "another" },
		"not on disk yet":              func(h *Head) { h.Synced = false },
	} {
		if change(to); !s.Has(key) {
			t.Errorf("one that is %s cannot be woken", name)
		}
	}
	change(func(h *Head) { h.Suspended = h.Suspended.Add(-MaxAge - time.Minute) })
	partial := must.Get(s.Acquire(Key{Session: "partial"}))(t)
	must.Do(t, os.Mkdir(partial.Next(), 0o700))
	partial.Close()
	if entries := must.Get(os.ReadDir(s.folder))(t); len(entries) != 2 {
		t.Errorf("there are %v", entries)
	}
	s.Clean()
	if left := must.Get(os.ReadDir(s.folder))(t); len(left) != 0 {
		t.Errorf("%v is left", left)
	}
	// So it is where another one falls asleep.
	must.Do(t, os.Mkdir(filepath.Join(s.folder, lockedfolder.Name(key)), 0o700))
	suspend(t, s, Key{Session: "new"}, "new", 10)
	if left := must.Get(os.ReadDir(s.folder))(t); len(left) != 1 {
		t.Errorf("%v is left", left)
	}
}

// A head that makes no sense is no session, and leads nowhere.
func TestStore_TrustsNoHead(t *testing.T) {
	s := store(t, 1<<30)
	for _, head := range []string{
		"", "{", `{"session":"s"}`,
		`{"principal":"p","session":"s","env":"e","suspended":"2100-01-01T00:00:00Z","state":"../../etc"}`,
		`{"principal":"p","session":"s","env":"e","suspended":"2100-01-01T00:00:00Z","state":"state-/../../x"}`,
		`{"principal":"q","session":"s","env":"e","suspended":"2100-01-01T00:00:00Z","state":"state-1"}`,
	} {
		folder := filepath.Join(s.folder, lockedfolder.Name(key))
		must.Do(t, os.MkdirAll(folder, 0o700))
		must.Do(t, os.WriteFile(filepath.Join(folder, headName), []byte(head), 0o600))
		if s.Has(key) || must.Get(s.Find(key))(t) != nil {
			t.Errorf("%q is a session", head)
		}
	}
}
