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

// Of all who lock a folder at the same time, and make and delete it, one at a time has it.
func TestLock_OneHolderAtATime(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "folder")
	var holders, taken, refused atomic.Int64
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			for range 300 {
				locked, err := lock(folder)
				switch {
				case errors.Is(err, errInUse):
					refused.Add(1)
					continue
				case err != nil:
					t.Error(err)
					return
				}
				taken.Add(1)
				if holders.Add(1) != 1 || !isLocked(folder) {
					t.Error("two have the folder, or nobody")
				}
				if err := os.Mkdir(folder, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
					t.Error(err)
				}
				// A file that a holder wrote is there until it gives the folder back.
				name := filepath.Join(folder, "own")
				err = os.WriteFile(name, nil, 0o600)
				_, missing := os.Stat(name)
				if n%3 == 0 {
					err = errors.Join(err, removeFolder(folder))
				}
				holders.Add(-1)
				locked.Close()
				if err = errors.Join(err, missing); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d taken, %d refused", taken.Load(), refused.Load())
	if taken.Load() == 0 {
		t.Error("nobody had the folder")
	}
	if isLocked(folder) {
		t.Error("it is locked when nobody has it")
	}
}

// A folder that does not exist can be locked, and others at the same time.
func TestLock_IsOfOneFolder(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "folder")
	if isLocked(folder) {
		t.Error("it is locked in a store that was never used")
	}
	locked := must.Get(lock(folder))(t)
	must.Get(lock(folder + "-other"))(t).Close()
	if _, err := lock(folder); !errors.Is(err, errInUse) || !isLocked(folder) || isLocked(folder+"-other") {
		t.Errorf("a second lock has the error %v", err)
	}
	locked.Close()
	must.Get(lock(folder))(t).Close()
}

func TestLock_FollowsNoLink(t *testing.T) {
	folder, file := filepath.Join(t.TempDir(), "folder"), filepath.Join(t.TempDir(), "file")
	must.Do(t, os.Symlink(file, filepath.Join(filepath.Dir(folder), lockName)))
	if locked, err := lock(folder); err == nil {
		locked.Close()
		t.Error("a link was locked")
	}
	if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the link's file: %v", err)
	}
}
