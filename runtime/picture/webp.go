package picture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// viewWebP follows the chunks of a WebP to its end, and reads the size of each
// picture in it. Pixels are not unpacked.
func viewWebP(data []byte) error {
	c := &cursor{data: data}
	riff, size := string(c.bytes(4)), c.number(4, binary.LittleEndian)
	whole := &cursor{data: c.bytes(size)}
	switch {
	case c.short:
		return io.ErrUnexpectedEOF
	case riff != "RIFF" || string(whole.bytes(4)) != "WEBP":
		return errors.New("it does not begin as a WebP does")
	}
	kind, body, err := chunkWebP(whole)
	if err != nil {
		return err
	}
	if kind == "VP8 " || kind == "VP8L" {
		_, _, err := frameWebP(kind, body)
		return err // simple files have one chunk; readers ignore others
	}
	if kind != "VP8X" || len(body) != 10 {
		return fmt.Errorf("its first chunk is %q", kind)
	}
	canvas := &cursor{data: body[4:]}
	width, height := three(canvas)+1, three(canvas)+1
	if err := checkSize(width, height, 4); err != nil {
		return err
	}
	return picturesWebP(whole, width, height)
}

// picturesWebP reads the chunks of an extended file, which has one picture, or
// frames.
func picturesWebP(c *cursor, width, height int) error {
	pictures, unpacked := 0, 0
	for len(c.data) > 0 {
		kind, body, err := chunkWebP(c)
		if err != nil {
			return err
		}
		if kind == "ANMF" {
			frame := &cursor{data: body}
			frame.bytes(16)
			for kind = "ALPH"; kind == "ALPH" && err == nil; {
				kind, body, err = chunkWebP(frame)
			}
			if err != nil {
				return err
			}
		}
		if kind != "VP8 " && kind != "VP8L" {
			continue
		}
		w, h, err := frameWebP(kind, body)
		if err != nil {
			return err
		}
		pictures++
		switch unpacked += 4 * w * h; {
		case w > width || h > height:
			return errors.New("a picture is not within the image")
		case unpacked > maxUnpacked:
			return fmt.Errorf("its frames unpack to more than %d MiB", maxUnpacked>>20)
		}
	}
	if pictures == 0 {
		return errors.New("it has no picture")
	}
	return nil
}

// chunkWebP reads a chunk. A padding byte follows if its length is odd.
func chunkWebP(c *cursor) (kind string, body []byte, err error) {
	kind = string(c.bytes(4))
	length := c.number(4, binary.LittleEndian)
	body = c.bytes(length)
	if !c.short && length%2 == 1 && len(c.data) > 0 {
		c.bytes(1)
	}
	if c.short {
		return "", nil, io.ErrUnexpectedEOF
	}
	return kind, body, nil
}

// frameWebP reads the size of a picture, from the beginning of its coding.
func frameWebP(kind string, body []byte) (width, height int, err error) {
	c := &cursor{data: body}
	if kind == "VP8L" {
		mark, bits := c.byte(), c.number(4, binary.LittleEndian)
		if mark != 0x2f || bits>>29 != 0 {
			return 0, 0, errors.New("its lossless picture is of no known kind")
		}
		width, height = bits&0x3fff+1, bits>>14&0x3fff+1
	} else {
		tag := three(c)
		start := string(c.bytes(3))
		width, height = c.number(2, binary.LittleEndian)&0x3fff, c.number(2, binary.LittleEndian)&0x3fff
		if !c.short && (tag&1 != 0 || start != "\x9d\x01\x2a" || tag>>5 > len(c.data)) {
			return 0, 0, errors.New("its picture does not begin as one does, or is cut short")
		}
	}
	if c.short || len(c.data) == 0 {
		return 0, 0, io.ErrUnexpectedEOF
	}
	return width, height, checkSize(width, height, 4)
}

// three reads a number of three bytes.
func three(c *cursor) int {
	return c.byte() | c.byte()<<8 | c.byte()<<16
}
