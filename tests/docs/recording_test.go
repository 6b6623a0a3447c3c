package docs

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"html"
	"image/png"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// recordedCalls are the calls that docs/recording.svg shows. Their answers
// contain no versions, times or random values, so that the drawing is the same
// on every machine.
var recordedCalls = []mcptest.Arguments{
	{Env: "python", Session: "sales", Code: `import sys; sys.path.insert(0, "/project")
import revenue
table = revenue.by_region(revenue.load("/project/sales.csv"))
table.tail(2)`},
	{Env: "python", Session: "sales", Code: `import matplotlib.pyplot as plt
table.plot(figsize=(7.6, 2.3), marker=".", ylabel="revenue")
plt.legend(ncols=3); plt.tight_layout()`},
	{Env: "bash", Code: `ls /home; cat < /dev/tcp/1.1.1.1/443`},
	{Env: "python", Session: "sales", Code: `(table.south > table.north).idxmax().strftime("%B")`},
}

// mostRecordingBytes bounds the drawing, which every visitor of the README
// downloads.
const mostRecordingBytes = 60 << 10

// recorded is a call and the answer that the server gave to it.
type recorded struct {
	call   mcptest.Arguments
	answer mcptest.Answer
}

// TestRecording_ShowsWhatTheServerAnswers makes the calls of the recording
// through an MCP client and compares the drawing of their answers with
// docs/recording.svg. With -update it writes that file.
func TestRecording_ShowsWhatTheServerAnswers(t *testing.T) {
	needServer(t)
	s := newStage(t)
	s.connect("")
	var session []recorded
	for _, call := range recordedCalls {
		session = append(session, recorded{call, s.client.Run(call)})
	}
	drawing := must.Get(drawRecording(session))(t)
	if len(drawing) > mostRecordingBytes {
		t.Errorf("the drawing has %d bytes, %d are allowed", len(drawing), mostRecordingBytes)
	}
	file := filepath.Join(root(t), "docs/recording.svg")
	if *update {
		must.Do(t, os.WriteFile(file, drawing, 0o644))
	}
	kept := must.Get(os.ReadFile(file))(t)
	madeText, madeImages := splitImages(t, drawing)
	keptText, keptImages := splitImages(t, kept)
	if !bytes.Equal(madeText, keptText) {
		t.Errorf("docs/recording.svg is not what the server answers now: run go test ./tests/docs -run TestRecording -update\n%s", firstDifference(keptText, madeText))
	}
	if len(madeImages) != len(keptImages) {
		t.Fatalf("the server sent %d images, docs/recording.svg shows %d", len(madeImages), len(keptImages))
	}
	for i := range madeImages {
		s.compareImages(madeImages[i], keptImages[i])
	}
}

// embedded is an image in a drawing.
var embedded = regexp.MustCompile(`data:image/png;base64,[A-Za-z0-9+/=]+`)

// splitImages returns a drawing without its images, and the images. Their
// bytes depend on the version of the library that draws them.
func splitImages(t *testing.T, drawing []byte) ([]byte, [][]byte) {
	t.Helper()
	var images [][]byte
	for _, match := range embedded.FindAll(drawing, -1) {
		data := must.Get(base64.StdEncoding.DecodeString(string(bytes.TrimPrefix(match, []byte("data:image/png;base64,")))))(t)
		images = append(images, data)
	}
	return embedded.ReplaceAll(drawing, nil), images
}

// firstDifference returns the first line in which two texts differ.
func firstDifference(kept, made []byte) string {
	keptLines, madeLines := strings.Split(string(kept), "\n"), strings.Split(string(made), "\n")
	for i := 0; i < max(len(keptLines), len(madeLines)); i++ {
		var before, after string
		if i < len(keptLines) {
			before = keptLines[i]
		}
		if i < len(madeLines) {
			after = madeLines[i]
		}
		if before != after {
			return fmt.Sprintf("line %d of the file: %s\nnow: %s", i+1, before, after)
		}
	}
	return ""
}

