// Package sessionfiles keeps the files of sessions on disk, so that a session has them
// again when it has ended, or the server has.
//
// It promises that a session's kept files are always those of one moment: a save that
// is not finished, for whatever reason, leaves the ones before. What is read again is
// checked whole before a byte of it is used; what is not as it was written is set
// aside. One process at a time has the files of a session. All of them together are
// bounded: where there are too many, the session goes whose files were saved longest
// ago.
//
// A [Store] is a folder with a folder for each session, which has a lock, a head and a
// log. Nothing in it is trusted: names in the log are checked (package filetree), and
// only the agent of a sandbox ever writes under them.
package sessionfiles

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/keep/lockedfolder"
)

// Names in a session's folder.
const (
	headName    = "head"
	newHeadName = "head.new"
	logSuffix   = ".log"
	// damagedPrefix begins the names of folders that were set aside.
	damagedPrefix = "damaged-"
)

const (
	headVersion = 1
	// maxHead bounds a head and a lock, in bytes.
	maxHead = 64 << 10
)

// Key names the files of a session. The empty Principal is the only one where there is
// one client alone.
type Key struct {
	Principal string `json:"principal,omitempty"`
	Session   string `json:"session"`
	Env       string `json:"env"`
}

// Head describes kept files, and commits them.
type Head struct {
	Version int `json:"version"`
	Key
	Saved time.Time `json:"saved"`
	// Entries and Bytes are what the sandbox reported that it has in /workspace.
	Entries int64 `json:"entries"`
	Bytes   int64 `json:"bytes"`
	// Log is the name of the log, Length what of it was committed, in bytes, and Raw
	// the bytes of the parts in it. Full is Raw after the first save, which has all
	// files.
	Log    string `json:"log"`
	Length int64  `json:"length"`
	Raw    int64  `json:"raw"`
	Full   int64  `json:"full"`
	// Chain is the chain of the sums of the log's saves, in hexadecimal.
	Chain string `json:"chain"`
}

func (h *Head) chain() (chain [sumSize]byte) {
	_, _ = hex.Decode(chain[:], []byte(h.Chain)) // checked by readHead
	return chain
}

// encode returns the head's file: a line of JSON, and a line with its sum.
func (h *Head) encode() ([]byte, error) {
	text, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(text, "\n%x\n", sha256.Sum256(text)), nil
}

// decodeHead reads the file of a head. The error is a [*DamagedError].
func decodeHead(data []byte) (*Head, error) {
	text, rest, _ := bytes.Cut(data, []byte("\n"))
	if sum := sha256.Sum256(text); string(rest) != hex.EncodeToString(sum[:])+"\n" {
		return nil, damaged("its head has another sum than when it was written")
	}
	var h Head
	if err := json.Unmarshal(text, &h); err != nil {
		return nil, damaged("its head is no JSON")
	}
	if h.Version != headVersion {
		return nil, damaged(fmt.Sprintf("its head has the version %d, not %d", h.Version, headVersion))
	}
	if h.Length < 0 || h.Raw < 0 || len(h.Chain) != 2*sumSize || !isLog(h.Log) {
		return nil, damaged("its head makes no sense")
	}
	if _, err := hex.DecodeString(h.Chain); err != nil {
		return nil, damaged("its head makes no sense")
	}
	return &h, nil
}

// isLog reports whether a name in a session's folder is that of a log.
func isLog(name string) bool {
	number, found := strings.CutSuffix(name, logSuffix)
	return found && number != "" && len(number) < 20 && strings.Trim(number, "0123456789") == ""
}

// readHead returns the head in a session's folder; nil where nothing is kept.
func readHead(folder string) (*Head, error) {
	data, err := bounded.ReadFile(filepath.Join(folder, headName), maxHead)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return decodeHead(data)
}

// Holder says which process has the files of a session.
type Holder struct {
	Key
	PID int `json:"pid"`
	// About is what its user knows it by, such as the project that it serves.
	About string    `json:"about,omitempty"`
	Since time.Time `json:"since"`
}

// InUseError reports files that another process has.
type InUseError struct {
	Key    Key
	Holder Holder // PID is 0 where it is not known
}

func (e *InUseError) Error() string {
	return fmt.Sprintf("another server (process %d) has the files of session %q", e.Holder.PID, e.Key.Session)
}

// Store keeps the files of sessions in a folder. Its methods may be called at the same
// time, by several processes too.
type Store struct {
	folder string
	limit  int64
	about  string
	log    *slog.Logger
}

// Open returns the Store in a folder, which is made where there is none. It keeps at
// most limit bytes. About is for [Holder].
func Open(folder string, limit int64, about string, log *slog.Logger) (*Store, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("keep files of sessions: %w", err)
	}
	// It may have been made by hand.
	if err := os.Chmod(folder, 0o700); err != nil {
		return nil, fmt.Errorf("keep files of sessions: %w", err)
	}
	if err := unix.Access(folder, unix.W_OK|unix.X_OK); err != nil {
		return nil, fmt.Errorf("keep files of sessions: %w", &fs.PathError{Op: "write to", Path: folder, Err: err})
	}
	return &Store{folder, limit, about, log}, nil
}

