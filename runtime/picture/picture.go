// Package picture checks that a file is a complete image. The interface of a large model refuses a
// request with an image that it cannot read, and the image is part of every later request of the
// conversation. A plot that was killed while it was written is enough for that, so code could spoil
// a conversation for good.
//
// It promises that an accepted image has a size and, in PNG, every pixel, and that a file that was
// not written to its end is refused. Frames of a GIF after the first one, and the pixels of JPEG and
// WebP, are not unpacked: an image that was made to be wrong may be accepted, because code that
// wants to spoil its own conversation needs no image for that. An image takes at most 16 MB of
// memory. The bytes are hostile: the standard library's decoders would take 128 MB for the pixels
// of an interlaced PNG within the bounds, and minutes for a JPEG of 1 MB with many scans.
package picture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"image/gif"
	"image/jpeg"
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

// ErrTooLarge is the cause if an image has more pixels than that.
var ErrTooLarge = errors.New("it has more pixels than are shown")

// Viewable returns nil for an image of a MIME type (image/png, image/jpeg,
// image/gif, image/webp) that is whole, at most 8,000 pixels wide and high, and at
// most 64 MiB when it is unpacked. Otherwise the error is why not.
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
		return fmt.Errorf("%w: %d by %d, at most %d", ErrTooLarge, width, height, maxSide)
	case width*height*max(bytes, 4) > maxUnpacked:
		return fmt.Errorf("%w: %d by %d unpack to more than %d MiB", ErrTooLarge, width, height, maxUnpacked>>20)
	}
	return nil
}

// viewJPEG checks the first header of a JPEG, and its end.
func viewJPEG(data []byte) error {
	config, err := jpeg.DecodeConfig(bytes.NewReader(data))
	if err == nil {
		err = checkSize(config.Width, config.Height, 4)
	}
	if err == nil && !endsWith(data, "\xff\xd9") {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// viewGIF unpacks the first frame of a GIF, and checks its end.
func viewGIF(data []byte) error {
	config, err := gif.DecodeConfig(bytes.NewReader(data))
	if err == nil {
		err = checkSize(config.Width, config.Height, 1)
	}
	if err == nil {
		_, err = gif.Decode(bytes.NewReader(data))
	}
	if err == nil && !endsWith(data, ";") {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// endsWith reports whether a file ends with its last marker. Some programs fill a block up.
func endsWith(data []byte, marker string) bool {
	return bytes.HasSuffix(bytes.TrimRight(data, "\x00"), []byte(marker))
}

// viewWebP checks that a WebP has the length that it states, and its size in pixels, which is at
// the beginning of its first chunk: https://developers.google.com/speed/webp/docs/riff_container.
func viewWebP(data []byte) error {
	const sizeEnd = 30 // where the size ends at the latest
	if len(data) < sizeEnd || int64(binary.LittleEndian.Uint32(data[4:])) > int64(len(data)-8) {
		return io.ErrUnexpectedEOF
	}
	three := func(at int) int { return int(binary.LittleEndian.Uint32(data[at:]) & 0xffffff) }
	two := func(at int) int { return int(binary.LittleEndian.Uint16(data[at:]) & 0x3fff) }
	switch kind := string(data[:4]) + string(data[8:16]); kind {
	case "RIFFWEBPVP8X":
		return checkSize(three(24)+1, int(binary.LittleEndian.Uint32(data[26:])>>8)+1, 4)
	case "RIFFWEBPVP8L":
		bits := int(binary.LittleEndian.Uint32(data[21:]))
		return checkSize(bits&0x3fff+1, bits>>14&0x3fff+1, 4)
	case "RIFFWEBPVP8 ":
		return checkSize(two(26), two(28), 4)
	default:
		return fmt.Errorf("it begins with %q", kind)
	}
}
