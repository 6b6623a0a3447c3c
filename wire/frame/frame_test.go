package frame

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

func TestFrames_ArriveAsTheyWere(t *testing.T) {
	want := []Request{
		{Type: Ping, ID: 1},
		{Type: Execute, ID: 2, Code: "print('<&>\u2028')\n", TimeoutMS: 30000, GraceMS: 300, Keep: true},
		{Type: Execute, ID: 3, Code: strings.Repeat("x", 1<<20)},
		{Type: Configure, Env: map[string]string{"A": "1"}, OutputBytes: 32 << 10},
	}
	var stream bytes.Buffer
	w := NewWriter(&stream)
	for _, req := range want {
		must.Do(t, w.Write(req))
	}
	r := NewReader(&stream)
	for i := range want {
		var got Request
		must.Do(t, r.Read(&got))
		if diff := cmp.Diff(want[i], got); diff != "" {
			t.Errorf("request %d: %s", i, diff)
		}
	}
	if err := r.Read(new(Request)); err != io.EOF {
		t.Errorf("at the stream's end: %v, want io.EOF", err)
	}
}

// counting counts the writes.
type counting struct {
	bytes.Buffer
	n int
}

func (c *counting) Write(p []byte) (int, error) {
	c.n++
	return c.Buffer.Write(p)
}

