package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Verdicts.
const (
	same      = "same"
	bothFail  = "both fail"
	oursFails = "ours fails"
	differs   = "differs"
	unstable  = "unstable" // the program itself does otherwise each time
	broken    = "broken"   // a side could not run it
)

// outcome is what the comparison of a case found.
type outcome struct {
	Name, Language, Verdict string
	Difference              string `json:",omitempty"`
	Ours, Theirs            time.Duration
	OurBytes, TheirBytes    int
	Marks                   int // of our bytes, those of remarks and separators
}

func (o *outcome) judge(c testCase, ours, theirs result) {
	o.Ours, o.Theirs, o.OurBytes, o.TheirBytes = ours.took, theirs.took, ours.bytes, theirs.bytes
	o.Marks = ours.marks
	o.Verdict, o.Difference = same, ""
	if c.session && c.language != "python" {
		ours.runs = []run{joined(ours.runs)}
	}
	for i, r := range ours.runs {
		t := theirs.runs[i]
		verdict, difference := compare(c, r, t, i)
		if verdict == same && t.status != 0 && o.Verdict == same && !c.session {
			o.Verdict = bothFail
		}
		if difference != "" {
			o.Verdict, o.Difference = verdict, difference
			if c.session {
				o.Difference = fmt.Sprintf("call %d: %s", i+1, difference)
			}
			return
		}
	}
}

// joined is what several calls did as if they had been one.
func joined(runs []run) run {
	var all run
	for _, r := range runs {
		all.stdout += r.stdout
		all.stderr += r.stderr
		all.status = r.status
		all.images += r.images
	}
	return all
}

func equal(c testCase, a, b result) bool {
	for i := range a.runs {
		if _, difference := compare(c, a.runs[i], b.runs[i], i); difference != "" {
			return false
		}
	}
	return true
}

// notebookLine is in cells that print, or show, something only in a notebook.
var notebookLine = regexp.MustCompile(`(?m)^\s*(?:[%!]|\w+\s*=\s*[%!])|\?+\s*$|\b(?:get_ipython|IPython|interact\w*|Audio|HTML|IFrame|Image|Latex|Markdown|Math|SVG|YouTubeVideo|nbagg)\b`)

func compare(c testCase, ours, theirs run, call int) (verdict, difference string) {
	switch {
	case ours.status == timedOut && theirs.status == timedOut:
		return same, ""
	case (ours.status == 0) != (theirs.status == 0):
		verdict = differs
		if theirs.status == 0 {
			verdict = oursFails
		}
		return verdict, fmt.Sprintf("status %d instead of %d: %s", ours.status, theirs.status, last(ours.stderr+theirs.stderr))
	case c.session && c.language == "python" && notebookLine.MatchString(c.calls[call]):
		return same, "" // what it prints is another's
	case ours.status != theirs.status:
		return differs, fmt.Sprintf("status %d instead of %d", ours.status, theirs.status)
	}
	stdout, want := normal(ours.stdout), normal(theirs.stdout)
	if stdout != want && (c.session && c.language == "python" || !added(stdout, want)) {
		return differs, "stdout: " + first(stdout, want)
	}
	if theirs.status != 0 {
		if a, b := failure(ours.stderr), failure(theirs.stderr); a != b {
			return differs, fmt.Sprintf("error %q instead of %q", a, b)
		}
	} else if a, b := lines(ours.stderr), lines(theirs.stderr); a != b {
		return differs, "stderr: " + first(a, b)
	}
	if ours.known && theirs.known && ours.images != theirs.images {
		return differs, fmt.Sprintf("%d figures instead of %d", ours.images, theirs.images)
	}
	return same, ""
}

// added reports whether one text is another one with lines in addition, all in one place: a
// program's last value is shown before what its timers and its end print.
func added(text, to string) bool {
	long, short := strings.Split(text, "\n"), strings.Split(to, "\n")
	if to == "" {
		return true
	}
	for len(short) > 0 && len(long) > 0 && short[0] == long[0] {
		long, short = long[1:], short[1:]
	}
	for len(short) > 0 && len(long) > 0 && short[len(short)-1] == long[len(long)-1] {
		long, short = long[:len(long)-1], short[:len(short)-1]
	}
	return len(short) == 0
}

