package picture

import (
	"bytes"
	"compress/lzw"
	"encoding/binary"
	"errors"
	"fmt"
	"image/gif"
	"io"
)

// viewGIF follows the blocks of a GIF to its trailer, and unpacks its frames.
func viewGIF(data []byte) error {
	config, err := gif.DecodeConfig(bytes.NewReader(data))
	if err != nil {
		return err
	}
	if err := checkSize(config.Width, config.Height, 1); err != nil {
		return err
	}
	c := &cursor{data: data[10:]}
	flags := c.byte()
	c.bytes(2)
	shared := table(c, flags)
	unpacked := 0
	for {
		switch kind := c.byte(); {
		case c.short:
			return io.ErrUnexpectedEOF
		case kind == '!': // an extension
			c.byte()
			if _, err := io.Copy(io.Discard, &blocks{cursor: c}); err != nil {
				return err
			}
		case kind == ',':
			left, top := c.number(2, binary.LittleEndian), c.number(2, binary.LittleEndian)
			w, h := c.number(2, binary.LittleEndian), c.number(2, binary.LittleEndian)
			own := table(c, c.byte())
			if c.short {
				return io.ErrUnexpectedEOF
			}
			switch unpacked += 4 * w * h; {
			case w < 1 || h < 1 || left+w > config.Width || top+h > config.Height:
				return errors.New("a frame is not within the image")
			case !own && !shared:
				return errors.New("a frame has no colours")
			case unpacked > maxUnpacked:
				return fmt.Errorf("its frames unpack to more than %d MiB", maxUnpacked>>20)
			}
			if err := unpackGIF(c, w*h); err != nil {
				return err
			}
		case kind == ';' && unpacked == 0:
			return errors.New("it has no frame")
		case kind == ';':
			return nil
		default:
			return fmt.Errorf("it has a block of the unknown kind %#x", kind)
		}
	}
}

// table skips a table of colours and says whether there is one.
func table(c *cursor, flags int) bool {
	if flags&0x80 == 0 {
		return false
	}
	c.bytes(3 << (flags&7 + 1))
	return true
}

// unpackGIF unpacks the pixels of a frame, a byte each.
func unpackGIF(c *cursor, pixels int) error {
	bits := c.byte()
	if bits < 2 || bits > 8 {
		return fmt.Errorf("a frame has colours of %d bits", bits)
	}
	packed := &blocks{cursor: c}
	reader := lzw.NewReader(packed, lzw.LSB, bits)
	defer reader.Close()
	if _, err := io.CopyN(io.Discard, reader, int64(pixels)); err != nil {
		return err
	}
	// After the last pixel comes the end code; readers ignore the rest.
	_, err := io.Copy(io.Discard, packed)
	return err
}

// blocks reads blocks of up to 255 bytes, each after its length, until an empty
// one.
type blocks struct {
	*cursor
	block []byte
	ended bool
}

func (b *blocks) Read(p []byte) (int, error) {
	if len(b.block) == 0 && !b.ended {
		b.block = b.bytes(b.byte())
		if b.short {
			return 0, io.ErrUnexpectedEOF
		}
		b.ended = len(b.block) == 0
	}
	if b.ended {
		return 0, io.EOF
	}
	n := copy(p, b.block)
	b.block = b.block[n:]
	return n, nil
}
