package framed

import (
	"bytes"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// Whatever bytes a sandbox writes: reading them ends, and what reaches the
// call is within its bounds.
func FuzzStream(f *testing.F) {
	frames := func(replies ...frame.Reply) []byte {
		var stream bytes.Buffer
		w := frame.NewWriter(&stream)
		for _, reply := range replies {
			must.Do(f, w.Write(reply))
		}
		return stream.Bytes()
	}
	ready := frame.Reply{Type: frame.Ready, Protocol: frame.Protocol}
	f.Add(frames(ready, frame.Reply{Type: frame.Output, ID: 1, Stream: frame.Stdout, Data: "x", Skipped: 5}, frame.Reply{Type: frame.Result, ID: 1, Outcome: frame.OutcomeOK}))
	f.Add(frames(ready, frame.Reply{Type: frame.Contents, ID: 2, Contents: []byte("x")}))
	f.Add(frames(ready, frame.Reply{Type: frame.Error, Message: "x"}))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Add(frames(ready, frame.Reply{Type: frame.Opened, ID: 3}, frame.Reply{Type: frame.Bytes, ID: 3, Contents: []byte("x")}, frame.Reply{Type: frame.Credit, ID: 3, Size: 1}, frame.Reply{Type: frame.Closed, ID: 3}))
	f.Fuzz(func(t *testing.T, stream []byte) {
		output := &output{}
		execute := &pending{want: frame.Result, answer: make(chan frame.Reply, 1), output: output, frames: 50, bytes: 5000}
		read := &pending{want: frame.Contents, answer: make(chan frame.Reply, 1), frames: 1}
		s := &Sandbox{outputBytes: 100, ready: make(chan struct{})}
		visit := newVisit(s)
		visit.granted = 0 // all was sent
		s.pending = map[uint64]*pending{1: execute, 2: read, 3: {want: frame.Closed, answer: make(chan frame.Reply, 1), frames: 1, visit: visit}}
		if err := s.read(bytes.NewReader(stream)); err == nil {
			t.Fatal("the stream has no end")
		}
		stdout, stderr := output.texts(100)
		if shown := stdout.Len() + stderr.Len(); shown > 100 {
			t.Errorf("%d bytes shown", shown)
		}
		if end := output.stdout.end(10); end.Len() > 10 || end.Cut < 0 || !strings.HasSuffix(string(output.stdout.head)+string(output.stdout.tail), end.Head+end.Tail) {
			t.Errorf("the end is %+v", end)
		}
		if kept := output.stdout.size() + output.stderr.size(); kept > 5000 {
			t.Errorf("%d bytes are kept, 5000 may come", kept)
		}
		if len(visit.waiting) > frame.Window || visit.granted > frame.Window {
			t.Errorf("a visit has %d bytes, and may send %d", len(visit.waiting), visit.granted)
		}
		if newest := lastLine(output.newest); len(newest) > sampleBytes {
			t.Errorf("newest line of %d bytes", len(newest))
		}
		for _, req := range []*pending{execute, read} {
			select {
			case reply := <-req.answer:
				if reply.Type != req.want && reply.Type != frame.Error {
					t.Errorf("%s was answered with %s", req.want, reply.Type)
				}
				if len(files(reply.Files, true)) > maxFiles {
					t.Error("too many files")
				}
			default:
			}
		}
	})
}
