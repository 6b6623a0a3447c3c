// Package store keeps data of sessions on disk, across servers.
//
// A [Store] is a folder with a folder for each session. That has the data, and a head, which
// describes the data and names its file or folder. New data is written beside the old and
// counts from the moment when its head replaces the old one. So a process can be killed at
// any time: a session has its old data or its new data, and never a mixture. One process at
// a time has a session.
//
// All sessions together are bounded in size, and may be in age. If there are too many, the
// principal with the most data loses its oldest session. So a principal with less than an
// equal share keeps its sessions.
package store

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
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/host"
)

// Names in the folder of a session, and of folders that were set aside.
const (
	headName      = "head"
	holderName    = "holder"
	newHeadPrefix = "head.new-"
	dataPrefix    = "data-"
	damagedPrefix = "damaged-"
)

const (
	// headVersion is that of a head, and partsVersion of one with several parts: a program that knows no
	// parts would take the first one for everything.
	headVersion, partsVersion = 1, 2
	// maxHead bounds a head and the description of a holder, in bytes.
	maxHead = 64 << 10
	// maxSessions bounds the sessions of a store: each counts as if it had at least this
	// part of the bytes that all may have.
	maxSessions = 4096
	// lockTimeout is how long Acquire waits for a process that has the session. Whoever
	// makes room, or removes old sessions, has them for a moment.
	lockTimeout = 200 * time.Millisecond
)

// bootID names the time since the host started. Tests replace it.
var bootID = host.BootID

// Key names a session and its environment. Principal is empty if the server has a single
// client, and Project if the data does not depend on it.
type Key struct {
	Principal string `json:"principal,omitempty"`
	Session   string `json:"session"`
	Env       string `json:"env"`
	Project   string `json:"project,omitempty"`
}

// Head describes the data of a session.
type Head struct {
	Version int `json:"version"`
	Key
	Saved time.Time `json:"saved"`
	// Data is the name of the file or folder. It is empty if the data was removed because
	// there was too much of all sessions.
	Data string `json:"data"`
	// Bytes is the size of the data on disk, in bytes.
	Bytes int64 `json:"bytes"`
	// Boot identifies the run of the host during which the data counts, because it may not
	// be on disk yet. It is empty if the data is.
	Boot string `json:"boot,omitempty"`
	// Entries and Size are the number of files in the data, and their size in bytes. Sum
	// is the SHA-256 of its first Bytes bytes in hexadecimal. Parts are the sizes of its parts on
	// disk, in bytes, if there are several. Only data that is a file has them.
	Entries int64   `json:"entries,omitempty"`
	Size    int64   `json:"size,omitempty"`
	Sum     string  `json:"sum,omitempty"`
	Parts   []int64 `json:"parts,omitempty"`
}

// encode returns a line of JSON and a line with its sum.
func (h *Head) encode() ([]byte, error) {
	text, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(text, "\n%x\n", sha256.Sum256(text)), nil
}

// decodeHead decodes the result of encode. The error is a [*DamagedError].
func decodeHead(data []byte) (*Head, error) {
	text, rest, _ := bytes.Cut(data, []byte("\n"))
	if sum := sha256.Sum256(text); string(rest) != hex.EncodeToString(sum[:])+"\n" {
		return nil, &DamagedError{"its head has another sum than when it was written"}
	}
	var h Head
	if err := json.Unmarshal(text, &h); err != nil {
		return nil, &DamagedError{"its head is not JSON"}
	}
	if h.Version != headVersion && h.Version != partsVersion {
		return nil, &DamagedError{fmt.Sprintf("its head has version %d, not %d or %d", h.Version, headVersion, partsVersion)}
	}
	left := h.Bytes
	for _, part := range h.Parts {
		if left -= part; part <= 0 || left < 0 {
			return nil, &DamagedError{"its head has parts that are larger than the data"}
		}
	}
	if len(h.Parts) > 0 && left != 0 {
		return nil, &DamagedError{"its head has parts that are smaller than the data"}
	}
	if h.Data != "" && (!strings.HasPrefix(h.Data, dataPrefix) || filepath.Base(h.Data) != h.Data) {
		return nil, &DamagedError{fmt.Sprintf("its head names the data %.200q", h.Data)}
	}
	return &h, nil
}

// readHead returns the head in the folder of a session, or nil if there is no head.
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