// Acquire makes the caller the only one who has the files of a session. The error is
// an [*InUseError] where somebody has them. The caller calls [Files.Close].
func (s *Store) Acquire(key Key) (*Files, error) {
	folder := filepath.Join(s.folder, lockedfolder.Name(key))
	lock, err := lockedfolder.Make(folder)
	if err != nil {
		if errors.Is(err, lockedfolder.ErrInUse) {
			return nil, &InUseError{key, readHolder(folder)}
		}
		return nil, fmt.Errorf("keep the files of session %q: %w", key.Session, err)
	}
	holder, err := json.Marshal(Holder{Key: key, PID: os.Getpid(), About: s.about, Since: time.Now().UTC().Truncate(time.Second)})
	if err == nil {
		err = lock.Truncate(0)
	}
	if err == nil {
		_, err = lock.WriteAt(holder, 0)
	}
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("keep the files of session %q: %w", key.Session, err)
	}
	f := &Files{store: s, key: key, folder: folder, lock: lock}
	f.head, f.problem = readHead(folder)
	if f.head != nil && f.head.Key != key {
		f.head, f.problem = nil, damaged("its head is of another session")
	}
	if f.problem == nil {
		f.clean()
	}
	return f, nil
}

// readHolder returns what the process that has a folder wrote of itself.
func readHolder(folder string) (holder Holder) {
	if data, err := bounded.ReadFile(filepath.Join(folder, lockedfolder.LockName), maxHead); err == nil {
		_ = json.Unmarshal(data, &holder)
	}
	return holder
}

// Session is what a store has of a session.
type Session struct {
	// Folder is its folder in the store.
	Folder string
	// Head is nil where nothing is kept yet, or Problem says why it cannot be read.
	Head    *Head
	Problem error
	// SetAside says that the files were damaged and are not used any more.
	SetAside bool
	// Disk is what the session takes on disk, in bytes.
	Disk int64
	// Holder is the process that has it; nil where none has.
	Holder *Holder
	// changed is when the folder's files were written last.
	changed time.Time
}

// Key is the session's; the zero value where its files do not say.
func (s Session) Key() Key {
	switch {
	case s.Head != nil:
		return s.Head.Key
	case s.Holder != nil:
		return s.Holder.Key
	}
	return Key{}
}

// List returns the sessions of the store in a folder, the one that was saved last
// first. A folder that does not exist has none.
func List(folder string) ([]Session, error) {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the kept sessions: %w", err)
	}
	var sessions []Session
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		s := Session{Folder: filepath.Join(folder, e.Name()), SetAside: strings.HasPrefix(e.Name(), damagedPrefix)}
		s.Head, s.Problem = readHead(s.Folder)
		files, err := os.ReadDir(s.Folder)
		if err != nil {
			continue // it was removed meanwhile
		}
		for _, file := range files {
			if info, err := file.Info(); err == nil {
				s.Disk += info.Size()
				if file.Name() != lockedfolder.LockName && info.ModTime().After(s.changed) {
					s.changed = info.ModTime()
				}
			}
		}
		if !s.SetAside {
			lock, err := lockedfolder.Take(s.Folder)
			switch {
			case err == nil:
				lock.Close()
			case errors.Is(err, lockedfolder.ErrInUse):
				holder := readHolder(s.Folder)
				s.Holder = &holder
			}
		}
		sessions = append(sessions, s)
	}
	slices.SortFunc(sessions, func(a, b Session) int {
		return cmp.Or(b.changed.Compare(a.changed), strings.Compare(a.Folder, b.Folder))
	})
	return sessions, nil
}

// Remove removes a session that [List] returned. The error is an [*InUseError] where a
// process has it.
func (s Session) Remove() error {
	lock, err := lockedfolder.Take(s.Folder)
	switch {
	case errors.Is(err, lockedfolder.ErrInUse):
		return &InUseError{s.Key(), readHolder(s.Folder)}
	case err == nil:
		defer lock.Close()
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return os.RemoveAll(s.Folder)
}

// shrink removes the sessions that were saved longest ago, until the rest takes no
// more than the limit. It never removes the one with the folder except.
func (s *Store) shrink(except string) {
	sessions, err := List(s.folder)
	if err != nil {
		s.log.Warn("kept files of sessions are not counted", "error", err)
		return
	}
	var total int64
	for _, one := range sessions {
		total += one.Disk
	}
	for _, one := range slices.Backward(sessions) {
		if total <= s.limit {
			return
		}
		if one.Holder != nil || one.Folder == except {
			continue
		}
		if err := one.Remove(); err != nil {
			s.log.Warn("kept files of a session cannot be removed", "folder", one.Folder, "error", err)
			continue
		}
		total -= one.Disk
		s.log.Info("kept files of a session removed: all together take more than keep_mb", "session", one.Key().Session, "env", one.Key().Env,
			"saved", one.changed.Format(time.DateTime), "bytes", one.Disk, "keep_mb", s.limit>>20)
	}
}
