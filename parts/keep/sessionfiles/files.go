// Package sessionfiles keeps the files of sessions on disk, so that the next session of
// the same name has them.
//
// The files of a session are one archive of package filetree, compressed with zstd. A save
// writes a new archive, which replaces the old one when it is complete (package store).
// The bytes come from a sandbox: a save checks every entry and writes it anew, so that the
// archive on disk is a tree of files. It is used only if its sum is still the same.
package sessionfiles

import (
	"archive/tar"
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/store"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/filetree"
)

const (
	option = "keep_mb"
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
	// behind says that the sandbox may take files for saved that are not.
	behind bool
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

// Save replaces the kept files by the archive that copy returns. An empty archive means
// that the files are the same as at the last success, unless full is true. After an error
// the old files are kept, and the next Save is a full one.
func (f *Files) Save(copy func(full bool) io.Reader) error {
	from := bufio.NewReader(copy(f.behind))
	f.behind = true
	_, err := from.Peek(1)
	isUnchanged := errors.Is(err, io.EOF)
	if err == nil {
		err = f.save(io.LimitReader(from, f.limit+maxHeaders))
	}
	if err != nil && !isUnchanged {
		return err
	}
	f.behind = false
	return nil
}

func (f *Files) save(from io.Reader) (err error) {
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
	sum := sha256.New()
	zip, err := zstd.NewWriter(io.MultiWriter(file, sum), zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true),
		zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(windowSize))
	if err != nil {
		return err
	}
	head, err := f.rewrite(tar.NewWriter(zip), from)
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
	head.Bytes, head.Sum = info.Size(), hex.EncodeToString(sum.Sum(nil))
	return f.Commit(head)
}

// rewrite writes an archive anew, and counts its files. It reads up to the end of the
// bytes, which tells the sandbox that the copy is complete.
func (f *Files) rewrite(to *tar.Writer, from io.Reader) (head store.Head, err error) {
	archive := filetree.NewReader(from)
	buffer := make([]byte, 64<<10)
	for {
		e, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return head, err
		}
		head.Entries++
		if head.Size += e.Data(); head.Size > f.limit {
			return head, &store.TooLargeError{Option: option, Limit: f.limit}
		}
		if err := filetree.Write(to, e); err != nil {
			return head, err
		}
		if _, err := io.CopyBuffer(to, archive, buffer); err != nil {
			return head, err
		}
	}
	if _, err := io.Copy(io.Discard, from); err != nil {
		return head, err
	}
	return head, to.Close()
}

// Open returns the archive of the kept files, after checking all of it. The error is a
// [*store.DamagedError] if it is not as it was saved. The caller closes it.
func (f *Files) Open() (io.ReadCloser, error) {
	head, err := f.Head()
	if err != nil {
		return nil, err
	}
	file, err := os.Open(f.Path())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &store.DamagedError{Problem: "its archive is gone"}
	}
	if err != nil {
		return nil, fmt.Errorf("read kept files: %w", err)
	}
	return open(file, head)
}

// archive is a kept archive, unpacked.
type archive struct {
	io.ReadCloser
	file *os.File
}

func (a *archive) Close() error { return errors.Join(a.ReadCloser.Close(), a.file.Close()) }

// open checks an archive. It owns the file, also if it fails.
func open(file *os.File, head *store.Head) (_ *archive, err error) {
	defer func() {
		if err != nil {
			file.Close()
		}
	}()
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return nil, fmt.Errorf("read kept files: %w", err)
	}
	if hex.EncodeToString(sum.Sum(nil)) != head.Sum {
		return nil, &store.DamagedError{Problem: "its archive has another sum than when it was written"}
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("read kept files: %w", err)
	}
	zip, err := zstd.NewReader(file, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(windowSize))
	if err != nil {
		return nil, err
	}
	return &archive{zip.IOReadCloser(), file}, nil
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
	return export(tar.NewWriter(to), filetree.NewReader(kept))
}

// export copies an archive, with zeros for the holes of files.
func export(to *tar.Writer, from *filetree.Reader) error {
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
