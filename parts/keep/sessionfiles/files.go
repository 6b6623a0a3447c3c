// Package sessionfiles keeps the files of sessions on disk, so that the next session of
// the same name has them.
//
// The files of a session are one archive of package filetree, compressed with zstd, and up to [maxParts]
// archives of changes to it in the same file. A save adds changes to the file, or writes a new one, which
// replaces the old one when it is complete (package store).
// The bytes come from a sandbox: a save checks every entry and writes it anew, so that an
// archive on disk is a tree of files. It is used only if its sum is still the same.
package sessionfiles

import (
	"archive/tar"
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/store"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/guard"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/filetree"
)

const (
	option = "keep_mb"
	// maxParts bounds the archives in a file: 10,000 files take 0.7 s to write, of which each save has a part.
	maxParts = 16
	// smallArchive is how much may be added to an archive of any size, in bytes on disk.
	smallArchive = 1 << 20
	// windowSize is about half of the memory that compression takes, in bytes.
	windowSize = 1 << 20
	// maxHeaders bounds the headers of an archive together, in bytes.
	maxHeaders = filetree.MaxEntries * 16 << 10
	// maxExported bounds the sizes of all files of an export including their holes, which
	// it has as zeros, in bytes.
	maxExported = 64 << 30
)

// Open returns a store of the files of sessions, and makes its folder.
func Open(options store.Options) (*store.Store, error) {
	options.Option = option
	err := os.MkdirAll(options.Folder, 0o700)
	if err == nil {
		err = os.Chmod(options.Folder, 0o700) // it may have been made by hand
	}
	if err == nil {
		if denied := unix.Access(options.Folder, unix.W_OK|unix.X_OK); denied != nil {
			err = &fs.PathError{Op: "write to", Path: options.Folder, Err: denied}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("keep files of sessions: %w", err)
	}
	return store.New(options), nil
}

// Files are the files of one session, which only this process has. Its methods are called
// one at a time.
type Files struct {
	*store.Slot
	limit int64
	// behind says that a sandbox may take files for saved that are not.
	behind bool
	// latest is the sandbox whose files are those that are kept, or nil if it is not known. Another one
	// may not know of a file that has come and gone.
	latest any
	// sum is that of the archive so far, or nil if it is not known.
	sum hash.Hash
	// size is what the files may have at most, in bytes.
	size int64
}

// acquire acquires the files of a session. The error is a [*store.InUseError] if another
// process has them. The caller calls Close.
func acquire(s *store.Store, key store.Key) (*Files, error) {
	slot, err := s.Acquire(key)
	if err != nil {
		return nil, err
	}
	return &Files{Slot: slot, limit: s.Limit}, nil
}

// Save replaces the kept files by the archive of a sandbox that copy returns, or adds it if it is one of
// changes. After an error the old files are kept, and the next Save is one of all files.
func (f *Files) Save(box any, copy func(sandbox.Extent) io.Reader) error {
	extent := sandbox.IfChanged
	switch {
	case f.behind:
		extent = sandbox.All
	case f.canAdd(box):
		extent = sandbox.Changes
	}
	from := bufio.NewReader(copy(extent))
	f.behind, f.latest = true, nil
	mark, err := from.Peek(len(filetree.ChangesMark))
	switch {
	case errors.Is(err, io.EOF) && len(mark) == 0 && extent != sandbox.All: // nothing has changed
	case err != nil && !errors.Is(err, io.EOF):
		return err
	case string(mark) != filetree.ChangesMark:
		if err := f.replace(from); err != nil {
			return err
		}
	case extent != sandbox.Changes:
		return errors.New("the sandbox sends only what has changed")
	default:
		_, _ = from.Discard(len(mark))
		err := f.add(from)
		var large *store.TooLargeError
		if errors.As(err, &large) || errors.Is(err, fs.ErrNotExist) {
			// All files may take less than all changes, and the archive may have made room for another.
			return f.Save(box, copy)
		}
		if err != nil {
			return err
		}
	}
	f.behind, f.latest = false, box
	return nil
}

// canAdd reports whether changes of a sandbox may be added to what is kept. A small archive with many
// changes, or with large ones, is written anew.
func (f *Files) canAdd(box any) bool {
	head, err := f.Head()
	if err != nil || head == nil || f.sum == nil || f.latest != box {
		return false
	}
	first := parts(head)[0]
	return len(head.Parts) < maxParts && head.Bytes-first < max(first, smallArchive)
}

// parts returns the sizes of the parts of an archive on disk, of which each but the first has changes.
func parts(head *store.Head) []int64 {
	if len(head.Parts) > 0 {
		return head.Parts
	}
	return []int64{head.Bytes}
}

// replace writes an archive that replaces the last one.
func (f *Files) replace(from io.Reader) (err error) {
	file, err := os.OpenFile(f.Next(), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		file.Close()
		if err != nil {
			os.Remove(file.Name())
		}
	}()
	f.size = 0
	return f.write(file, sha256.New(), from, filetree.NewReader, store.Head{})
}

// add writes changes after the last archive. If that fails, what was written is no part of it.
func (f *Files) add(from *bufio.Reader) error {
	head, err := f.Head()
	if err != nil {
		return err
	}
	sum, err := f.sum.(hash.Cloner).Clone()
	if err != nil {
		return err
	}
	file, err := os.OpenFile(f.Again(), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := file.Truncate(head.Bytes); err != nil {
		return err
	}
	if _, err := file.Seek(head.Bytes, io.SeekStart); err != nil {
		return err
	}
	added := *head
	line, err := from.ReadSlice('\n')
	if err == nil {
		// Only a list of sessions shows these numbers.
		_, err = fmt.Sscanf(string(line), "%d %d\n", &added.Entries, &added.Size)
	}
	if err != nil {
		return fmt.Errorf("changes begin with %.100q", line)
	}
	added.Entries, added.Size = min(max(added.Entries, 0), filetree.MaxEntries), min(max(added.Size, 0), f.limit)
	added.Parts = slices.Clone(parts(head))
	return f.write(file, sum, from, filetree.NewChangesReader, added)
}

// write writes an archive to a file that has what the head says, and commits both.
func (f *Files) write(file *os.File, sum hash.Hash, from io.Reader, reader func(io.Reader) *filetree.Reader, head store.Head) error {
	from = io.LimitReader(from, f.limit+maxHeaders)
	zip, err := zstd.NewWriter(io.MultiWriter(file, sum), zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true),
		zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(windowSize))
	if err != nil {
		return err
	}
	entries, size, err := rewrite(tar.NewWriter(zip), reader(from), f.limit-f.size)
	if err == nil {
		// The end of the bytes tells the sandbox that the copy is complete.
		_, err = io.Copy(io.Discard, from)
	}
	if err := errors.Join(err, zip.Close()); err != nil {
		return err
	}
	info, err := file.Stat()
	if err == nil {
		err = file.Sync()
	}
	if err != nil {
		return err
	}
	if head.Parts == nil {
		head.Entries, head.Size = entries, size
	} else {
		head.Parts = append(head.Parts, info.Size()-head.Bytes)
	}
	head.Bytes, head.Sum = info.Size(), hex.EncodeToString(sum.Sum(nil))
	if err := f.Commit(head); err != nil {
		return err
	}
	f.sum, f.size = sum, f.size+size
	return nil
}

// rewrite writes an archive anew, and counts its entries and their data, which may have limit bytes.
func rewrite(to *tar.Writer, archive *filetree.Reader, limit int64) (entries, size int64, err error) {
	buffer := make([]byte, 64<<10)
	for {
		e, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return entries, size, to.Close()
		}
		if err != nil {
			return 0, 0, err
		}
		entries++
		if size += e.Data(); size > limit {
			return 0, 0, &store.TooLargeError{Option: option, Limit: limit}
		}
		if err := filetree.Write(to, e); err != nil {
			return 0, 0, err
		}
		if _, err := io.CopyBuffer(to, archive, buffer); err != nil {
			return 0, 0, err
		}
	}
}

