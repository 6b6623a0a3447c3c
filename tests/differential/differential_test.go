package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == workerArgument {
		os.Exit(work(os.Stdin, os.Stdout))
	}
	os.Exit(m.Run())
}

// The programs of the corpus do in a sandbox what they do beside it.
func TestCorpus(t *testing.T) {
	outcomes, _, err := compareAll(t.Context(), settings{server: undertest.Server(t), jobs: 2, timeout: time.Minute, repeat: true}, []string{"corpus"})
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, o := range outcomes {
		switch {
		case o.Verdict == same || o.Verdict == bothFail:
			ran++
		case o.Verdict == broken && strings.HasPrefix(o.Difference, noEnvironment):
			// This server has other languages.
		default:
			t.Errorf("%s: %s: %s", o.Name, o.Verdict, o.Difference)
		}
	}
	if ran == 0 {
		t.Error("no case ran")
	}
}

// The comparison finds what differs.
func TestCompare(t *testing.T) {
	for name, test := range map[string]struct {
		ext          string
		ours, theirs run
		want         string
	}{
		"the same":               {".py", run{stdout: "1\n"}, run{stdout: "1\n"}, ""},
		"addresses and files":    {".py", run{stdout: "<f at 0x7fe0aa11>\n", stderr: "<code>:1: X\n"}, run{stdout: "<f at 0x7fffbb22>\n", stderr: "/workspace/main.py:1: X\n"}, ""},
		"a last value":           {".py", run{stdout: "1\n3\n"}, run{stdout: "1\n"}, ""},
		"a value before the end": {".js", run{stdout: "1\n3\n2\n"}, run{stdout: "1\n2\n"}, ""},
		"other text":             {".py", run{stdout: "1\n"}, run{stdout: "2\n"}, `stdout: line 1: "1" instead of "2"`},
		"less text":              {".py", run{}, run{stdout: "2\n"}, `stdout: line 1: "" instead of "2"`},
		"other text on stderr":   {".py", run{stderr: "a\n"}, run{}, `stderr: line 1: "a" instead of ""`},
		"a failure of ours":      {".py", run{status: 1, stderr: "E: x\n"}, run{}, "status 1 instead of 0: E: x"},
		"another status":         {".py", run{status: 1}, run{status: 2}, "status 1 instead of 2"},
		"folded frames":          {".py", run{status: 1, stderr: "Traceback\n  [3 frames of json]\nE: x\n"}, run{status: 1, stderr: "Traceback\n  File\nE: x\n"}, ""},
		"another error":          {".py", run{status: 1, stderr: "E: x\n"}, run{status: 1, stderr: "E: y\n"}, `error "E: x" instead of "E: y"`},
		"an error of Node.js":    {".js", run{status: 1, stderr: "Uncaught TypeError: x\n    at f {\n  code: 1\n}\n"}, run{status: 1, stderr: "/workspace/main.js:1\nf()\n^\n\nTypeError: x\n    at f {\n\nNode.js v20\n"}, ""},
		"a missing command":      {".sh", run{stderr: "bash: line 3: x: command not found\n"}, run{stderr: "environment: line 3: x: command not found\n"}, ""},
		"figures":                {".py", run{known: true, images: 1}, run{known: true}, "1 figures instead of 0"},
		"a line that is redrawn": {".py", run{stdout: "100%\n"}, run{stdout: "1%\r50%\r100%\n"}, ""},
	} {
		c := testCase{ext: test.ext, language: languages[test.ext], calls: []string{""}}
		if _, difference := compare(c, test.ours, test.theirs, 0); difference != test.want {
			t.Errorf("%s: %q, want %q", name, difference, test.want)
		}
	}
}

func TestCellsOf(t *testing.T) {
	for text, want := range map[string]string{
		`{"cells": [{"cell_type": "code", "source": ["a\n", "b"]}, {"cell_type": "markdown", "source": "c"}]}`:   "a\nb",
		`{"worksheets": [{"cells": [{"cell_type": "code", "input": "a"}, {"cell_type": "code", "input": ""}]}]}`: "a",
		`{}`: "",
	} {
		if cells, err := cellsOf([]byte(text)); err != nil || strings.Join(cells, "|") != want {
			t.Errorf("%s: %q, %v", text, cells, err)
		}
	}
}
