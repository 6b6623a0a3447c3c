package host

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// No path leads out of the folder, and no open waits.
func TestOpenBeneath(t *testing.T) {
	top := t.TempDir()
	must.Do(t, os.MkdirAll(top+"/in/a/b", 0o700))
	must.Do(t, os.WriteFile(top+"/secret", []byte("secret"), 0o600))
	must.Do(t, os.WriteFile(top+"/in/a/b/file", []byte("text"), 0o600))
	must.Do(t, os.Symlink("../../secret", top+"/in/a/link"))
	must.Do(t, os.Symlink("b/file", top+"/in/a/near"))
	must.Do(t, os.Symlink("a", top+"/in/folder"))
	must.Do(t, unix.Mkfifo(top+"/in/fifo", 0o600))
	folder := must.Get(os.Open(top + "/in"))(t)
	defer folder.Close()
	for _, test := range []struct {
		name  string
		flags int
		want  string // of the file, or "" for an error
	}{
		{"a/b/file", 0, "text"},
		{"./a//b/file", 0, "text"},
		{"../secret", 0, ""},
		{"a/../../secret", 0, ""},
		{top + "/secret", 0, ""},
		{"a/link", 0, ""},
		{"a/near", 0, ""},
		{"folder/b/file", 0, ""},
		{"folder", unix.O_DIRECTORY, ""},
		{"a/b/file", unix.O_DIRECTORY, ""},
		{"none", 0, ""},
	} {
		fd, err := OpenBeneath(int(folder.Fd()), test.name, test.flags)
		if test.want == "" {
			if err == nil {
				unix.Close(fd)
				t.Errorf("%s with %#x is opened", test.name, test.flags)
			}
			continue
		}
		if err != nil {
			t.Error(err)
			continue
		}
		file := os.NewFile(uintptr(fd), test.name)
		if text := must.Get(io.ReadAll(file))(t); string(text) != test.want {
			t.Errorf("%s contains %q, want %q", test.name, text, test.want)
		}
		file.Close()
	}
	for _, name := range []string{".", "a", "a/b", "fifo"} {
		fd, err := OpenBeneath(int(folder.Fd()), name, 0)
		if err != nil {
			t.Error(err)
			continue
		}
		unix.Close(fd)
	}
}

// A folder's other file systems are not entered.
func TestOpenBeneath_StaysInItsFileSystem(t *testing.T) {
	root := must.Get(os.Open("/"))(t)
	defer root.Close()
	if fd, err := OpenBeneath(int(root.Fd()), "proc/self", unix.O_DIRECTORY); !errors.Is(err, unix.EXDEV) {
		t.Errorf("opened as %d, error %v", fd, err)
	}
	if fd, err := OpenBeneath(int(root.Fd()), "etc", unix.O_DIRECTORY); err != nil {
		t.Error(err)
	} else {
		unix.Close(fd)
	}
}

func TestRenameNew_ReplacesNothing(t *testing.T) {
	dir := t.TempDir()
	must.Do(t, os.WriteFile(dir+"/a", []byte("a"), 0o600))
	must.Do(t, os.WriteFile(dir+"/b", []byte("b"), 0o600))
	folder := must.Get(os.Open(dir))(t)
	defer folder.Close()
	if err := RenameNew(int(folder.Fd()), "a", "b"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("error %v", err)
	}
	must.Do(t, RenameNew(int(folder.Fd()), "a", "c"))
	if text := must.Get(os.ReadFile(dir + "/c"))(t); string(text) != "a" {
		t.Errorf("it contains %q", text)
	}
}

// A name that is longer than an address has room.
func TestShortSocket(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120))
	must.Do(t, os.Mkdir(dir, 0o700))
	must.Do(t, ShortSocket(dir+"/socket", func(name string) error {
		fd := must.Get(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0))(t)
		defer unix.Close(fd)
		return unix.Bind(fd, &unix.SockaddrUnix{Name: name})
	}))
	must.Get(os.Lstat(dir + "/socket"))(t)
}

// The child can be waited for after WaitEnd.
func TestWaitEnd(t *testing.T) {
	cmd := exec.Command("/bin/sh", "-c", "exit 3")
	must.Do(t, cmd.Start())
	must.Do(t, WaitEnd(cmd.Process.Pid))
	_ = cmd.Wait()
	if cmd.ProcessState.ExitCode() != 3 {
		t.Errorf("it ended with %v", cmd.ProcessState)
	}
}

func TestUnnamed(t *testing.T) {
	dir := t.TempDir()
	file := must.Get(Unnamed(dir))(t)
	defer file.Close()
	must.Get(file.WriteString("text"))(t)
	if entries := must.Get(os.ReadDir(dir))(t); len(entries) != 0 {
		t.Errorf("the folder has %v", entries)
	}
	again := must.Get(Duplicate(file))(t)
	defer again.Close()
	text := make([]byte, 4)
	must.Get(again.ReadAt(text, 0))(t)
	if string(text) != "text" || Memory() < 1<<26 {
		t.Errorf("it contains %q, the computer has %d bytes", text, Memory())
	}
	if id, err := BootID(); err != nil || id == "" {
		t.Errorf("boot %q, error %v", id, err)
	}
}
