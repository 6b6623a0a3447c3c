package tool

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

func TestGive(t *testing.T) {
	many := "{"
	for i := range maxGivenOf + 1 {
		many += fmt.Sprintf(`"v%d": 1,`, i)
	}
	many = strings.TrimSuffix(many, ",") + "}"
	for meta, want := range map[string]any{
		`{"progressToken": 1, "other.example/stdin": 5}`: (*frame.Given)(nil),
		`{"nix-sandbox-mcp/stdin": ""}`:                  (*frame.Given)(nil),
		`{"nix-sandbox-mcp/stdin": "é"}`:                 &frame.Given{Stdin: []byte("é")},
		`{"nix-sandbox-mcp/stdin": {"base64": "AP8="}}`:  &frame.Given{Stdin: []byte{0, 255}},
		`{"nix-sandbox-mcp/variables": {"a": 1.0, "_b": null}}`: &frame.Given{Variables: map[string]json.RawMessage{
			"a": json.RawMessage("1.0"), "_b": json.RawMessage("null")}},
		`{"nix-sandbox-mcp/files": {"a/b": "x", "c": {"base64": ""}}}`: &frame.Given{Files: map[string][]byte{"a/b": []byte("x"), "c": {}}},

		`{"nix-sandbox-mcp/stdin": 5}`:                                        `"nix-sandbox-mcp/stdin" is 5: use text`,
		`{"nix-sandbox-mcp/stdin": null}`:                                     `is null: use text`,
		`{"nix-sandbox-mcp/stdin": {"base64": "A"}}`:                          `is not base64`,
		`{"nix-sandbox-mcp/stdin": {"base64": null}}`:                         `use text`,
		`{"nix-sandbox-mcp/stdin": {"base64": "", "more": ""}}`:               `use text`,
		`{"nix-sandbox-mcp/variables": []}`:                                   `use an object`,
		`{"nix-sandbox-mcp/variables": null}`:                                 `use an object`,
		`{"nix-sandbox-mcp/variables": {"a b": 1}}`:                           `has the name "a b"`,
		`{"nix-sandbox-mcp/variables": {"1a": 1}}`:                            `no digit first`,
		`{"nix-sandbox-mcp/variables": ` + many + `}`:                         `has 257 variables: 256 are allowed`,
		`{"nix-sandbox-mcp/files": ` + many + `}`:                             `has 257 files`,
		`{"nix-sandbox-mcp/files": "x"}`:                                      `use an object`,
		`{"nix-sandbox-mcp/files": {"../x": ""}}`:                             `has the name "../x": use a path relative`,
		`{"nix-sandbox-mcp/files": {"/x": ""}}`:                               `has the name "/x"`,
		`{"nix-sandbox-mcp/files": {"a//b": ""}}`:                             `has the name "a//b"`,
		`{"nix-sandbox-mcp/files": {"a/": ""}}`:                               `has the name "a/"`,
		`{"nix-sandbox-mcp/files": {"": ""}}`:                                 `has the name ""`,
		`{"nix-sandbox-mcp/files": {".": ""}}`:                                `has the name "."`,
		`{"nix-sandbox-mcp/files": {"a\u0000": ""}}`:                          `has the name "a\x00"`,
		`{"nix-sandbox-mcp/files": {"` + strings.Repeat("x", 513) + `": ""}}`: `at most 512 bytes`,
		`{"nix-sandbox-mcp/files": {"a": 5}}`:                                 `has a file "a" that is 5`,
		`{"nix-sandbox-mcp/timeout": 61}`:                                     `timeout is 61, more than env "e" allows`,
		`{"nix-sandbox-mcp/timeout": "1"}`:                                    `not a number`,
		`{"nix-sandbox-mcp/verbatim": 1}`:                                     `use true or false`,
		`{"nix-sandbox-mcp/file": {"a": "5"}}`:                                `is not a field that a call may have`,
		`{"nix-sandbox-mcp/files": {"a": "` + strings.Repeat("x", maxGiven) + `"}, "nix-sandbox-mcp/stdin": "y"}`: `8388609 bytes: 8388608 are allowed`,
	} {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal([]byte(meta), &fields); err != nil {
			t.Fatalf("%s: %v", meta, err)
		}
		c := call.Call{Env: registry.Environment{Name: "e", MaxTimeout: time.Minute}}
		err := give(&c, fields)
		given := c.Given
		if sentence, isRefusal := want.(string); isRefusal {
			if err == nil || !strings.Contains(err.Error(), sentence) || len(err.Error()) > 400 {
				t.Errorf("%.80s: error %v, want %q", meta, err, sentence)
			}
			continue
		}
		if diff := cmp.Diff(want, given); diff != "" || err != nil {
			t.Errorf("%.80s: %v, %s", meta, err, diff)
		}
	}
}

// Whatever _meta has, a call gets what is bounded, or one line that says what is wrong.
func FuzzGive(f *testing.F) {
	f.Add(`{"nix-sandbox-mcp/stdin": {"base64": "AP8="}, "nix-sandbox-mcp/variables": {"a": [1]}, "nix-sandbox-mcp/files": {"a/b": "x"}}`)
	f.Add(`{"nix-sandbox-mcp/files": {"../\ufffd": {"base64": ""}}}`)
	f.Fuzz(func(t *testing.T, meta string) {
		var fields map[string]json.RawMessage
		if json.Unmarshal([]byte(meta), &fields) != nil {
			return
		}
		c := call.Call{Env: registry.Environment{Name: "e", MaxTimeout: time.Minute}}
		err := give(&c, fields)
		given := c.Given
		if err != nil {
			if given != nil || strings.ContainsAny(err.Error(), "\x00") {
				t.Fatalf("%s: %+v, %q", meta, given, err)
			}
			return
		}
		if given == nil {
			return
		}
		for name := range given.Files {
			if strings.HasPrefix(name, "/") || strings.Contains("/"+name+"/", "/../") {
				t.Fatalf("%s: a file %q", meta, name)
			}
		}
		for name, value := range given.Variables {
			if !validVariable.MatchString(name) || !json.Valid(value) {
				t.Fatalf("%s: a variable %q", meta, name)
			}
		}
	})
}
