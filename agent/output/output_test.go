package output

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// open returns a stream and the writing end of its pipe.
func open(t testing.TB, limit int64) (*Stream, *os.File) {
	t.Helper()
	s, w, err := New()
	must.Do(t, err)
	s.SetLimit(limit)
	t.Cleanup(func() { w.Close(); s.Close() })
	return s, w
}

// put gives bytes to the stream, through its pipe.
func put(t testing.TB, s *Stream, w io.Writer, text string) {
	t.Helper()
	for len(text) > 0 {
		n := min(len(text), 4096)
		if _, err := io.WriteString(w, text[:n]); err != nil {
			t.Fatal(err)
		}
		s.Drain()
		text = text[n:]
	}
}

// What is kept is the beginning and the end, whole characters of both, and what
// is reported as skipped is exactly what lies between.
func TestStream_KeepsBothEnds(t *testing.T) {
	const limit = 1024
	for _, letters := range []string{"abcdefghij", "aäb€c😀", "€", "\xff\xfe", "😀\xf0"} {
		for _, size := range []int{0, 1, 511, 512, 513, 1023, 1024, 1025, 1026, 1027, 1500, 1536, 2048, 5000, 70000} {
			for _, take := range []bool{false, true} {
				t.Run(fmt.Sprintf("%q/%d/%v", letters, size, take), func(t *testing.T) {
					text := strings.Repeat(letters, size/len(letters)+1)[:size]
					s, w := open(t, limit)
					var stored bytes.Buffer
					s.Begin(func() io.Writer { return &stored })
					var head string
					for i := 0; i < len(text); i += 700 {
						put(t, s, w, text[i:min(i+700, len(text))])
						if take {
							part, _ := s.Take()
							head += part
						}
					}
					rest := s.End()
					head += rest.Head
					if rest.Total != int64(size) {
						t.Errorf("total %d, want %d", rest.Total, size)
					}
					if got := int64(len(head)+len(rest.Tail)) + rest.Skipped; got != int64(size) {
						t.Errorf("%d bytes of head, %d skipped, %d of tail", len(head), rest.Skipped, len(rest.Tail))
					}
					if !strings.HasPrefix(text, head) || !strings.HasSuffix(text, rest.Tail) {
						t.Errorf("head %q or tail %q is not of the text", head, rest.Tail)
					}
					if size <= limit && rest.Skipped != 0 {
						t.Errorf("%d bytes skipped of %d", rest.Skipped, size)
					}
					if kept := len(head) + len(rest.Tail); size > limit && (kept > limit || kept < limit-2*utf8.UTFMax) {
						t.Errorf("%d bytes kept", kept)
					}
					if rest.Skipped > 0 && utf8.ValidString(text) {
						if !utf8.ValidString(head) || !utf8.ValidString(rest.Tail) {
							t.Error("a character is cut in two")
						}
					}
					if rest.Skipped > 0 && stored.String() != text {
						t.Errorf("%d bytes stored, want %d", stored.Len(), size)
					}
					if rest.Skipped == 0 && stored.Len() != 0 {
						t.Errorf("%d bytes stored of an output that is whole", stored.Len())
					}
					// The next call starts from nothing.
					put(t, s, w, "next")
					if got := s.End(); got.Head != "next" || got.Total != 4 {
						t.Errorf("next call: %+v", got)
					}
				})
			}
		}
	}
}

func TestStream_BeginsWithOutputBetweenCalls(t *testing.T) {
	s, w := open(t, 1024)
	s.Begin(nil)
	put(t, s, w, "one")
	if got := s.End(); got.Head != "one" {
		t.Errorf("%+v", got)
	}
	put(t, s, w, "late ")
	s.Begin(nil)
	put(t, s, w, "two")
	if got := s.End(); got.Head != "late two" {
		t.Errorf("%+v", got)
	}
}

// Drain takes what is there and does not wait for a writer that lives.
func TestDrain_DoesNotWait(t *testing.T) {
	s, w := open(t, 1024)
	s.Drain()
	if _, err := w.WriteString("there"); err != nil {
		t.Fatal(err)
	}
	s.Drain()
	if got := s.End(); got.Head != "there" {
		t.Errorf("%+v", got)
	}
}

