// Package snapshot stores machines that were saved when their interpreter had loaded, so that
// others start as copies of them.
//
// It promises that a copy is of the same machine: any difference results in another key, and damaged
// and old snapshots are deleted. A snapshot may come from another computer, or from before this one
// booted: then its memory is compared with its hash once. Files are written beside and renamed, so that
// each is whole. One process makes a snapshot; others continue without it.
package snapshot

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/image"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/host"
)

const (
	// maxAge is how long a snapshot is used. Its copies have one seed of hashes and one
	// layout of addresses, which code could learn.
	maxAge = 24 * time.Hour
	// maxKept is how many snapshots are kept, of 100 to 200 MB each.
	maxKept = 8
	// maxMeta bounds the description of a snapshot, in bytes.
	maxMeta = 64 << 10
)

// The files of a snapshot.
const (
	memoryFile = "memory"
	stateFile  = "state"
	metaFile   = "meta"
	// projectFile is the image of the project, of a machine in a folder of its own.
	projectFile = "project"
	// openedFile says that a machine was opened from such a folder before.
	openedFile = "opened"
	// checkedFile says that the memory was compared with its hash, on this computer since it booted.
	checkedFile = "checked"
	lockSuffix  = ".lock"
)

// Store is a folder of snapshots, which its owner alone can read.
type Store struct{ Folder string }

// Meta describes a snapshot.
type Meta struct {
	Made time.Time `json:"made"`
	// Memory and State are the sizes of the files, and StateHash the hash of the state. The memory
	// is too large to be read at each start. Of a snapshot in a store, MemoryHash is the hash of its
	// data; in a folder of its own, its modification time stands for its contents.
	Memory     int64     `json:"memory"`
	MemoryTime time.Time `json:"memory_time"`
	MemoryHash string    `json:"memory_hash,omitempty"`
	State      int64     `json:"state"`
	StateHash  string    `json:"state_hash"`
	// Key and Accelerator describe a machine in a folder of its own, which is not named by its key.
	Key         string `json:"key,omitempty"`
	Accelerator string `json:"accelerator,omitempty"`
	// Project is the size of the project's image, at the beginning of a file as large as the
	// machine's disk; 0 if there is no project.
	Project int64 `json:"project,omitempty"`
	// ProjectDigest is the digest of the folder that the image shows, or of a later state that the
	// session was told about.
	ProjectDigest image.Digest `json:"project_digest,omitzero"`
	// Branch says that the machine went on, so that there are two of it.
	Branch bool `json:"branch,omitempty"`
}

// Snapshot is an open snapshot. Its owner calls Close.
type Snapshot struct {
	Meta
	Memory, State *os.File
	Project       *os.File // or nil
	// Again says that a folder was opened before: by a server that was killed while it used the
	// machine, or for another branch.
	Again bool
}

// Close closes the files. Copies that run keep theirs.
func (s *Snapshot) Close() {
	s.Project.Close() // on nil too, which only returns an error
	s.Memory.Close()
	s.State.Close()
}

// Key is the name of the snapshots that only equal words have.
func Key(words ...string) string {
	hash := sha256.New()
	for _, word := range words {
		fmt.Fprintf(hash, "%d:%s", len(word), word)
	}
	return hex.EncodeToString(hash.Sum(nil)[:16])
}

// Open opens the snapshot with a key. found is false if there is no usable one; an unusable one is
// deleted.
func (s Store) Open(key string) (_ *Snapshot, found bool) {
	folder := filepath.Join(s.Folder, key)
	snapshot, err := open(folder)
	if err == nil {
		return snapshot, true
	}
	if !errors.Is(err, os.ErrNotExist) {
		s.Discard(key)
	}
	return nil, false
}

func open(folder string) (_ *Snapshot, err error) {
	snapshot, err := openFiles(folder)
	if err != nil {
		return nil, err
	}
	if age := time.Since(snapshot.Made); age < 0 || age > maxAge {
		err = errors.New("it is old")
	} else {
		err = snapshot.checkMemory(filepath.Join(folder, checkedFile))
	}
	if err != nil {
		snapshot.Close()
		return nil, err
	}
	return snapshot, nil
}

