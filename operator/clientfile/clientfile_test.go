package clientfile

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// Each archive of testdata has a text to add, and pairs of files: before and after it was added.
func TestMerge(t *testing.T) {
	archive := must.Get(txtar.ParseFile("testdata/merge.txtar"))(t)
	files := map[string][]byte{}
	for _, file := range archive.Files {
		files[file.Name] = file.Data
	}
	tried := 0
	for name, want := range files {
		name, ok := strings.CutSuffix(name, " after")
		if !ok {
			continue
		}
		tried++
		kind, _, _ := strings.Cut(name, " ")
		format, add := Format(kind), string(files[kind])
		if kind == "allow" {
			format = JSON
		}
		got, err := Merge(format, files[name], add)
		if diff := cmp.Diff(string(want), string(got)); diff != "" || err != nil {
			t.Errorf("%s: %v\n%s", name, err, diff)
		}
		// What has been added is there.
		again, err := Merge(format, got, add)
		if diff := cmp.Diff(string(got), string(again)); diff != "" || err != nil {
			t.Errorf("%s, again: %v\n%s", name, err, diff)
		}
	}
	if tried == 0 {
		t.Error("there are no cases")
	}
}

const (
	json1 = `{"mcpServers": {"sandbox": {"args": ["--stdio"], "command": "/bin/nix-sandbox-mcp"}}}`
	toml1 = "[mcp_servers.sandbox]\ncommand = \"/bin/nix-sandbox-mcp\"\nargs = [\"--stdio\"]\n"
	yaml1 = "extensions:\n  sandbox:\n    cmd: \"/bin/nix-sandbox-mcp\"\n    args: [\"--stdio\"]\n"
)

func TestMerge_Refuses(t *testing.T) {
	for _, test := range []struct {
		format    Format
		file, add string
		want      string
	}{
		{JSON, `{"a":`, json1, "is no valid JSON"},
		{JSON, `[]`, json1, "is no valid JSON"},
		{JSON, `null`, json1, "is no valid JSON"},
		{JSON, strings.Repeat("[", 2<<20), json1, "too many brackets"},
		{JSON, `{"mcpServers": []}`, json1, `has something else than an object under "mcpServers"`},
		{JSON, `{"mcpServers": {"sandbox": "x"}}`, json1, `has something else than an object under "sandbox"`},
		{JSON, `{"mcpServers": {"sandbox": {"command": "docker"}}}`, json1, `has another server called "sandbox"`},
		{JSON, `{"mcpServers": {"sandbox": {"command": "docker", "args": ["run", "me/nix-sandbox-fork"], "env": {"NIX_SANDBOX": "1"}}}}`, json1, `has another server called "sandbox"`},
		{JSON, `{"mcpServers": {"sandbox": {"command": ["docker", "nix-sandbox-mcp"]}}}`, json1, `has another server called "sandbox"`},
		{JSON, `{"mcpServers": {"sandbox": {"command": "/nix-sandbox-mcp/other"}}}`, json1, `has another server called "sandbox"`},
		{JSON, `{"mcpServers": {"sandbox": {"command": []}}}`, json1, `has another server called "sandbox"`},
		{JSON, `{"mcpServers": {"sandbox": {"url": "http://nix-sandbox/mcp"}}}`, json1, `has this server as "sandbox" already`},
		{JSON, json1, `{"mcpServers": {"sandbox": {"url": "http://nix-sandbox/mcp"}}}`, `has this server as "sandbox" already`},
		{TOML, toml1, "[mcp_servers.sandbox]\nurl = \"http://nix-sandbox/mcp\"\n", `has this server as "sandbox" already`},
		{JSON, `{"mcpServers": {"sandbox": {"command": "docker"}}}`, `{"mcpServers": {"sandbox": {"url": "http://nix-sandbox/mcp"}}}`, `has another server called "sandbox"`},
		// Clients differ in which of two equal names they take.
		{JSON, `{"mcpServers": {}, "mcpServers": {"a": {}}}`, json1, "without a risk"},
		{TOML, "a = ", toml1, "is no valid TOML"},
		{TOML, "mcp_servers = 3", toml1, `has something else than an object under "mcp_servers"`},
		{TOML, "mcp_servers = { other = { command = \"x\" } }\n", toml1, "without a risk"},
		{TOML, "[mcp_servers]\nsandbox = { command = \"nix-sandbox-mcp\" }\n", toml1, "without a risk"},
		{YAML, "a: [", yaml1, "is no valid YAML"},
		{YAML, "extensions: {}\n", yaml1, "without a risk"},
		{YAML, "extensions:\n    other:\n        cmd: x\n", yaml1, "without a risk"},
	} {
		got, err := Merge(test.format, []byte(test.file), test.add)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%.80q: %q, %v, want %q", test.file, got, err, test.want)
		}
	}
}

