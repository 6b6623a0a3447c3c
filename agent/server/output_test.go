package server_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	. "github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/agenttest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

func TestOutput_ArrivesBeforeTheResult(t *testing.T) {
	t.Parallel()
	a := Start(t, "bash")
	id := a.Call("echo first; echo error >&2; sleep 99")
	seen := map[string]string{}
	for len(seen) < 2 {
		r := a.Receive()
		if r.Type != frame.Output {
			t.Fatalf("reply %+v before the output", r)
		}
		seen[r.Stream] += r.Data
	}
	if diff := cmp.Diff(map[string]string{frame.Stdout: "first\n", frame.Stderr: "error\n"}, seen); diff != "" {
		t.Error(diff)
	}
	a.Send(frame.Request{Type: frame.Interrupt, ID: id})
	a.Wait(id)
}

func TestOutputIsBounded(t *testing.T) {
	t.Parallel()
	const limit = 4096
	for kind, code := range map[string]string{
		"python": "import sys\nfor i in range(100000): print('line', i)\nprint('end')",
		"bash":   "seq -f 'line %.0f' 0 99999; echo end",
		"node":   "for (let i = 0; i < 100000; i++) console.log('line', i); console.log('end')",
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			a := Start(t, kind)
			a.Send(frame.Request{Type: frame.Configure, OutputBytes: limit})
			a.Run("")
			got := a.Run(code)
			if !strings.HasPrefix(got.Stdout, "line 0\nline 1\n") || !strings.HasSuffix(got.Stdout, "line 99999\nend\n") {
				t.Errorf("stdout begins with %.20q", got.Stdout)
			}
			if len(got.Stdout) > limit {
				t.Errorf("%d bytes of stdout", len(got.Stdout))
			}
			const total = 1088890 + 4
			path := filepath.Join(a.Root, ".outputs", "2.stdout")
			want := []frame.Truncation{{
				Stream: frame.Stdout, Total: total, Path: path, Stored: total,
			}}
			if diff := cmp.Diff(want, got.Truncated); diff != "" {
				t.Error(diff)
			}
			if want := total - int64(len(got.Stdout)); got.Skipped != want {
				t.Errorf("%d bytes skipped in the frames, want %d", got.Skipped, want)
			}
			stored, err := os.ReadFile(path)
			if err != nil || len(stored) != total {
				t.Errorf("%d bytes stored, %v", len(stored), err)
			}
			if got := a.Run(""); got.Truncated != nil || got.Stdout != "" {
				t.Errorf("the next call has some of it: %+v", got)
			}
		})
	}
}

func TestEphemeralOutputIsNotStored(t *testing.T) {
	t.Parallel()
	a := Start(t, "bash")
	got := a.Run("seq 100000", Ephemeral)
	if len(got.Truncated) != 1 || got.Truncated[0].Path != "" {
		t.Errorf("%+v", got.Truncated)
	}
}

// 100 MB arrive as 32 KiB, with samples of what is held back.
func TestOutput_HasSamplesOfWhatIsHeldBack(t *testing.T) {
	t.Parallel()
	a := Start(t, "bash")
	got := a.Run("yes 'a line of output' | head -c 100000000; sleep 1.2; echo; yes again | head -c 100; sleep 1.2")
	if len(got.Stdout) > 32<<10 || len(got.Truncated) != 1 || got.Truncated[0].Total != 100000101 {
		t.Errorf("%d bytes, %+v", len(got.Stdout), got.Truncated)
	}
	if got.Samples < 1 || got.Samples > 30 {
		t.Errorf("%d samples", got.Samples)
	}
}

// A character is never cut by a frame.
func TestCharactersStayWhole(t *testing.T) {
	t.Parallel()
	a := Start(t, "bash")
	got := a.Run(`for i in 1 2 3 4 5; do printf '\xe2\x82'; sleep 0.08; printf '\xac'; done; printf '\xff'`)
	if want := "€€€€€\uFFFD"; got.Stdout != want || !utf8.ValidString(got.Stdout) {
		t.Errorf("stdout %q, want %q", got.Stdout, want)
	}
}

// Code that owns the folder of stored outputs cannot lead the agent astray.
func TestStoredOutputFollowsNoLink(t *testing.T) {
	t.Parallel()
	a := Start(t, "bash")
	outside := t.TempDir()
	must.Do(t, os.Symlink(outside, filepath.Join(a.Root, ".outputs")))
	got := a.Run("seq 100000")
	if len(got.Truncated) != 1 || got.Truncated[0].Path != "" {
		t.Errorf("%+v", got.Truncated)
	}
	if entries, _ := os.ReadDir(outside); len(entries) != 0 {
		t.Errorf("files outside of the workspace: %v", entries)
	}
}

func TestRead_AnswersWhileACallRuns(t *testing.T) {
	t.Parallel()
	a := Start(t, "bash")
	a.Send(frame.Request{Type: frame.Ping, ID: 999})
	a.Receive()
	got := a.Run("mkdir -p outputs/sub; echo 1 > outputs/a; echo 22 > outputs/sub/b; ln -s /etc/passwd outputs/c; echo > elsewhere")
	want := []frame.File{{Path: a.Root + "/outputs/a", Size: 2}, {Path: a.Root + "/outputs/sub/b", Size: 3}}
	if diff := cmp.Diff(want, got.Files); diff != "" {
		t.Error(diff)
	}
	if got := a.Run("cat outputs/a"); got.Files != nil {
		t.Errorf("files %v of a call that wrote none", got.Files)
	}
	// Files are read while a call runs.
	id := a.Call("sleep 99")
	a.Send(frame.Request{Type: frame.Read, ID: 50, Path: a.Root + "/outputs/sub/b", Offset: 1})
	if diff := cmp.Diff(frame.Reply{Type: frame.Contents, ID: 50, Contents: []byte("2\n"), Size: 3}, a.Receive()); diff != "" {
		t.Error(diff)
	}
	for path, isMissing := range map[string]bool{"outputs/c": false, "/etc/passwd": false, "../x": false, "nothing": true} {
		a.Send(frame.Request{Type: frame.Read, ID: 52, Path: path})
		if got := a.Receive(); got.Type != frame.Error || got.ID != 52 || got.Message == "" || got.Missing != isMissing {
			t.Errorf("%s: reply %+v, want an error, and that the file is missing: %v", path, got, isMissing)
		}
	}
	a.Send(frame.Request{Type: frame.Interrupt, ID: id})
	a.Wait(id)
}