// checkMemory compares the memory with its hash, unless a file says that this was done.
func (s *Snapshot) checkMemory(file string) error {
	stamp, err := stampOf(s.Memory)
	if err != nil {
		return err
	}
	if known, err := bounded.ReadFile(file, maxMeta); err == nil && string(known) == stamp {
		return nil
	}
	hash, err := hashData(s.Memory)
	if err != nil {
		return err
	}
	if hash != s.MemoryHash {
		return errors.New("its memory was changed")
	}
	remember(file, stamp)
	return nil
}

// remember writes the stamp of a memory that is right, which only spares the next comparison.
func remember(file, stamp string) { _ = os.WriteFile(file, []byte(stamp), 0o600) }

// stampOf returns a text that differs for another file, after a change of the file, and after a restart of this computer.
func stampOf(file *os.File) (string, error) {
	boot, err := host.BootID()
	if err != nil {
		return "", err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %d %d %d %d", boot, st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano()), nil
}

// hashData returns the hash of a file's pages that are not zero, and of where they are.
func hashData(file *os.File) (string, error) {
	hash := sha256.New()
	err := EachPart(file, func(part []byte, at int64) error {
		for page := part; len(page) > 0; {
			one := page[:min(pageSize, len(page))]
			page = page[len(one):]
			if string(one) != string(zeros[:len(one)]) {
				fmt.Fprintf(hash, "%d:", at)
				hash.Write(one)
			}
			at += pageSize
		}
		return nil
	})
	return hex.EncodeToString(hash.Sum(nil)), err
}

const pageSize = 4096

var zeros [pageSize]byte

// EachPart calls f with the parts of a file that are no hole, and with their offsets, multiples of a page. It
// leaves the file at its beginning.
func EachPart(file *os.File, f func(part []byte, at int64) error) error {
	defer unix.Seek(int(file.Fd()), 0, unix.SEEK_SET)
	buffer := make([]byte, 256*pageSize)
	for at := int64(0); ; {
		data, err := unix.Seek(int(file.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // nothing but a hole follows
		}
		if err != nil {
			return err
		}
		at = data &^ (pageSize - 1)
		n, err := file.ReadAt(buffer, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if n == 0 {
			return nil
		}
		if err := f(buffer[:n], at); err != nil {
			return err
		}
		at += int64(n)
	}
}

func openFiles(folder string) (_ *Snapshot, err error) {
	text, err := bounded.ReadFile(filepath.Join(folder, metaFile), maxMeta)
	if err != nil {
		return nil, err
	}
	sum, object, _ := bytes.Cut(text, []byte("\n"))
	if string(sum) != checksum(object) {
		return nil, errors.New("its description is damaged")
	}
	snapshot := &Snapshot{}
	if err := json.Unmarshal(object, &snapshot.Meta); err != nil {
		return nil, err
	}
	if snapshot.Memory, err = os.Open(filepath.Join(folder, memoryFile)); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			snapshot.Memory.Close()
		}
	}()
	info, err := snapshot.Memory.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() != snapshot.Meta.Memory || snapshot.MemoryHash == "" && !info.ModTime().Equal(snapshot.MemoryTime) {
		return nil, errors.New("its memory was changed")
	}
	if snapshot.State, err = os.Open(filepath.Join(folder, stateFile)); err != nil {
		return nil, err
	}
	state, err := io.ReadAll(io.LimitReader(snapshot.State, snapshot.Meta.State+1))
	if err == nil && (int64(len(state)) != snapshot.Meta.State || checksum(state) != snapshot.StateHash) {
		err = errors.New("its state was changed")
	}
	if err == nil {
		_, err = snapshot.State.Seek(0, io.SeekStart)
	}
	if err == nil && snapshot.Meta.Project > 0 {
		snapshot.Project, err = os.Open(filepath.Join(folder, projectFile))
	}
	if err != nil {
		snapshot.State.Close()
		return nil, err
	}
	return snapshot, nil
}

func checksum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Discard deletes a snapshot. Copies that run are not affected.
func (s Store) Discard(key string) {
	// Renamed first, so that no other process opens half of it.
	gone := filepath.Join(s.Folder, fmt.Sprintf("%s.gone-%d", key, os.Getpid()))
	if os.Rename(filepath.Join(s.Folder, key), gone) == nil {
		os.RemoveAll(gone)
	}
}

// ErrBusy says that another process makes this snapshot.
var ErrBusy = errors.New("another process makes this snapshot")

// Make makes a snapshot. save fills the files, which get their sizes by that; memory has the given
// size. The error is [ErrBusy] if another process makes it.
func (s Store) Make(key string, size int64, save func(memory, state *os.File) error) (err error) {
	if err := os.MkdirAll(s.Folder, 0o700); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(s.Folder, key+lockSuffix), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close() // which unlocks it
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return ErrBusy
	}
	s.clean()
	draft, err := newDraft(filepath.Join(s.Folder, key))
	if err != nil {
		return err
	}
	defer draft.Close()
	meta := Meta{Made: time.Now()}
	// The folder above is closed to others. QEMU's own user may write to the memory
	// while the snapshot is made, and read it afterwards.
	if err := errors.Join(draft.Memory.Chmod(0o666), draft.Memory.Truncate(size)); err != nil {
		return err
	}
	if err := save(draft.Memory, draft.State); err != nil {
		return err
	}
	dig(draft.Memory)
	if meta.MemoryHash, err = hashData(draft.Memory); err != nil {
		return err
	}
	if err := errors.Join(draft.Memory.Chmod(0o444), draft.State.Chmod(0o400)); err != nil {
		return err
	}
	s.Discard(key)
	if err := draft.Commit(meta); err != nil {
		return err
	}
	if stamp, err := stampOf(draft.Memory); err == nil {
		remember(filepath.Join(s.Folder, key, checkedFile), stamp)
	}
	return nil
}

