package registry

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// What the folders of the interpreters hold is read without a mistake.
func TestLanguage_ReadsWhatNixWrites(t *testing.T) {
	files, err := filepath.Glob("../../nix/interpreters/*/interpreter.json")
	if err != nil || len(files) < 3 {
		t.Fatalf("%d interpreters, %v", len(files), err)
	}
	for _, file := range files {
		text := must.Get(os.ReadFile(file))(t)
		var known struct{ Language map[string]any }
		if err := json.Unmarshal(text, &known); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		fields := entry(t, map[string]any{"interpreter_type": "x", "language": known.Language})
		set, err := Read(document(t, map[string]any{"a": fields}, nil))
		if err != nil || len(set.Broken) > 0 {
			t.Fatalf("%s: %v, %v", file, err, set.Broken)
		}
		l := set.Environments["a"].Language
		if l.Type != "x" || !l.Sessions || l.Description == "" || l.Probe == "" || len(l.Programs) == 0 || len(l.ForeignWords) == 0 || l.Errors == (Errors{}) {
			t.Errorf("%s: %+v", file, l)
		}
		program := l.Programs[0]
		if !l.Calls(program) || !l.Calls(program+"3.13") || l.Calls(program+"-build") || l.Calls("") {
			t.Errorf("%s: programs %q", file, l.Programs)
		}
	}
}

// Each folder has errors as the interpreter writes them, in files that are called
// "KIND NAME" after what they are about. None of "none" is recognized.
func TestLanguage_RecognizesErrors(t *testing.T) {
	files, err := filepath.Glob("../../nix/interpreters/*/testdata/errors.txtar")
	if err != nil || len(files) < 3 {
		t.Fatalf("%d interpreters, %v", len(files), err)
	}
	for _, file := range files {
		text := must.Get(os.ReadFile(filepath.Join(filepath.Dir(file), "..", "interpreter.json")))(t)
		var known struct {
			Language *Language `json:"language"`
		}
		must.Do(t, decode(file, "", text, &known))
		l := known.Language
		kinds := map[string]Pattern{
			"syntax": l.Errors.Syntax, "module": l.Errors.Module, "name": l.Errors.Name,
			"command": l.Errors.Command, "program": l.Errors.Program, "input": l.Errors.Input,
		}
		tried := map[string]bool{}
		archive := must.Get(txtar.ParseFile(file))(t)
		for _, f := range archive.Files {
			want, name, _ := strings.Cut(f.Name, " ")
			tried[want] = true
			for kind, pattern := range kinds {
				got, found := pattern.Find(string(f.Data))
				if found != (kind == want) {
					t.Errorf("%s: %s: recognized as %s: %v", file, f.Name, kind, found)
				}
				if kind == want && name != "" && got != name {
					t.Errorf("%s: %s: the name is %q", file, f.Name, got)
				}
			}
		}
		for kind, pattern := range kinds {
			if tried[kind] != (pattern.Regexp != nil) {
				t.Errorf("%s: %s: tried %v, has a pattern %v", file, kind, tried[kind], pattern.Regexp != nil)
			}
		}
	}
}

// An artifact of an earlier version says less: the rest comes from the server.
func TestLanguage_OfAnEarlierArtifactIsTheServers(t *testing.T) {
	known := map[string]any{"interpreters": map[string]any{
		"python": map[string]any{"sessions": true, "description": "Python", "probe": "server"},
	}}
	set, err := Read(document(t, map[string]any{
		"older":  entry(t, map[string]any{"interpreter_type": "python"}),
		"newer":  entry(t, map[string]any{"interpreter_type": "python", "language": map[string]any{"sessions": false, "probe": "own"}, "description": "d"}),
		"plain":  entry(t, nil),
		"future": entry(t, map[string]any{"interpreter_type": "cobol"}),
	}, known))
	if err != nil || len(set.Broken) > 0 {
		t.Fatalf("%v, %v", err, set.Broken)
	}
	got := map[string][]any{}
	for name, env := range set.Environments {
		probe := ""
		if env.Language != nil {
			probe = env.Language.Probe
		}
		got[name] = []any{env.Sessions(), env.Description, probe}
	}
	want := map[string][]any{
		"older":  {true, "Python", "server"},
		"newer":  {false, "d", "own"},
		"plain":  {false, "", ""},
		"future": {false, "", ""},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	folder := t.TempDir()
	writeArtifact(t, folder, "shell", map[string]any{"schema": 1, "name": "shell", "backend": "jail", "interpreter_type": "python"})
	all := must.Get(set.With(Folders{Folders: []string{folder}}))(t)
	if !all.Environments["shell"].Sessions() {
		t.Errorf("an earlier artifact in a folder: %+v", all.Environments["shell"])
	}
	// Code of one environment starts programs of any language.
	var types []string
	for _, l := range New(all).Now().Languages() {
		types = append(types, l.Type+" "+l.Probe)
	}
	if len(types) != 2 || !strings.Contains(strings.Join(types, ","), "python own") {
		t.Errorf("languages %q", types)
	}
}

func TestLanguage_NamesWhatIsWrong(t *testing.T) {
	for field, test := range map[string]struct {
		value any
		want  string
	}{
		"sessions": {"yes", "sessions is a string, it must be a boolean"},
		"probe":    {1, "probe is a number, it must be a string"},
		"programs": {"python", "programs is a string, it must be an array"},
		"hints":    {[]any{map[string]any{"code": "x", "say": "y"}, map[string]any{"say": 1}}, "hints.say is a number, it must be a string"},
		"errors":   {map[string]any{"name": "("}, `errors.name is "(", it must be a regular expression`},
	} {
		set := must.Get(Read(document(t, map[string]any{"x": entry(t, map[string]any{"language": map[string]any{field: test.value}})}, nil)))(t)
		if why := reason(set, "x"); why == nil || !strings.Contains(why.Error(), "environments.x.language."+test.want) {
			t.Errorf("%s: %v, want %q", field, why, test.want)
		}
		_, err := Read(document(t, map[string]any{}, map[string]any{"interpreters": map[string]any{"python": map[string]any{field: test.value}}}))
		if err == nil || !strings.Contains(err.Error(), "interpreters."+test.want) {
			t.Errorf("of the server: %s: %v, want %q", field, err, test.want)
		}
	}
	for want, value := range map[string]any{
		"interpreters is an array, it must be an object": []int{},
		"interpreters is a number, it must be an object": map[string]any{"ruby": 1},
	} {
		if _, err := Read(document(t, map[string]any{}, map[string]any{"interpreters": value})); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// Environments of one language share its expressions, and a wrong one stays wrong.
func TestPattern_IsShared(t *testing.T) {
	var a, b Pattern
	for _, p := range []*Pattern{&a, &b} {
		if err := p.UnmarshalText([]byte("^shared (.*)$")); err != nil {
			t.Fatal(err)
		}
	}
	if a.Regexp != b.Regexp {
		t.Error("each environment compiles it")
	}
	for range 2 {
		if err := a.UnmarshalText([]byte("(")); err == nil {
			t.Error("a wrong expression is taken")
		}
	}
	for i := range 2 * maxExpressions {
		if err := b.UnmarshalText(fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(compiled.all); n > maxExpressions {
		t.Errorf("%d expressions are kept", n)
	}
}
