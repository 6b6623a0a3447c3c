package procfs

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// chunk is how many bytes of a file a search holds at a time.
const chunk = 1 << 20

// A Search looks for a text in files and in processes. It also finds the text reversed, in
// hexadecimal digits, and in base64 at any position of what was encoded.
type Search struct {
	// Found says where the text is and in which form, one entry for each file.
	Found []string
	// Read counts the files that were read to their end.
	Read map[string]int64
	// Unread says what could not be read, and why.
	Unread []error

	forms map[string][]byte
}

// NewSearch returns a search for a text of at least eight bytes.
func NewSearch(text string) *Search {
	reversed := []byte(text)
	slices.Reverse(reversed)
	digits := hex.EncodeToString([]byte(text))
	s := &Search{Read: map[string]int64{}, forms: map[string][]byte{
		"plain": []byte(text), "reversed": reversed,
		"hexadecimal": []byte(digits), "upper hexadecimal": []byte(strings.ToUpper(digits)),
	}}
	for before := range 3 {
		for name, encoding := range map[string]*base64.Encoding{"base64": base64.RawStdEncoding, "base64 for URLs": base64.RawURLEncoding} {
			encoded := encoding.EncodeToString(append(make([]byte, before), text...))
			// The first and the last digit may depend on what stands beside the text.
			first, last := (before*8+5)/6, (before+len(text))*8/6
			s.forms[fmt.Sprintf("%s after %d bytes", name, before)] = []byte(encoded[first:last])
		}
	}
	return s
}

// Forms returns the forms of the text for which it looks, by their names.
func (s *Search) Forms() map[string][]byte { return s.forms }

// Bytes searches a text that has a name.
func (s *Search) Bytes(name string, text []byte) {
	_ = s.reader(name, bytes.NewReader(text)) // never fails
}

// Files searches a file, or every regular file below a folder. It follows no link there. Of a root
// directory it leaves out proc and sys, which show the kernel and no files.
func (s *Search) Files(root string) {
	if info, err := os.Stat(root); err == nil && !info.IsDir() {
		s.File(root)
		return
	}
	// The point has a link followed, as the root directory of a process is one.
	_ = filepath.WalkDir(root+"/.", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // it is gone
		case err != nil:
			s.Unread = append(s.Unread, err)
		case entry.IsDir() && (path == filepath.Join(root, "proc") || path == filepath.Join(root, "sys")):
			return fs.SkipDir
		case entry.Type().IsRegular():
			// The folder does not know of a device that is bound over a file.
			if info, err := entry.Info(); err == nil && info.Mode().IsRegular() {
				s.File(path)
			}
		}
		return nil
	})
}

// File searches one file.
func (s *Search) File(path string) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err == nil {
		err = s.reader(path, file)
		file.Close()
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ESRCH) {
		s.Unread = append(s.Unread, err)
	}
}

// reader searches what can be read from a file.
func (s *Search) reader(name string, from io.Reader) error {
	longest := 0
	for _, form := range s.forms {
		longest = max(longest, len(form))
	}
	found := map[string]bool{}
	buffer := make([]byte, chunk+longest)
	kept, total := 0, int64(0)
	for {
		n, err := io.ReadFull(from, buffer[kept:])
		total += int64(n)
		window := buffer[:kept+n]
		for form, text := range s.forms {
			if !found[form] && bytes.Contains(window, text) {
				found[form] = true
				s.Found = append(s.Found, name+": "+form)
			}
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			s.Read[name] += total
			return nil
		}
		if err != nil {
			return err
		}
		kept = copy(buffer, window[max(0, len(window)-longest):])
	}
}

// Process searches what the kernel shows of a process but for its memory: its
// arguments, variables, mappings, and the regular files that it has open, which also may
// have no name.
func (s *Search) Process(pid int) {
	folder := fmt.Sprintf("/proc/%d", pid)
	for _, name := range []string{"cmdline", "environ", "maps", "comm"} {
		s.File(filepath.Join(folder, name))
	}
	descriptors, err := os.ReadDir(filepath.Join(folder, "fd"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.Unread = append(s.Unread, err)
	}
	for _, descriptor := range descriptors {
		path := filepath.Join(folder, "fd", descriptor.Name())
		// Package os calls what has no type a regular file, such as an eventfd(2).
		var stat syscall.Stat_t
		if syscall.Stat(path, &stat) == nil && stat.Mode&syscall.S_IFMT == syscall.S_IFREG {
			s.File(path)
		}
	}
}

// Memory searches every page of a process that the process can read.
func (s *Search) Memory(pid int) {
	name := fmt.Sprintf("/proc/%d/mem", pid)
	memory, err := os.Open(name)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			s.Unread = append(s.Unread, err)
		}
		return
	}
	defer memory.Close()
	readMaps := func() ([]byte, error) { return os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid)) }
	maps, err := readMaps()
	if err != nil {
		s.Unread = append(s.Unread, err)
		return
	}
	for lines := bufio.NewScanner(bytes.NewReader(maps)); lines.Scan(); {
		var from, to int64
		var permissions string
		line := lines.Text()
		// The kernel's own pages cannot be read here: [vsyscall] is above all addresses.
		if strings.HasSuffix(line, "[vvar]") || strings.HasSuffix(line, "[vvar_vclock]") || strings.HasSuffix(line, "[vsyscall]") {
			continue
		}
		if _, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &permissions); err != nil {
			s.Unread = append(s.Unread, fmt.Errorf("%s: %q: %w", name, line, err))
			continue
		}
		if permissions[0] != 'r' {
			continue
		}
		if err := s.reader(name, io.NewSectionReader(memory, from, to-from)); err != nil {
			// A process that runs gives memory back meanwhile: V8 does so while it collects garbage.
			if now, problem := readMaps(); problem == nil && !bytes.Contains(now, []byte(line+"\n")) {
				continue
			}
			s.Unread = append(s.Unread, fmt.Errorf("%w in %s", err, line))
		}
	}
}
