package picture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"image/jpeg"
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
	// This checks the first header, which comes before the first scan.
	config, err := jpeg.DecodeConfig(bytes.NewReader(data))
	if err != nil {
		return err
	}
	if err := checkSize(config.Width, config.Height, 4); err != nil {
		return err
	}
	c := &cursor{data: data[2:]}
	headers, scan := 0, false
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
		c.bytes(c.number(2, binary.BigEndian) - 2)
		if c.short {
			return io.ErrUnexpectedEOF
		}
		switch {
		case marker >= 0xc0 && marker < 0xd0 && marker != 0xc4 && marker != 0xc8 && marker != 0xcc:
			if headers++; headers > 1 {
				return errors.New("it has more than one header")
			}
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
