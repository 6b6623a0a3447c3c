// Package picture says whether a file is a whole image. A large model's interface
// refuses a request for an image in it that it cannot read, and the image is in
// the conversation's every later request. A plot that was killed while it was
// written is enough for that.
//
// It promises that what it finds whole has a size and, in PNG and GIF, every pixel;
// that JPEG and WebP are followed to the end of their container; and that it needs
// a few hundred kilobytes of memory whatever an image says of itself. The bytes
// are hostile: the standard library's decoders, which read the headers here, would
// take 128 MB for the pixels of an interlaced PNG that is within the bounds, and
// minutes for those of a JPEG of 1 MB that has many scans.
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
	// maxUnpacked bounds what an image's pixels take where they are unpacked, in
	// bytes, of which each takes four or more: 16 million pixels. To unpack as much
	// takes 50 ms here.
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

// number reads one of 2 or 4 bytes.
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
