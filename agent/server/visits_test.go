package server_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/agenttest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// receive returns what a stream sends until done returns true, and the last reply. It grants
// nothing.
func receive(t *testing.T, a *agenttest.Agent, done func(text string, r frame.Reply) bool) (string, frame.Reply) {
	t.Helper()
	var text strings.Builder
	for {
		r := a.Receive()
		if r.Type == frame.Bytes {
			text.Write(r.Contents)
		}
		if done(text.String(), r) {
			return text.String(), r
		}
	}
}

func isType(kind string) func(string, frame.Reply) bool {
	return func(_ string, r frame.Reply) bool { return r.Type == kind }
}

func TestVisits_AShellBesideCalls(t *testing.T) {
	a := agenttest.Start(t, "command", agenttest.Command(false, "bash", "-c"))
	a.Send(frame.Request{Type: frame.Look, ID: 1})
	if r := a.Receive(); r.Type != frame.Looked || r.Size != 0 {
		t.Fatalf("%+v", r)
	}
	a.Send(frame.Request{Type: frame.Open, ID: 2, Terminal: &frame.Terminal{Rows: 24, Columns: 80}})
	receive(t, a, isType(frame.Opened))
	a.Send(frame.Request{Type: frame.Input, ID: 2, Contents: []byte("stty size; echo a > made; echo $((6*7))\n")})
	receive(t, a, func(text string, _ frame.Reply) bool {
		return strings.Contains(text, "24 80\r\n") && strings.Contains(text, "\r\n42\r\n")
	})
	a.Send(frame.Request{Type: frame.Resize, ID: 2, Terminal: &frame.Terminal{Rows: 7, Columns: 60}})
	a.Send(frame.Request{Type: frame.Input, ID: 2, Contents: []byte("stty size\n")})
	receive(t, a, func(text string, _ frame.Reply) bool { return strings.Contains(text, "7 60\r\n") })
	a.Send(frame.Request{Type: frame.Input, ID: 2, Contents: []byte("exit 3\n")})
	if _, last := receive(t, a, isType(frame.Closed)); last.ExitCode != 3 {
		t.Errorf("it ended with %+v", last)
	}
	// Its files are those of the calls, which go on.
	if answer := a.Run("cat made"); answer.Stdout != "a\n" {
		t.Errorf("the call has %+v", answer)
	}
	must.Do(t, os.Remove(filepath.Join(a.Root, "made")))
	must.Do(t, os.WriteFile(filepath.Join(a.Root, "other"), nil, 0o600))
	a.Send(frame.Request{Type: frame.Look, ID: 3})
	if r := a.Receive(); r.Size != 1 || !slices.Equal(r.Files, []frame.File{{Path: filepath.Join(a.Root, "other")}}) {
		t.Errorf("changed: %+v", r)
	}
}

// A program ends when its terminal is closed, also if it ignores SIGHUP.
func TestVisits_CloseEndsThePrograms(t *testing.T) {
	a := agenttest.Start(t, "command", agenttest.Command(false, "bash", "-c"))
	a.Send(frame.Request{Type: frame.Open, ID: 2, Terminal: &frame.Terminal{Rows: 24, Columns: 80}})
	a.Send(frame.Request{Type: frame.Input, ID: 2, Contents: []byte("trap '' HUP; while :; do read -t 1 x; done; echo ready\n")})
	receive(t, a, func(text string, _ frame.Reply) bool { return strings.Contains(text, "ready") })
	a.Send(frame.Request{Type: frame.Close, ID: 2})
	receive(t, a, isType(frame.Closed))
}

// A program is told that its terminal has gone.
func TestVisits_CloseHangsUp(t *testing.T) {
	a := agenttest.Start(t, "command", agenttest.Command(false, "bash", "-c"))
	a.Send(frame.Request{Type: frame.Open, ID: 2, Terminal: &frame.Terminal{Rows: 24, Columns: 80}})
	a.Send(frame.Request{Type: frame.Input, ID: 2, Contents: []byte("trap 'echo >hup; exit' HUP; echo rea\"\"dy; while :; do sleep 0.05; done\n")})
	receive(t, a, func(text string, _ frame.Reply) bool { return strings.Contains(text, "ready") })
	a.Send(frame.Request{Type: frame.Close, ID: 2})
	receive(t, a, isType(frame.Closed))
	patience.Until(t, "its trap has run", func() bool {
		_, err := os.Stat(filepath.Join(a.Root, "hup"))
		return err == nil
	})
}

