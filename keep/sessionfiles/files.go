package sessionfiles

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/filetree"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/keep/lockedfolder"
)

const (
	// A log is begun anew, with all files, when it has saved three times as much as
	// those took, and more than that the first time it was small.
	wasteFactor = 3
	wasteLeast  = 4 << 20
)

// Files are those of one session, which the owner alone has until Close. The methods
// are called one at a time.
type Files struct {
	store  *Store
	key    Key
	folder string
	lock   *os.File
	head   *Head // nil where nothing is kept
	// problem is why what is kept cannot be used.
	problem error
	// behind says that the sandbox may have copied what was not committed.
	behind bool
}

// CopyFunc copies what has changed since its last success out of a sandbox, or with
// full everything, in parts that send must not keep.
type CopyFunc func(full bool, send func(part []byte) error) (frame.Copied, error)

// Head describes what is kept; nil is nothing. The error says why what there is cannot
// be used.
func (f *Files) Head() (*Head, error) { return f.head, f.problem }

// Restore hands the kept files to send, in parts that it must not keep, after all of
// them have been checked. The error is a [*DamagedError] where they are not as they
// were saved; then nothing was sent.
func (f *Files) Restore(send func(part []byte) error) error {
	if f.problem != nil {
		return f.problem
	}
	if f.head == nil {
		return nil
	}
	out := &parts{send: send}
	if err := read(f.folder, f.head, out.add); err != nil {
		return err
	}
	return out.flush()
}

// Save commits what copy copies. After an error the files that were kept before are
// kept, and the next Save copies everything.
func (f *Files) Save(copy CopyFunc) (frame.Copied, error) {
	full := f.head == nil || f.behind || f.head.Raw > wasteFactor*f.head.Full+wasteLeast
	f.behind = true
	copied, err := f.save(full, copy)
	if err != nil {
		return copied, fmt.Errorf("save the files of session %q: %w", f.key.Session, err)
	}
	f.behind = false
	f.store.shrink(f.folder)
	return copied, nil
}

func (f *Files) save(full bool, copy CopyFunc) (frame.Copied, error) {
	next := Head{Version: headVersion, Key: f.key, Log: "1" + logSuffix}
	if f.head != nil {
		next.Log = f.head.Log
		if full {
			number, _ := strconv.ParseUint(strings.TrimSuffix(f.head.Log, logSuffix), 10, 64)
			next.Log = strconv.FormatUint(number+1, 10) + logSuffix
		} else {
			next.Length, next.Raw, next.Full, next.Chain = f.head.Length, f.head.Raw, f.head.Full, f.head.Chain
		}
	}
	flags := os.O_RDWR
	if next.Length == 0 {
		flags |= os.O_CREATE | os.O_TRUNC
	}
	log, err := os.OpenFile(filepath.Join(f.folder, next.Log), flags, 0o600)
	if err != nil {
		return frame.Copied{}, err
	}
	defer log.Close()
	undo := func(copied frame.Copied, err error) (frame.Copied, error) {
		if next.Length == 0 {
			os.Remove(log.Name())
		} else if f.head != nil {
			_ = log.Truncate(f.head.Length)
		}
		return copied, err
	}
	start := next.Length
	w := &saveWriter{file: log, start: start, limit: f.store.limit}
	copied, err := copy(full, w.part)
	if err != nil || w.raw == 0 && (!full || f.head == nil) {
		return undo(copied, err)
	}
	chain := next.chain()
	length, sum, err := w.end()
	if err == nil {
		// What is after that is of a save that was not finished.
		err = log.Truncate(length)
	}
	if err == nil {
		err = log.Sync()
	}
	if err != nil {
		return undo(copied, err)
	}
	chain = chained(chain, sum)
	next.Length, next.Raw, next.Chain = length, next.Raw+w.raw, hex.EncodeToString(chain[:])
	if full {
		next.Full = next.Raw
	}
	next.Saved, next.Entries, next.Bytes = time.Now().UTC().Truncate(time.Second), copied.Entries, copied.Bytes
	if err := f.commit(&next); err != nil {
		return undo(copied, err)
	}
	f.head, f.problem = &next, nil
	if full {
		f.clean()
	}
	return copied, nil
}

// commit makes a head the session's.
func (f *Files) commit(head *Head) error {
	data, err := head.encode()
	if err != nil {
		return err
	}
	name := filepath.Join(f.folder, newHeadName)
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	if err := os.Rename(name, filepath.Join(f.folder, headName)); err != nil {
		return err
	}
	// A log that is not named any more is removed next.
	if f.head == nil || f.head.Log != head.Log {
		return syncFolder(f.folder)
	}
	return nil
}

func syncFolder(name string) error {
	dir, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// clean removes what no head names: what was left where a process was killed.
func (f *Files) clean() {
	entries, err := os.ReadDir(f.folder)
	if err != nil {
		return
	}
	for _, e := range entries {
		name := e.Name()
		if name == lockedfolder.LockName || name == headName || f.head != nil && name == f.head.Log {
			continue
		}
		_ = os.RemoveAll(filepath.Join(f.folder, name))
	}
}

// SetAside moves what is kept out of the way, for a user to inspect, so that the
// session begins with nothing. It returns the folder that has it then.
func (f *Files) SetAside() (folder string, err error) {
	store := filepath.Dir(f.folder)
	folder = filepath.Join(store, damagedPrefix+filepath.Base(f.folder)+"-"+strconv.FormatInt(time.Now().UnixNano(), 36))
	if err := os.Rename(f.folder, folder); err != nil {
		return "", fmt.Errorf("set damaged files aside: %w", err)
	}
	again, err := f.store.Acquire(f.key)
	if err != nil {
		return folder, err
	}
	f.lock.Close()
	*f = *again
	return folder, nil
}

// Close lets others have the files. Where nothing was kept, nothing is left.
func (f *Files) Close() {
	if f.head == nil && f.problem == nil {
		_ = os.Remove(filepath.Join(f.folder, lockedfolder.LockName))
		_ = os.Remove(f.folder)
	}
	f.lock.Close()
}

// errNoLog reports a head whose log is not there.
var errNoLog = damaged("its log is gone")

// read hands the files of a session's folder to visit, record by record, after all
// have been checked.
func read(folder string, head *Head, visit func(filetree.Record) error) error {
	log, err := os.Open(filepath.Join(folder, head.Log))
	if errors.Is(err, fs.ErrNotExist) {
		return errNoLog
	}
	if err != nil {
		return fmt.Errorf("read kept files: %w", err)
	}
	defer log.Close()
	t, err := readTree(log, head)
	if err != nil {
		return err
	}
	return t.walk(log, head, visit)
}
