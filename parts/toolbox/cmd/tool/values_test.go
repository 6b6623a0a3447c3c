package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// values are results with structured data and texts, and whether code gets the only value of the
// data in place of an object: the same in each language.
var values = []struct {
	structured string
	texts      []string
	unwraps    bool
}{
	{`{"result":"a"}`, []string{"a"}, true},
	{`{"result":"a\nb"}`, []string{"a", "b"}, true},
	{`{"result":""}`, []string{""}, true},
	{`{"result":""}`, nil, false},
	{`{"result":"a"}`, []string{"b"}, false},
	{`{"result":"1"}`, []string{"1.0"}, false},
	{`{"result":"a"}`, []string{`"a"`}, false},
	{`{"result":1}`, []string{"1"}, true},
	{`{"result":1.0}`, []string{"1.0"}, true},
	{`{"result":1}`, []string{"1.0"}, true},
	{`{"result":1e2}`, []string{"100"}, true},
	{`{"result":1e-7}`, []string{"1e-07"}, true},
	{`{"result":1}`, []string{"2"}, false},
	{`{"result":1}`, []string{"one"}, false},
	{`{"result":1}`, []string{`"1"`}, false},
	{`{"result":1}`, []string{""}, false},
	{`{"result":1}`, []string{"true"}, false},
	{`{"result":true}`, []string{"1"}, false},
	{`{"result":true}`, []string{"true"}, true},
	{`{"result":false}`, []string{"0"}, false},
	{`{"result":true}`, []string{"True"}, false},
	{`{"result":null}`, []string{"null"}, true},
	{`{"result":null}`, []string{""}, false},
	{`{"result":null}`, []string{"0"}, false},
	{`{"rows":[1,2]}`, []string{"[1,2]"}, false},
	{`{"rows":[1, 2]}`, []string{"[1, 2]"}, false},
	{`{"rows":[]}`, []string{"[]"}, false},
	{`{"row":{"a":1}}`, []string{`{"a":1}`}, false},
	{`{"a":1,"b":2}`, []string{"1"}, false},
	{`{}`, []string{"{}"}, false},
	{`[1]`, []string{"1"}, false},
}

// Each of these reads a list of results and prints the list of what code gets.
var readers = map[string][]string{
	"python3": {"-c", `import json, sys
sys.path.insert(0, sys.argv[1] + "/python")
import tools
print(json.dumps([tools._value(one) for one in json.load(sys.stdin)]))`},
	"node": {"-e", `const fs = require("fs"), file = process.argv[1] + "/node/tools.js", module = new (require("module"))(file)
module._compile(fs.readFileSync(file, "utf8") + "\nmodule.exports = value", file)
console.log(JSON.stringify(JSON.parse(fs.readFileSync(0)).map(module.exports)))`},
}

func TestValues_AreTheSameInEachLanguage(t *testing.T) {
	var results []json.RawMessage
	var want []any
	for _, one := range values {
		content := []map[string]string{}
		for _, text := range one.texts {
			content = append(content, map[string]string{"type": "text", "text": text})
		}
		text, err := json.Marshal(map[string]any{"content": content, "structuredContent": json.RawMessage(one.structured)})
		if err != nil {
			t.Fatal(err)
		}
		results = append(results, text)
		var value any
		if err := json.Unmarshal([]byte(one.structured), &value); err != nil {
			t.Fatal(err)
		}
		if one.unwraps {
			for _, only := range value.(map[string]any) {
				value = only
			}
		}
		want = append(want, value)
	}
	all, err := json.Marshal(results)
	if err != nil {
		t.Fatal(err)
	}
	surface, err := filepath.Abs("../../surface")
	if err != nil {
		t.Fatal(err)
	}
	for program, arguments := range readers {
		t.Run(program, func(t *testing.T) {
			if _, err := exec.LookPath(program); err != nil {
				t.Skip(err)
			}
			cmd := exec.CommandContext(t.Context(), program, append(arguments, surface)...)
			cmd.Stdin, cmd.Stderr = bytes.NewReader(all), os.Stderr
			cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
			out, err := cmd.Output()
			var got []any
			if err == nil {
				err = json.Unmarshal(out, &got)
			}
			if err != nil || len(got) != len(want) {
				t.Fatalf("%d answers, %v: %s", len(got), err, out)
			}
			for i := range want {
				if diff := cmp.Diff(want[i], got[i]); diff != "" {
					t.Errorf("%s with %q: %s", values[i].structured, values[i].texts, diff)
				}
			}
		})
	}
	t.Run("shell", func(t *testing.T) {
		for i, one := range values {
			var out bytes.Buffer
			if err := printResult(&out, "a.b", results[i], false); err != nil {
				t.Fatal(err)
			}
			want := one.structured
			if one.unwraps {
				want = ""
				for n, text := range one.texts {
					want += map[bool]string{true: "\n"}[n > 0] + text
				}
			} else {
				var compact bytes.Buffer
				if err := json.Compact(&compact, []byte(want)); err != nil {
					t.Fatal(err)
				}
				want = compact.String()
			}
			if got := out.String(); got != want+"\n" && got != want {
				t.Errorf("%s with %q: %q, want %q", one.structured, one.texts, got, want)
			}
		}
	})
}

// The gate checks structuredContent and isError: keys in other letters must not stand for them.
func TestPrintResult_ReadsKeysAsTheyAre(t *testing.T) {
	for _, text := range []string{
		`{"structuredContent":{"n":1},"STRUCTUREDCONTENT":{"n":"evil"}}`,
		`{"structuredContent":{"n":1},"iserror":true}`,
	} {
		var out bytes.Buffer
		if err := printResult(&out, "a.b", json.RawMessage(text), false); err != nil || out.String() != "{\"n\":1}\n" {
			t.Errorf("%s: %q, %v", text, out.String(), err)
		}
	}
	if err := printResult(&bytes.Buffer{}, "a.b", json.RawMessage(`{"isError":true}`), false); fmt.Sprint(err) == "<nil>" {
		t.Error("an error of a tool is no error")
	}
}