// DamagedError reports data that is not as it was written.
type DamagedError struct{ Problem string }

func (e *DamagedError) Error() string { return e.Problem }

// Holder is a process that has a session.
type Holder struct {
	Key
	PID int `json:"pid"`
	// About is what the user knows the process by, such as its project.
	About string    `json:"about,omitempty"`
	Since time.Time `json:"since"`
}

func readHolder(folder string) (holder Holder) {
	if data, err := bounded.ReadFile(filepath.Join(folder, holderName), maxHead); err == nil {
		_ = json.Unmarshal(data, &holder)
	}
	return holder
}

// InUseError reports a session that another process has.
type InUseError struct {
	Key    Key
	Holder Holder // its PID is 0 if it is not known
}

func (e *InUseError) Error() string {
	return fmt.Sprintf("another server (process %d) has session %q", e.Holder.PID, e.Key.Session)
}

// TooLargeError reports data for which there is no room.
type TooLargeError struct {
	Option string // name of the option that bounds it
	Limit  int64  // bytes
	// Others says that there would be room without other sessions.
	Others bool
}

func (e *TooLargeError) Error() string {
	if e.Others {
		return fmt.Sprintf("this session and others that have not ended are together larger than %s, which is %d", e.Option, e.Limit>>20)
	}
	return fmt.Sprintf("the session's files are larger than %s, which is %d", e.Option, e.Limit>>20)
}

// Options describe a [Store].
type Options struct {
	Folder string
	// Limit bounds all sessions together, in bytes. While data is written, it is on disk
	// beside the data that it replaces.
	Limit int64
	// Option is the name of the option that sets Limit.
	Option string
	// MaxAge is how long data counts; 0 is without end.
	MaxAge time.Duration
	// About goes into [Holder].
	About string
	Log   *slog.Logger
}

// Store keeps the data of sessions. Its methods may be called at the same time, also by
// several processes.
type Store struct {
	Options
	sessions int64      // see maxSessions
	mu       sync.Mutex // held while data is committed
}

// New returns a Store. It makes its folder when it is needed.
func New(options Options) *Store { return &Store{Options: options, sessions: maxSessions} }

// counts reports whether the data of a head can be used. That includes the knowledge that
// data was removed.
func (s *Store) counts(h *Head) bool {
	if h.Boot != "" {
		if boot, err := bootID(); err != nil || h.Boot != boot {
			return false
		}
	}
	return s.MaxAge == 0 || time.Since(h.Saved) <= s.MaxAge
}

// Has reports whether a session has data, without acquiring it.
func (s *Store) Has(key Key) bool {
	head, err := readHead(filepath.Join(s.Folder, folderName(key)))
	return err == nil && head != nil && head.Key == key && head.Data != "" && s.counts(head)
}

// Slot is a session that this process has. Its methods are called one at a time.
type Slot struct {
	Key    Key
	store  *Store
	folder string
	lock   *os.File
	head   *Head
	err    error
	next   string
}

// Acquire acquires a session. The error is an [*InUseError] if another process has it. The
// caller calls [Slot.Close] or [Slot.Remove].
func (s *Store) Acquire(key Key) (*Slot, error) {
	slot, err := s.acquire(key)
	var inUse *InUseError
	if err != nil && !errors.As(err, &inUse) {
		err = fmt.Errorf("acquire session %q in %s: %w", key.Session, s.Folder, err)
	}
	return slot, err
}

func (s *Store) acquire(key Key) (*Slot, error) {
	if err := os.MkdirAll(s.Folder, 0o700); err != nil {
		return nil, err
	}
	folder := filepath.Join(s.Folder, folderName(key))
	locked, err := lock(folder)
	for deadline := time.Now().Add(lockTimeout); errors.Is(err, errInUse) && time.Now().Before(deadline); {
		time.Sleep(lockTimeout / 20)
		locked, err = lock(folder)
	}
	if errors.Is(err, errInUse) {
		return nil, &InUseError{key, readHolder(folder)}
	}
	if err != nil {
		return nil, err
	}
	slot := &Slot{store: s, Key: key, folder: folder, lock: locked}
	if err := slot.makeFolder(); err != nil {
		locked.Close()
		return nil, err
	}
	slot.head, slot.err = readHead(folder)
	switch {
	case slot.head == nil:
	case slot.head.Key != key:
		slot.head, slot.err = nil, &DamagedError{"its head is of another session"}
	case !s.counts(slot.head):
		slot.head = nil
	}
	if slot.err == nil {
		slot.clean()
	}
	return slot, nil
}

