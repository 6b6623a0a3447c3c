// Package format writes what commands print: tables, JSON, sizes, times and words of a shell. Commands
// pass text that others wrote through [Plain], so that it cannot act on a terminal.
package format

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

// Table writes rows below a head. The last column may be of any length.
func Table(w io.Writer, head []string, rows [][]string) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{head}, rows...) {
		fmt.Fprintln(table, strings.Join(row, "\t"))
	}
	return table.Flush()
}

// JSON writes a value as it would be written by hand.
func JSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}

// Megabytes formats a size in bytes, and 0 as an empty text.
func Megabytes(size int64) string { return Unit(math.Round(float64(size)/1e5)/10, "MB") }

// Unit formats a number with its unit, and 0 as an empty text.
func Unit(n float64, of string) string {
	if n == 0 {
		return ""
	}
	return strings.TrimSpace(strconv.FormatFloat(n, 'f', -1, 64) + " " + of)
}

// Age formats a time in its largest unit.
func Age(d time.Duration) string {
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

// Took is age, in milliseconds below ten seconds.
func Took(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return Age(d)
}

// Count returns a number with its noun, as in "2 files".
func Count(n int, one string, many ...string) string {
	switch {
	case n == 1:
		return "1 " + one
	case len(many) > 0:
		return fmt.Sprintf("%d %s", n, many[0])
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// Plain returns a text of others as one line that hides nothing.
func Plain(text string) string { return hostile.Line(text, len(text)) }

// ShellQuote returns a word as a shell reads it.
func ShellQuote(word string) string {
	if word != "" && strings.Trim(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789@%+=:,./_-") == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// Shorten cuts a line to a width and marks the cut with an ellipsis.
func Shorten(text string, width int) string {
	runes := []rune(text)
	if len(runes) <= width {
		return text
	}
	return string(runes[:max(0, width-1)]) + "…"
}
