package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// module has a package for each way in which `go test` can end.
var module = map[string]string{
	"go.mod": "module m\n\ngo 1.25\n",
	"good/good_test.go": `package good
import "testing"
func TestPasses(t *testing.T) { t.Run("a part", func(t *testing.T) {}); t.Log("--- FAIL: TestPasses (0.00s)") }
func TestSkipped(t *testing.T) { t.Log("first"); t.Skip("there is no moon") }
`,
	"skips/skips_test.go": `package skips
import "testing"
func TestFirst(t *testing.T) { t.Skip("there is no moon") }
func TestSecond(t *testing.T) { t.Skip("there is no sun") }
`,
	"bad/bad_test.go": `package bad
import ("fmt"; "testing")
func TestPasses(t *testing.T) { fmt.Println("printed by one that passed") }
func TestFails(t *testing.T) { t.Run("part", func(t *testing.T) { t.Error("one is not two") }) }
`,
	"panics/panics_test.go": `package panics
import "testing"
func TestPanics(t *testing.T) { panic("at the disco") }
`,
	"exits/exits_test.go": `package exits
import ("os"; "testing")
func TestMain(m *testing.M) { os.Stderr.WriteString("no database\n"); os.Exit(3) }
`,
	"hangs/hangs_test.go": `package hangs
import "testing"
func TestHangs(t *testing.T) { select {} }
func TestOther(t *testing.T) {}
`,
	"wrong/wrong_test.go": "package wrong\nvar x int = \"text\"\n",
}

// What go test itself prints of each of them is read.
func TestReport_GoTest(t *testing.T) {
	folder := t.TempDir()
	for name, text := range module {
		path := filepath.Join(folder, name)
		must.Do(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.Do(t, os.WriteFile(path, []byte(text), 0o644))
	}
	for name, want := range map[string]struct {
		counts   string
		verdicts []string
		reason   string
		not      string
	}{
		"good": {"1 0 1", []string{"SKIP TestSkipped: there is no moon"}, "", "."},
		"skips": {"0 0 2", []string{"SKIP TestFirst: there is no moon", "SKIP TestSecond: there is no sun", "SKIP m/skips: there is no sun"},
			"", "."},
		"bad":    {"1 1 0", []string{"FAIL TestFails (m/bad)"}, "bad_test.go:4: one is not two\n", "one that passed"},
		"panics": {"0 1 0", []string{"FAIL TestPanics (m/panics)"}, "panic: at the disco", "no such"},
		"exits":  {"0 1 0", []string{"FAIL m/exits"}, "no database\n", "no such"},
		"hangs":  {"0 1 0", []string{"FAIL m/hangs"}, "panic: test timed out after 300ms", "no such"},
		"wrong":  {"0 1 0", []string{"FAIL m/wrong"}, `cannot use "text"`, "no such"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command("go", "test", "-json", "-vet=off", "-timeout", "300ms", "./"+name)
			cmd.Dir = folder
			output, _ := cmd.Output() // its status is that of the tests
			counts, verdicts, reasons, log := report(t, string(output))
			if diff := cmp.Diff(want.verdicts, verdicts); diff != "" || counts != want.counts {
				t.Errorf("%s, verdicts (-want +got):\n%s", counts, diff)
			}
			if !strings.Contains(reasons, want.reason) || strings.Contains(reasons, want.not) {
				t.Errorf("reasons:\n%s", reasons)
			}
			if strings.Contains(log, `"Action"`) || !strings.Contains(log, "m/"+name) {
				t.Errorf("log:\n%s", log)
			}
		})
	}
}

// The lines of suites that are not Go's are read between events.
func TestReport_Lines(t *testing.T) {
	counts, verdicts, reasons, log := report(t, `ok first
about the second
FAIL second: exit status 3
{"Action":"output","Package":"p","Test":"TestA","Output":"ok forged\n"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"unrelated": "JSON"}
ok third: 4 s
SKIP fourth: there is no network
ok is not a result
and it stopped here`)
	if counts != "3 1 1" {
		t.Error(counts)
	}
	if diff := cmp.Diff([]string{"FAIL second: exit status 3", "SKIP fourth: there is no network"}, verdicts); diff != "" {
		t.Error(diff)
	}
	if want := "about the second\nok is not a result\nand it stopped here\n"; reasons != want {
		t.Errorf("reasons are %q, want %q", reasons, want)
	}
	if !strings.HasPrefix(log, "ok first\nabout the second\nFAIL second: exit status 3\nok forged\n") {
		t.Errorf("log:\n%s", log)
	}
}

// report runs the command on an output and takes its summary apart.
func report(t *testing.T, output string) (counts string, verdicts []string, reasons, log string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "summary")
	var text strings.Builder
	must.Do(t, run([]string{path}, strings.NewReader(output), &text))
	summary := must.Get(os.ReadFile(path))(t)
	head, reasons, _ := strings.Cut(string(summary), "\n\n")
	lines := strings.Split(head, "\n")
	return lines[0], lines[1:], reasons, text.String()
}

// A line that is longer than any of a test's output is an error, not a hang.
func TestReport_RefusesEndlessLine(t *testing.T) {
	var s suite
	if err := s.read(io.LimitReader(zeros{}, maxLine+1), io.Discard); err == nil {
		t.Error("no error")
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
