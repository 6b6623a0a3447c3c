package store

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

// lockName is the name of the file in a folder that is locked. The process that has the
// folder chooses its content.
const lockName = "lock"

var errInUse = errors.New("another process has the folder")

// attempts bounds how often a folder is made again if others delete it.
const attempts = 100

func folderName(key Key) string {
	text, err := json.Marshal(key)
	if err != nil {
		panic(err) // texts have a form in JSON
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// makeLocked locks a folder, after making it with mode 0700 if it does not exist. The
// error is [errInUse] if another process has it. Closing the file, or the end of the
// process, gives it back.
func makeLocked(folder string) (lock *os.File, err error) {
	for range attempts {
		if err := os.Mkdir(folder, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		lock, err = take(folder, os.O_CREATE)
		if !errors.Is(err, fs.ErrNotExist) { // else it was deleted meanwhile
			return lock, err
		}
	}
	return nil, errInUse
}

// takeLocked locks an existing folder. The error is [fs.ErrNotExist] if it was never locked
// or is deleted meanwhile, and [errInUse] if another process has it. Unlike makeLocked it
// makes no file in a folder that is being deleted.
func takeLocked(folder string) (lock *os.File, err error) { return take(folder, 0) }

func take(folder string, flags int) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(folder, lockName), os.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC|flags, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errInUse
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

// isAt returns nil if an open file still has a name. Its former holder may have deleted it
// or moved its folder; the error is then [fs.ErrNotExist].
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
