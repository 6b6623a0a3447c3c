package snapshot

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

const size = 1 << 20

// fill saves something that a test can tell.
func fill(memory, state *os.File) error {
	_, err := memory.WriteAt([]byte("memory"), 4096)
	_, stateErr := state.WriteString("state")
	return errors.Join(err, stateErr)
}

func made(t *testing.T) (Store, string) {
	t.Helper()
	s := Store{Folder: filepath.Join(t.TempDir(), "cache", "snapshots")}
	key := Key("a", "b")
	must.Do(t, s.Make(key, size, fill))
	return s, key
}

func TestStore_OpensWhatWasMade(t *testing.T) {
	s, key := made(t)
	snapshot, found := s.Open(key)
	if !found {
		t.Fatal("it is not found")
	}
	defer snapshot.Close()
	memory := must.Get(io.ReadAll(snapshot.Memory))(t)
	state := must.Get(io.ReadAll(snapshot.State))(t)
	if len(memory) != size || !bytes.Equal(memory[4096:4102], []byte("memory")) || string(state) != "state" {
		t.Errorf("it has %d bytes of memory, the state %q and %+v", len(memory), state, snapshot.Meta)
	}
	if _, found := s.Open(Key("ab")); found {
		t.Error("another key has it too")
	}
	// Only its owner comes near it, and nobody changes it.
	if info := must.Get(os.Stat(s.Folder))(t); info.Mode().Perm() != 0o700 {
		t.Errorf("the folder has the mode %v", info.Mode())
	}
	if info := must.Get(snapshot.Memory.Stat())(t); info.Mode().Perm() != 0o444 {
		t.Errorf("the memory has the mode %v", info.Mode())
	}
}

// What a machine's memory has in it stays, and takes space; zeros take none.
func TestStore_DigsHoles(t *testing.T) {
	const page = 4096
	const size = 3<<20 + page
	want := make([]byte, size)
	kept := []int{0, 255, 256, 300, 302, size/page - 1}
	for _, n := range kept {
		want[n*page+page-1] = byte(n) | 1
	}
	s := Store{Folder: filepath.Join(t.TempDir(), "snapshots")}
	key := Key("holes")
	must.Do(t, s.Make(key, size, func(memory, state *os.File) error {
		_, err := memory.WriteAt(want, 0)
		return err
	}))
	snapshot, found := s.Open(key)
	if !found {
		t.Fatal("it is not found")
	}
	defer snapshot.Close()
	if got := must.Get(io.ReadAll(snapshot.Memory))(t); !bytes.Equal(got, want) {
		t.Error("its memory is not what was saved")
	}
	if got := data(t, snapshot.Memory); got != int64(len(kept)*page) {
		t.Errorf("the file has %d bytes that are no hole, want %d", got, len(kept)*page)
	}
}

// data is how many bytes of a file are no hole.
func data(t *testing.T, file *os.File) (sum int64) {
	t.Helper()
	for at := int64(0); ; {
		from, err := unix.Seek(int(file.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return sum
		}
		must.Do(t, err)
		at = must.Get(unix.Seek(int(file.Fd()), from, unix.SEEK_HOLE))(t)
		sum += at - from
	}
}

func TestKey_TellsWordsApart(t *testing.T) {
	keys := map[string]bool{}
	for _, words := range [][]string{{"a", "b"}, {"ab"}, {"b", "a"}, {"a", "b"}} {
		keys[Key(words...)] = true
	}
	if len(keys) != 3 {
		t.Errorf("four times words, two of them the same, have %d keys", len(keys))
	}
}

// Whatever is wrong with a snapshot, it is not used, and is gone.
func TestStore_DeletesWhatIsDamaged(t *testing.T) {
	edit := func(t *testing.T, name string, change func([]byte) []byte) {
		t.Helper()
		text := must.Get(os.ReadFile(name))(t)
		must.Do(t, os.Chmod(name, 0o600))
		must.Do(t, os.WriteFile(name, change(text), 0o600))
	}
	flip := func(at int) func([]byte) []byte {
		return func(text []byte) []byte { text[at] ^= 1; return text }
	}
	for name, damage := range map[string]func(t *testing.T, folder string){
		"a byte of meta":      func(t *testing.T, f string) { edit(t, filepath.Join(f, metaFile), flip(90)) },
		"a byte of the sum":   func(t *testing.T, f string) { edit(t, filepath.Join(f, metaFile), flip(0)) },
		"empty meta":          func(t *testing.T, f string) { edit(t, filepath.Join(f, metaFile), func([]byte) []byte { return nil }) },
		"a byte of the state": func(t *testing.T, f string) { edit(t, filepath.Join(f, stateFile), flip(0)) },
		"a longer state": func(t *testing.T, f string) {
			edit(t, filepath.Join(f, stateFile), func(text []byte) []byte { return append(text, 'x') })
		},
		"no state":     func(t *testing.T, f string) { must.Do(t, os.Remove(filepath.Join(f, stateFile))) },
		"other memory": func(t *testing.T, f string) { edit(t, filepath.Join(f, memoryFile), flip(4096)) },
		"short memory": func(t *testing.T, f string) { must.Do(t, os.Truncate(filepath.Join(f, memoryFile), 4096)) },
		"other memory of an earlier boot": func(t *testing.T, f string) {
			must.Do(t, os.Remove(filepath.Join(f, checkedFile)))
			edit(t, filepath.Join(f, memoryFile), flip(size-1))
		},
		"a sum for other memory": func(t *testing.T, f string) {
			rewrite(t, f, func(m *Meta) { m.MemoryHash = strings.Repeat("0", 64) })
			must.Do(t, os.Remove(filepath.Join(f, checkedFile)))
		},
		"yesterday": func(t *testing.T, f string) {
			rewrite(t, f, func(m *Meta) { m.Made = m.Made.Add(-maxAge - time.Hour) })
		},
		"tomorrow": func(t *testing.T, f string) { rewrite(t, f, func(m *Meta) { m.Made = m.Made.Add(time.Hour) }) },
	} {
		t.Run(name, func(t *testing.T) {
			s, key := made(t)
			damage(t, filepath.Join(s.Folder, key))
			if _, found := s.Open(key); found {
				t.Fatal("it is used")
			}
			if name != "no state" {
				if _, err := os.Stat(filepath.Join(s.Folder, key)); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("it is still there: %v", err)
				}
			}
			must.Do(t, s.Make(key, size, fill))
			snapshot, found := s.Open(key)
			if !found {
				t.Fatal("a new one is not found")
			}
			snapshot.Close()
		})
	}
}

