package device

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"io"
	"os"
)

// Bounds of what is read of a library.
const (
	maxHeaders = 64      // program headers
	maxDynamic = 1 << 16 // bytes of the dynamic section
	maxSoname  = 255     // bytes, as of any file's name
)

// sonameOf returns the name by which programs load a library, or "" where it has none. It
// reads what a loader reads: debug/elf wants section headers, which a library need not
// have, and reads all names of the library for this one.
func sonameOf(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	return soname(file)
}

// soname reads the name in the ELF file of a 64-bit machine, elf(5).
func soname(file io.ReaderAt) string {
	read := func(at uint64, value any) bool {
		size := int64(binary.Size(value))
		return binary.Read(io.NewSectionReader(file, int64(at), size), binary.LittleEndian, value) == nil
	}
	var header elf.Header64
	if !read(0, &header) || string(header.Ident[:elf.EI_CLASS]) != elf.ELFMAG || header.Ident[elf.EI_CLASS] != byte(elf.ELFCLASS64) ||
		header.Ident[elf.EI_DATA] != byte(elf.ELFDATA2LSB) || header.Phnum > maxHeaders {
		return ""
	}
	segments := make([]elf.Prog64, header.Phnum)
	if !read(header.Phoff, segments) {
		return ""
	}
	var entries []elf.Dyn64
	for _, segment := range segments {
		if elf.ProgType(segment.Type) == elf.PT_DYNAMIC && segment.Filesz <= maxDynamic {
			entries = make([]elf.Dyn64, segment.Filesz/uint64(binary.Size(elf.Dyn64{})))
			if !read(segment.Off, entries) {
				return ""
			}
		}
	}
	var table, offset uint64
	for _, entry := range entries {
		switch elf.DynTag(entry.Tag) {
		case elf.DT_STRTAB:
			table = entry.Val
		case elf.DT_SONAME:
			offset = entry.Val
		}
	}
	if table == 0 || offset == 0 {
		return ""
	}
	// The table has an address, as it will be in memory.
	for _, segment := range segments {
		if elf.ProgType(segment.Type) != elf.PT_LOAD || table < segment.Vaddr || table-segment.Vaddr >= segment.Filesz {
			continue
		}
		text := make([]byte, maxSoname+1)
		n, _ := file.ReadAt(text, int64(segment.Off+(table-segment.Vaddr)+offset))
		name, _, found := bytes.Cut(text[:n], []byte{0})
		if !found || len(name) == 0 || bytes.ContainsAny(name, "/\n") || string(name) == "." || string(name) == ".." {
			return ""
		}
		return string(name)
	}
	return ""
}
