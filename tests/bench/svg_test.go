package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// read reads a plot and returns its texts and the widths of its bars.
func read(t *testing.T, plot []byte) (texts []string, bars []float64) {
	t.Helper()
	decoder := xml.NewDecoder(bytes.NewReader(plot))
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return texts, bars
		}
		if err != nil {
			t.Fatalf("the plot is not XML: %v", err)
		}
		switch token := token.(type) {
		case xml.CharData:
			texts = append(texts, string(token))
		case xml.StartElement:
			for _, a := range token.Attr {
				if token.Name.Local != "rect" || a.Name.Local != "width" {
					continue
				}
				width := must.Get(strconv.ParseFloat(a.Value, 64))(t)
				bars = append(bars, width)
			}
		}
	}
}

func TestPlot_ShowsEveryRow(t *testing.T) {
	texts, bars := read(t, plot(sample()))
	all := strings.Join(texts, "\n")
	for _, want := range []string{"python: print(1+1)", "run in a session", "0.200 ms · 0.020×", "100 µs", "1 s"} {
		if !strings.Contains(all, want) {
			t.Errorf("the plot lacks %q", want)
		}
	}
	if strings.Contains(all, "a <peer>") {
		t.Error("the plot shows a row that was not measured")
	}
	if len(bars) != 3 || !(bars[1] < bars[0] && bars[0] < bars[2]) {
		t.Errorf("bars are %v wide; want 3, in the order of 10, 0.2 and 400 ms", bars)
	}
	if room := float64(plotWidth - labelWidth - valueWidth); bars[2] > room {
		t.Errorf("the longest bar is %g wide; there is room for %g", bars[2], room)
	}
}

func TestPlotWithoutFigures(t *testing.T) {
	if texts, bars := read(t, plot(report{})); len(bars) != 0 || strings.Contains(strings.Join(texts, ""), "NaN") {
		t.Errorf("an empty plot has %d bars and the texts %q", len(bars), texts)
	}
}
