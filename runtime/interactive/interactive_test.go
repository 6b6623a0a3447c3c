package interactive

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// started is closed by what is written to it first, which is all that it takes.
type started chan struct{}

func (s started) Write(data []byte) (int, error) {
	close(s)
	return len(data), nil
}

// frames are what a program was sent, until it was interrupted.
type frames struct {
	text        []byte
	interrupted chan struct{}
}

func (f *frames) Write(data []byte) (int, error) {
	f.text = append(f.text, data...)
	if strings.Contains(string(f.text), fmt.Sprintf(`"type":%q`, frame.Interrupt)) {
		close(f.interrupted)
		return 0, io.ErrClosedPipe
	}
	return len(data), nil
}

// An interrupt is a message to the agent, which passes it on.
func TestInterrupt_IsSent(t *testing.T) {
	program := filepath.Join(t.TempDir(), "attach")
	must.Do(t, os.WriteFile(program, []byte("#!/bin/sh\nexec cat\n"), 0o700))
	sent := &frames{interrupted: make(chan struct{})}
	p := must.Get(Start(Spec{
		Exec: program, Environ: []string{"PATH=" + os.Getenv("PATH")},
		First: frame.Request{Type: frame.Execute}, Stdout: sent, Stderr: os.Stderr,
	}))(t)
	defer func() {
		p.Kill()
		<-p.Ended()
	}()
	p.Interrupt()
	select {
	case <-sent.interrupted:
	case <-time.After(patience.Long):
		t.Error("no interrupt comes")
	}
}

// A program that ends before it has read the code ends with its own status.
func TestStart_TellsOfAnEarlyEnd(t *testing.T) {
	program := filepath.Join(t.TempDir(), "attach")
	must.Do(t, os.WriteFile(program, []byte("#!/bin/sh\nexit 3\n"), 0o700))
	for _, size := range []int{1, MaxCode} { // the longest takes longer to encode than the program runs
		p, err := Start(Spec{
			Exec: program, First: frame.Request{Type: frame.Execute, Contents: make([]byte, size)}, Stdout: io.Discard, Stderr: os.Stderr,
		})
		if err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		if status, err := p.Wait(); status != 3 || err != nil {
			t.Errorf("%d bytes: status %d, error %v", size, status, err)
		}
	}
}

// Of a program that is killed nothing is left, also where it has not become a
// sandbox yet: bubblewrap's child does not end with bubblewrap before it has
// heard from it.
func TestKillEndsAll(t *testing.T) {
	program := filepath.Join(t.TempDir(), "attach")
	must.Do(t, os.WriteFile(program, []byte("#!/bin/sh\nsleep 60 &\necho started\nwait\n"), 0o700))
	begins := make(started)
	p, err := Start(Spec{
		Exec: program, Environ: []string{"PATH=" + os.Getenv("PATH")},
		First: frame.Request{Type: frame.Execute}, Stdout: begins, Stderr: os.Stderr,
	})
	if err != nil {
		t.Fatal(err)
	}
	group := -p.process.Cmd.Process.Pid
	defer unix.Kill(group, unix.SIGKILL)
	for _, next := range []struct {
		what string
		done <-chan struct{}
		then func()
	}{{"begin", begins, p.Kill}, {"end", p.Ended(), func() {}}} {
		select {
		case <-next.done:
			next.then()
		case <-time.After(patience.Long):
			t.Fatalf("it does not %s", next.what)
		}
	}
	if status, err := p.Wait(); status != 128+int(unix.SIGKILL) || err != nil {
		t.Errorf("status %d, error %v", status, err)
	}
}
