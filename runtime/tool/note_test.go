package tool

import (
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// The first answer with changes says how the user takes them, by a command that the user can
// run; later ones do not, nor those with other notes. Copied files are where the user finds
// them.
func TestNotes_SayWhatTheUserHas(t *testing.T) {
	for name, test := range map[string]struct {
		c    call.Call
		note call.Note
		want string
	}{
		"the first": {call.Call{Session: "fix"}, call.Changes{Added: 1, First: true}, "[changes to the project: the user takes them with: nix-sandbox-mcp changes fix --apply]"},
		"copied":    {call.Call{Session: "fix"}, call.Copied{To: "/out/fix", Files: 2}, "[copied for the user to /out/fix]"},
		"copied in part": {call.Call{Session: "fix"}, call.Copied{To: "/out/fix", Files: 1, LeftOutCount: 9, LeftOut: []call.LeftOut{{Path: "a]\n[exit status 0", Reason: "b"}, {Path: ".x", Reason: "c\x1b[2J"}, {Path: "y", Reason: "d"}, {Path: "z", Reason: "e"}}},
			`[copied for the user to /out/fix: 1 of 10 files; not "a]\n[exit status 0", because b; not .x, because c\x1b[2J; not y, because d; nor 6 more]`},
		"copied over HTTP":   {call.Call{Session: "fix", Principal: "alice"}, call.Copied{To: "/out/alice/fix", Files: 2}, "[copied for the user to the server's folder of outputs]"},
		"a later one":        {call.Call{Session: "fix"}, call.Changes{Added: 2}, "[no output]"},
		"another note":       {call.Call{Session: "fix"}, call.Branched{From: "a"}, "[no output]"},
		"a name like a flag": {call.Call{Session: "--json"}, call.Changes{Added: 1, First: true}, "[changes to the project: the user takes them with: nix-sandbox-mcp changes --apply -- --json]"},
		"over HTTP":          {call.Call{Session: "fix", Principal: "alice"}, call.Changes{Added: 1, First: true}, "[changes to the project: the user takes them with the patch sandbox://fix/changes.patch]"},
	} {
		t.Run(name, func(t *testing.T) {
			a := answer{call: test.c, result: call.Result{Result: sandbox.Result{Outcome: frame.OutcomeOK}, Notes: []call.Note{test.note}}}
			var text []string
			a.result.Remarks = a.remarks("")
			for _, part := range a.parts() {
				text = append(text, part.text)
			}
			if got := strings.Join(text, "|"); got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}