// makeFolder makes the folder of the session if it does not exist, and notes who has it.
func (s *Slot) makeFolder() error {
	holder, err := json.Marshal(Holder{Key: s.Key, PID: os.Getpid(), About: s.store.About, Since: time.Now().UTC().Truncate(time.Second)})
	if err != nil {
		return err
	}
	if err := os.Mkdir(s.folder, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.WriteFile(filepath.Join(s.folder, holderName), holder, 0o600)
}

// clean removes leftovers of processes that were killed.
func (s *Slot) clean() {
	entries, err := os.ReadDir(s.folder)
	if err != nil {
		return
	}
	for _, e := range entries {
		if name := e.Name(); name != holderName && name != s.next && (s.head == nil || name != headName && name != s.head.Data) {
			_ = os.RemoveAll(filepath.Join(s.folder, name))
		}
	}
}

// Head returns the head of the session's data, or nil if the session has no data. The error says why
// existing data cannot be used. If the data was removed to make room, Head returns nil,
// and WasRemoved returns true.
func (s *Slot) Head() (*Head, error) {
	if s.WasRemoved() {
		return nil, nil
	}
	return s.head, s.err
}

// WasRemoved reports whether the session's data was removed to make room for others.
func (s *Slot) WasRemoved() bool { return s.head != nil && s.head.Data == "" }

// Path returns the path of the session's data, or "" if the session has no data.
func (s *Slot) Path() string {
	if s.head == nil || s.head.Data == "" {
		return ""
	}
	return filepath.Join(s.folder, s.head.Data)
}

// Next returns a path that does not exist, for new data.
func (s *Slot) Next() string {
	s.next = dataPrefix + strconv.FormatInt(time.Now().UnixNano(), 10)
	return filepath.Join(s.folder, s.next)
}

// Again returns the path of the session's data, for more of it: the first Bytes of the head stay. It has
// data.
func (s *Slot) Again() string {
	s.next = s.head.Data
	return s.Path()
}

// Commit replaces the session's data by the data at the path that Next or Again returned last. The
// caller sets Bytes of the head, and Entries, Size, Sum and Parts. The data must be on disk. The error
// is a [*TooLargeError] if there is no room for it.
func (s *Slot) Commit(head Head) error { return s.commit(head, "", true) }

// CommitEarly is Commit for data that may not be on disk yet, and that nobody else has: it is never
// too large, because refusing it would lose it. The data counts at once; CommitEarly then waits until
// it also counts after a restart of the host.
func (s *Slot) CommitEarly(head Head) error {
	boot, err := bootID()
	if err != nil { // a restart would go unnoticed
		if err := syncAll(filepath.Join(s.folder, s.next)); err != nil {
			return err
		}
		return s.commit(head, "", false)
	}
	if err := s.commit(head, boot, false); err != nil {
		return err
	}
	err = syncAll(s.Path())
	if err == nil {
		synced := *s.head
		synced.Boot = ""
		if err = writeHead(s.folder, &synced); err == nil {
			s.head = &synced
		}
	}
	if err != nil {
		s.store.Log.Warn("the data of a session is lost if the computer stops now", "session", s.Key.Session, "error", err)
	}
	return nil
}

func (s *Slot) commit(head Head, boot string, mayRefuse bool) error {
	head.Version, head.Key, head.Data, head.Boot, head.Saved = headVersion, s.Key, s.next, boot, time.Now().UTC()
	if len(head.Parts) > 0 {
		head.Version = partsVersion
	}
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	var full *TooLargeError
	if err := s.store.makeRoom(s, head.Bytes); err != nil && (mayRefuse || !errors.As(err, &full)) {
		return err
	}
	if err := writeHead(s.folder, &head); err != nil {
		return err
	}
	s.head, s.err, s.next = &head, nil, ""
	s.clean()
	return nil
}

// writeHead writes the head in the folder of a session. If its data is on disk, so is the
// head when writeHead returns.
func writeHead(folder string, head *Head) error {
	text, err := head.encode()
	if err != nil {
		return err
	}
	// Another process may make room at the same moment.
	file, err := os.CreateTemp(folder, newHeadPrefix)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err == nil && head.Boot == "" {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), filepath.Join(folder, headName))
	}
	if err != nil {
		os.Remove(file.Name())
		return err
	}
	if head.Boot == "" {
		err = syncOne(folder)
	}
	return err
}