// Entries of this program are replaced, however they start or reach it.
func TestMerge_ReplacesItsOwn(t *testing.T) {
	for old, add := range map[string]string{
		`{"command": "/old/bin/nix-sandbox-mcp"}`:                                                         `{"command": "/bin/nix-sandbox-mcp"}`,
		`{"command": "nix", "args": ["run", "github:nix-sandbox-mcp/nix-sandbox-mcp", "--", "--stdio"]}`:  `{"command": "/bin/nix-sandbox-mcp", "args": ["--stdio"]}`,
		`{"command": ["/old/nix-sandbox-mcp", "--stdio"]}`:                                                `{"command": ["/bin/nix-sandbox-mcp", "--stdio"]}`,
		`{"url": "https://old.example/mcp", "headers": {"Authorization": "Bearer ${NIX_SANDBOX_TOKEN}"}}`: `{"url": "https://new.example/mcp"}`,
	} {
		if _, err := Merge(JSON, []byte(`{"mcpServers": {"sandbox": `+old+`}}`), `{"mcpServers": {"sandbox": `+add+`}}`); err != nil {
			t.Errorf("%s: %v", old, err)
		}
	}
}

// Whatever a file has, it has afterwards, or it is refused.
func FuzzMerge(f *testing.F) {
	for _, seed := range []string{
		"{}", `{"mcpServers": {"sandbox": {"command": "nix-sandbox-mcp"}}, "n": 12345678901234567890} // x`, `{"a": [1,], /**/}`,
		"[mcp_servers.sandbox]\ncommand = \"nix-sandbox\"\n", "a = '''\n[mcp_servers.sandbox]\n'''\n", "extensions:\n  sandbox:\n    cmd: nix-sandbox\nb: |\n  extensions:\n",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, file string) {
		for format, add := range map[Format]string{JSON: json1, TOML: toml1, YAML: yaml1} {
			original := []byte(file)
			got, err := Merge(format, original, add)
			if string(original) != file {
				t.Fatalf("%s: the file itself was changed", format)
			}
			if err != nil {
				continue
			}
			before, after := must.Get(format.decode([]byte(file)))(t), must.Get(format.decode(got))(t)
			table, entry := server(must.Get(format.decode([]byte(add)))(t))
			servers := after[table].(map[string]any)
			for key, value := range entry {
				if !reflect.DeepEqual(servers[Name].(map[string]any)[key], value) {
					t.Errorf("%s: %q became %q", format, file, got)
				}
			}
			had, _ := before[table].(map[string]any)
			delete(had, Name)
			delete(servers, Name)
			delete(before, table)
			delete(after, table)
			if len(had)+len(servers) > 0 && !reflect.DeepEqual(had, servers) || !reflect.DeepEqual(before, after) {
				t.Errorf("%s: %q became %q", format, file, got)
			}
			if again, err := Merge(format, got, add); err != nil || !bytes.Equal(got, again) {
				t.Errorf("%s: %q, then %q, %v", format, got, again, err)
			}
		}
	})
}
