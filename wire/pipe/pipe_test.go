package pipe

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// ends returns the two ends of a pipe or a socket that does not block.
func ends(t *testing.T, isSocket bool) (read, write *os.File) {
	t.Helper()
	if !isSocket {
		read, write, err := os.Pipe()
		must.Do(t, err)
		t.Cleanup(func() { read.Close(); write.Close() })
		return read, write
	}
	pair := must.Get(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0))(t)
	read, write = os.NewFile(uintptr(pair[0]), "socket"), os.NewFile(uintptr(pair[1]), "socket")
	t.Cleanup(func() { read.Close(); write.Close() })
	return read, write
}

func TestStream_CarriesMoreThanAPipeHolds(t *testing.T) {
	for name, isSocket := range map[string]bool{"pipe": false, "socket": true} {
		t.Run(name, func(t *testing.T) {
			read, write := ends(t, isSocket)
			r, w := New(read), New(write)
			if r == io.ReadWriteCloser(read) {
				t.Fatal("the file itself is used")
			}
			text := bytes.Repeat([]byte("0123456789abcde\n"), 256<<10) // 4 MiB
			wrote := make(chan error, 1)
			go func() {
				n, err := w.Write(text)
				if err == nil && n != len(text) {
					err = io.ErrShortWrite
				}
				wrote <- errors.Join(err, w.Close())
			}()
			got := must.Get(io.ReadAll(r))(t)
			must.Do(t, <-wrote)
			if !bytes.Equal(got, text) {
				t.Errorf("%d bytes came, other than the %d that were written", len(got), len(text))
			}
			if n, err := r.Read(make([]byte, 1)); n != 0 || err != io.EOF {
				t.Errorf("at the end: %d, %v, want io.EOF", n, err)
			}
		})
	}
}

func TestStream_EndsAsTheFileDoes(t *testing.T) {
	read, write := ends(t, false)
	r, w := New(read), New(write)
	must.Do(t, read.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the deadline: %v", err)
	}
	must.Do(t, read.SetReadDeadline(time.Time{}))
	// A full pipe.
	must.Do(t, write.SetWriteDeadline(time.Now().Add(10*time.Millisecond)))
	if n, err := w.Write(make([]byte, 1<<20)); !errors.Is(err, os.ErrDeadlineExceeded) || n == 0 || n == 1<<20 {
		t.Errorf("a full pipe took %d bytes, %v", n, err)
	}
	for done := false; !done; { // to an empty pipe
		must.Do(t, read.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
		_, err := r.Read(make([]byte, 64<<10))
		done = err != nil
	}
	must.Do(t, read.SetReadDeadline(time.Time{}))
	closed := make(chan error, 1)
	time.AfterFunc(10*time.Millisecond, func() { closed <- read.Close() })
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a read that waits while the file is closed: %v", err)
	}
	must.Do(t, <-closed)
	must.Do(t, write.SetWriteDeadline(time.Time{}))
	if _, err := w.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("a write that nothing reads: %v, want EPIPE", err)
	}
}

// The flag of a standard stream that others have too stays as it is.
func TestReader_LeavesTheOpenFileAsItIs(t *testing.T) {
	var fds [2]int
	must.Do(t, unix.Pipe2(fds[:], unix.O_CLOEXEC))
	read, write := os.NewFile(uintptr(fds[0]), "read"), os.NewFile(uintptr(fds[1]), "write")
	defer read.Close()
	defer write.Close()
	r, w := Reader(read), Writer(write)
	if _, is := r.(*stream); !is {
		t.Errorf("the reader is %T", r)
	}
	if _, is := w.(*stream); !is {
		t.Errorf("the writer is %T", w)
	}
	must.Get(w.Write([]byte("text")))(t)
	got := make([]byte, 10)
	if n := must.Get(r.Read(got))(t); string(got[:n]) != "text" {
		t.Errorf("%q came", got[:n])
	}
	for _, fd := range fds {
		if flags := must.Get(unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0))(t); flags&unix.O_NONBLOCK != 0 {
			t.Errorf("descriptor %d does not block any more", fd)
		}
	}
	file := must.Get(os.Create(filepath.Join(t.TempDir(), "file")))(t)
	defer file.Close()
	if w := Writer(file); w != io.Writer(file) {
		t.Errorf("the writer of a regular file is %T", w)
	}
	var buffer bytes.Buffer
	if w := Writer(&buffer); w != io.Writer(&buffer) {
		t.Errorf("the writer of no file is %T", w)
	}
}

// A socket cannot be opened once more: its own descriptor is used, and stays open when the stream is forgotten.
func TestWriter_LeavesASocketOpen(t *testing.T) {
	pair := must.Get(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	defer ours.Close()
	defer theirs.Close()
	func() {
		w := Writer(ours)
		if _, is := w.(*stream); !is {
			t.Errorf("the writer is %T", w)
		}
		must.Get(w.Write([]byte("a")))(t)
	}()
	for range 3 {
		runtime.GC()
		time.Sleep(time.Millisecond) // of finalizers
	}
	must.Get(ours.Write([]byte("b")))(t)
	got := make([]byte, 2)
	if must.Get(io.ReadFull(theirs, got))(t); string(got) != "ab" {
		t.Errorf("%q came", got)
	}
}

func BenchmarkEcho(b *testing.B) {
	for name, stream := range map[string]func(*os.File) io.ReadWriteCloser{
		"file":   func(f *os.File) io.ReadWriteCloser { return f },
		"stream": New,
	} {
		b.Run(name, func(b *testing.B) {
			there, write, err := os.Pipe()
			must.Do(b, err)
			read, back, err := os.Pipe()
			must.Do(b, err)
			defer read.Close()
			go io.Copy(struct{ io.Writer }{stream(back)}, struct{ io.Reader }{stream(there)})
			r, w := stream(read), stream(write)
			p := make([]byte, 100)
			for b.Loop() {
				_, err := w.Write(p)
				must.Do(b, err)
				must.Get(io.ReadFull(r, p))(b)
			}
			w.Close()
		})
	}
}