// syncAll waits until a file, or a folder and its files, is on disk.
func syncAll(name string) error {
	return filepath.WalkDir(name, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return syncOne(path)
	})
}

func syncOne(name string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}

// SetAside moves damaged data out of the way, for a user to inspect. The session then has
// none. It returns the folder that contains the data.
func (s *Slot) SetAside() (folder string, err error) {
	folder = filepath.Join(s.store.Folder, damagedPrefix+filepath.Base(s.folder)+"-"+strconv.FormatInt(time.Now().UnixNano(), 36))
	if err := os.Rename(s.folder, folder); err != nil {
		return "", fmt.Errorf("set damaged data aside: %w", err)
	}
	s.head, s.err, s.next = nil, nil, ""
	return folder, s.makeFolder()
}

// Close gives the session back. It leaves no folder if there is no data.
func (s *Slot) Close() {
	if s.Path() == "" && s.err == nil {
		_ = s.Remove()
		return
	}
	s.lock.Close()
}

// Remove removes the session's data, and gives the session back.
func (s *Slot) Remove() error {
	defer s.lock.Close()
	return removeFolder(s.folder)
}

// removeFolder removes the folder of a session, which the caller has locked, the head first: without
// it, there is no data.
func removeFolder(folder string) error {
	if err := os.Remove(filepath.Join(folder, headName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(folder)
}

// Session is a folder of a store.
type Session struct {
	Key
	// Folder is its path.
	Folder string
	// Head is nil if there is no data yet, or if Problem says why it cannot be used.
	Head    *Head
	Problem error
	// SetAside says that the data was damaged and is not used any more.
	SetAside bool
	// Disk is the size of the folder's files, in bytes.
	Disk int64
	// Holder is the process that has the session, or nil.
	Holder *Holder
}

// Saved returns when the data was written.
func (s Session) Saved() (saved time.Time) {
	if s.Head != nil {
		return s.Head.Saved
	}
	if info, err := os.Stat(s.Folder); err == nil {
		saved = info.ModTime()
	}
	return saved
}

// Open opens the data of a session, if that is a file, as it was saved last.
func (s Session) Open() (file *os.File, head *Head, err error) {
	for range 10 {
		head, err = readHead(s.Folder)
		if err == nil && (head == nil || head.Data == "") {
			err = fmt.Errorf("nothing of session %q is kept", s.Key.Session)
		}
		if err != nil {
			return nil, nil, err
		}
		file, err = os.Open(filepath.Join(s.Folder, head.Data))
		if !errors.Is(err, fs.ErrNotExist) {
			break // else the process that has it has replaced the data
		}
	}
	return file, head, err
}

// List returns the sessions of the store in a folder, which may not exist, beginning with the last
// saved.
func List(folder string) ([]Session, error) {
	sessions, err := scan(folder)
	for i := range sessions {
		if s := &sessions[i]; isLocked(s.Folder) {
			holder := readHolder(s.Folder)
			s.Holder = &holder
		}
	}
	return sessions, err
}

// scan is List without the holders.
func scan(folder string) (sessions []Session, err error) {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the sessions in %s: %w", folder, err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		s := Session{Folder: filepath.Join(folder, e.Name()), SetAside: strings.HasPrefix(e.Name(), damagedPrefix)}
		s.Head, s.Problem = readHead(s.Folder)
		if s.Head != nil {
			s.Key = s.Head.Key
		} else {
			s.Key = readHolder(s.Folder).Key
		}
		_ = filepath.WalkDir(s.Folder, func(_ string, d fs.DirEntry, err error) error {
			if err != nil {
				return nil // it was removed meanwhile
			}
			if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
				s.Disk += info.Size()
			}
			return nil
		})
		sessions = append(sessions, s)
	}
	slices.SortFunc(sessions, func(a, b Session) int {
		return cmp.Or(b.Saved().Compare(a.Saved()), strings.Compare(a.Folder, b.Folder))
	})
	return sessions, nil
}

