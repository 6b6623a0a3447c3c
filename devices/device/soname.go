package device

import (
	"bytes"
	"encoding/binary"
	"io"
	"slices"

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

// sonameReader reads the names that programs load libraries by. It reuses its memory: a
// driver has so many libraries that allocating would take longer than reading.
type sonameReader struct {
	headers  []byte
	dynamic  []byte
	name     []byte
	segments []segment
}

func newSonameReader() *sonameReader {
	return &sonameReader{headers: make([]byte, headerSize+maxHeaders*segmentSize), name: make([]byte, maxSoname+1)}
}

// nameOf returns the soname of the library at a path, or "". It reads the same
// parts as a loader. debug/elf wants section headers, which a library need not have, and
// reads all names of the library.
func (r *sonameReader) nameOf(path string) string {
	// Package os would take five more system calls for each file.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	return r.read(descriptor(fd))
}

type descriptor int

// ReadAt implements [io.ReaderAt] by one call.
func (d descriptor) ReadAt(into []byte, at int64) (int, error) {
	n, err := unix.Pread(int(d), into, at)
	switch {
	case err != nil:
		return 0, err
	case n < len(into):
		return n, io.EOF
	}
	return n, nil
}

// segment is a program header.
type segment struct {
	kind                  uint32
	offset, address, size uint64
}

// read reads the soname in an ELF file of a 64-bit machine.
func (r *sonameReader) read(file io.ReaderAt) string {
	number := binary.LittleEndian
	// The program headers nearly always follow the header.
	n, _ := file.ReadAt(r.headers, 0)
	header := r.headers[:n]
	if n < headerSize || !bytes.HasPrefix(header, []byte(beginsWith)) {
		return ""
	}
	at, count := number.Uint64(header[32:]), int(number.Uint16(header[56:]))
	if count > maxHeaders {
		return ""
	}
	table := header[min(at, uint64(n)):]
	if len(table) < count*segmentSize {
		table = r.headers[:count*segmentSize]
		if n, _ := file.ReadAt(table, int64(at)); n < len(table) {
			return ""
		}
	}
	r.segments = r.segments[:0]
	dynamic := r.dynamic[:0]
	for ; count > 0; count, table = count-1, table[segmentSize:] {
		s := segment{
			number.Uint32(table),
			number.Uint64(table[8:]), number.Uint64(table[16:]), number.Uint64(table[32:]),
		}
		r.segments = append(r.segments, s)
		if s.kind == segmentDynamic && s.size <= maxDynamic {
			size := int(s.size / dynamicSize * dynamicSize)
			r.dynamic = slices.Grow(r.dynamic[:0], size)
			dynamic = r.dynamic[:size]
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
	for _, s := range r.segments {
		if s.kind != segmentLoaded || strings < s.address || strings-s.address >= s.size {
			continue
		}
		n, _ := file.ReadAt(r.name, int64(s.offset+(strings-s.address)+offset))
		name, _, found := bytes.Cut(r.name[:n], []byte{0})
		if !found || len(name) == 0 || bytes.ContainsAny(name, "/\n") || string(name) == "." || string(name) == ".." {
			return ""
		}
		return string(name)
	}
	return ""
}
