// Package prose checks the English of comments in Go: it counts turns of phrase that readers of
// earlier versions stumbled over, in 1000 words.
package prose_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// phrases has the most, or for the last one the least, that 1000 words may contain of each.
var phrases = []struct {
	name    string
	pattern *regexp.Regexp
	limit   float64
}{
	{`"where" for "if"`, regexp.MustCompile(`\b(?:nil|empty|false|true|zero|0|none|nothing|error|it|them|that|one|this|is|are|also|even|and|or|but|,|;) where (?:there|it|that|this|nothing|nobody|no|none|the|one|they|an?|some|both|all)\b`), 1},
	{`"what" as a noun`, regexp.MustCompile(`\bwhat\b`), 3},
	{`"nobody", "nothing", "none"`, regexp.MustCompile(`\b(?:nobody|somebody|nothing|everybody|none)\b`), 1.5},
	{`"those that", "one whose"`, regexp.MustCompile(`\b(?:those|ones|one) (?:that|whose|which|of)\b`), 1.5},
	{`"of which", "whose"`, regexp.MustCompile(`\b(?:of|for|by|in|to|from|with|at) which\b|\bwhose\b`), 1.5},
	{`"if", "unless", "because", "since"`, regexp.MustCompile(`\b(?:if|unless|because|since)\b`), 6},
}

func TestComments_ArePlainEnglish(t *testing.T) {
	var text strings.Builder
	for _, folder := range []string{"agent", "gateway", "jail", "network", "operator", "parts", "runtime", "vm", "wire"} {
		err := filepath.WalkDir("../../"+folder, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "testdata") {
				return err
			}
			data, err := os.ReadFile(path)
			for line := range strings.Lines(string(data)) {
				if comment, is := strings.CutPrefix(strings.TrimSpace(line), "//"); is && !strings.HasPrefix(comment, "go:") {
					text.WriteString(comment + " ")
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	words := float64(len(strings.Fields(text.String()))) / 1000
	for i, phrase := range phrases {
		found := float64(len(phrase.pattern.FindAllString(text.String(), -1))) / words
		if last := i == len(phrases)-1; found > phrase.limit != last {
			t.Errorf("%s: %.1f in 1000 words of comments, the limit is %.1f", phrase.name, found, phrase.limit)
		}
	}
}