// echo serves connections that get back what they send, and then their end.
func echo(t *testing.T) uint16 {
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return uint16(listener.Addr().(*net.TCPAddr).Port)
}

func TestVisits_APortOfTheLoopback(t *testing.T) {
	a := agenttest.Start(t, "command", agenttest.Command(false, "bash", "-c"))
	port := echo(t)
	a.Send(frame.Request{Type: frame.Examine, ID: 1})
	if r := a.Receive(); !slices.Contains(r.Ports, port) {
		t.Errorf("port %d is not among %v", port, r.Ports)
	}
	a.Send(frame.Request{Type: frame.Open, ID: 2, Port: port})
	receive(t, a, isType(frame.Opened))
	var sent, got bytes.Buffer
	// Four windows; each end grants what it has taken.
	granted := frame.Window
	for i := 0; got.Len() < 4*frame.Window; {
		if part := min(frame.StreamPart, granted, 4*frame.Window-sent.Len()); part > 0 {
			text := bytes.Repeat(fmt.Appendf(nil, "%07d\n", i), part/8+1)[:part]
			sent.Write(text)
			granted -= part
			i++
			a.Send(frame.Request{Type: frame.Input, ID: 2, Contents: text})
			continue
		}
		switch r := a.Receive(); r.Type {
		case frame.Credit:
			granted += int(r.Size)
		case frame.Bytes:
			got.Write(r.Contents)
			a.Send(frame.Request{Type: frame.Credit, ID: 2, Length: int64(len(r.Contents))})
		default:
			t.Fatalf("%+v", r)
		}
	}
	if !bytes.Equal(sent.Bytes(), got.Bytes()) {
		t.Error("the bytes that came back are others")
	}
	a.Send(frame.Request{Type: frame.Input, ID: 2}) // its end, which the server answers with its own
	if _, r := receive(t, a, func(_ string, r frame.Reply) bool { return r.Type == frame.Bytes }); len(r.Contents) != 0 {
		t.Errorf("%+v", r)
	}
	receive(t, a, isType(frame.Closed))
	// A closed port refuses, and the agent goes on.
	unused := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	unused.Close()
	a.Send(frame.Request{Type: frame.Open, ID: 3, Port: uint16(unused.Addr().(*net.TCPAddr).Port)})
	if r := a.Receive(); r.Type != frame.Closed || !strings.Contains(r.Message, "connection refused") {
		t.Errorf("%+v", r)
	}
}

// A server is reached wherever on the loopback it listens.
func TestVisits_APortOfAnyLoopbackAddress(t *testing.T) {
	a := agenttest.Start(t, "command", agenttest.Command(false, "bash", "-c"))
	for id, address := range []string{"127.0.0.2:0", "127.1.2.3:0", "[::1]:0", "0.0.0.0:0", "[::]:0"} {
		listener, err := net.Listen("tcp", address)
		if err != nil && strings.HasPrefix(address, "[") {
			continue // this machine has no IPv6
		}
		must.Do(t, err)
		defer listener.Close()
		port := uint16(listener.Addr().(*net.TCPAddr).Port)
		a.Send(frame.Request{Type: frame.Examine, ID: uint64(2*id + 1)})
		if r := a.Receive(); !slices.Contains(r.Ports, port) {
			t.Errorf("%s is not named", address)
		}
		a.Send(frame.Request{Type: frame.Open, ID: uint64(2*id + 2), Port: port})
		if r := a.Receive(); r.Type != frame.Opened {
			t.Errorf("%s: %+v", address, r)
		}
	}
}

// What a stream sends is bounded while the other end takes nothing, and so is what it is sent while
// the program takes nothing.
func TestVisits_AreBounded(t *testing.T) {
	a := agenttest.Start(t, "command", agenttest.Command(false, "bash", "-c"))
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	port := uint16(listener.Addr().(*net.TCPAddr).Port)
	a.Send(frame.Request{Type: frame.Open, ID: 2, Port: port})
	conn := must.Get(listener.Accept())(t)
	defer conn.Close()
	receive(t, a, isType(frame.Opened))
	go func() { _, _ = conn.Write(make([]byte, 64<<20)) }()
	text, _ := receive(t, a, func(text string, _ frame.Reply) bool { return len(text) >= frame.Window })
	a.Send(frame.Request{Type: frame.Examine, ID: 9})
	time.Sleep(50 * time.Millisecond) // in which a wrong agent would send more
	if r := a.Receive(); len(text) != frame.Window || r.Type != frame.Examined {
		t.Errorf("%d bytes came, then %s", len(text), r.Type)
	}
	// More input than its window ends the stream.
	a.Send(frame.Request{Type: frame.Input, ID: 2, Contents: make([]byte, frame.Window+1)})
	receive(t, a, isType(frame.Closed))
	// So many streams, and no more.
	for id := range uint64(frame.MaxStreams + 1) {
		a.Send(frame.Request{Type: frame.Open, ID: 100 + id, Port: port})
	}
	opened := 0
	for range frame.MaxStreams + 1 {
		switch r := a.Receive(); r.Type {
		case frame.Opened:
			opened++
		case frame.Error:
			if r.ID != 100+frame.MaxStreams {
				t.Errorf("stream %d was refused", r.ID)
			}
		}
	}
	if opened != frame.MaxStreams {
		t.Errorf("%d were opened", opened)
	}
}

