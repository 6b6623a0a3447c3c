package picture

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"image/png"
	"io"
)

const signaturePNG = "\x89PNG\r\n\x1a\n"

// samplesPNG are the numbers of samples of a pixel, by colour type.
var samplesPNG = [...]int{0: 1, 2: 3, 3: 1, 4: 2, 6: 4}

// viewPNG follows the chunks of a PNG from IHDR to IEND, and unpacks its rows.
func viewPNG(data []byte) error {
	// This checks the header, and the palette if one is required.
	config, err := png.DecodeConfig(bytes.NewReader(data))
	if err != nil {
		return err
	}
	rest := data[len(signaturePNG):]
	var bits int      // of a pixel
	var rows [][]byte // the data of IDAT chunks
	interlaced, last := false, ""
	for number := 0; ; number++ {
		kind, body, err := chunkPNG(&rest)
		if err != nil {
			return err
		}
		if (number == 0) != (kind == "IHDR") {
			return fmt.Errorf("chunk %d is %q", number+1, kind)
		}
		switch kind {
		case "IHDR":
			bits, interlaced = samplesPNG[body[9]]*int(body[8]), body[12] == 1
			if err := checkSize(config.Width, config.Height, (bits+7)/8); err != nil {
				return err
			}
		case "PLTE":
			if len(body) == 0 || len(body)%3 != 0 || len(body) > 3*256 {
				return fmt.Errorf("its palette has %d bytes", len(body))
			}
		case "IDAT":
			if len(rows) > 0 && last != "IDAT" {
				return errors.New("its rows are in two places")
			}
			rows = append(rows, body)
		case "IEND":
			if len(rows) == 0 {
				return errors.New("it has no rows")
			}
			return unpackPNG(rows, config.Width, config.Height, bits, interlaced)
		default:
			if kind[0]&0x20 == 0 { // a capital: nobody can read it who does not know the chunk
				return fmt.Errorf("it needs the unknown chunk %q", kind)
			}
		}
		last = kind
	}
}

// chunkPNG takes a chunk from the rest of a file and compares its checksum.
func chunkPNG(rest *[]byte) (kind string, body []byte, err error) {
	const around = 12 // its length, kind and checksum
	data := *rest
	if len(data) < around || int64(binary.BigEndian.Uint32(data)) > int64(len(data)-around) {
		return "", nil, io.ErrUnexpectedEOF
	}
	end := around + int(binary.BigEndian.Uint32(data))
	*rest = data[end:]
	kind, named := string(data[4:8]), data[4:end-4]
	if binary.BigEndian.Uint32(data[end-4:]) != crc32.ChecksumIEEE(named) {
		return "", nil, fmt.Errorf("the checksum of its chunk %q is wrong", kind)
	}
	return kind, named[4:], nil
}

// passesPNG lists the offsets of the seven passes of an interlaced image, and the distances between
// their pixels.
var passesPNG = [7]struct{ x, y, dx, dy int }{
	{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4}, {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2},
}

// unpackPNG unpacks all rows, one at a time.
func unpackPNG(parts [][]byte, width, height, bits int, interlaced bool) error {
	readers := make([]io.Reader, len(parts))
	for i, part := range parts {
		readers[i] = bytes.NewReader(part)
	}
	packed, err := zlib.NewReader(io.MultiReader(readers...))
	if err != nil {
		return err
	}
	defer packed.Close()
	row := make([]byte, 1+(width*bits+7)/8)
	read := func(width, height int) error {
		if width <= 0 {
			return nil
		}
		row := row[:1+(width*bits+7)/8]
		for range height {
			if _, err := io.ReadFull(packed, row); err != nil {
				return err
			}
			if row[0] > 4 {
				return fmt.Errorf("a row has the unknown filter %d", row[0])
			}
		}
		return nil
	}
	if interlaced {
		for _, p := range passesPNG {
			if err := read((width-p.x+p.dx-1)/p.dx, (height-p.y+p.dy-1)/p.dy); err != nil {
				return err
			}
		}
	} else if err := read(width, height); err != nil {
		return err
	}
	// At the end, the checksum is compared.
	switch _, err := io.ReadFull(packed, row[:1]); err {
	case io.EOF:
		return nil
	case nil:
		return errors.New("it has more rows than it is high")
	default:
		return err
	}
}
