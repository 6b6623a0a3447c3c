package sandbox

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
)

func collect(t *testing.T, limit int64, replies ...frame.Reply) *Output {
	t.Helper()
	o := NewOutput(limit)
	for _, reply := range replies {
		if err := o.add(reply); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

func out(data string) frame.Reply { return frame.Reply{Stream: frame.Stdout, Data: data} }
func err(data string) frame.Reply { return frame.Reply{Stream: frame.Stderr, Data: data} }
func gap(stream, data string, skipped int64) frame.Reply {
	return frame.Reply{Stream: stream, Data: data, Skipped: skipped}
}

func TestTexts(t *testing.T) {
	for name, test := range map[string]struct {
		replies        []frame.Reply
		stdout, stderr Text
	}{
		"nothing":              {nil, Text{}, Text{}},
		"in parts":             {[]frame.Reply{out("ab"), err("x"), out("cd")}, Text{Head: "abcd"}, Text{Head: "x"}},
		"one uses all of it":   {[]frame.Reply{out("0123456789")}, Text{Head: "0123456789"}, Text{}},
		"both fit exactly":     {[]frame.Reply{out("01234567"), err("ab")}, Text{Head: "01234567"}, Text{Head: "ab"}},
		"head and tail":        {[]frame.Reply{out("0123456789abc")}, Text{"01234", "89abc", 3}, Text{}},
		"byte by byte":         {[]frame.Reply{out("0123"), out("4567"), out("89ab"), out("cdef")}, Text{"01234", "bcdef", 6}, Text{}},
		"fair to stderr":       {[]frame.Reply{out(strings.Repeat("o", 30)), err("abcdefg")}, Text{"oo", "ooo", 25}, Text{"ab", "efg", 2}},
		"what stderr leaves":   {[]frame.Reply{out(strings.Repeat("o", 30)), err("abc")}, Text{"ooo", "oooo", 23}, Text{Head: "abc"}},
		"the agent's own gap":  {[]frame.Reply{out("01"), gap(frame.Stdout, "89", 6)}, Text{"01", "89", 6}, Text{}},
		"the agent's last gap": {[]frame.Reply{out("01"), gap(frame.Stdout, "45", 2), gap(frame.Stdout, "89", 2)}, Text{"01", "89", 6}, Text{}},
		"a gap and more":       {[]frame.Reply{out("01234"), gap(frame.Stdout, "abcde", 100), err("1234567890")}, Text{"01", "cde", 105}, Text{"12", "890", 5}},
		"between runes":        {[]frame.Reply{out("ééééééééé")}, Text{"éé", "éé", 10}, Text{}},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr := collect(t, 10, test.replies...).Texts()
			if diff := cmp.Diff([]Text{test.stdout, test.stderr}, []Text{stdout, stderr}); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAddRefuses(t *testing.T) {
	for _, reply := range []frame.Reply{{Stream: "stdlog", Data: "x"}, {Data: "x"}, {Stream: frame.Stdout, Skipped: -1}} {
		if NewOutput(10).add(reply) == nil {
			t.Errorf("took %+v", reply)
		}
	}
}

func TestNewest(t *testing.T) {
	long := strings.Repeat("é", 200)
	for name, test := range map[string]struct {
		replies []frame.Reply
		want    string
	}{
		"the last line":    {[]frame.Reply{out("one\ntwo\n")}, "two"},
		"of both streams":  {[]frame.Reply{out("one\n"), err("two\n")}, "two"},
		"blank ones do":    {[]frame.Reply{out("one\n"), out("\n \n")}, "one"},
		"a progress bar":   {[]frame.Reply{err("10%\r20%\r30%")}, "30%"},
		"a sample":         {[]frame.Reply{out("one\n"), {Sample: true, Stream: frame.Stdout, Data: "later"}}, "later"},
		"escapes are gone": {[]frame.Reply{out("\x1b[31mred\x1b[0m\n")}, " [31mred [0m"},
		"the end of it":    {[]frame.Reply{out(long)}, strings.Repeat("é", 100)},
	} {
		t.Run(name, func(t *testing.T) {
			if got := collect(t, 10, test.replies...).Newest(); got != test.want {
				t.Errorf("newest %q, want %q", got, test.want)
			}
		})
	}
}

func TestSamplesAreNoOutput(t *testing.T) {
	o := collect(t, 10, out("a"), frame.Reply{Sample: true, Stream: frame.Stdout, Data: "b"})
	if stdout, _ := o.Texts(); stdout.Head != "a" {
		t.Errorf("stdout %+v", stdout)
	}
}

// Whatever comes in, in whatever parts: the bound holds, nothing is broken,
// and what is shown and what is cut add up.
func FuzzOutput(f *testing.F) {
	f.Add("hello wörld, hello wörld", uint8(5), uint8(10), uint8(0))
	f.Add("\U0001F600\U0001F600\U0001F600", uint8(3), uint8(7), uint8(200))
	f.Fuzz(func(t *testing.T, text string, part, limit, skip uint8) {
		if !utf8.ValidString(text) || limit == 0 {
			return // frames hold valid UTF-8, environments a limit
		}
		o := NewOutput(int64(limit))
		var total int64
		step := int(part) + 1
		for rest := []rune(text); len(rest) > 0; {
			n := min(step, len(rest))
			data := string(rest[:n])
			rest = rest[n:]
			var skipped int64
			if skip > 0 && len(rest)%int(skip) == 1 {
				skipped = int64(skip)
			}
			for i, stream := range []string{frame.Stdout, frame.Stderr} {
				if i == 1 && len(rest)%2 == 0 {
					continue
				}
				if err := o.add(gap(stream, data, skipped)); err != nil {
					t.Fatal(err)
				}
				total += int64(len(data)) + skipped
			}
			if held := cap(o.stdout.head) + cap(o.stdout.tail); held > 16*int(limit)+4*len(data)+64 {
				t.Fatalf("%d bytes are held for a limit of %d", held, limit)
			}
		}
		stdout, stderr := o.Texts()
		shown := int64(len(stdout.Head) + len(stdout.Tail) + len(stderr.Head) + len(stderr.Tail))
		if shown > int64(limit) {
			t.Errorf("%d bytes shown, %d allowed", shown, limit)
		}
		if shown+stdout.Cut+stderr.Cut != total {
			t.Errorf("%d shown and %d+%d cut of %d", shown, stdout.Cut, stderr.Cut, total)
		}
		for _, part := range []string{stdout.Head, stdout.Tail, stderr.Head, stderr.Tail} {
			if !utf8.ValidString(part) {
				t.Errorf("%q is not UTF-8", part)
			}
		}
	})
}

// A line for a message holds nothing that a terminal obeys.
func TestLastLineIsPlain(t *testing.T) {
	for line, want := range map[string]string{
		"one\ntwo\n":               "two",
		"10 %\r20 %\r":             "20 %",
		"\x1b[31mred\a":            " [31mred ",
		"\u009b31mred\u0085\u007f": " 31mred  ",
		"caf\u00e9 \xff":           "caf\u00e9 ",
	} {
		if got := lastLine(line); got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}
