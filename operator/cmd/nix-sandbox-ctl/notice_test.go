package main

import (
	"bytes"
	"fmt"
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
		"after a title and a line":  {"\x1b]0;title\a\n", "", "\x1b]0;title\a\n" + refused + "\r\n"},
		"after half of a character": {"\xe2\x82$ ", "", "\xe2\x82$ \r\n" + refused + "\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			s := &screen{w: &out}
			log := &shellLog{show: s.notify}
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
			if got := log.kept.String(); got != "a line of the log\n" {
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
	s := &screen{w: &out}
	_, _ = s.Write([]byte("\x1b[?1049h"))
	log := &shellLog{show: s.notify}
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
	if log.kept.Len() > maxLog || len(log.line) > maxNotice {
		t.Errorf("%d bytes and a line of %d are kept", log.kept.Len(), len(log.line))
	}
}

// Colours of the terminal are reset only if a program changed one.
func TestScreen_ResetsColoursThatChanged(t *testing.T) {
	for text, want := range map[string]bool{
		"plain":                     false,
		"\x1b[31mred\x1b]0;title\a": false,
		"\x1b]4;1;red\a":            true,
		"\x1b]11;#000\x1b\\":        true,
		"\xc2\x9d10;red\xc2\x9c":    true,
		"\x1b]0004;1;red\a":         true,
		"\x1b\x05]4;1;red\a":        true,
		"\x1b]8;;http://x\a":        false,
	} {
		var out bytes.Buffer
		s := &screen{w: &out}
		for _, b := range []byte(text) {
			_, _ = s.Write([]byte{b})
		}
		if !s.restore() || strings.HasSuffix(out.String(), resetColours) != want || !strings.Contains(out.String(), resetTerminal) {
			t.Errorf("%q: %q", text, &out)
		}
		if s.restore() {
			t.Errorf("%q: reset twice", text)
		}
	}
}
