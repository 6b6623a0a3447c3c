package lock

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/toolbox/server"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// What a user reviews has no character that hides, and says the same.
func TestWrite_ShowsWhatHides(t *testing.T) {
	const hidden = "pay\u202eevil\u200b \U000e0041 日本 é \"quoted\" \\u0041"
	path := filepath.Join(t.TempDir(), Name)
	file := File{Servers: map[string]Server{"it": {Tools: map[string]server.Tool{"x": {Description: hidden}}}}}
	must.Do(t, file.Write(path))
	text := must.Get(os.ReadFile(path))(t)
	for _, r := range string(text) {
		if r == '\u202e' || r == '\u200b' || r == '\U000e0041' {
			t.Errorf("%U is in the file", r)
		}
	}
	var back File
	must.Do(t, json.Unmarshal(text, &back))
	if got := back.Servers["it"].Tools["x"].Description; got != hidden {
		t.Errorf("read back is %q", got)
	}
}
