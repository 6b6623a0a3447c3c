// Package limit divides the bytes that a sandbox may carry among its connections.
package limit

import "sync/atomic"

// Pieces are taken from [Bytes] in sizes between these, in bytes.
const (
	minPiece = 4 << 10
	maxPiece = 64 << 10
)

// Bytes is a number of bytes that several streams use up together. It is safe
// for concurrent use.
type Bytes struct {
	left    atomic.Int64
	streams int64
}

// NewBytes returns n bytes for at most so many streams at once.
func NewBytes(n int64, streams int) *Bytes {
	b := &Bytes{streams: int64(max(streams, 1))}
	b.left.Store(n)
	return b
}

// Piece returns how many bytes a stream may carry before it asks again, and 0 if all are used up.
// The remaining bytes are divided among the streams. A piece counts when it has been carried,
// because a stream may wait for bytes that never come. So streams together exceed the bound by at
// most 64 KiB each.
func (b *Bytes) Piece() int64 {
	left := b.left.Load()
	if left <= 0 {
		return 0
	}
	return min(max(left/b.streams, min(left, minPiece)), maxPiece)
}

// Use counts n bytes that a stream has carried, and reports whether any are left.
func (b *Bytes) Use(n int64) bool { return b.left.Add(-n) > 0 }