// Restore writes the kept files into a sandbox, after checking all of them. It returns their number and
// their size in bytes. The error is a [*store.DamagedError] if they are not as they were saved; nothing is
// written then.
func (f *Files) Restore(box any, write func(archive io.Reader) error) (files, size int64, err error) {
	head, err := f.Head()
	if err != nil {
		return 0, 0, err
	}
	file, err := os.Open(f.Path())
	if errors.Is(err, fs.ErrNotExist) {
		return 0, 0, &store.DamagedError{Problem: "its archive is gone"}
	}
	if err != nil {
		return 0, 0, fmt.Errorf("read kept files: %w", err)
	}
	kept, err := open(file, head)
	if err != nil {
		return 0, 0, err
	}
	defer kept.Close()
	from, to := io.Pipe()
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		defer guard.Recover(func(err error) { to.CloseWithError(err) })
		to.CloseWithError(kept.Copy(to))
	}()
	err = write(from)
	from.Close()
	<-copied
	if err == nil {
		f.latest, f.sum, f.size = box, kept.sum, kept.Size
	}
	return kept.Entries, kept.Size, err
}

// archive is a kept archive, unpacked.
type archive struct {
	*filetree.Merged
	file *os.File
	zips []*zstd.Decoder
	sum  hash.Hash
}