// dig replaces pages of zeros in a file with holes, if its file system has them: most of a
// machine's memory, which would otherwise take space and be copied with each suspended session.
func dig(file *os.File) {
	_ = EachPart(file, func(part []byte, at int64) error {
		for from := 0; from+pageSize <= len(part); {
			end := from
			for end+pageSize <= len(part) && [pageSize]byte(part[end:]) == zeros {
				end += pageSize
			}
			if end > from {
				if err := host.PunchHole(file, at+int64(from), int64(end-from)); err != nil {
					return err
				}
			}
			from = end + pageSize
		}
		return nil
	})
}

// finish completes the description of a snapshot after its files are written, and writes it.
func finish(folder string, memory *os.File, meta Meta) error {
	info, err := memory.Stat()
	if err != nil {
		return err
	}
	meta.Memory, meta.MemoryTime = info.Size(), info.ModTime()
	state, err := os.ReadFile(filepath.Join(folder, stateFile))
	if err != nil {
		return err
	}
	meta.State, meta.StateHash = int64(len(state)), checksum(state)
	return writeMeta(folder, meta)
}

// writeMeta writes the description, after a line with its hash.
func writeMeta(folder string, meta Meta) error {
	object, err := json.Marshal(meta)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, metaFile), append([]byte(checksum(object)+"\n"), object...), 0o400)
}

// clean deletes leftovers of killed processes, old snapshots, and the oldest ones if there are too
// many.
func (s Store) clean() {
	entries, err := os.ReadDir(s.Folder)
	if err != nil {
		return
	}
	type kept struct {
		key  string
		made time.Time
	}
	var all []kept
	for _, entry := range entries {
		key, rest, part := strings.Cut(entry.Name(), ".")
		switch {
		case strings.HasPrefix(rest, lockSuffix[1:]):
		case part:
			// Whoever makes a part holds the lock.
			if s.isFree(key) {
				os.RemoveAll(filepath.Join(s.Folder, entry.Name()))
			}
		default:
			text, err := bounded.ReadFile(filepath.Join(s.Folder, key, metaFile), maxMeta)
			var meta Meta
			_, object, _ := bytes.Cut(text, []byte("\n"))
			if err == nil {
				err = json.Unmarshal(object, &meta)
			}
			if err != nil || time.Since(meta.Made) > maxAge {
				s.Discard(key)
				continue
			}
			all = append(all, kept{key, meta.Made})
		}
	}
	// One more is about to come.
	slices.SortFunc(all, func(a, b kept) int { return cmp.Compare(b.made.UnixNano(), a.made.UnixNano()) })
	for _, old := range all[min(maxKept-1, len(all)):] {
		s.Discard(old.key)
	}
}

// isFree reports whether no process makes the snapshot with a key. The only one that this process
// makes meanwhile is the one that it has locked, which has no part yet.
func (s Store) isFree(key string) bool {
	lock, err := os.Open(filepath.Join(s.Folder, key+lockSuffix))
	if err != nil {
		return true
	}
	defer lock.Close()
	return syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}
