package store

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// Of all who make, take and delete a folder at the same time, one at a time has it.
func TestLock_OneHolderAtATime(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "folder")
	var holders, made, taken, refused atomic.Int64
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			for range 300 {
				get, count := makeLocked, &made
				if n%2 == 1 {
					get, count = takeLocked, &taken
				}
				lock, err := get(folder)
				switch {
				case errors.Is(err, errInUse), n%2 == 1 && errors.Is(err, fs.ErrNotExist):
					refused.Add(1)
					continue
				case err != nil:
					t.Error(err)
					return
				}
				count.Add(1)
				if holders.Add(1) != 1 {
					t.Error("two have the folder")
				}
				// A file that a holder wrote is there until it gives the folder back.
				name := filepath.Join(folder, "own")
				err = os.WriteFile(name, nil, 0o600)
				_, missing := os.Stat(name)
				holders.Add(-1)
				if n%3 == 0 {
					err = errors.Join(err, removeFolder(folder))
				}
				lock.Close()
				if err = errors.Join(err, missing); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d made, %d taken, %d refused", made.Load(), taken.Load(), refused.Load())
	if made.Load() == 0 {
		t.Error("nobody made the folder")
	}
}

func TestTakeLocked_LeavesNothing(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "folder")
	if _, err := takeLocked(folder); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of no folder: %v", err)
	}
	must.Do(t, os.Mkdir(folder, 0o700))
	if _, err := takeLocked(folder); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of one that was never locked: %v", err)
	}
	if files := must.Get(os.ReadDir(folder))(t); len(files) != 0 {
		t.Errorf("it has %v", files)
	}
	lock := must.Get(makeLocked(folder))(t)
	if _, err := takeLocked(folder); !errors.Is(err, errInUse) {
		t.Errorf("of one in use: %v", err)
	}
	// A lock whose folder was moved is of no use at the old place.
	must.Do(t, os.Rename(folder, folder+"-moved"))
	again := must.Get(makeLocked(folder))(t)
	again.Close()
	lock.Close()
	must.Get(takeLocked(folder + "-moved"))(t).Close()
}

func TestMakeLocked_FollowsNoLink(t *testing.T) {
	folder, file := t.TempDir(), filepath.Join(t.TempDir(), "file")
	must.Do(t, os.Symlink(file, filepath.Join(folder, lockName)))
	if lock, err := makeLocked(folder); err == nil {
		lock.Close()
		t.Error("a link was locked")
	}
	if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the link's file: %v", err)
	}
}