// What a program wrote before its end arrives, however late that is read, and no more than that: a program that it
// leaves behind may write for ever.
func TestVisits_OutputOutlastsItsProgram(t *testing.T) {
	const late = frame.Window + 30_000 // the rest of the window and most of a pipe are left
	for name, program := range map[string]frame.Program{"shell": {}, "code": {Interpreter: true}} {
		t.Run(name, func(t *testing.T) {
			a := agenttest.Start(t, "command", agenttest.Command(false, "bash", "-c"))
			text := fmt.Sprintf("head -c %d /dev/zero; touch ended; (trap '' HUP; while sleep 0.01; do echo; done) &", late)
			a.Send(frame.Request{Type: frame.Open, ID: 2, Program: &program, Code: text, Contents: []byte(text)})
			// A part of the window is for the other output.
			first, _ := receive(t, a, func(text string, _ frame.Reply) bool { return len(text) >= frame.Window-frame.StreamPart })
			patience.Until(t, "it has ended", func() bool {
				_, err := os.Stat(filepath.Join(a.Root, "ended"))
				return err == nil
			})
			time.Sleep(time.Second) // longer than those who have its pipe may add to it
			a.Send(frame.Request{Type: frame.Credit, ID: 2, Length: frame.Window})
			rest, _ := receive(t, a, isType(frame.Closed))
			if got := strings.Count(first+rest, "\x00"); got != late {
				t.Errorf("%d bytes came, of %d", got, late)
			}
		})
	}
}

// Code runs as a call without a session does, with its own streams, and beside calls.
func TestVisits_RunCode(t *testing.T) {
	a := agenttest.Start(t, "python")
	if answer := a.Run("x = 1"); answer.ExitCode != 0 {
		t.Fatalf("%+v", answer)
	}
	open := func(code string) {
		a.Send(frame.Request{Type: frame.Open, ID: 2, Program: &frame.Program{Interpreter: true}, Contents: []byte(code)})
	}
	open("import sys\nprint(sys.stdin.read().upper())\nprint('x' in globals(), file=sys.stderr)\n6 * 7")
	receive(t, a, isType(frame.Opened))
	a.Send(frame.Request{Type: frame.Input, ID: 2, Contents: []byte("words")})
	a.Send(frame.Request{Type: frame.Input, ID: 2})
	if text, last := receive(t, a, isType(frame.Closed)); text != "WORDS\n42\nFalse\n" && text != "WORDS\nFalse\n42\n" && text != "False\nWORDS\n42\n" || last.ExitCode != 0 {
		t.Errorf("%q %+v", text, last)
	}
	open("import time\ntry:\n  print('begun', flush=True)\n  time.sleep(1000)\nexcept KeyboardInterrupt:\n  print('ended')\n  exit(3)")
	receive(t, a, func(text string, _ frame.Reply) bool { return strings.Contains(text, "begun") })
	a.Send(frame.Request{Type: frame.Signal, ID: 2, Length: 2})
	if text, last := receive(t, a, isType(frame.Closed)); text != "ended\n" || last.ExitCode != 3 {
		t.Errorf("%q %+v", text, last)
	}
	open("import time\nprint('begun', flush=True)\nwhile True:\n  try: time.sleep(1000)\n  except KeyboardInterrupt: pass")
	receive(t, a, func(text string, _ frame.Reply) bool { return strings.Contains(text, "begun") })
	a.Send(frame.Request{Type: frame.Close, ID: 2})
	receive(t, a, isType(frame.Closed))
	if answer := a.Run("print(x)"); answer.Stdout != "1\n" {
		t.Errorf("the session has %+v", answer)
	}
}
