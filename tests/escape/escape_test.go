package escape

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestEscape runs the suite on the artifacts that
// NIX_SANDBOX_ESCAPE_ARTIFACTS lists, separated by colons.
// NIX_SANDBOX_ESCAPE_SKIP lists tags to leave out beside those that are not
// promised ("none" leaves out nothing), and NIX_SANDBOX_ESCAPE_MATCH patterns
// of names, separated by commas. NIX_SANDBOX_TEST_SLOW is how many times
// longer an attempt may take.
func TestEscape(t *testing.T) {
	artifacts := filepath.SplitList(os.Getenv("NIX_SANDBOX_ESCAPE_ARTIFACTS"))
	if len(artifacts) == 0 {
		t.Skip("NIX_SANDBOX_ESCAPE_ARTIFACTS names no artifact")
	}
	list := func(name string) []string {
		return strings.FieldsFunc(os.Getenv(name), func(char rune) bool { return char == ',' })
	}
	slow, _ := strconv.Atoi(os.Getenv("NIX_SANDBOX_TEST_SLOW"))
	skip := list("NIX_SANDBOX_ESCAPE_SKIP")
	if !slices.Contains(skip, "none") {
		skip = append(skip, Unpromised()...)
	}
	for _, dir := range artifacts {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			report, err := Run(context.Background(), dir, Options{
				Match: list("NIX_SANDBOX_ESCAPE_MATCH"),
				Skip:  skip,
				Slow:  slow,
				Each: func(result Result) {
					if result.Verdict == Failed {
						t.Error(result)
						return
					}
					t.Log(result)
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Log(report)
			if !report.OK() {
				t.Fail()
			}
		})
	}
}
