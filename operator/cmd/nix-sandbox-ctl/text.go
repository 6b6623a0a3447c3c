package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostile"
)

// writeTable writes rows below a head. The last column may be of any length.
func writeTable(w io.Writer, head []string, rows [][]string) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{head}, rows...) {
		fmt.Fprintln(table, strings.Join(row, "\t"))
	}
	return table.Flush()
}

// writeJSON writes a value as it would be written by hand.
func writeJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}

// megabytes formats a size in bytes, and 0 as an empty text.
func megabytes(size int64) string { return unit(math.Round(float64(size)/1e5)/10, "MB") }

// unit formats a number with its unit, and 0 as an empty text.
func unit(n float64, of string) string {
	if n == 0 {
		return ""
	}
	return strings.TrimSpace(strconv.FormatFloat(n, 'f', -1, 64) + " " + of)
}

// age formats a time in its largest unit.
func age(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", max(0, int(d.Seconds())))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

// took is age, in milliseconds below ten seconds.
func took(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return age(d)
}

// count returns a number with its noun, as in "2 files".
func count(n int, one string, many ...string) string {
	switch {
	case n == 1:
		return "1 " + one
	case len(many) > 0:
		return fmt.Sprintf("%d %s", n, many[0])
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// plain returns a text of others as one line that hides nothing.
func plain(text string) string { return hostile.Line(text, len(text)) }

// visible returns a writer to w for the output of code, which filters it if w is a terminal.
func visible(w io.Writer) io.Writer {
	if !isTerminal(w) {
		return w
	}
	return hostile.Terminal(w, false)
}

// reset ends colours and hidden text that code left set, before others write.
func reset(w io.Writer) {
	if filter, is := w.(*hostile.Filter); is {
		filter.Reset()
	}
}

// shellQuote returns a word as a shell reads it.
func shellQuote(word string) string {
	if word != "" && strings.Trim(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789@%+=:,./_-") == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// shorten cuts a line to a width and marks the cut with an ellipsis.
func shorten(text string, width int) string {
	runes := []rune(text)
	if len(runes) <= width {
		return text
	}
	return string(runes[:max(0, width-1)]) + "…"
}
