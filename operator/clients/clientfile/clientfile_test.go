package clientfile

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const server = `{"mcpServers": {"sandbox": {"args": ["--stdio"], "command": "/bin/nix-sandbox-mcp"}}}`

func TestMerge(t *testing.T) {
	for name, test := range map[string]struct{ file, add, want string }{
		"a new file": {"", server, "{\n  \"mcpServers\": {\n    \"sandbox\": {\n      \"args\": [\n        \"--stdio\"\n      ],\n      \"command\": \"/bin/nix-sandbox-mcp\"\n    }\n  }\n}\n"},
		"order, digits and indentation stay": {
			"{\n\t\"z\": 1.50,\n\t\"mcpServers\": {\"other\": {\"command\": \"x\"}},\n\t\"a\": 12345678901234567890\n}\n", `{"mcpServers":{"sandbox":{"url":"https://nix-sandbox/mcp"}}}`,
			"{\n\t\"z\": 1.50,\n\t\"mcpServers\": {\n\t\t\"other\": {\n\t\t\t\"command\": \"x\"\n\t\t},\n\t\t\"sandbox\": {\n\t\t\t\"url\": \"https://nix-sandbox/mcp\"\n\t\t}\n\t},\n\t\"a\": 12345678901234567890\n}\n",
		},
		"an entry is replaced": {
			`{"mcpServers": {"sandbox": {"command": "/old/nix-sandbox-mcp", "env": {"A": "b"}}}}`, `{"mcpServers":{"sandbox":{"command":"/new/nix-sandbox-mcp"}}}`,
			"{\n  \"mcpServers\": {\n    \"sandbox\": {\n      \"command\": \"/new/nix-sandbox-mcp\"\n    }\n  }\n}\n",
		},
		"an entry of nix run": {
			`{"mcpServers": {"sandbox": {"command": "nix", "args": ["run", "github:nix-sandbox-mcp/nix-sandbox-mcp"]}}}`, `{"mcpServers":{"sandbox":{"command":"/new/nix-sandbox-mcp"}}}`,
			"{\n  \"mcpServers\": {\n    \"sandbox\": {\n      \"command\": \"/new/nix-sandbox-mcp\"\n    }\n  }\n}\n",
		},
		"a command in a list": {
			`{"mcp": {"sandbox": {"command": ["/old/nix-sandbox-mcp", "--stdio"]}}}`, `{"mcp":{"sandbox":{"command":["/new/nix-sandbox-mcp"]}}}`,
			"{\n  \"mcp\": {\n    \"sandbox\": {\n      \"command\": [\n        \"/new/nix-sandbox-mcp\"\n      ]\n    }\n  }\n}\n",
		},
		"one that was reached": {
			`{"mcp": {"sandbox": {"url": "http://nix-sandbox/mcp"}}}`, `{"mcp":{"sandbox":{"command":["/new/nix-sandbox-mcp"]}}}`,
			"{\n  \"mcp\": {\n    \"sandbox\": {\n      \"command\": [\n        \"/new/nix-sandbox-mcp\"\n      ]\n    }\n  }\n}\n",
		},
		"one that was started": {
			`{"mcp": {"sandbox": {"command": ["/old/nix-sandbox-mcp"]}}}`, `{"mcp":{"sandbox":{"url":"http://nix-sandbox/mcp"}}}`,
			"{\n  \"mcp\": {\n    \"sandbox\": {\n      \"url\": \"http://nix-sandbox/mcp\"\n    }\n  }\n}\n",
		},
		"a list gains what it lacks": {
			`{"permissions": {"allow": ["a"]}}`, `{"permissions":{"allow":["a","b"]}}`,
			"{\n  \"permissions\": {\n    \"allow\": [\n      \"a\",\n      \"b\"\n    ]\n  }\n}\n",
		},
	} {
		got, err := Merge([]byte(test.file), test.add)
		if diff := cmp.Diff(test.want, string(got)); diff != "" || err != nil {
			t.Errorf("%s: %v\n%s", name, err, diff)
		}
		if again, err := Merge(got, test.add); string(again) != string(got) || err != nil {
			t.Errorf("%s, again: %v\n%s", name, err, again)
		}
	}
}

func TestMerge_Refuses(t *testing.T) {
	for file, want := range map[string]string{
		`{"a":`:                         "is not plain JSON",
		"{\n  // mine\n}":               "is not plain JSON",
		`[]`:                            "something else than an object",
		`null`:                          "something else than an object",
		strings.Repeat("[", 2<<20):      "too many brackets",
		`{"mcpServers": []}`:            `has something else than an object under "mcpServers"`,
		`{"mcpServers": {"a":1,"a":2}}`: `has "a" twice`,
		`{"mcpServers": {}, "mcpServers": {"a": {}}}`:        `has "mcpServers" twice`,
		`{"mcpServers": {"sandbox": "x"}}`:                   `has another server called "sandbox"`,
		`{"mcpServers": {"sandbox": {"command": "docker"}}}`: `has another server called "sandbox"`,
		`{"mcpServers": {"sandbox": {"command": "docker", "args": ["run", "me/nix-sandbox-fork"], "env": {"NIX_SANDBOX": "1"}}}}`: `has another server called "sandbox"`,
		`{"mcpServers": {"sandbox": {"command": ["docker", "nix-sandbox-mcp"]}}}`:                                                 `has another server called "sandbox"`,
		`{"mcpServers": {"sandbox": {"command": "/nix-sandbox-mcp/other"}}}`:                                                      `has another server called "sandbox"`,
		`{"mcpServers": {"sandbox": {"command": []}}}`:                                                                            `has another server called "sandbox"`,
		`{"mcpServers": {"sandbox": {"url": "http://sandbox/mcp"}}}`:                                                              `has another server called "sandbox"`,
	} {
		if got, err := Merge([]byte(file), server); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %s, %v, want %q", file, got, err, want)
		}
	}
}

// Whatever a file holds, a merge is refused, or adds the server and keeps each other member.
func FuzzMerge(f *testing.F) {
	f.Add(`{"a": [1.0, {"b": null}], "mcpServers": {"x": {}}}`)
	f.Fuzz(func(t *testing.T, file string) {
		got, err := Merge([]byte(file), server)
		if err != nil {
			return
		}
		var before, after map[string]any
		if strings.TrimSpace(file) != "" && json.Unmarshal([]byte(file), &before) != nil || json.Unmarshal(got, &after) != nil {
			t.Fatalf("%q became %q", file, got)
		}
		servers, _ := after["mcpServers"].(map[string]any)
		if servers[Name] == nil {
			t.Errorf("%q became %q", file, got)
		}
		delete(before, "mcpServers")
		delete(after, "mcpServers")
		if diff := cmp.Diff(before, after); diff != "" && len(before) > 0 {
			t.Error(diff)
		}
	})
}
