package main

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"unicode/utf8"
)

// Measures of the plot, in pixels of its own.
const (
	plotWidth  = 900
	labelWidth = 270
	valueWidth = 150
	barHeight  = 16
	rowHeight  = 24
	headHeight = 40
)

// plot draws the sections of the languages: a bar to the median, a line to
// the 99th percentile, on a logarithmic scale that all of them share. It is
// readable on light and on dark pages.
func plot(r report) []byte {
	var shown []section
	low, high := math.Inf(1), 0.0
	for _, s := range r.Sections {
		if _, ok := programs[s.Name]; !ok {
			continue
		}
		kept := section{Name: s.Name, Title: s.Title, Base: s.Base}
		for _, row := range s.Rows {
			if row.Gap == "" && row.P50 > 0 {
				kept.Rows = append(kept.Rows, row)
				low, high = min(low, row.P50), max(high, row.P99)
			}
		}
		shown = append(shown, kept)
	}
	height := headHeight
	for _, s := range shown {
		height += headHeight + rowHeight*len(s.Rows)
	}
	from, to := math.Floor(math.Log10(low)), math.Ceil(math.Log10(high))
	if !(from < to) { // also without any row
		from, to = 0, 1
	}
	x := func(ms float64) float64 {
		share := (math.Log10(ms) - from) / (to - from)
		return labelWidth + share*(plotWidth-labelWidth-valueWidth)
	}

	var svg bytes.Buffer
	fmt.Fprintf(&svg, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="system-ui, sans-serif" font-size="13" role="img" aria-label="Time from request to answer">
<style>
text { fill: #1f2328 } .soft { fill: #59636e } .line { stroke: #59636e } .grid { stroke: #d1d9e0 }
.ours { fill: #1a7f37 } .other { fill: #8c959f } .base { fill: #0969da }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc } .soft { fill: #9198a1 } .line { stroke: #9198a1 } .grid { stroke: #3d444d }
.ours { fill: #3fb950 } .other { fill: #656c76 } .base { fill: #4493f8 }
}
</style>
`, plotWidth, height)
	for power := from; power <= to; power++ {
		at := x(math.Pow(10, power))
		fmt.Fprintf(&svg, `<line class="grid" x1="%.1f" y1="%d" x2="%.1f" y2="%d"/><text class="soft" x="%.1f" y="18" text-anchor="middle">%s</text>`+"\n",
			at, headHeight-14, at, height-8, at, scale(power))
	}
	y := headHeight
	for _, s := range shown {
		fmt.Fprintf(&svg, `<text x="8" y="%d" font-weight="600">%s</text>`+"\n", y+16, html.EscapeString(s.Title))
		y += headHeight - 12
		for _, row := range s.Rows {
			class := "other"
			switch {
			case row.Name == s.Base:
				class = "base"
			case ours[row.Name]:
				class = "ours"
			}
			middle := y + barHeight/2
			fmt.Fprintf(&svg, `<text x="%d" y="%d" text-anchor="end">%s</text>`, labelWidth-8, middle+4, html.EscapeString(clip(row.Name)))
			fmt.Fprintf(&svg, `<rect class="%s" x="%d" y="%d" width="%.1f" height="%d" rx="2"/>`, class, labelWidth, y, max(1, x(row.P50)-labelWidth), barHeight)
			fmt.Fprintf(&svg, `<line class="line" x1="%.1f" y1="%d" x2="%.1f" y2="%d"/>`, x(row.P50), middle, x(row.P99), middle)
			fmt.Fprintf(&svg, `<text class="soft" x="%.1f" y="%d">%s ms · %s</text>`+"\n", x(max(row.P50, row.P99))+6, middle+4, number(row.P50), times(row.Ratio))
			y += rowHeight
		}
		y += 12
	}
	svg.WriteString("</svg>\n")
	return svg.Bytes()
}

// ours are the rows that this project answers for.
var ours = map[string]bool{
	"bin/run by hand": true, "run, no sandbox waiting": true, "run, one sandbox waiting": true, "run in a session": true,
}

// scale is the label of a power of ten, in milliseconds.
func scale(power float64) string {
	if power >= 3 {
		return fmt.Sprintf("%g s", math.Pow(10, power-3))
	}
	if power < 0 {
		return fmt.Sprintf("%g µs", math.Round(math.Pow(10, power+3)))
	}
	return fmt.Sprintf("%g ms", math.Pow(10, power))
}

// clip shortens a label to what fits beside the bars.
func clip(s string) string {
	const limit = 40
	if utf8.RuneCountInString(s) <= limit {
		return s
	}
	return string([]rune(s)[:limit-1]) + "…"
}
