package server_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	. "github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/agenttest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// traces is code that prints what a call that was rehearsed could have left.
var traces = map[string]string{
	"python": "import gc, atexit; print(sorted(globals().items(), key=str), gc.get_freeze_count(), gc.isenabled(), atexit._ncallbacks())",
	"bash":   "echo $? $_ $!; declare -p | grep -v -e RANDOM -e SECONDS -e EPOCH -e BASHPID -e PPID -e __agent; ls -A",
	"node":   "console.log(Object.getOwnPropertyNames(globalThis).join(), process.listeners('exit').length, require('fs').readdirSync('.'))",
}

// hide replaces the path of a workspace in output.
func hide(output, root string) string { return strings.ReplaceAll(output, root, "ROOT") }

// rehearse has an agent rehearse its first call, as a copy of a machine does.
func rehearse(t *testing.T, a *Agent) {
	t.Helper()
	for _, step := range []struct {
		request frame.Request
		want    frame.Reply
	}{
		{frame.Request{Type: frame.Reseed, ID: 3, Rehearse: true}, frame.Reply{Type: frame.Reseeded, ID: 3}},
		{frame.Request{Type: frame.Ping, ID: 4}, frame.Reply{Type: frame.Pong, ID: 4}},
	} {
		a.Send(step.request)
		if diff := cmp.Diff(step.want, a.Receive()); diff != "" {
			t.Fatal(diff)
		}
	}
}

// Nothing but the pong tells that a call was rehearsed.
func TestRehearsal_LeavesNothing(t *testing.T) {
	t.Parallel()
	for _, kind := range Interpreters(t) {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			plain, rehearsed := Start(t, kind).Warm(), Start(t, kind).Warm()
			rehearse(t, rehearsed)
			code, ok := traces[kind]
			if !ok {
				t.Fatalf("the test has no code for %s", kind)
			}
			want, got := plain.Run(code), rehearsed.Run(code)
			if want.Stdout == "" || want.ExitCode != 0 {
				t.Fatalf("without a rehearsal: %+v", want)
			}
			// The workspaces of the two have names of their own.
			want.Stdout, got.Stdout = hide(want.Stdout, plain.Root), hide(got.Stdout, rehearsed.Root)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
			rehearsed.Run("", Ephemeral)
		})
	}
}

// What a rehearsal prints goes nowhere, also where it takes longer than output may wait.
func TestRehearsal_IsSilentWhereItIsSlow(t *testing.T) {
	t.Parallel()
	a := fake(t, "", `while read -r word nonce rest <&3; do echo text; sleep 0.2; echo "done $nonce 0" >&3; done`).Warm()
	rehearse(t, a)
	if got := a.Run("1"); got.Stdout != "text\n" {
		t.Errorf("stdout of the first call is %q", got.Stdout)
	}
}

// A call that comes first is not rehearsed, and the ping is answered.
func TestRehearsal_GivesWayToACall(t *testing.T) {
	t.Parallel()
	a := Start(t, "python").Warm()
	a.Send(frame.Request{Type: frame.Reseed, ID: 3, Rehearse: true})
	if got := a.Receive(); got.Type != frame.Reseeded {
		t.Fatalf("reply %+v, want reseeded", got)
	}
	a.Steps([]Step{{Code: state["python"].set}})
	a.Send(frame.Request{Type: frame.Ping, ID: 4})
	if got := a.Receive(); got.Type != frame.Pong || got.ID != 4 {
		t.Fatalf("reply %+v, want pong", got)
	}
	a.Steps([]Step{{Code: state["python"].show, Stdout: state["python"].want}})
}