// Remove removes the session. The error is an [*InUseError] if a process has it.
func (s Session) Remove() error {
	locked, err := lock(s.Folder)
	if errors.Is(err, errInUse) {
		return &InUseError{s.Key, readHolder(s.Folder)}
	}
	if err != nil {
		return err
	}
	defer locked.Close()
	return removeFolder(s.Folder)
}

// Clean removes unusable sessions without a process: sessions that are too old, and sessions that a
// process was killed in before its first Commit.
func (s *Store) Clean() {
	sessions, err := scan(s.Folder)
	for _, one := range sessions {
		if !one.SetAside && (one.Head == nil || !s.counts(one.Head)) {
			s.cleanOne(one.Folder)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err = errors.Join(err, s.makeRoom(nil, 0)); err != nil {
		s.Log.Warn("there may be too much data of sessions", "folder", s.Folder, "error", err)
	}
}

// cleanOne removes the folder of a session if it is still unusable when it is locked: another process
// may have saved the session meanwhile. The next Clean tries again if it fails.
func (s *Store) cleanOne(folder string) {
	locked, err := lock(folder)
	if err != nil {
		return
	}
	defer locked.Close()
	if head, err := readHead(folder); err != nil || head == nil || !s.counts(head) {
		_ = removeFolder(folder)
	}
}

// makeRoom makes room for bytes of a session in place of its present data. A nil slot
// needs none. While there is too little room, the principal that would have most loses its
// oldest session. The caller's own sessions that are in use stay, because their calls
// were told that they are saved; the error is then a [*TooLargeError].
func (s *Store) makeRoom(slot *Slot, bytes int64) error {
	sessions, err := scan(s.Folder)
	if err != nil {
		return err
	}
	total, each, own := int64(0), map[string]int64{}, ""
	if slot != nil {
		if bytes > s.Limit {
			return &TooLargeError{s.Option, s.Limit, false}
		}
		own = slot.Key.Principal
		total = s.cost(bytes)
		each[own] = total
		sessions = slices.DeleteFunc(sessions, func(one Session) bool { return one.Folder == slot.folder })
	}
	for _, one := range sessions {
		total += s.cost(one.Disk)
		each[one.Key.Principal] += s.cost(one.Disk)
	}
	for total > s.Limit {
		most := own
		for principal, bytes := range each {
			if bytes > each[most] {
				most = principal
			}
		}
		oldest := -1
		for i, one := range sessions {
			if one.Key.Principal == most {
				oldest = i
			}
		}
		if oldest < 0 {
			return &TooLargeError{s.Option, s.Limit, true}
		}
		freed := s.drop(sessions[oldest], slot != nil && most != own)
		total -= freed
		each[most] -= freed
		sessions = slices.Delete(sessions, oldest, oldest+1)
	}
	return nil
}

// cost returns how much a session counts, in bytes.
func (s *Store) cost(bytes int64) int64 { return max(bytes, s.Limit/s.sessions) }

// drop removes a session to make room, and returns the bytes that this frees. Of a large
// session a head remains, for [Slot.WasRemoved]. A session that a process has is only
// removed with force, and if that frees anything. That is harmless: the data is read when the session is acquired,
// and each Commit replaces all of it.
func (s *Store) drop(one Session, force bool) (freed int64) {
	locked, err := lock(one.Folder)
	isOurs := err == nil
	if isOurs {
		defer locked.Close()
	}
	switch {
	case isOurs && (one.SetAside || one.Head == nil || one.Head.Data == "" || one.Disk <= s.cost(0)):
		freed, err = s.cost(one.Disk), removeFolder(one.Folder)
	case isOurs || errors.Is(err, errInUse) && force && one.Head != nil && one.Head.Data != "" && one.Disk > s.cost(0):
		head := Head{Version: headVersion, Key: one.Key, Saved: one.Head.Saved}
		freed, err = s.cost(one.Disk)-s.cost(0), writeHead(one.Folder, &head)
		if err == nil {
			err = os.RemoveAll(filepath.Join(one.Folder, one.Head.Data))
		}
	case errors.Is(err, errInUse):
		return 0
	}
	if err != nil {
		s.Log.Warn("the data of a session cannot be removed", "folder", one.Folder, "error", err)
		return 0
	}
	s.Log.Info("data of a session removed: all sessions together need more room", "session", one.Key.Session, "env", one.Key.Env,
		"saved", one.Saved().Format(time.DateTime), "bytes", one.Disk, "limit", s.Option)
	return freed
}
