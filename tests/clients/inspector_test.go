package clients

import (
	"bytes"
	"encoding/json"
	"image/png"
	"slices"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// Exit statuses of the Inspector's command line.
const (
	inspectorOK      = 0
	inspectorIsError = 5
)

// eras are the two ways by which clients open a connection, by the name that
// the Inspector gives them, with the request that comes first.
var eras = map[string]string{"legacy": "initialize", "modern": "server/discover"}

// inspect runs the Inspector's command line against the server.
func (s setup) inspect(t *testing.T, era string, arguments ...string) output {
	t.Helper()
	program := s.file(t, "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js")
	command := append([]string{program, "--cli"}, s.recorded(t)...)
	command = append(command, "--protocol-era", era)
	return s.run(t, s.Node, append(command, arguments...)...)
}

// inspectRun calls the tool.
func (s setup) inspectRun(t *testing.T, era string, args mcptest.Arguments) (mcptest.Answer, int) {
	t.Helper()
	text := must.Get(json.Marshal(args))(t)
	out := s.inspect(t, era, "--method", "tools/call", "--tool-name", "run", "--tool-args-json", string(text))
	var answer mcptest.Answer
	if err := json.Unmarshal([]byte(out.stdout), &answer); err != nil {
		t.Fatalf("the Inspector printed %q and %q: %v", out.stdout, out.stderr, err)
	}
	return answer, out.status
}

// The tool's definition is one that the Inspector finds portable.
func TestInspectorLists(t *testing.T) {
	given(t)
	for era, first := range eras {
		t.Run(era, func(t *testing.T) {
			s := prepare(t)
			out := s.inspect(t, era, "--method", "tools/list", "--strict")
			var list struct {
				Tools []struct{ Name string }
			}
			if err := json.Unmarshal([]byte(out.stdout), &list); err != nil || out.status != inspectorOK {
				t.Fatalf("status %d, %v: %s%s", out.status, err, out.stdout, out.stderr)
			}
			if len(list.Tools) != 1 || list.Tools[0].Name != "run" {
				t.Errorf("tools %v", list.Tools)
			}
			if methods := s.methods(t); methods[0] != first || !slices.Contains(methods, "tools/list") {
				t.Errorf("it asked for %v, %s should be the first", methods, first)
			}
		})
	}
}

// A call that succeeds, one that fails and one that draws.
func TestInspectorCalls(t *testing.T) {
	given(t)
	for era := range eras {
		t.Run(era, func(t *testing.T) {
			s := prepare(t)
			answer, status := s.inspectRun(t, era, mcptest.Arguments{Env: "bash", Code: "echo $((6 * 7))"})
			if status != inspectorOK || answer.IsError || answer.Text() != "42\n" {
				t.Errorf("success: status %d, %+v", status, answer)
			}
			answer, status = s.inspectRun(t, era, mcptest.Arguments{Env: "bash", Code: "echo broken >&2; exit 3"})
			if status != inspectorIsError || !answer.IsError || !strings.Contains(answer.Text(), "[exit status 3]") {
				t.Errorf("error: status %d, %+v", status, answer)
			}
			answer, status = s.inspectRun(t, era, mcptest.Arguments{Env: "python", Session: "picture", Code: drawing})
			if status != inspectorOK || len(answer.Content) != 1 || answer.Content[0].Type != "image" || answer.Content[0].MIMEType != "image/png" {
				t.Fatalf("image: status %d, %+v", status, answer)
			}
			picture, err := png.Decode(bytes.NewReader(answer.Content[0].Data))
			if err != nil || picture.Bounds().Dx() != 16 {
				t.Errorf("image: %v, %v", picture, err)
			}
		})
	}
}

// drawing writes a red square of 16 pixels with what Python has of its own.
const drawing = `import os, struct, zlib
def chunk(kind, data):
    return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
rows = (b'\0' + b'\xff\0\0' * 16) * 16
os.makedirs('outputs', exist_ok=True)
with open('outputs/red.png', 'wb') as f:
    f.write(b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', struct.pack('>IIBBBBB', 16, 16, 8, 2, 0, 0, 0)) + chunk(b'IDAT', zlib.compress(rows)) + chunk(b'IEND', b''))
`