// A ping that comes while the first call runs is answered at once, whatever its identifier.
func TestRehearsal_NeverDelaysAPing(t *testing.T) {
	t.Parallel()
	a := Start(t, "bash").Warm()
	a.Send(frame.Request{Type: frame.Reseed, ID: 3, Rehearse: true})
	if got := a.Receive(); got.Type != frame.Reseeded {
		t.Fatalf("reply %+v, want reseeded", got)
	}
	id := a.Call("until [[ -e answered ]]; do sleep 0.01; done; echo end")
	a.Send(frame.Request{Type: frame.Ping, ID: id})
	if got := a.Receive(); got.Type != frame.Pong || got.ID != id {
		t.Fatalf("reply %+v, want pong", got)
	}
	must.Write(t, filepath.Join(a.Root, "answered"), "", 0o644)
	if got := a.Wait(id); got.Stdout != "end\n" {
		t.Errorf("the call prints %q", got.Stdout)
	}
}

// A call and an interrupt may have the identifier of the ping whose call is rehearsed.
func TestRehearsal_TakesNoIdentifier(t *testing.T) {
	t.Parallel()
	a := fake(t, "", `while read -r word nonce rest <&3; do until [ -e go ]; do sleep 0.01; done; echo "done $nonce 0" >&3; done`)
	must.Write(t, filepath.Join(a.Root, "go"), "", 0o644)
	a.Warm()
	a.Send(frame.Request{Type: frame.Reseed, ID: 3, Rehearse: true})
	if got := a.Receive(); got.Type != frame.Reseeded {
		t.Fatalf("reply %+v, want reseeded", got)
	}
	must.Do(t, os.Remove(filepath.Join(a.Root, "go")))
	const id = 1
	a.Send(frame.Request{Type: frame.Ping, ID: id})
	a.Send(frame.Request{Type: frame.Interrupt, ID: id})
	a.Send(frame.Request{Type: frame.Execute, ID: id, Code: "1", Keep: true, TimeoutMS: patience.Long.Milliseconds()})
	must.Write(t, filepath.Join(a.Root, "go"), "", 0o644)
	if got := a.Receive(); got.Type != frame.Pong || got.ID != id {
		t.Fatalf("reply %+v, want pong", got)
	}
	if got := a.Receive(); got.Type != frame.Result || got.ID != id || got.Outcome != frame.OutcomeOK {
		t.Fatalf("reply %+v, want a result", got)
	}
}

// An interpreter that runs gets further programs, and keeps its state and what its code has set.
func TestGrow_AddsPrograms(t *testing.T) {
	for kind, code := range map[string][3]string{
		"bash":   {"x=41; PATH=$PATH:/own", "echo $x ${PATH##*:}; added", "added"},
		"python": {"import os, subprocess; x = 41; os.environ['PATH'] += ':/own'", "print(x, os.environ['PATH'].split(':')[-1], flush=True); p = subprocess.run(['added'])", "import subprocess; p = subprocess.run(['added'])"},
		"node":   {"x = 41; process.env.PATH += ':/own'; undefined", "console.log(x, process.env.PATH.split(':').pop()); require('child_process').spawnSync('added', { stdio: 'inherit' }); undefined", "require('child_process').spawnSync('added', { stdio: 'inherit' }); undefined"},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			must.Do(t, os.WriteFile(filepath.Join(folder, "added"), []byte("#!/bin/sh\necho added\n"), 0o755))
			a := Start(t, kind, Bare(t))
			before := a.Run(code[0])
			path := folder + ":" + os.Getenv("PATH")
			a.Send(frame.Request{Type: frame.Grow, ID: 1000, Env: map[string]string{"PATH": path}})
			if r := a.Receive(); r.Type != frame.Grown || r.ID != 1000 {
				t.Fatalf("%+v, after %+v", r, before)
			}
			if got := a.Run(code[1]); got.Stdout != "41 /own\nadded\n" || got.State != frame.StateKept {
				t.Errorf("%+v", got)
			}
			// One that is started anew finds them too.
			if got := a.Run(code[2], Ephemeral); got.Stdout != "added\n" {
				t.Errorf("%+v", got)
			}
		})
	}
}
