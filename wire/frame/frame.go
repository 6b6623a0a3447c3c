// Package frame is the protocol between the runtime and the agent inside a
// sandbox: four bytes, big-endian, that count the payload's bytes; then the
// payload, one JSON object in UTF-8 of at most [MaxPayload] bytes.
//
// Both ends use this package, but a reader does not rely on that: code in a sandbox may have
// written any byte. It never allocates more memory than bytes have arrived, and cannot be
// used after an error.
package frame

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// MaxPayload is the largest payload of one frame, in bytes.
const MaxPayload = 16 << 20

// Protocol is the version that an agent names in its ready reply.
const Protocol = 1

// headerSize is the length prefix's size, in bytes.
const headerSize = 4

// keepBuffer is the largest buffer that a reader or a writer keeps between two frames, in
// bytes. Larger ones are freed.
const keepBuffer = 256 << 10

// ErrTooLarge reports a payload of more than [MaxPayload] bytes, or than a
// reader's own limit.
var ErrTooLarge = errors.New("frame is too large")

// ErrEmpty reports a frame without a payload.
var ErrEmpty = errors.New("frame is empty")

// Reader reads frames from a stream. It is not safe for concurrent use.
type Reader struct {
	r      io.Reader
	limit  uint32
	header [headerSize]byte
	buf    bytes.Buffer
}

// NewReader returns a Reader of r. It never reads ahead, so that r can have another reader
// between two frames.
func NewReader(r io.Reader) *Reader {
	return &Reader{r: r, limit: MaxPayload}
}

// Limit refuses payloads of more than size bytes from now on. It is for readers that know
// how much they have asked for. Sizes above [MaxPayload] have no effect.
func (r *Reader) Limit(size int64) {
	r.limit = uint32(min(max(size, 1), MaxPayload))
}

// Read reads one frame into v, which json.Unmarshal must accept. The error is io.EOF if the
// stream ends between two frames, and io.ErrUnexpectedEOF if it ends inside one.
func (r *Reader) Read(v any) error {
	payload, err := r.payload()
	if err != nil {
		return err
	}
	// Free the buffer now, because the next frame may come much later.
	if r.buf.Cap() > keepBuffer {
		defer func() { r.buf = bytes.Buffer{} }()
	}
	if err := unmarshal(payload, v); err != nil {
		return fmt.Errorf("frame of %d bytes: %w", len(payload), err)
	}
	return nil
}

// payload returns the next frame's payload; it is valid until the next call.
func (r *Reader) payload() ([]byte, error) {
	if _, err := io.ReadFull(r.r, r.header[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(r.header[:])
	switch {
	case size == 0:
		return nil, ErrEmpty
	case size > r.limit:
		return nil, fmt.Errorf("%w: %d bytes announced", ErrTooLarge, size)
	}
	r.buf.Reset()
	// CopyN grows the buffer with the bytes that arrive, so that a header of four
	// bytes cannot make this end allocate 16 MiB.
	if _, err := io.CopyN(&r.buf, r.r, int64(size)); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return r.buf.Bytes(), nil
}

// Writer writes frames to a stream. It is safe for concurrent use: the frames of
// one Write are one Write of the stream.
type Writer struct {
	mu  sync.Mutex
	w   io.Writer
	buf bytes.Buffer
	err error
}

// NewWriter returns a Writer to w.
func NewWriter(w io.Writer) *Writer {
	return &Writer{w: w}
}

// Write sends each value as one frame, and all frames together, so that the other end wakes
// up once. Each byte of a string that is not valid UTF-8 is sent as U+FFFD. If a value
// cannot be encoded or is too large, no frame is sent and the stream stays usable. After an
// error of the stream itself, every later Write returns that error.
func (w *Writer) Write(values ...any) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	w.buf.Reset()
	defer func() {
		if w.buf.Cap() > keepBuffer {
			w.buf = bytes.Buffer{}
		}
	}()
	for _, v := range values {
		if err := w.encode(v); err != nil {
			return err
		}
	}
	if _, err := w.w.Write(w.buf.Bytes()); err != nil {
		w.err = fmt.Errorf("write frame: %w", err)
		return w.err
	}
	return nil
}

// encode adds a frame to the buffer.
func (w *Writer) encode(v any) error {
	begin := w.buf.Len()
	w.buf.Write(make([]byte, headerSize))
	enc := json.NewEncoder(&w.buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("encode frame: %w", err)
	}
	w.buf.Truncate(w.buf.Len() - 1) // the newline that Encode adds
	frame := w.buf.Bytes()[begin:]
	size := len(frame) - headerSize
	if size > MaxPayload {
		return fmt.Errorf("%w: %d bytes to send", ErrTooLarge, size)
	}
	binary.BigEndian.PutUint32(frame, uint32(size))
	return nil
}
