package framed

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

func collect(t *testing.T, replies ...frame.Reply) *output {
	t.Helper()
	o := &output{}
	for _, reply := range replies {
		must.Do(t, o.add(reply))
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
		stdout, stderr sandbox.Text
	}{
		"nothing":              {nil, sandbox.Text{}, sandbox.Text{}},
		"in parts":             {[]frame.Reply{out("ab"), err("x"), out("cd")}, sandbox.Text{Head: "abcd"}, sandbox.Text{Head: "x"}},
		"one uses all of it":   {[]frame.Reply{out("0123456789")}, sandbox.Text{Head: "0123456789"}, sandbox.Text{}},
		"both fit exactly":     {[]frame.Reply{out("01234567"), err("ab")}, sandbox.Text{Head: "01234567"}, sandbox.Text{Head: "ab"}},
		"head and tail":        {[]frame.Reply{out("0123456789abc")}, sandbox.Text{Head: "01234", Tail: "89abc", Cut: 3}, sandbox.Text{}},
		"byte by byte":         {[]frame.Reply{out("0123"), out("4567"), out("89ab"), out("cdef")}, sandbox.Text{Head: "01234", Tail: "bcdef", Cut: 6}, sandbox.Text{}},
		"fair to stderr":       {[]frame.Reply{out(strings.Repeat("o", 30)), err("abcdefg")}, sandbox.Text{Head: "oo", Tail: "ooo", Cut: 25}, sandbox.Text{Head: "ab", Tail: "efg", Cut: 2}},
		"what stderr leaves":   {[]frame.Reply{out(strings.Repeat("o", 30)), err("abc")}, sandbox.Text{Head: "ooo", Tail: "oooo", Cut: 23}, sandbox.Text{Head: "abc"}},
		"the agent's own gap":  {[]frame.Reply{out("01"), gap(frame.Stdout, "89", 6)}, sandbox.Text{Head: "01", Tail: "89", Cut: 6}, sandbox.Text{}},
		"the agent's last gap": {[]frame.Reply{out("01"), gap(frame.Stdout, "45", 2), gap(frame.Stdout, "89", 2)}, sandbox.Text{Head: "01", Tail: "89", Cut: 6}, sandbox.Text{}},
		"a gap and more":       {[]frame.Reply{out("01234"), gap(frame.Stdout, "abcde", 100), err("1234567890")}, sandbox.Text{Head: "01", Tail: "cde", Cut: 105}, sandbox.Text{Head: "12", Tail: "890", Cut: 5}},
		"between runes":        {[]frame.Reply{out("ééééééééé")}, sandbox.Text{Head: "éé", Tail: "éé", Cut: 10}, sandbox.Text{}},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr := collect(t, test.replies...).texts(10)
			if diff := cmp.Diff([]sandbox.Text{test.stdout, test.stderr}, []sandbox.Text{stdout, stderr}); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAddRefuses(t *testing.T) {
	for _, reply := range []frame.Reply{{Stream: "stdlog", Data: "x"}, {Data: "x"}, {Stream: frame.Stdout, Skipped: -1}} {
		if (&output{}).add(reply) == nil {
			t.Errorf("took %+v", reply)
		}
	}
}

func TestProgress_NewestLine(t *testing.T) {
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
		"escapes are gone": {[]frame.Reply{out("\x1b[31mred\x1b[0m\n")}, "[31mred [0m"},
		"the end of it":    {[]frame.Reply{out(long)}, strings.Repeat("é", 100)},
	} {
		t.Run(name, func(t *testing.T) {
			o := &output{}
			for _, reply := range test.replies {
				must.Do(t, o.add(reply))
			}
			if got := lastLine(o.newest); got != test.want {
				t.Errorf("newest %q, want %q", got, test.want)
			}
		})
	}
}

func TestSamplesAreNoOutput(t *testing.T) {
	o := collect(t, out("a"), frame.Reply{Sample: true, Stream: frame.Stdout, Data: "b"})
	if stdout, _ := o.texts(10); stdout.Head != "a" {
		t.Errorf("stdout %+v", stdout)
	}
}

// Whatever comes in, in whatever parts: the bound is kept, nothing is broken,
// and what is shown and what is cut add up.
func FuzzOutput(f *testing.F) {
	f.Add("hello wörld, hello wörld", uint8(5), uint8(10), uint8(0))
	f.Add("\U0001F600\U0001F600\U0001F600", uint8(3), uint8(7), uint8(200))
	f.Fuzz(func(t *testing.T, text string, part, limit, skip uint8) {
		if !utf8.ValidString(text) || limit == 0 {
			return // frames are valid UTF-8, environments a limit
		}
		o := &output{}
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
				must.Do(t, o.add(gap(stream, data, skipped)))
				total += int64(len(data)) + skipped
			}
		}
		stdout, stderr := o.texts(int(limit))
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

// A line for a message has nothing that a terminal obeys.
func TestLastLineIsPlain(t *testing.T) {
	for line, want := range map[string]string{
		"one\ntwo\n":               "two",
		"10 %\r20 %\r":             "20 %",
		"\x1b[31mred\a":            "[31mred",
		"\u009b31mred\u0085\u007f": "31mred",
		"caf\u00e9 \xff":           "caf\u00e9",
	} {
		if got := lastLine(line); got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}
