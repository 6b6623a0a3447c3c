package main

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// Colours, where the output is a terminal.
var bold, dim, green, yellow, plain = colours()

func colours() (bold, dim, green, yellow, plain string) {
	info, err := os.Stdout.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return
	}
	return "\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[33m", "\x1b[0m"
}

func heading(format string, args ...any) {
	fmt.Printf("\n%s%s%s\n", bold, fmt.Sprintf(format, args...), plain)
}

func note(format string, args ...any) {
	fmt.Printf("  %s%s%s\n", dim, fmt.Sprintf(format, args...), plain)
}

// quote prints a text line by line behind a bar.
func quote(colour, text string) {
	for line := range strings.Lines(text) {
		fmt.Printf("  %s│ %s%s\n", colour, strings.TrimRight(line, "\n"), plain)
	}
}

func took(began time.Time) string {
	d := time.Since(began)
	if d < time.Second {
		return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
	}
	return fmt.Sprintf("%.2f s", d.Seconds())
}