// A folder of another computer, or of an earlier boot, is compared once.
func TestStore_OpensWhatWasCarried(t *testing.T) {
	s, key := made(t)
	other := Store{Folder: filepath.Join(t.TempDir(), "snapshots")}
	to := filepath.Join(other.Folder, key)
	must.Do(t, os.MkdirAll(to, 0o700))
	for _, name := range []string{memoryFile, stateFile, metaFile} {
		must.Do(t, os.WriteFile(filepath.Join(to, name), must.Get(os.ReadFile(filepath.Join(s.Folder, key, name)))(t), 0o600))
	}
	for _, isChecked := range []bool{false, true} {
		if _, err := os.Stat(filepath.Join(to, checkedFile)); (err == nil) != isChecked {
			t.Errorf("checked: %v, want %v", err == nil, isChecked)
		}
		snapshot, found := other.Open(key)
		if !found {
			t.Fatal("it is not found")
		}
		snapshot.Close()
	}
}

// rewrite changes a description that is otherwise whole.
func rewrite(t *testing.T, folder string, change func(*Meta)) {
	t.Helper()
	snapshot := must.Get(open(folder))(t)
	snapshot.Close()
	change(&snapshot.Meta)
	must.Do(t, os.Remove(filepath.Join(folder, metaFile)))
	must.Do(t, writeMeta(folder, snapshot.Meta))
}

// A snapshot that fails leaves nothing, and an earlier one stays.
func TestMake_LeavesNothingOfAFailure(t *testing.T) {
	s, key := made(t)
	failed := errors.New("no space left on device")
	if err := s.Make(key, size, func(*os.File, *os.File) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("error %v", err)
	}
	snapshot, found := s.Open(key)
	if !found {
		t.Fatal("the earlier one is gone")
	}
	snapshot.Close()
	for _, entry := range must.Get(os.ReadDir(s.Folder))(t) {
		if strings.Contains(entry.Name(), "partial") || strings.Contains(entry.Name(), "gone") {
			t.Errorf("%s is left", entry.Name())
		}
	}
}

// Of many that start at once, one makes the snapshot.
func TestMake_IsDoneByOne(t *testing.T) {
	s := Store{Folder: t.TempDir()}
	var saves, busy atomic.Int32
	var all sync.WaitGroup
	release := make(chan struct{})
	for range 10 {
		all.Go(func() {
			err := s.Make("key", size, func(memory, state *os.File) error {
				saves.Add(1)
				<-release
				return fill(memory, state)
			})
			if errors.Is(err, ErrBusy) {
				if busy.Add(1) == 9 {
					close(release)
				}
			} else if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if saves.Load() != 1 {
		t.Errorf("%d made it", saves.Load())
	}
}

func TestMake_KeepsABoundedNumber(t *testing.T) {
	s := Store{Folder: t.TempDir()}
	// Of a process that was killed.
	must.Do(t, os.Mkdir(filepath.Join(s.Folder, "dead.partial-1"), 0o700))
	for i := range maxKept + 3 {
		must.Do(t, s.Make(Key(string(rune('a'+i))), size, fill))
	}
	folders := 0
	for _, entry := range must.Get(os.ReadDir(s.Folder))(t) {
		if entry.IsDir() {
			folders++
		}
	}
	if folders != maxKept {
		t.Errorf("%d are kept, want %d", folders, maxKept)
	}
	if _, found := s.Open(Key("a")); found {
		t.Error("the oldest is kept")
	}
}
