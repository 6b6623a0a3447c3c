package sessions

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// What is written after drain is read after what was written before.
func TestDrain_WaitsForTheReader(t *testing.T) {
	reader, writer, err := os.Pipe()
	must.Do(t, err)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must.Do(t, err)
	for name, ends := range map[string][2]*os.File{
		"pipe":   {reader, writer},
		"socket": {os.NewFile(uintptr(pair[0]), "in"), os.NewFile(uintptr(pair[1]), "out")},
	} {
		t.Run(name, func(t *testing.T) {
			in, out := ends[0], ends[1]
			defer in.Close()
			defer out.Close()
			drain(out, time.Hour) // nothing waits
			must.Get(out.WriteString("some"))(t)
			drain(out, time.Millisecond) // the limit ends it
			done := make(chan struct{})
			go func() {
				drain(out, time.Hour)
				close(done)
			}()
			select {
			case <-done:
				t.Error("it did not wait for the reader")
			case <-time.After(20 * time.Millisecond):
			}
			must.Get(in.Read(make([]byte, 10)))(t)
			<-done
		})
	}
	file := must.Get(os.Create(filepath.Join(t.TempDir(), "file")))(t)
	defer file.Close()
	must.Get(file.WriteString("some"))(t)
	drain(file, time.Hour) // a file has no reader
}