// What stands for the same on both sides, or is otherwise in each run.
var replacements = []struct {
	pattern *regexp.Regexp
	by      string
}{
	{regexp.MustCompile(`0x[0-9a-f]{6,16}`), "0x…"},
	{regexp.MustCompile(`(?:file://)?(?:/workspace/|/cases/\d+/|\./)?\bmain\.(?:py|js|mjs|cjs|ts|sh)\b|<code>|<call \d+>|\bcall-\d+\b|/workspace/code\.js`), "FILE"},
	{regexp.MustCompile(`\b\d+(?:\.\d+)?(?:e-\d+)? ?(?:s|ms|us|µs|ns|sec|secs|seconds|milliseconds)\b`), "TIME"},
	{regexp.MustCompile(`/nix/store/(?:[0-9a-z]{32}|…)-`), "/nix/store/"},
	{regexp.MustCompile(`\(?(?:node:\d+|pid[ :=]+\d+)\)?`), "PID"},
	{regexp.MustCompile(`(?m)^(\s*(?:from )?)code:(\d+:)`), "${1}FILE:$2"},
	{regexp.MustCompile(`[\d.]+ (?:runs|assertions)/s`), "RATE"},
	{regexp.MustCompile(`/workspace/\[eval\]`), "FILE"},
	{regexp.MustCompile(`--seed \d+`), "--seed N"},
	{regexp.MustCompile(`Loaded suite \S+`), "Loaded suite FILE"},
}

func normal(text string) string {
	for _, r := range replacements {
		text = r.pattern.ReplaceAllString(text, r.by)
	}
	return strings.TrimRight(redrawn.ReplaceAllString(text, "$1"), "\n")
}

// redrawn is a line that a program drew several times: an answer has its last state.
var redrawn = regexp.MustCompile(`(?m)^[^\n]*\r\s*([^\r\n]*)$`)

var program = regexp.MustCompile(`(?m)^(?:FILE|bash|environment): (?:-c: |eval: )?(line \d+: )`)

// lines is stderr of a program that succeeded. The name of a shell's program is left out.
func lines(text string) string {
	return program.ReplaceAllString(normal(text), "$1")
}

// The first line of an uncaught error of Node.js.
var javaScript = regexp.MustCompile(`(?m)^(?:Uncaught )?((?:\w*(?:Error|Exception)\b|\[)[^\n]*)`)

// failure is what the end of stderr says of an error.
func failure(text string) string {
	text = lines(text)
	if strings.Contains(text, "\nNode.js v") || strings.Contains(text, "Uncaught ") {
		if groups := javaScript.FindStringSubmatch(text); groups != nil {
			return strings.TrimSuffix(groups[1], " {")
		}
	}
	return last(text)
}

func last(text string) string {
	text = strings.TrimRight(text, "\n ")
	return strings.TrimLeft(text[strings.LastIndexByte(text, '\n')+1:], " ")
}

// first is the first line in which two texts differ.
func first(ours, theirs string) string {
	a, b := strings.Split(ours, "\n"), strings.Split(theirs, "\n")
	for i := range max(len(a), len(b)) {
		x, y := "(end)", "(end)"
		if i < len(a) {
			x = a[i]
		}
		if i < len(b) {
			y = b[i]
		}
		if x != y {
			return fmt.Sprintf("line %d: %.200q instead of %.200q", i+1, x, y)
		}
	}
	return ""
}

// summary is a table of the languages, with times and bytes.
func summary(outcomes []outcome) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%-8s %6s %6s %9s %10s %7s %8s %6s %10s %10s %6s %9s %9s %6s %8s\n", "language", "cases", "same", "both fail", "ours fails",
		"differs", "unstable", "broken", "sandbox", "bare", "ratio", "bytes", "bare", "ratio", "marks")
	groups := map[string][]outcome{}
	for _, o := range outcomes {
		groups[o.Language] = append(groups[o.Language], o)
	}
	names := make([]string, 0, len(groups))
	for name := range groups {
		names = append(names, name)
	}
	slices.Sort(names)
	groups["all"] = outcomes
	for _, name := range append(names, "all") {
		count := map[string]int{}
		var ours, theirs time.Duration
		var ourBytes, theirBytes, marks int
		for _, o := range groups[name] {
			count[o.Verdict]++
			if o.Verdict == same || o.Verdict == bothFail {
				ours, theirs = ours+o.Ours, theirs+o.Theirs
				ourBytes, theirBytes, marks = ourBytes+o.OurBytes, theirBytes+o.TheirBytes, marks+o.Marks
			}
		}
		fmt.Fprintf(&text, "%-8s %6d %6d %9d %10d %7d %8d %6d %10s %10s %6.2f %9d %9d %6.2f %8d\n", name, len(groups[name]), count[same], count[bothFail],
			count[oursFails], count[differs], count[unstable], count[broken], ours.Round(time.Millisecond), theirs.Round(time.Millisecond),
			float64(ours)/float64(max(theirs, 1)), ourBytes, theirBytes, float64(ourBytes)/float64(max(theirBytes, 1)), marks)
	}
	return text.String()
}
