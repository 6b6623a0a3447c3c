package store

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/host"
)

// lockName is the name of the file in a store of which each session has a byte. Whoever has the
// byte locked has the session. The file has no content and stays, so that the folder of a session
// can be moved and removed while it is locked.
const lockName = "lock"

var errInUse = errors.New("another process has the session")

func folderName(key Key) string {
	text, err := json.Marshal(key)
	if err != nil {
		panic(err) // texts have a form in JSON
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// lock locks the folder of a session, which need not exist. The error is [errInUse] if another
// process, or this one, has it. Closing the file, or the end of the process, gives it back.
func lock(folder string) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(filepath.Dir(folder), lockName), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	place := placeOf(folder)
	err = unix.FcntlFlock(file.Fd(), host.LockSet, &place)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		err = errInUse
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// isLocked reports whether somebody has the folder of a session.
func isLocked(folder string) bool {
	file, err := os.Open(filepath.Join(filepath.Dir(folder), lockName))
	if err != nil {
		return false
	}
	defer file.Close()
	place := placeOf(folder)
	return unix.FcntlFlock(file.Fd(), host.LockGet, &place) == nil && place.Type != unix.F_UNLCK
}

// placeOf returns the lock of a folder. Its byte is one of 2^62, chosen by the hash of the name.
func placeOf(folder string) unix.Flock_t {
	sum := sha256.Sum256([]byte(filepath.Base(folder)))
	return unix.Flock_t{Type: unix.F_WRLCK, Whence: unix.SEEK_SET, Start: int64(binary.BigEndian.Uint64(sum[:]) >> 2), Len: 1}
}
