package sessionfiles

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/filetree"
)

// A log is a file with the saves of a session, the first of which has all its files:
//
//	8 bytes   the length of the body
//	32 bytes  the SHA-256 of the body
//	body      zstd of parts: each a uvarint with its length, and the part
//
// A save is appended and then committed by the session's head, which has the length of
// the log and a chain of the sums. What follows that length is a save that was not
// finished.
const (
	sumSize    = sha256.Size
	headerSize = 8 + sumSize
	// windowSize is the memory that reading and writing take, beside as much again.
	windowSize = 1 << 20
)

// chained returns the chain of sums with one more of them.
func chained(chain, sum [sumSize]byte) [sumSize]byte {
	return sha256.Sum256(append(chain[:], sum[:]...))
}

// saveWriter appends a save to a log.
type saveWriter struct {
	file  *os.File
	start int64 // of the save in the file
	limit int64 // of the whole file, and of the parts of the save, in bytes
	sum   hashWriter
	zip   *zstd.Encoder
	raw   int64 // bytes of parts
}

// hashWriter writes at an offset of a file and sums up what it wrote.
type hashWriter struct {
	file  *os.File
	at    int64
	limit int64
	hash  interface {
		io.Writer
		Sum([]byte) []byte
	}
}

// TooLargeError reports files that are more than an operator has kept.
type TooLargeError struct{ Limit int64 } // bytes

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the session's files are larger than keep_mb, which is %d", e.Limit>>20)
}

func (w *hashWriter) Write(p []byte) (int, error) {
	if w.at+int64(len(p)) > w.limit {
		return 0, &TooLargeError{w.limit}
	}
	n, err := w.file.WriteAt(p, w.at)
	w.at += int64(n)
	w.hash.Write(p[:n])
	return n, err
}

// begin makes what the first part needs: most calls have none.
func (w *saveWriter) begin() (err error) {
	w.sum = hashWriter{file: w.file, at: w.start + headerSize, limit: w.limit, hash: sha256.New()}
	w.zip, err = zstd.NewWriter(&w.sum, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true),
		zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(windowSize), zstd.WithEncoderCRC(false))
	return err
}

// part adds a part.
func (w *saveWriter) part(part []byte) error {
	if len(part) == 0 {
		return nil
	}
	if w.zip == nil {
		if err := w.begin(); err != nil {
			return err
		}
	}
	if w.raw += int64(len(part)); w.raw > w.limit {
		return &TooLargeError{w.limit}
	}
	var length [binary.MaxVarintLen64]byte
	if _, err := w.zip.Write(binary.AppendUvarint(length[:0], uint64(len(part)))); err != nil {
		return err
	}
	_, err := w.zip.Write(part)
	return err
}

// end completes the save and returns the length of the log with it.
func (w *saveWriter) end() (length int64, sum [sumSize]byte, err error) {
	if w.zip == nil { // there are no files any more
		if err := w.begin(); err != nil {
			return 0, sum, err
		}
	}
	if err := w.zip.Close(); err != nil {
		return 0, sum, err
	}
	w.sum.hash.Sum(sum[:0])
	header := binary.BigEndian.AppendUint64(nil, uint64(w.sum.at-w.start-headerSize))
	_, err = w.file.WriteAt(append(header, sum[:]...), w.start)
	return w.sum.at, sum, err
}

// readLog calls visit for every record of a log, with the number of its save. It
// reads as much of the file as was committed, and no more memory than a part takes.
// The error is a [*DamagedError] where the log is not what the head says, and then
// visit has seen some of it.
func readLog(file io.ReaderAt, head *Head, visit func(save int, r filetree.Record) error) error {
	var chain [sumSize]byte
	at := int64(0)
	raw := int64(0)
	// The windows of all saves are one allocation.
	zip, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(windowSize))
	if err != nil {
		return err
	}
	defer zip.Close()
	for save := 0; at < head.Length; save++ {
		var header [headerSize]byte
		if head.Length-at < headerSize {
			return damaged("its log ends within a save")
		}
		if _, err := file.ReadAt(header[:], at); err != nil {
			return unreadable(err)
		}
		at += headerSize
		size := binary.BigEndian.Uint64(header[:])
		if size > uint64(head.Length-at) {
			return damaged("its log ends within a save")
		}
		body := io.NewSectionReader(file, at, int64(size))
		hash := sha256.New()
		if err := zip.Reset(io.TeeReader(body, hash)); err != nil {
			return unreadable(err)
		}
		parts := bufio.NewReaderSize(zip, 64<<10)
		if err := readParts(parts, head.Raw-raw, &raw, func(r filetree.Record) error { return visit(save, r) }); err != nil {
			return err
		}
		// The decoder stops where its frame does.
		if _, err := io.Copy(hash, body); err != nil {
			return unreadable(err)
		}
		var sum [sumSize]byte
		hash.Sum(sum[:0])
		if sum != [sumSize]byte(header[8:]) {
			return damaged("its log has another sum than when it was written")
		}
		chain = chained(chain, sum)
		at += int64(size)
	}
	if chain != head.chain() {
		return damaged("its log is not the one that its head names")
	}
	return nil
}

// readParts reads the parts of one save, of at most limit bytes together, and adds
// their size to raw.
func readParts(parts *bufio.Reader, limit int64, raw *int64, visit func(filetree.Record) error) error {
	var buffer []byte
	for {
		length, err := binary.ReadUvarint(parts)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return unreadable(err)
		}
		if length > filetree.MaxPart || int64(length) > limit {
			return damaged("its log is larger than its head says")
		}
		limit -= int64(length)
		*raw += int64(length)
		if uint64(cap(buffer)) < length {
			buffer = make([]byte, length)
		}
		buffer = buffer[:length]
		if _, err := io.ReadFull(parts, buffer); err != nil {
			return unreadable(err)
		}
		for r, err := range filetree.Records(buffer) {
			if err != nil {
				return damaged("its log has " + err.Error())
			}
			if err := visit(r); err != nil {
				return err
			}
		}
	}
}

// DamagedError reports kept files that are not as they were written.
type DamagedError struct{ Problem string }

func (e *DamagedError) Error() string { return e.Problem }

func damaged(problem string) error { return &DamagedError{problem} }

// unreadable is the error of bytes that cannot be read or unpacked.
func unreadable(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return damaged("its log is shorter than its head says")
	}
	var path *os.PathError
	if errors.As(err, &path) {
		return fmt.Errorf("read kept files: %w", err)
	}
	return damaged("its log cannot be unpacked: " + err.Error())
}
