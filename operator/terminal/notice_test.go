package terminal

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Lines of the proxy are shown between those of a shell, or after it if a program uses the
// whole screen.
func TestScreen_ShowsNotices(t *testing.T) {
	const refused = proxyName + "refused evil.example"
	for name, test := range map[string]struct {
		before, after string // what the program draws
		want          string
	}{
		"at the beginning":          {"", "$ ", refused + "\r\n$ "},
		"after a line":              {"made\r\n", "$ ", "made\r\n" + refused + "\r\n$ "},
		"at a prompt":               {"$ ", "ls", "$ \r\n" + refused + "\r\nls"},
		"on the alternate screen":   {"\x1b[?1049hedited", "more\x1b[?1049l", "\x1b[?1049heditedmore\x1b[?1049l"},
		"on one of several modes":   {"\x1b[?1;1049;25hedited", "more", "\x1b[?1;1049;25heditedmore"},
		"after the other screen":    {"\x1b[?47h\x1b[?47l\r\n", "", "\x1b[?47h\x1b[?47l\r\n" + refused + "\r\n"},
		"after a title and a line":  {"\x1b]0;title\a\n", "", "\n" + refused + "\r\n"},
		"after half of a character": {"\xe2\x82$ ", "", "\xe2\x82$ \r\n" + refused + "\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			s := &Screen{w: &out}
			log := &Log{Show: s.Notify}
			// Sequences may come in pieces.
			for _, b := range []byte(test.before) {
				_, _ = s.Write([]byte{b})
			}
			// It comes in two pieces, beside the agent's own log.
			fmt.Fprint(log, "a line of the log\n"+refused[:5])
			fmt.Fprint(log, refused[5:]+"\n")
			_, _ = s.Write([]byte(test.after))
			if got := out.String(); got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
			if got := log.Kept.String(); got != "a line of the log\n" {
				t.Errorf("kept of the log: %q", got)
			}
			if left := s.takeWaiting(); strings.Contains(test.want, refused) == (len(left) > 0) {
				t.Errorf("%d notices wait", len(left))
			}
		})
	}
}

// A flood of refusals, lines without end and controls in them are bounded.
func TestScreen_NoticesAreBounded(t *testing.T) {
	var out bytes.Buffer
	s := &Screen{w: &out}
	_, _ = s.Write([]byte("\x1b[?1049h"))
	log := &Log{Show: s.Notify}
	for range 1000 {
		fmt.Fprint(log, proxyName+"x\x1b[2J\n")
		fmt.Fprint(log, strings.Repeat("z", 5*maxNotice))
	}
	fmt.Fprint(log, "\n"+proxyName+strings.Repeat("y", 5*maxNotice))
	left := s.takeWaiting()
	text := strings.Join(left, "\n")
	if len(left) != maxNotices+1 || strings.Contains(text, "\x1b") || !strings.Contains(text, "further lines are left out") {
		t.Errorf("%d lines: %q", len(left), text)
	}
	if log.Kept.Len() > maxLog || len(log.line) > maxNotice {
		t.Errorf("%d bytes and a line of %d are kept", log.Kept.Len(), len(log.line))
	}
}

// What a program may have set is reset once.
func TestScreen_ResetsOnce(t *testing.T) {
	var out bytes.Buffer
	s := &Screen{w: &out}
	if s.restore() {
		t.Error("a screen on which nothing was written is reset")
	}
	_, _ = s.Write([]byte("\x1b[31mred"))
	if !s.restore() || !strings.HasSuffix(out.String(), resetTerminal) || s.restore() {
		t.Errorf("%q", &out)
	}
}

// Control strings, some of which reach beyond the terminal's own screen, do not pass, however they are written;
// what shells and editors need does.
func TestScreen_PassesNoControlStrings(t *testing.T) {
	const copies = "52;c;cm0gLXJm"
	for text, want := range map[string]string{
		"a\x1b]" + copies + "\ab":                               "ab",
		"a\x1b]" + copies + "\x1b\\b":                           "a\x1b\\b",
		"a\xc2\x9d" + copies + "\xc2\x9cb":                      "ab",
		"a\x1b\x05]" + copies + "\ab":                           "a\x05b",
		"a\x1b\x7f\x1b]" + copies + "\ab":                       "a\x7fb",
		"a\x1b[3\x1b]" + copies + "\ab":                         "a\x1b[3b",
		"a\x1b]52;c;?\ab":                                       "ab",
		"a\x1b]052;c;x\ab":                                      "ab",
		"a\x1b]0;x\x1b]" + copies + "\ab":                       "ab",
		"a\x1b]0;x\xc2\x9d" + copies + "\ab":                    "ab",
		"a\x1b]0;x\n\x9d" + copies + "\ab":                      "ab",
		"a\x1b]1337;File=name=eA==:eA==\ab":                     "ab",
		"a\x1b]777;notify;x;y\ab":                               "ab",
		"a\x1b_Ga=T,f=24,t=f;L2V0Yy9wYXNzd2Q=\x1b\\b":           "a\x1b\\b",
		"a\x1bP0;1|17/726d\x1b\\b":                              "a\x1b\\b",
		"a\xc2\x90tmux;\x1b\x1b]" + copies + "\a\x1b\\b":        "a\x1b\\b",
		"a\x1b^x\x1b\\\x1bXx\x1b\\b":                            "a\x1b\\\x1b\\b",
		"a\x1b]" + strings.Repeat("x", 12<<10) + copies + "\ab": "ab",
		"a\x1b]0;" + strings.Repeat("x", 12<<10) + "\xc2\x9cb":  "ab",
		"a\x1b]0;t\x18b":                                        "ab",
		"a\x1b]2;title ü\x1b\\b":                                "a\x1b\\b",
		"\x1b]8;;https://x.example\al\x1b]8;;\a":                "l",
		"\x1b[38;5;1mred\x1b[0m\x1b(B\x1b7\x1b[?1049h\x1b[2J":   "\x1b[38;5;1mred\x1b[0m\x1b(B\x1b7\x1b[?1049h\x1b[2J",
		"ü€𝄞\xc2\xa0\xc2\xe2\x82\xac\xff":                       "ü€𝄞\xc2\xa0\xc2\xe2\x82\xac\xff",
	} {
		for _, piece := range []int{1, 3, len(text)} {
			var out bytes.Buffer
			s := &Screen{w: &out}
			for part := range slices.Chunk([]byte(text), piece) {
				_, _ = s.Write(part)
			}
			if out.String() != want {
				t.Errorf("%.60q in pieces of %d: %.100q, want %q", text, piece, &out, want)
			}
		}
	}
}
