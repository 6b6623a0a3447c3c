package picture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Markers of a JPEG.
const (
	markerSOI  = 0xd8 // start of the image
	markerEOI  = 0xd9 // its end
	markerSOS  = 0xda // a scan
	markerRST0 = 0xd0 // restarts within a scan, eight
	markerTEM  = 0x01
)

// viewJPEG follows the segments of a JPEG to its end. Pixels are not unpacked: a
// scan that is cut short and yet followed by the end of the image passes.
func viewJPEG(data []byte) error {
	c := &cursor{data: data}
	if c.byte() != 0xff || c.byte() != markerSOI {
		return errors.New("it does not begin as a JPEG does")
	}
	frame, scan := false, false
	for {
		marker, err := markerJPEG(c)
		switch {
		case err != nil:
			return err
		case marker == markerEOI && !scan:
			return errors.New("it has no scan")
		case marker == markerEOI:
			return nil
		case marker == markerTEM || marker >= markerRST0 && marker < markerSOI:
			continue
		}
		body := &cursor{data: c.bytes(c.number(2, binary.BigEndian) - 2)}
		if c.short {
			return io.ErrUnexpectedEOF
		}
		switch {
		case marker == 0xc0 || marker == 0xc1 || marker == 0xc2:
			if err := frameJPEG(body); err != nil {
				return err
			}
			frame = true
		case marker > 0xc2 && marker < 0xd0 && marker != 0xc4 && marker != 0xc8 && marker != 0xcc:
			return fmt.Errorf("its coding, of marker %#x, is one that hardly anything reads", marker)
		case marker == markerSOS && !frame:
			return errors.New("a scan comes before the size")
		case marker == markerSOS:
			if scan, err = skipScan(c); err != nil {
				return err
			}
		}
	}
}

// markerJPEG reads a marker, before which there may be filling bytes.
func markerJPEG(c *cursor) (int, error) {
	if c.byte() != 0xff {
		if c.short {
			return 0, io.ErrUnexpectedEOF
		}
		return 0, errors.New("a segment does not begin with a marker")
	}
	for {
		switch marker := c.byte(); {
		case c.short:
			return 0, io.ErrUnexpectedEOF
		case marker == 0:
			return 0, errors.New("a segment does not begin with a marker")
		case marker != 0xff:
			return marker, nil
		}
	}
}

// frameJPEG reads the size of an image.
func frameJPEG(body *cursor) error {
	precision, height, width, components := body.byte(), body.number(2, binary.BigEndian), body.number(2, binary.BigEndian), body.byte()
	body.bytes(3 * components)
	switch {
	case body.short:
		return io.ErrUnexpectedEOF
	case precision != 8 || components != 1 && components != 3 && components != 4:
		return fmt.Errorf("it has %d components of %d bits", components, precision)
	}
	return checkSize(width, height, components)
}

// skipScan goes to the marker that ends a scan, and says whether the scan had
// anything in it.
func skipScan(c *cursor) (bool, error) {
	for begin := len(c.data); ; {
		next := bytes.IndexByte(c.data, 0xff)
		if next < 0 || next+1 >= len(c.data) {
			return false, io.ErrUnexpectedEOF
		}
		if marker := c.data[next+1]; marker != 0 && (marker < markerRST0 || marker >= markerSOI) {
			c.data = c.data[next:]
			return begin > len(c.data), nil
		}
		c.data = c.data[next+2:]
	}
}
