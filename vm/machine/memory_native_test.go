//go:build linux && !posix

package machine

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// The pages that a process has written to and those of the file beneath make the memory,
// and pages of zeros take no space.
func TestPageTable_CopiesWhatAProcessSees(t *testing.T) {
	const pages = 3000
	file := must.Get(os.CreateTemp(t.TempDir(), "memory"))(t)
	defer file.Close()
	must.Do(t, file.Truncate(pages*pageSize))
	for page := 0; page < 1000; page += 3 {
		must.Get(file.WriteAt(bytes.Repeat([]byte{byte(page), 1}, pageSize/2), int64(page*pageSize)))(t)
	}
	memory := must.Get(unix.Mmap(int(file.Fd()), 0, pages*pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE))(t)
	defer unix.Munmap(memory)
	write := func(page int, with byte) { copy(memory[page*pageSize:], bytes.Repeat([]byte{with}, pageSize)) }
	for page := 500; page < 1500; page += 5 {
		write(page, 7)
	}
	write(3, 0)     // over something
	write(2900, 0)  // over nothing
	_ = memory[600] // is read, and the file's

	m := &Machine{memory: file, size: pages * pageSize, qmp: &monitor{}}
	m.qmp.pid.Store(int64(os.Getpid()))
	table := must.Get(m.pages())(t)
	if !table.isOwn(500) || table.isOwn(501) || table.isOwn(0) || !table.isOwn(3) {
		t.Error("the table does not say which pages are own")
	}
	name := filepath.Join(t.TempDir(), "copy")
	to := must.Get(os.Create(name))(t)
	defer to.Close()
	must.Do(t, to.Truncate(m.size))
	must.Do(t, table.copyOwn(to))
	must.Do(t, table.copyOthers(to, file))
	if !bytes.Equal(must.Get(os.ReadFile(name))(t), memory) {
		t.Error("the copy differs from what the process sees")
	}
	var status unix.Stat_t
	must.Do(t, unix.Stat(name, &status))
	if most := int64(700 * pageSize); status.Blocks*512 > most {
		t.Errorf("the copy takes %d bytes, want at most %d", status.Blocks*512, most)
	}
}

func TestFindMapping_WantsOneOfTheRightSize(t *testing.T) {
	const (
		low   = "10000-14000 rw-p 00000000 fe:00 77 /proc/self/fd/9\n"
		high  = "14000-18000 rw-p 00004000 fe:00 77 /proc/self/fd/9\n"
		far   = "28000-2c000 rw-p 00000000 fe:00 77 /proc/self/fd/9\n"
		other = "30000-38000 rw-p 00000000 fe:00 78 /lib\n40000-41000 rw-p 00000000 00:00 0 \n"
	)
	for maps, want := range map[string]string{
		low + high + other: "",
		other + low + high: "",
		low + other:        "mapped 16384 bytes",
		other:              "mapped 0 bytes",
		low + far:          "more than once",
	} {
		start, err := findMapping(strings.NewReader(maps), 77, 0x8000)
		if want == "" && (err != nil || start != 0x10000) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q gives %x, %v, want %q", maps, start, err, want)
		}
	}
}