// Measures of the recording, in its own pixels.
const (
	recordingWidth = 860
	recordingLeft  = 24
	lineHeight     = 19
	stepSeconds    = 1.4 // between a call and the next one
	answerSeconds  = 0.6 // between a call and its answer
	mostColumns    = 100 // a longer line would leave the drawing
)

// drawRecording draws a session as an SVG: each call appears, then its answer,
// and everything stays. Who has asked for reduced motion sees all of it at once.
func drawRecording(session []recorded) ([]byte, error) {
	var body bytes.Buffer
	y := 56
	begin := func(seconds float64) {
		fmt.Fprintf(&body, `<g class="step" style="animation-delay:%.1fs">`+"\n", seconds)
	}
	line := func(class, text string) error {
		if len(text) > mostColumns {
			return fmt.Errorf("line %q is longer than %d columns", text, mostColumns)
		}
		fmt.Fprintf(&body, `<text class="%s" x="%d" y="%d" xml:space="preserve">%s</text>`+"\n", class, recordingLeft+14, y, html.EscapeString(text))
		y += lineHeight
		return nil
	}
	for i, r := range session {
		at := float64(i) * stepSeconds
		begin(at)
		header := "run  env: " + r.call.Env
		if r.call.Session != "" {
			header += "  session: " + r.call.Session
		}
		fmt.Fprintf(&body, `<text class="head" x="%d" y="%d" xml:space="preserve">%s</text>`+"\n", recordingLeft, y, html.EscapeString(header))
		y += lineHeight + 2
		top := y - 14
		for text := range strings.SplitSeq(r.call.Code, "\n") {
			if err := line("code", text); err != nil {
				return nil, err
			}
		}
		fmt.Fprintf(&body, `<rect class="bar" x="%d" y="%d" width="3" height="%d"/>`+"\n</g>\n", recordingLeft, top, y-14-top)
		y += 6
		begin(at + answerSeconds)
		for _, content := range r.answer.Content {
			switch content.Type {
			case "text":
				for text := range strings.SplitSeq(strings.TrimRight(content.Text, "\n"), "\n") {
					class := "output"
					if strings.HasPrefix(text, "[") || strings.HasPrefix(text, "--- ") {
						class = "note"
					}
					if err := line(class, text); err != nil {
						return nil, err
					}
				}
			case "image":
				picture, err := png.DecodeConfig(bytes.NewReader(content.Data))
				if err != nil {
					return nil, err
				}
				fmt.Fprintf(&body, `<image x="%d" y="%d" width="%d" height="%d" href="data:image/png;base64,%s"/>`+"\n",
					recordingLeft+14, y-8, picture.Width, picture.Height, base64.StdEncoding.EncodeToString(content.Data))
				y += picture.Height + 4
			default:
				return nil, fmt.Errorf("the drawing of content of type %q is not known", content.Type)
			}
		}
		body.WriteString("</g>\n")
		y += 12
	}
	height := y - 6
	var svg bytes.Buffer
	fmt.Fprintf(&svg, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]d %[2]d" width="%[1]d" height="%[2]d" role="img" aria-label="An MCP client calls run: a table, a plot, a refused network, and a session that kept its state">
<style>
text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #1f2328 }
.window { fill: #f6f8fa; stroke: #d1d9e0 } .title, .note { fill: #59636e } .head { fill: #0969da; font-weight: 600 } .bar { fill: #0969da }
.step { animation: appear .4s both }
@keyframes appear { from { opacity: 0 } to { opacity: 1 } }
@media (prefers-reduced-motion: reduce) { .step { animation: none } }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc } .window { fill: #151b23; stroke: #3d444d } .title, .note { fill: #9198a1 } .head { fill: #4493f8 } .bar { fill: #4493f8 }
}
</style>
<rect class="window" x=".5" y=".5" width="%[3]d" height="%[4]d" rx="8"/>
<text class="title" x="%[5]d" y="26">an MCP client, and what the server answers</text>
`, recordingWidth, height, recordingWidth-1, height-1, recordingLeft)
	svg.Write(body.Bytes())
	svg.WriteString("</svg>\n")
	return svg.Bytes(), nil
}