func TestSample_ReturnsTheNewestLine(t *testing.T) {
	s, w := open(t, 1024)
	put(t, s, w, strings.Repeat("x", 511)+"\n")
	if got := s.Sample(); got != "" {
		t.Errorf("sample %q of output that is not held back", got)
	}
	put(t, s, w, "first\nsecond\r\n\n")
	if got := s.Sample(); got != "second" {
		t.Errorf("sample %q", got)
	}
	if got := s.Sample(); got != "" {
		t.Errorf("sample %q twice", got)
	}
	put(t, s, w, "\n"+strings.Repeat("y", 1000))
	if got := s.Sample(); got != strings.Repeat("y", maxSample) {
		t.Errorf("sample of %d bytes", len(got))
	}
	put(t, s, w, "\n"+strings.Repeat("y", maxSample-1)+"€")
	if got := s.Sample(); got != strings.Repeat("y", maxSample-1) {
		t.Errorf("sample %q, want no part of a character", got)
	}
}

// The memory of a stream is bounded, however much is written to it.
func TestStream_HoldsItsLimit(t *testing.T) {
	s, w := open(t, 64<<10)
	done := make(chan struct{})
	go func() { defer close(done); s.Read() }()
	chunk := bytes.Repeat([]byte("0123456789abcdef"), 4096)
	for range 512 { // 32 MiB
		if _, err := w.Write(chunk); err != nil {
			t.Fatal(err)
		}
	}
	w.Close()
	<-done
	if got := cap(s.head) + cap(s.tail) + cap(s.chunk); got > 256<<10 {
		t.Errorf("%d bytes held", got)
	}
	if got := s.End(); got.Total != 32<<20 || got.Skipped != 32<<20-64<<10 {
		t.Errorf("total %d, skipped %d", got.Total, got.Skipped)
	}
}

func BenchmarkRead(b *testing.B) {
	s, w := open(b, DefaultLimit)
	chunk := bytes.Repeat([]byte("0123456789abcde\n"), 2048)
	b.SetBytes(int64(len(chunk)))
	for b.Loop() {
		if _, err := w.Write(chunk); err != nil {
			b.Fatal(err)
		}
		s.Drain()
	}
}

// What a program takes back is gone, also if it was sent, and more than the limit is not sent.
func TestStream_TakesBack(t *testing.T) {
	long := strings.Repeat("x", 3000)
	for name, test := range map[string]struct {
		parts []string
		want  string
	}{
		"now":                       {[]string{"frame 1\n", "\x1b[H\x1b[2J", "frame 2\n"}, "frame 2\n"},
		"now, and no more":          {[]string{"frame 1\n\x1b[2J"}, ""},
		"in pieces":                 {[]string{"a\x1b", "[", "2", "Jb"}, "b"},
		"a line that is held":       {[]string{"abc\rx\x1b[2Jyz\n"}, "yz\n"},
		"when more comes":           {[]string{"a\n\x1b[?2J", "b\n\x1b[?2J", "c\n"}, "c\n"},
		"when more comes, and none": {[]string{"a\n\x1b[?2J"}, "a\n"},
		"a sequence is more":        {[]string{"a\x1b[?2J\x1b[31mred"}, "\x1b[31mred"},
		"more than there is":        {[]string{long, "\x1b[2J", "end"}, "end"},
		"less than all":             {[]string{"\x1b[2K\x1b[1;2Ha"}, "\x1b[2K\x1b[1;2Ha"},
		"the beginning of one":      {[]string{"a\x1b[2"}, "a\x1b[2"},
	} {
		for _, take := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", name, take), func(t *testing.T) {
				s, w := open(t, 1024)
				got, sent := "", 0
				add := func(text string, cleared bool) {
					if cleared {
						got = ""
					}
					got += text
					sent += len(text)
				}
				stored := 0
				s.Begin(func() io.Writer { stored++; return io.Discard })
				for _, part := range test.parts {
					put(t, s, w, part)
					if take {
						add(s.Take())
					}
				}
				rest := s.End()
				add(rest.Head+rest.Tail, rest.Cleared)
				if got != test.want || rest.Skipped != 0 || rest.Total != int64(len(test.want)) {
					t.Errorf("%q, %d skipped of %d; want %q", got, rest.Skipped, rest.Total, test.want)
				}
			})
		}
	}
	s, w := open(t, 1024)
	s.Begin(nil)
	sent := 0
	for range 100 {
		put(t, s, w, "\x1b[2J"+long[:200])
		text, _ := s.Take()
		sent += len(text)
	}
	if sent > 512 {
		t.Errorf("%d bytes were sent", sent)
	}
	if rest := s.End(); rest.Head != long[:200] || !rest.Cleared {
		t.Errorf("%+v", rest)
	}
}
