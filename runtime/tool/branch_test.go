package tool

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// branching is described, with an environment that has branches.
func branching() *registry.Set {
	set := described()
	env := set.Environments["bash"]
	env.Suspend, env.Branch = true, true
	set.Environments["bash"] = env
	return set
}

func withBranches(set *registry.Set, branches bool) *Tool {
	tool := describing(registry.New(set), Project{})
	tool.Branches = branches
	return tool
}

// The argument is in the schema only where an environment has branches and the server
// has sessions sleep.
func TestSchema_HasFromWhereAnEnvironmentHasBranches(t *testing.T) {
	without := ask(t, withBranches(described(), true), "tools/list")
	if strings.Contains(without, `"from"`) {
		t.Errorf("jails alone have %s", without)
	}
	if text := ask(t, withBranches(branching(), false), "tools/list"); text != without {
		t.Errorf("where no session sleeps, the model reads\n%s\nin place of\n%s", text, without)
	}
	if text := ask(t, withBranches(branching(), true), "tools/list"); !strings.Contains(text, `"from":{"type":"string","pattern":`) || len(text)-len(without) > 130 {
		t.Errorf("%d bytes more: %s", len(text)-len(without), text)
	}
}

func TestFrom_IsChecked(t *testing.T) {
	for name, test := range map[string]struct {
		session, from any
		branches      bool
		refusal       string
	}{
		"a new session":   {"b", "a", true, ""},
		"null":            {"b", nil, true, ""},
		"without session": {nil, "a", true, `from is "a" and there is no session that could begin as its copy`},
		"no name":         {"b", "../a", true, `from is "../a": it must be the id of a session`},
		"a number":        {"b", 7.0, true, "from is not a string"},
		"where none is":   {"b", "a", false, `unknown argument "from"`},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := withBranches(branching(), test.branches).list().call(map[string]any{"code": "1", "env": "bash", "session": test.session, "from": test.from}, noSession)
			from, _ := test.from.(string)
			if test.refusal == "" && (err != nil || c.From != from) || test.refusal != "" && (err == nil || !strings.HasPrefix(err.Error(), test.refusal)) {
				t.Errorf("%+v, error %v, want %q", c.From, err, test.refusal)
			}
		})
	}
}

// Each refusal is a sentence of its own, and an error.
func TestAnswer_RefusesBranches(t *testing.T) {
	seen := map[string]bool{}
	for _, reason := range []call.BranchRefusal{call.Busy, call.Unknown, call.Existing, call.Branchless, call.NoCopy} {
		a := answer{call: call.Call{Session: "b", From: "a"}, err: &call.BranchError{From: "a", Session: "b", Env: "bash", Reason: reason, Problem: errors.New("no space left on device")}}
		text := a.parts()[0].text
		if !a.failed() || seen[text] || strings.Contains(text, "\n") {
			t.Errorf("%s: %q", reason, text)
		}
		seen[text] = true
	}
}

func TestAnswer_SaysThatASessionWasWoken(t *testing.T) {
	for _, test := range []struct {
		resumed call.Resumed
		want    string
	}{
		{call.Resumed{After: 30 * time.Second}, "1\n[resumed: the session was suspended for 30 s and goes on as it was]"},
		{call.Resumed{After: 10 * time.Minute}, "1\n[resumed: the session was suspended for 10 min and goes on as it was]"},
		{call.Resumed{After: 5 * time.Hour}, "1\n[resumed: the session was suspended for 5 h and goes on as it was]"},
		{call.Resumed{After: 72 * time.Hour, Lost: "the agent ended"}, "1\n[new session: the earlier one was suspended for 3 days and cannot be resumed: the agent ended]"},
	} {
		a := answer{call: call.Call{Session: "s"}, result: call.Result{Notes: []call.Note{test.resumed}, Result: sandbox.Result{Outcome: frame.OutcomeOK, Stdout: sandbox.Text{Head: "1\n"}}}}
		var text strings.Builder
		a.result.Remarks = a.remarks("")
		for _, p := range a.parts() {
			text.WriteString(p.text)
		}
		changed := a
		changed.result.ProjectChanged = true
		if remarks := changed.remarks(""); a.facts()[metaPrefix+"project_changed"] != nil || changed.facts()[metaPrefix+"project_changed"] != true || !strings.HasPrefix(remarks[1], "[host files have changed: this session") {
			t.Errorf("where the project has changed: %v", remarks)
		}
		if facts := a.facts(); text.String() != test.want || facts[metaPrefix+"resumed"] != (test.resumed.Lost == "") || facts[metaPrefix+"suspended_seconds"] != int64(test.resumed.After.Seconds()) {
			t.Errorf("%q, want %q", &text, test.want)
		}
	}
}
