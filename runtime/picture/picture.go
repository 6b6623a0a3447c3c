// Package picture checks that a file is a complete image. The interface of a large model refuses a
// request with an image that it cannot read, and the image is part of every later request of the
// conversation. A plot that was killed while it was written is enough for that, so code could spoil
// a conversation for good.
//
// It promises that an accepted image has a size and, in PNG and GIF, every pixel; that JPEG and
// WebP are followed to the end of their container; and that it needs a few hundred kilobytes of
// memory for any image. The bytes are hostile: the standard library's decoders, which read only the
// headers here, would take 128 MB for the pixels of an interlaced PNG within the bounds, and
// minutes for a JPEG of 1 MB with many scans.
package picture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	// maxSide is the longest side that the large models' interfaces take, in
	// pixels.
	maxSide = 8000
	// maxUnpacked bounds the unpacked pixels of an image, in bytes. Each pixel takes at least four,
	// so this is 16 million pixels. Unpacking that many takes 50 ms.
	maxUnpacked = 64 << 20
)

// Viewable returns nil for an image of a MIME type (image/png, image/jpeg,
// image/gif, image/webp) that is whole, at most 8,000 pixels wide and high, and at
// most 64 MiB when it is unpacked, all frames together. Otherwise the error is why
// not.
func Viewable(data []byte, mimeType string) error {
	var err error
	switch mimeType {
	case "image/png":
		err = viewPNG(data)
	case "image/jpeg":
		err = viewJPEG(data)
	case "image/gif":
		err = viewGIF(data)
	case "image/webp":
		err = viewWebP(data)
	default:
		err = errors.New("no such type of image is known")
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("it ends too early")
	}
	if err != nil {
		return fmt.Errorf("read an image of type %.40q: %w", mimeType, err)
	}
	return nil
}

// checkSize checks an image's size in pixels, of so many bytes each.
func checkSize(width, height, bytes int) error {
	switch {
	case width < 1 || height < 1:
		return fmt.Errorf("it is %d by %d pixels", width, height)
	case width > maxSide || height > maxSide:
		return fmt.Errorf("it is %d by %d pixels, at most %d are shown", width, height, maxSide)
	case width*height*max(bytes, 4) > maxUnpacked:
		return fmt.Errorf("its %d by %d pixels unpack to more than %d MiB", width, height, maxUnpacked>>20)
	}
	return nil
}

// cursor reads from the front of a file. After a read beyond its end, short is set
// and everything is zero.
type cursor struct {
	data  []byte
	short bool
}

func (c *cursor) bytes(n int) []byte {
	if n < 0 || n > len(c.data) {
		c.short, c.data = true, nil
		return nil
	}
	part := c.data[:n]
	c.data = c.data[n:]
	return part
}

func (c *cursor) byte() int {
	if part := c.bytes(1); part != nil {
		return int(part[0])
	}
	return 0
}

// number reads a number of 2 or 4 bytes.
func (c *cursor) number(size int, order binary.ByteOrder) int {
	part := c.bytes(size)
	switch {
	case part == nil:
		return 0
	case size == 2:
		return int(order.Uint16(part))
	default:
		return int(order.Uint32(part))
	}
}