func (a *archive) Close() error {
	for _, zip := range a.zips {
		zip.Close()
	}
	return a.file.Close()
}

// open checks an archive. It owns the file, also if it fails.
func open(file *os.File, head *store.Head) (_ *archive, err error) {
	a := &archive{file: file, sum: sha256.New()}
	defer func() {
		if err != nil {
			a.Close()
		}
	}()
	if _, err := io.Copy(a.sum, io.LimitReader(file, head.Bytes)); err != nil {
		return nil, fmt.Errorf("read kept files: %w", err)
	}
	if hex.EncodeToString(a.sum.Sum(nil)) != head.Sum {
		return nil, &store.DamagedError{Problem: "its archive has another sum than when it was written"}
	}
	var changes []*filetree.Reader
	at := int64(0)
	for _, size := range parts(head) {
		zip, err := zstd.NewReader(io.NewSectionReader(file, at, size), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(windowSize))
		if err != nil {
			return nil, err
		}
		a.zips = append(a.zips, zip)
		changes = append(changes, filetree.NewChangesReader(zip))
		at += size
	}
	a.Merged = filetree.Merge(filetree.NewReader(a.zips[0]), changes[1:]...)
	return a, nil
}

// Export writes the files of a session as an ordinary tar file, compressed with zstd. If a server
// uses the session, these are the files of its last save. The error is a [*store.DamagedError] if
// the files were changed since; nothing is written then.
func Export(s store.Session, to io.Writer) error {
	zip, err := zstd.NewWriter(to, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	return errors.Join(Tar(s, zip), zip.Close())
}

// Tar is Export without the compression.
func Tar(s store.Session, to io.Writer) error {
	file, head, err := s.Open()
	if err != nil {
		return err
	}
	kept, err := open(file, head)
	if err != nil {
		return err
	}
	defer kept.Close()
	return export(tar.NewWriter(to), kept.Merged)
}

// export copies an archive, with zeros for the holes of files.
func export(to *tar.Writer, from *filetree.Merged) error {
	for total := int64(0); ; {
		e, err := from.Next()
		if errors.Is(err, io.EOF) {
			return to.Close()
		}
		if err != nil {
			return err
		}
		if total += e.Size; total > maxExported {
			return fmt.Errorf("%q: the files have more than %d GiB with their holes, which a tar file has as zeros", e.Path, maxExported>>30)
		}
		pieces := append(e.Pieces, filetree.Piece{Offset: e.Size})
		e.Pieces = []filetree.Piece{{Length: e.Size}}
		if err := filetree.Write(to, e); err != nil {
			return err
		}
		at := int64(0)
		for _, piece := range pieces {
			_, err := io.CopyN(to, filetree.Zeros, piece.Offset-at)
			if err == nil {
				_, err = io.CopyN(to, from, piece.Length)
			}
			if err != nil {
				return fmt.Errorf("%q: %w", e.Path, err)
			}
			at = piece.Offset + piece.Length
		}
	}
}
