// Command report reads what a suite of tests prints, writes it to standard
// output as text, and leaves a summary in a file:
//
//	report SUMMARY <OUTPUT
//
// It reads the events of `go test -json` and, line by line among them, the
// results of suites that are not Go's: "ok NAME", "FAIL NAME" and "SKIP NAME:
// REASON", where more may follow NAME after a colon.
//
// The summary's first line is how many tests passed, failed and were skipped.
// A line follows for each that did not pass, and for each of Go's packages in
// which every test was skipped; then an empty line, then the last lines of what
// the failed tests printed. Of Go's tests those at the top level count, and a
// package counts as failed if it failed without a failed test.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

// What is kept of the output.
const (
	keepOfTest  = 200  // lines of one that has not ended
	keepOfSuite = 60   // lines in the summary
	keepOfLine  = 2000 // bytes
)

// maxLine bounds a line of the input, in bytes.
const maxLine = 64 << 20

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "report: error: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string, in io.Reader, out io.Writer) error {
	if len(args) != 1 {
		return errors.New("it takes the path of the summary")
	}
	var s suite
	if err := s.read(in, out); err != nil {
		return err
	}
	return os.WriteFile(args[0], []byte(s.summary()), 0o644)
}

// event is one of `go test -json`; see `go doc test2json`.
type event struct {
	Action, Package, Test, Output string
	ImportPath                    string // of a package that is built
	FailedBuild                   string // the package that could not be built
}

// suite is what is known of a suite of tests.
type suite struct {
	passed, failed, skipped int
	verdicts                []string // of the tests that did not pass
	reasons                 []string // what the failed tests printed
	// printed is what tests, packages and builds that have not ended printed,
	// and in the empty key what came outside of events.
	printed map[string][]string
	// failedIn has the packages with a failed test, passedIn those with one that
	// passed, and skippedIn why the last test that was skipped in a package was.
	failedIn, passedIn map[string]bool
	skippedIn          map[string]string
}

// read reads the whole output of a suite.
func (s *suite) read(in io.Reader, out io.Writer) error {
	s.printed, s.skippedIn = map[string][]string{}, map[string]string{}
	s.failedIn, s.passedIn = map[string]bool{}, map[string]bool{}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var e event
		var err error
		if json.Unmarshal(lines.Bytes(), &e) == nil && e.Action != "" {
			_, err = io.WriteString(out, e.Output)
			s.add(e)
		} else {
			_, err = fmt.Fprintln(out, lines.Text())
			s.addLine(lines.Text())
		}
		if err != nil {
			return fmt.Errorf("write the log: %w", err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read the suite's output: %w", err)
	}
	// What came last outside of events may say why a suite ended early.
	s.fail("")
	return nil
}

// key is what the output of a test or a package is kept under.
func (e event) key() string { return e.Package + "\x00" + e.Test }

// framing are the lines that package testing itself writes about each test.
var framing = regexp.MustCompile(`^(=== (RUN|PAUSE|CONT|NAME)|PASS\n|ok  \t|\?   \t)`)

// add takes an event.
func (s *suite) add(e event) {
	counts := e.Test != "" && !strings.Contains(e.Test, "/")
	switch e.Action {
	case "output":
		if !framing.MatchString(e.Output) {
			s.keep(e.key(), e.Output)
		}
	case "build-output":
		s.keep(e.ImportPath, e.Output)
	case "pass":
		switch why := s.skippedIn[e.Package]; {
		case counts:
			s.passed++
			s.passedIn[e.Package] = true
		case e.Test == "" && why != "" && !s.passedIn[e.Package]:
			s.verdicts = append(s.verdicts, "SKIP "+e.Package+": "+why)
		}
		delete(s.printed, e.key())
	case "skip":
		if counts {
			why := reason(s.printed[e.key()])
			s.skipped++
			s.skippedIn[e.Package] = why
			s.verdicts = append(s.verdicts, "SKIP "+e.Test+": "+why)
		}
		delete(s.printed, e.key())
	case "fail":
		s.fail(e.key())
		switch {
		case counts:
			s.failed++
			s.failedIn[e.Package] = true
			s.verdicts = append(s.verdicts, fmt.Sprintf("FAIL %s (%s)", e.Test, e.Package))
		case e.Test == "" && !s.failedIn[e.Package]:
			s.failed++
			s.verdicts = append(s.verdicts, "FAIL "+e.Package)
			s.fail(e.FailedBuild)
			// Tests that a panic or the end of the time cut off.
			for key := range s.printed {
				if strings.HasPrefix(key, e.Package+"\x00") {
					s.fail(key)
				}
			}
		}
	}
}

// Results of suites that are not Go's.
var (
	lineOK   = regexp.MustCompile(`^ok +[^ ]+(: .*)?$`)
	lineFail = regexp.MustCompile(`^FAIL +[^ ]`)
	lineSkip = regexp.MustCompile(`^SKIP +[^ ]`)
)

// addLine takes a line that is no event.
func (s *suite) addLine(line string) {
	switch {
	case lineOK.MatchString(line):
		s.passed++
		delete(s.printed, "")
	case lineSkip.MatchString(line):
		s.skipped++
		s.verdicts = append(s.verdicts, line)
		delete(s.printed, "")
	case lineFail.MatchString(line):
		s.failed++
		s.verdicts = append(s.verdicts, line)
		s.fail("")
	default:
		s.keep("", line+"\n")
	}
}

// keep keeps the last lines that something printed.
func (s *suite) keep(key, line string) {
	if len(line) > keepOfLine {
		line = strings.ToValidUTF8(line[:keepOfLine], "") + "…\n"
	}
	kept := append(s.printed[key], line)
	s.printed[key] = kept[max(0, len(kept)-keepOfTest):]
}

// fail takes what something printed as the reason why the suite failed.
func (s *suite) fail(key string) {
	s.reasons = append(s.reasons, s.printed[key]...)
	delete(s.printed, key)
}

// location stands before what a test logs.
var location = regexp.MustCompile(`^ *[^ ]+\.go:[0-9]+: `)

// reason is why a test was skipped: what it logged last.
func reason(printed []string) string {
	for i := len(printed) - 1; i >= 0; i-- {
		if line := strings.TrimSpace(location.ReplaceAllString(printed[i], "")); !strings.HasPrefix(line, "--- ") {
			return line
		}
	}
	return "it did not say why"
}

// summary is what [main] documents.
func (s *suite) summary() string {
	text := fmt.Sprintf("%d %d %d\n", s.passed, s.failed, s.skipped)
	for _, verdict := range s.verdicts {
		text += verdict + "\n"
	}
	return text + "\n" + strings.Join(s.reasons[max(0, len(s.reasons)-keepOfSuite):], "")
}
