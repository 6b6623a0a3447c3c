package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// What the proxy says is shown between the lines of a shell, and not while a
// program has the screen or a character is unfinished.
func TestScreen_ShowsNotices(t *testing.T) {
	const refused = proxyName + "refused evil.example"
	for name, test := range map[string]struct {
		before, after string // what the program draws
		want          string
	}{
		"at the beginning":          {"", "$ ", refused + "\r\n$ "},
		"after a line":              {"made\r\n", "$ ", "made\r\n" + refused + "\r\n$ "},
		"at a prompt":               {"$ ", "ls", "$ \r\n" + refused + "\r\nls"},
		"in a sequence":             {"\x1b[3", "1mred", "\x1b[31mred\r\n" + refused + "\r\n"},
		"in a character":            {"\xe2\x82", "\xac", "€\r\n" + refused + "\r\n"},
		"on the alternate screen":   {"\x1b[?1049hedited", "more\x1b[?1049l", "\x1b[?1049heditedmore\x1b[?1049l\r\n" + refused + "\r\n"},
		"on a screen that is kept":  {"\x1b[?1049hedited", "more", "\x1b[?1049heditedmore"},
		"after the other screen":    {"\x1b[?47h\x1b[?47l\r\n", "", "\x1b[?47h\x1b[?47l\r\n" + refused + "\r\n"},
		"in a title":                {"\x1b]0;ti", "tle\a", "\x1b]0;title\a\r\n" + refused + "\r\n"},
		"after a title and a line":  {"\x1b]0;title\a\n", "", "\x1b]0;title\a\n" + refused + "\r\n"},
		"after half of a character": {"\xe2\x82$ ", "", "\xe2\x82$ \r\n" + refused + "\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			s := &screen{w: &out, lineStart: true}
			log := &shellLog{show: s.notify}
			_, _ = s.Write([]byte(test.before))
			// It comes in two pieces, beside the agent's own log.
			fmt.Fprint(log, "a line of the log\n"+refused[:5])
			fmt.Fprint(log, refused[5:]+"\n")
			_, _ = s.Write([]byte(test.after))
			if got := out.String(); got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
			if log.String() != "a line of the log\n" {
				t.Errorf("kept of the log: %q", log.String())
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
	}
	fmt.Fprint(log, proxyName+strings.Repeat("y", 5*maxNotice))
	_, _ = s.Write([]byte("\x1b[?1049l"))
	text := strings.TrimPrefix(out.String(), "\x1b[?1049h\x1b[?1049l")
	if lines := strings.Count(text, "\r\n"); lines != maxNotices+2 || strings.Contains(text, "\x1b") || !strings.Contains(text, "further lines are left out") {
		t.Errorf("%d lines: %q", lines, text)
	}
	if log.Len() > maxLog || len(log.line) > maxNotice {
		t.Errorf("%d bytes and a line of %d are kept", log.Len(), len(log.line))
	}
}
