package driver_test

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	. "github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/agenttest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// The tests of a driver are data in the testdata of its interpreter's folder,
// archives of package txtar: sessions.txtar has calls of one session for each
// of its files, programs.txtar calls without a session. A file whose name
// begins with _ is part of others; one that is called CASE/PATH lies at PATH in
// the workspace of that case. The lines are
//
//	> code         begins a call
//	| code         goes on with it
//	< text         a line of its stdout, which must be exactly these
//	! text         a part of its stderr, which is otherwise empty
//	!= text        the same, up to the end of a line; ! and != lines that follow
//	               each other are one part. A lone ! takes any stderr
//	!~ regexp      a regular expression that its stderr matches
//	[facts]        exit N, timeout, crashed, lost; with commas between them
//	@ NAME         the calls of that file
//	* N            repeats what follows, up to a lone *
//	~ 100ms        waits before the next call
//	$ NAME=VALUE   sets a variable of the interpreter
//	# text         a comment
//
// Code and output in quotes, without a space before them, are strings as Go
// writes them. $WORKSPACE stands for the workspace and $LARGE in code for a
// mebibyte of x. A case with calls that must time out is repeated with more time for each
// of them where it fails.
type cases struct {
	file  string
	files map[string]string
	names []string
	begin map[string]int // the number of the line before a file
}

const maxRepeat = 10_000

func readCases(t *testing.T, file string) cases {
	t.Helper()
	text := must.Get(os.ReadFile(file))(t)
	c := cases{file: file, files: map[string]string{}, begin: map[string]int{}}
	line := strings.Count(string(txtar.Parse(text).Comment), "\n")
	for _, f := range txtar.Parse(text).Files {
		if _, ok := c.files[f.Name]; ok {
			t.Fatalf("%s: two files are called %s", file, f.Name)
		}
		line++
		c.begin[f.Name] = line
		line += strings.Count(string(f.Data), "\n")
		c.files[f.Name] = string(f.Data)
		c.names = append(c.names, f.Name)
	}
	return c
}

// run runs each case in an agent of its own.
func (c cases) run(t *testing.T, interpreter string, change func(*frame.Request), warm bool) {
	t.Helper()
	for _, name := range c.names {
		if strings.HasPrefix(name, "_") || strings.Contains(name, "/") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			try := func(limit time.Duration) error {
				root := t.TempDir()
				for path, text := range c.files {
					if path, ok := strings.CutPrefix(path, name+"/"); ok {
						plant(t, filepath.Join(root, path), text)
					}
				}
				steps, variables := c.steps(t, root, name, change)
				for i, s := range steps {
					switch {
					case s.Outcome != frame.OutcomeTimeout || s.Change != nil:
					case s.Lost: // whatever its grace
						steps[i].Change = Limit(limit, 300*time.Millisecond)
					default:
						steps[i].Change = Limit(limit, Grace)
					}
				}
				a := Start(t, interpreter, append(variables, Bare(t), Root(root))...)
				if warm {
					a.Warm()
				}
				return a.Try(steps)
			}
			if strings.Contains(c.files[name], frame.OutcomeTimeout) {
				Longer(t, try)
			} else {
				must.Do(t, try(0))
			}
		})
	}
}

func plant(t *testing.T, path, text string) {
	t.Helper()
	must.Do(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.Do(t, os.WriteFile(path, []byte(text), 0o644))
}

// steps reads a case; line numbers in its errors are those of the archive.
func (c cases) steps(t *testing.T, root, name string, change func(*frame.Request)) (steps []Step, variables []Option) {
	t.Helper()
	text, ok := c.files[name]
	if !ok {
		t.Fatalf("%s: no file is called %q", c.file, name)
	}
	in := strings.NewReplacer("$WORKSPACE", root, "$LARGE", strings.Repeat("x", 1<<20))
	var s *Step // the call that is being read
	begun, times := 0, 1
	var wait time.Duration
	end := func() {
		if s != nil {
			steps = append(steps, *s)
		}
		s = nil
	}
	repeat := func() {
		end()
		again := steps[begun:len(steps):len(steps)]
		for range times - 1 {
			steps = append(steps, again...)
		}
		begun, times = len(steps), 1
	}
	marker := ""
	for number, line := range strings.Split(text, "\n") {
		wrong := func(why any) {
			t.Fatalf("%s:%d: %q: %v", c.file, c.begin[name]+number+1, line, why)
		}
		previous := marker
		var rest string
		marker, rest, _ = strings.Cut(line, " ")
		if at := strings.IndexByte(line, '"'); at == 1 {
			marker = line[:1]
			var err error
			if rest, err = strconv.Unquote(line[1:]); err != nil {
				wrong(err)
			}
		} else if marker == "<" {
			rest += "\n"
		}
		if strings.HasPrefix(line, "[") {
			marker, rest = "[", strings.Trim(line, "[]")
		}
		rest = in.Replace(rest)
		if s == nil && slices.Contains([]string{"|", "<", "!", "!=", "!~", "["}, marker) {
			wrong("there is no call before it")
		}
		switch marker {
		case "", "#":
		case ">":
			end()
			s = &Step{Code: rest, After: wait, Change: change}
			wait = 0
		case "|":
			s.Code += "\n" + rest
		case "<":
			s.Stdout += rest
		case "!", "!=":
			if previous == "!" {
				s.Stderr += "\n"
			}
			s.Stderr += rest
			if marker == "!=" {
				s.Stderr += "\n"
			}
			s.Stderr = cmp.Or(s.Stderr, Any)
		case "!~":
			s.Match = rest
		case "[":
			if err := facts(s, rest); err != nil {
				wrong(err)
			}
		case "@":
			end()
			more, _ := c.steps(t, root, rest, change)
			steps = append(steps, more...)
		case "*":
			repeat()
			if rest != "" {
				var err error
				if times, err = strconv.Atoi(rest); err != nil || times < 2 || times > maxRepeat {
					wrong("it must be a number from 2 to " + strconv.Itoa(maxRepeat))
				}
			}
		case "~":
			end()
			var err error
			if wait, err = time.ParseDuration(rest); err != nil {
				wrong(err)
			}
		case "$":
			key, value, ok := strings.Cut(rest, "=")
			if !ok {
				wrong("it must be NAME=VALUE")
			}
			variables = append(variables, Env(key, value))
		default:
			wrong("no line begins so")
		}
	}
	repeat()
	return steps, variables
}

// facts reads what is between brackets.
func facts(s *Step, text string) error {
	for fact := range strings.SplitSeq(text, ", ") {
		switch exit, isExit := strings.CutPrefix(fact, "exit "); {
		case isExit:
			var err error
			if s.Exit, err = strconv.Atoi(exit); err != nil {
				return err
			}
		case fact == "lost":
			s.Lost = true
		case fact == frame.OutcomeCrashed, fact == frame.OutcomeTimeout:
			s.Outcome = fact
		default:
			return fmt.Errorf("%q is no fact of a call", fact)
		}
	}
	return nil
}

// Each kind of state that a driver keeps, and each way in which a call ends.
func TestSessions(t *testing.T) { runAll(t, "sessions.txtar", nil, true) }

// A call without a session is a program: it ends as its interpreter ends one.
func TestPrograms(t *testing.T) { runAll(t, "programs.txtar", Ephemeral, false) }

// runAll runs the cases of a file of every interpreter.
func runAll(t *testing.T, file string, change func(*frame.Request), warm bool) {
	t.Parallel()
	for _, name := range Interpreters(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			readCases(t, filepath.Join(Folder(t, name), "testdata", file)).run(t, name, change, warm)
		})
	}
}
