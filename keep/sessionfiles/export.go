package sessionfiles

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/filetree"
)

// maxExported bounds the sizes of all files of an export, with their holes, in bytes: a
// tar file has a hole as zeros.
const maxExported = 64 << 30

// Export writes the files of a session that [List] returned as a tar file, compressed by
// zstd. A server may have the session: what is written is what it saved last. The error
// is a [*DamagedError] where the files are not as they were saved; then nothing is
// written.
func (s Session) Export(to io.Writer) error {
	if s.Problem != nil {
		return s.Problem
	}
	if s.Head == nil {
		return fmt.Errorf("nothing of session %q is kept", s.Key().Session)
	}
	zip, err := zstd.NewWriter(to, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	e := exporter{out: tar.NewWriter(zip)}
	for range 10 {
		err = read(s.Folder, s.Head, e.record)
		if !errors.Is(err, errNoLog) || e.began {
			break
		}
		// A server has begun a new log since the head was read.
		head, problem := readHead(s.Folder)
		if problem != nil || head == nil || head.Log == s.Head.Log {
			break
		}
		s.Head = head
	}
	if err == nil {
		err = e.end()
	}
	if err == nil {
		err = e.out.Close()
	}
	if err == nil {
		err = zip.Close()
	}
	return err
}

// exporter writes records as a tar file.
type exporter struct {
	out   *tar.Writer
	began bool
	left  int64 // of the file whose pieces come
	at    int64 // in it
	total int64
}

func (e *exporter) record(r filetree.Record) error {
	e.began = true
	if r.Kind == filetree.Data {
		if err := e.zeros(r.Offset - e.at); err != nil {
			return err
		}
		_, err := e.out.Write(r.Data)
		e.at += int64(len(r.Data))
		e.left -= int64(len(r.Data))
		return err
	}
	if err := e.end(); err != nil {
		return err
	}
	header := &tar.Header{Name: r.Path, Mode: int64(r.Mode), ModTime: time.Unix(0, r.ModTime), Linkname: r.Target, Format: tar.FormatPAX}
	switch r.Kind {
	case filetree.Folder:
		header.Typeflag, header.Name = tar.TypeDir, r.Path+"/"
	case filetree.File:
		header.Typeflag, header.Size = tar.TypeReg, r.Size
		e.left, e.at = r.Size, 0
		if e.total += r.Size; e.total > maxExported {
			return fmt.Errorf("%q: the files have more than %d GiB with their holes, which a tar file has as zeros", r.Path, maxExported>>30)
		}
	case filetree.Symlink:
		header.Typeflag, header.Mode = tar.TypeSymlink, int64(fs.ModePerm)
	case filetree.Link:
		header.Typeflag = tar.TypeLink
	case filetree.FIFO:
		header.Typeflag = tar.TypeFifo
	}
	if err := e.out.WriteHeader(header); err != nil {
		return fmt.Errorf("%q: %w", r.Path, err)
	}
	return nil
}

// end fills up the file whose pieces have come.
func (e *exporter) end() error { return e.zeros(e.left) }

func (e *exporter) zeros(n int64) error {
	e.at += n
	e.left -= n
	_, err := io.CopyN(e.out, zeroReader{}, n)
	return err
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
