package device

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Bounds of the parts of a library that are read.
const (
	maxHeaders = 64      // program headers
	maxDynamic = 1 << 16 // bytes of the dynamic section
	maxSoname  = 255     // bytes, as for any file name
)

// Sizes in bytes and numbers of elf(5). Package debug/elf has them too, but it would link
// readers of compressed sections into the launcher.
const (
	headerSize  = 64
	segmentSize = 56
	dynamicSize = 16

	// The magic number, 64 bits, and the least significant byte first.
	beginsWith = "\x7fELF\x02\x01"

	segmentLoaded  = 1 // PT_LOAD
	segmentDynamic = 2 // PT_DYNAMIC
	dynamicStrings = 5 // DT_STRTAB
	dynamicSoname  = 14
)

// sonameOf returns the name that programs load the library at a path by, or "". It reads the same
// parts as a loader. debug/elf wants section headers, which a library need not have, and reads all
// names of the library.
func sonameOf(path string) string {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return ""
	}
	defer file.Close()
	return readSoname(file)
}

// segment is a program header.
type segment struct {
	kind                  uint32
	offset, address, size uint64
}

// readSoname reads the soname in an ELF file of a 64-bit machine.
func readSoname(file io.ReaderAt) string {
	number := binary.LittleEndian
	var header [headerSize]byte
	if n, _ := file.ReadAt(header[:], 0); n < headerSize || !bytes.HasPrefix(header[:], []byte(beginsWith)) {
		return ""
	}
	count := int(number.Uint16(header[56:]))
	if count > maxHeaders {
		return ""
	}
	table := make([]byte, count*segmentSize)
	if n, _ := file.ReadAt(table, int64(number.Uint64(header[32:]))); n < len(table) {
		return ""
	}
	var segments []segment
	var dynamic []byte
	for ; len(table) > 0; table = table[segmentSize:] {
		s := segment{
			number.Uint32(table),
			number.Uint64(table[8:]), number.Uint64(table[16:]), number.Uint64(table[32:]),
		}
		segments = append(segments, s)
		if s.kind == segmentDynamic && s.size <= maxDynamic {
			dynamic = make([]byte, s.size/dynamicSize*dynamicSize)
			if n, _ := file.ReadAt(dynamic, int64(s.offset)); n < len(dynamic) {
				return ""
			}
		}
	}
	var strings, offset uint64
	for ; len(dynamic) > 0; dynamic = dynamic[dynamicSize:] {
		switch value := number.Uint64(dynamic[8:]); number.Uint64(dynamic) {
		case dynamicStrings:
			strings = value
		case dynamicSoname:
			offset = value
		}
	}
	if strings == 0 || offset == 0 {
		return ""
	}
	// The table of strings is given by its address in memory.
	for _, s := range segments {
		if s.kind != segmentLoaded || strings < s.address || strings-s.address >= s.size {
			continue
		}
		text := make([]byte, maxSoname+1)
		n, _ := file.ReadAt(text, int64(s.offset+(strings-s.address)+offset))
		name, _, found := bytes.Cut(text[:n], []byte{0})
		if !found || len(name) == 0 || bytes.ContainsAny(name, "/\n") || string(name) == "." || string(name) == ".." {
			return ""
		}
		return string(name)
	}
	return ""
}
