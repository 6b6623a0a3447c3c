package main

import (
	"bytes"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// attached is an agent that carries one program to the test.
type attached struct {
	t              *testing.T
	cmd            *exec.Cmd
	in             io.WriteCloser
	frames         *frame.Writer
	out            io.Reader
	stdout, stderr bytes.Buffer
}

func attachTo(t *testing.T, first frame.Request, words ...string) *attached {
	t.Helper()
	cmd := jailed(t, append([]string{"attach"}, words...)...)
	a := &attached{t: t, cmd: cmd}
	var err error
	if a.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if a.out, err = cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = &a.stderr
	must.Do(t, cmd.Start())
	end := time.AfterFunc(patience.Long, func() { _ = cmd.Process.Kill() })
	t.Cleanup(func() { end.Stop() })
	a.frames = frame.NewWriter(a.in)
	a.send(first)
	return a
}

func (a *attached) send(r frame.Request) {
	a.t.Helper()
	must.Do(a.t, a.frames.Write(r))
}

// reads waits until the program has written a text.
func (a *attached) reads(text string) {
	a.t.Helper()
	buf := make([]byte, 4096)
	for !strings.Contains(a.stdout.String(), text) {
		n, err := a.out.Read(buf)
		a.stdout.Write(buf[:n])
		if err != nil {
			a.t.Fatalf("wrote %q, not %q; log %q", &a.stdout, text, &a.stderr)
		}
	}
}

// ends waits for the end and returns the exit status.
func (a *attached) ends() int {
	a.t.Helper()
	_, _ = io.Copy(&a.stdout, a.out)
	_ = a.cmd.Wait()
	return a.cmd.ProcessState.ExitCode()
}

func TestAttach_RunsCode(t *testing.T) {
	a := attachTo(t, frame.Request{Type: frame.Execute, Contents: []byte("printf '\\377%s' \"$WORD\"; cat; echo err >&2; exit 3"), Env: map[string]string{"WORD": "w"}}, "@bash")
	a.send(frame.Request{Type: frame.Input, Contents: []byte("typed \xfe")})
	a.send(frame.Request{Type: frame.Input})
	if status := a.ends(); status != 3 || a.stdout.String() != "\xffwtyped \xfe" || a.stderr.String() != "err\n" {
		t.Errorf("status %d, stdout %q, stderr %q", status, &a.stdout, &a.stderr)
	}
}

func TestAttach_InterruptsCode(t *testing.T) {
	a := attachTo(t, frame.Request{Type: frame.Execute, Contents: []byte("trap 'echo caught; exit 4' INT; echo begun; while :; do sleep 0.05; done")}, "@bash")
	a.reads("begun\n")
	a.send(frame.Request{Type: frame.Interrupt})
	if status := a.ends(); status != 4 || a.stdout.String() != "begun\ncaught\n" {
		t.Errorf("status %d, stdout %q, stderr %q", status, &a.stdout, &a.stderr)
	}
}

// More input than waits for a program that reads none does not keep it from
// ending.
func TestAttach_EndsWithInputThatNobodyReads(t *testing.T) {
	a := attachTo(t, frame.Request{Type: frame.Execute, Contents: []byte("sleep 0.3; echo done")}, "@bash")
	go func() {
		for a.frames.Write(frame.Request{Type: frame.Input, Contents: make([]byte, 64<<10)}) == nil {
		}
	}()
	if status := a.ends(); status != 0 || a.stdout.String() != "done\n" {
		t.Errorf("status %d, stdout %q, stderr %q", status, &a.stdout, &a.stderr)
	}
}

func TestAttach_MakesATerminal(t *testing.T) {
	a := attachTo(t, frame.Request{Type: frame.Open, Terminal: &frame.Terminal{Rows: 31, Columns: 97, Term: "vt100"}, Env: map[string]string{"WORD": "w"}}, "--memory-mb", "256", "--pids", "64", "@python")
	a.reads("$ ")
	a.send(frame.Request{Type: frame.Input, Contents: []byte("stty size; echo $TERM$WORD; tty; echo /proc/$$/fd/*\r")})
	a.reads("31 97\r\nvt100w\r\n/dev/pts/0\r\n")
	a.send(frame.Request{Type: frame.Resize, Terminal: &frame.Terminal{Rows: 7, Columns: 20}})
	a.send(frame.Request{Type: frame.Input, Contents: []byte("stty size; exit 5\r")})
	if status := a.ends(); status != 5 || !strings.Contains(a.stdout.String(), "7 20\r\n") {
		t.Errorf("status %d, stdout %q, stderr %q", status, &a.stdout, &a.stderr)
	}
}

// The end of the frames ends everything, and without a word of what to run
// nothing runs.
func TestAttach_EndsWithItsFrames(t *testing.T) {
	a := attachTo(t, frame.Request{Type: frame.Open, Terminal: &frame.Terminal{Rows: 24, Columns: 80}}, "@bash")
	a.reads("$ ")
	a.in.Close()
	if status := a.ends(); status != failed || a.stderr.String() != "nix-sandbox-agent: error: the other end is gone\n" {
		t.Errorf("status %d, stderr %q", status, &a.stderr)
	}
	a = attachTo(t, frame.Request{Type: frame.Ping}, "@bash")
	if status := a.ends(); status != failed || a.stderr.String() != "nix-sandbox-agent: error: the first frame is \"ping\", not execute or open\n" {
		t.Errorf("status %d, stderr %q", status, &a.stderr)
	}
}
