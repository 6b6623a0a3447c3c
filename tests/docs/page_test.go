package docs

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

func TestParse_FindsBlocksAndLinks(t *testing.T) {
	p := must.Get(parse("# A page, of `two` parts\n\n## Part\n[a](b.md#c) `[no](link)`\n```sh run\necho [x](y)\n```\n## Part\n```text\n->\n```\n"))(t)
	if diff := cmp.Diff(map[string]bool{"a-page-of-two-parts": true, "part": true, "part-1": true}, p.anchors); diff != "" {
		t.Error(diff)
	}
	if len(p.links) != 1 || p.links[0].target != "b.md#c" {
		t.Errorf("links %v", p.links)
	}
	if len(p.blocks) != 2 || p.blocks[0].text != "echo [x](y)\n" || p.blocks[0].verb != "run" || p.blocks[1].verb != "drawing" {
		t.Errorf("blocks %+v", p.blocks)
	}
}

// A block that would be left out without a word is a mistake.
func TestParseRefuses(t *testing.T) {
	for _, text := range []string{"```sh\nx\n```\n", "```sh runs\nx\n```\n", "```sh run=root\nx\n```\n", "```sh elsewhere: no\nx\n```\n", "```sh run\nx\n"} {
		if _, err := parse(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

func TestMatches_EllipsisStandsForAnything(t *testing.T) {
	for _, test := range []struct {
		shown, printed string
		want           bool
	}{
		{"a\nb\n", "a\nb\n", true},
		{"a\nb\n", "a\nb", true},
		{"a\n", "a\nb\n", false},
		{"a…c\n", "abbbc\n", true},
		{"a…c\n", "a\nc\n", false},
		{"a\n…\nc\n", "a\nx\ny\nc\n", true},
		{"a\n…\nc\n", "a\nc\n", true},
		{"a\n…\nc\n", "a\nx\n", false},
		{"a.c\n", "abc\n", false},
	} {
		if got := matches(test.shown, test.printed); got != test.want {
			t.Errorf("%q shows %q: %v", test.shown, test.printed, got)
		}
	}
}

func TestCalls_ReadsTranscript(t *testing.T) {
	got := must.Get(calls("run(env: \"python\", code: \"print(1)\\n\\\"x\\\"\")\n\n1\nx\n\nrun(env: \"bash\", session: \"s\", code: \"\")\n\n[no output]\n"))(t)
	want := []call{
		{map[string]any{"env": "python", "code": "print(1)\n\"x\""}, "1\nx\n"},
		{map[string]any{"env": "bash", "session": "s", "code": ""}, "[no output]\n"},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(call{})); diff != "" {
		t.Error(diff)
	}
}