func TestWriteTogether(t *testing.T) {
	var stream counting
	w := NewWriter(&stream)
	must.Do(t, w.Write(Reply{Type: Output, Data: "a"}, Reply{Type: Result, ExitCode: 3}))
	if err := w.Write(Reply{Type: Pong}, Reply{Data: strings.Repeat("x", MaxPayload)}); !errors.Is(err, ErrTooLarge) {
		t.Fatalf("error %v, want %v", err, ErrTooLarge)
	}
	if stream.n != 1 {
		t.Errorf("%d writes, want 1", stream.n)
	}
	r := NewReader(&stream)
	for _, want := range []Reply{{Type: Output, Data: "a"}, {Type: Result, ExitCode: 3}} {
		var got Reply
		must.Do(t, r.Read(&got))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	if err := r.Read(new(Reply)); err != io.EOF {
		t.Errorf("%v, want io.EOF", err)
	}
}

func TestWriteReplacesInvalidUTF8(t *testing.T) {
	var stream bytes.Buffer
	must.Do(t, NewWriter(&stream).Write(Reply{Type: Output, Data: "a\xffb"}))
	var got Reply
	must.Do(t, NewReader(&stream).Read(&got))
	if got.Data != "a\uFFFDb" {
		t.Errorf("data %q, want a\uFFFDb", got.Data)
	}
}

func header(size uint32) []byte {
	return binary.BigEndian.AppendUint32(nil, size)
}

// A newer program at the other end may send fields that this one does not know.
func TestReaderIgnoresUnknownFields(t *testing.T) {
	payload := `{"type":"execute","id":7,"interpreter":"python","code":"1","later":{"a":[1]}}`
	var got Request
	must.Do(t, NewReader(strings.NewReader(string(header(uint32(len(payload))))+payload)).Read(&got))
	if diff := cmp.Diff(Request{Type: Execute, ID: 7, Code: "1"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestReadRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		stream []byte
		want   error
	}{
		"empty frame":     {header(0), ErrEmpty},
		"too large":       {header(MaxPayload + 1), ErrTooLarge},
		"cut in header":   {header(1)[:2], io.ErrUnexpectedEOF},
		"cut in payload":  {append(header(8), '{'), io.ErrUnexpectedEOF},
		"cut before it":   {header(8), io.ErrUnexpectedEOF},
		"nothing at all":  {nil, io.EOF},
		"not JSON at all": {append(header(2), "hi"...), nil},
	} {
		t.Run(name, func(t *testing.T) {
			err := NewReader(bytes.NewReader(test.stream)).Read(new(Reply))
			if err == nil || test.want != nil && !errors.Is(err, test.want) {
				t.Errorf("error %v, want %v", err, test.want)
			}
		})
	}
}

// A header that announces 16 MiB costs four bytes; it must not cost the
// reader 16 MiB.
func TestReadAllocatesWhatArrives(t *testing.T) {
	r := NewReader(bytes.NewReader(header(MaxPayload)))
	_ = r.Read(new(Reply))
	if got := r.buf.Cap(); got > 64<<10 {
		t.Errorf("buffer of %d bytes for a frame that never came", got)
	}
}

func TestReader_HoldsItsLimit(t *testing.T) {
	var stream bytes.Buffer
	w := NewWriter(&stream)
	for _, data := range []string{"small", strings.Repeat("x", 2000)} {
		must.Do(t, w.Write(Reply{Type: Output, Data: data}))
	}
	r := NewReader(&stream)
	r.Limit(1000)
	if err := r.Read(new(Reply)); err != nil {
		t.Errorf("a frame within the limit: %v", err)
	}
	if err := r.Read(new(Reply)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a frame beyond the limit: %v, want %v", err, ErrTooLarge)
	}
}

func TestReaderGivesLargeBuffersBack(t *testing.T) {
	var stream bytes.Buffer
	w := NewWriter(&stream)
	for _, data := range []string{strings.Repeat("x", 4<<20), "small"} {
		must.Do(t, w.Write(Reply{Type: Output, Data: data}))
	}
	r := NewReader(&stream)
	for range 2 {
		must.Do(t, r.Read(new(Reply)))
	}
	if got := r.buf.Cap(); got > keepBuffer {
		t.Errorf("reader keeps %d bytes after a small frame", got)
	}
	if got := w.buf.Cap(); got > keepBuffer {
		t.Errorf("writer keeps %d bytes after a small frame", got)
	}
}

func TestWriteTooLargeKeepsTheStream(t *testing.T) {
	var stream bytes.Buffer
	w := NewWriter(&stream)
	if err := w.Write(Reply{Data: strings.Repeat("x", MaxPayload)}); !errors.Is(err, ErrTooLarge) {
		t.Fatalf("error %v, want %v", err, ErrTooLarge)
	}
	if stream.Len() != 0 {
		t.Fatalf("%d bytes of a refused frame were written", stream.Len())
	}
	if err := w.Write(Reply{Type: Pong}); err != nil {
		t.Errorf("after a refused frame: %v", err)
	}
}

type failing struct{ n int }

func (f *failing) Write([]byte) (int, error) {
	f.n++
	return 0, io.ErrClosedPipe
}

func TestWriteStopsAtABrokenStream(t *testing.T) {
	broken := &failing{}
	w := NewWriter(broken)
	for range 3 {
		if err := w.Write(Reply{Type: Pong}); !errors.Is(err, io.ErrClosedPipe) {
			t.Fatalf("error %v, want %v", err, io.ErrClosedPipe)
		}
	}
	if broken.n != 1 {
		t.Errorf("%d writes to a broken stream, want 1", broken.n)
	}
}

func FuzzReader(f *testing.F) {
	f.Add(append(header(15), `{"type":"pong"}`...))
	f.Add(header(MaxPayload))
	f.Add([]byte{0, 0})
	f.Fuzz(func(t *testing.T, stream []byte) {
		r := NewReader(bytes.NewReader(stream))
		for {
			var reply Reply
			if err := r.Read(&reply); err != nil {
				return
			}
			// What was read can be written, and reads back as the same.
			var again bytes.Buffer
			if err := NewWriter(&again).Write(reply); err != nil {
				if errors.Is(err, ErrTooLarge) {
					continue
				}
				t.Fatal(err)
			}
			var got Reply
			must.Do(t, NewReader(&again).Read(&got))
			if diff := cmp.Diff(reply, got); diff != "" {
				t.Fatal(diff)
			}
		}
	})
}

func BenchmarkRoundTrip(b *testing.B) {
	for name, size := range map[string]int{"64B": 64, "64KiB": 64 << 10, "1MiB": 1 << 20} {
		b.Run(name, func(b *testing.B) {
			var stream bytes.Buffer
			w, r := NewWriter(&stream), NewReader(&stream)
			reply := Reply{Type: Output, ID: 1, Stream: Stdout, Data: strings.Repeat("line of output\n", size/15)}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				must.Do(b, w.Write(reply))
				var got Reply
				must.Do(b, r.Read(&got))
			}
		})
	}
}
