// Package lockedfolder gives one process at a time a folder of its own among those of a
// store, where other processes may make, take and delete them at any moment.
package lockedfolder

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// LockName is the name of the file in a folder that is locked. Its content is its
// holder's.
const LockName = "lock"

// ErrInUse reports a folder that another process has.
var ErrInUse = errors.New("another process has the folder")

// attempts bounds how often a folder is made again that others delete.
const attempts = 100

// Name returns the name of the folder of a key, which is a struct of texts.
func Name(key any) string {
	text, err := json.Marshal(key)
	if err != nil {
		panic(err) // texts have a form in JSON
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// Make locks a folder, which it makes where there is none, with the mode 0700. The error is
// [ErrInUse] where another process has it. Whoever closes the file, or ends, gives it back.
func Make(folder string) (lock *os.File, err error) {
	for range attempts {
		if err := os.Mkdir(folder, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		lock, err = take(folder, os.O_CREATE)
		if !errors.Is(err, fs.ErrNotExist) { // else it was deleted meanwhile
			return lock, err
		}
	}
	return nil, ErrInUse
}

// Take locks a folder that there is. The error is [fs.ErrNotExist] where it was never locked
// or is deleted meanwhile, and [ErrInUse] where another process has it. Unlike [Make] it puts
// no file into a folder that is being deleted.
func Take(folder string) (lock *os.File, err error) { return take(folder, 0) }

func take(folder string, flags int) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(folder, LockName), os.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC|flags, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrInUse
	}
	if err == nil {
		err = isAt(lock, lock.Name())
	}
	if err != nil {
		lock.Close()
		return nil, err
	}
	return lock, nil
}

// isAt reports whether a file is the one with a name: whoever had it before may have deleted
// it, or moved its folder. The error is [fs.ErrNotExist] where it is not.
func isAt(file *os.File, name string) error {
	ours, err := file.Stat()
	if err != nil {
		return err
	}
	there, err := os.Lstat(name)
	if err != nil {
		return err
	}
	if !os.SameFile(ours, there) {
		return fs.ErrNotExist
	}
	return nil
}
