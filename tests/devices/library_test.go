package devices_test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"runtime"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// library returns a shared library for this machine that a loader can load: it has a
// soname and one function, which returns a number below 256. A compiler would do, but
// machines that run tests need not have one.
func library(t testing.TB, soname, function string, value byte) []byte {
	t.Helper()
	// Code is in the first page, data that the loader writes to in the second.
	const page = 0x1000
	machine, code := elf.EM_X86_64, []byte{0xb8, value, 0, 0, 0, 0xc3} // mov eax, value; ret
	if runtime.GOARCH == "arm64" {
		machine = elf.EM_AARCH64
		code = binary.LittleEndian.AppendUint32(nil, 0x52800000|uint32(value)<<5) // mov w0, value
		code = binary.LittleEndian.AppendUint32(code, 0xd65f03c0)                 // ret
	}
	const codeAt, align = 0x200, 16
	names := []byte("\x00" + soname + "\x00" + function + "\x00")
	symbols := []elf.Sym64{{}, {
		Name: uint32(2 + len(soname)), Info: elf.ST_INFO(elf.STB_GLOBAL, elf.STT_FUNC), Shndx: 1, Value: codeAt, Size: uint64(len(code)),
	}}
	var data bytes.Buffer
	add := func(value any) uint64 {
		for data.Len()%align != 0 {
			data.WriteByte(0)
		}
		at := page + data.Len()
		must.Do(t, binary.Write(&data, binary.LittleEndian, value))
		return uint64(at)
	}
	namesAt, symbolsAt := add(names), add(symbols)
	// One bucket, whose chain is the second symbol.
	hashAt := add([]uint32{1, 2, 1, 0, 0})
	entries := []elf.Dyn64{
		{Tag: int64(elf.DT_SONAME), Val: 1}, {Tag: int64(elf.DT_HASH), Val: hashAt},
		{Tag: int64(elf.DT_STRTAB), Val: namesAt}, {Tag: int64(elf.DT_STRSZ), Val: uint64(len(names))},
		{Tag: int64(elf.DT_SYMTAB), Val: symbolsAt}, {Tag: int64(elf.DT_SYMENT), Val: elf.Sym64Size}, {},
	}
	dynamicAt := add(entries)
	size, dynamicSize := uint64(data.Len()), uint64(binary.Size(entries))
	var file bytes.Buffer
	header := elf.Header64{
		Type: uint16(elf.ET_DYN), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT),
		Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 4, Shentsize: 64,
	}
	copy(header.Ident[:], elf.ELFMAG)
	header.Ident[elf.EI_CLASS], header.Ident[elf.EI_DATA], header.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)
	must.Do(t, binary.Write(&file, binary.LittleEndian, header))
	must.Do(t, binary.Write(&file, binary.LittleEndian, []elf.Prog64{
		{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Filesz: codeAt + uint64(len(code)), Memsz: codeAt + uint64(len(code)), Align: page},
		{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_W), Off: page, Vaddr: page, Paddr: page, Filesz: size, Memsz: size, Align: page},
		{Type: uint32(elf.PT_DYNAMIC), Flags: uint32(elf.PF_R | elf.PF_W), Off: dynamicAt, Vaddr: dynamicAt, Paddr: dynamicAt, Filesz: dynamicSize, Memsz: dynamicSize, Align: 8},
		// Without it, the stack would become executable.
		{Type: uint32(elf.PT_GNU_STACK), Flags: uint32(elf.PF_R | elf.PF_W), Align: 16},
	}))
	file.Write(make([]byte, codeAt-file.Len()))
	file.Write(code)
	file.Write(make([]byte, page-file.Len()))
	file.Write(data.Bytes())
	return file.Bytes()
}
