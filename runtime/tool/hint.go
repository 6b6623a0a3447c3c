package tool

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
)

// hintBytes is how much of the end of stderr is looked at for a hint, and of
// the beginning of the code: the line that says what went wrong is there.
const hintBytes = 2 << 10

// These recognize what an error is about. What they look at comes out of a
// sandbox, so they decide about nothing but the words of a hint, and nothing
// that they find is repeated in one.
var (
	wrapped      = regexp.MustCompile(`^\s*(python[0-9.]*|node|nodejs) +-`)
	notebook     = regexp.MustCompile(`(?m)^ *[!%]`)
	noModule     = regexp.MustCompile(`(?m)(?:No module named '?|Cannot find (?:module|package) ')([A-Za-z0-9@][A-Za-z0-9_./-]{0,79})`)
	noCommand    = regexp.MustCompile(`(?m)^(?:/bin/)?(?:ba)?sh: .*?([A-Za-z0-9_.+-]{1,40}): command not found$`)
	noProgram    = regexp.MustCompile(`(?m)(?:, in _execute_child\n(?:.*\n)*?FileNotFoundError: .*: '|spawn(?:Sync)? )([A-Za-z0-9_.+-]{1,40})(?:'$| ENOENT)`)
	noNetwork    = regexp.MustCompile(`Name or service not known|Temporary failure in name resolution|Could not resolve host|Network is unreachable|ENOTFOUND|EAI_AGAIN|ENETUNREACH`)
	noWriting    = regexp.MustCompile(`(?i)read-only file system`)
	noFile       = regexp.MustCompile(`(?m)^.*(?:No such file or directory|ENOENT).*$`)
	noInput      = regexp.MustCompile(`(?m)^EOFError: `)
	noConnection = regexp.MustCompile(`Connection refused|ECONNREFUSED`)
	// A name that Python has a guess for is misspelt, not of an earlier call.
	noName = regexp.MustCompile(`(?m)^NameError: name '(\w{1,80})' is not defined$|^(?:Uncaught )?ReferenceError: (\w{1,80}) is not defined$`)
)

// installers are the commands that fetch something.
var installers = []string{"apk", "apt", "apt-get", "brew", "conda", "curl", "npm", "npx", "pip", "pip3", "pnpm", "poetry", "sudo", "uv", "wget", "yarn"}

// foreign are the first words of programs in another language, by the type of
// the environment that does not know them.
var foreign = map[string][]string{
	registry.Python: {"console", "document", "require", "ls", "cd", "cat", "echo", "pwd"},
	registry.Bash:   {"import", "from", "def", "print", "const", "let", "var", "function"},
	registry.Node:   {"print", "len", "range", "echo", "ls"},
}

// languages are the interpreters that code calls by their name, with the type
// of the environments that have them.
var languages = map[string]string{"python": registry.Python, "python3": registry.Python, "node": registry.Node, "bash": registry.Bash}

// hint says what to do about an error whose own words leave that open, or
// nothing. Each of them costs context, so there is one at most, and none
// where a call succeeded or the error says enough.
func (l listing) hint(a answer) string {
	switch {
	case a.trouble != "" || a.fresh != "":
		return ""
	case a.ended.Outcome == frame.OutcomeTimeout:
		return l.late(a)
	case a.ended.Outcome != frame.OutcomeOK || a.ended.ExitCode == 0:
		return ""
	}
	env := a.args.environment
	code, problem := strings.TrimSpace(head(a.args.Code)), ending(a)
	syntax := strings.Contains(problem, "SyntaxError")
	alone := a.args.Session == "" && env.Sessions()
	switch {
	case strings.HasPrefix(code, "```"):
		return "code is run as it is: send it without the ``` fence"
	case syntax && wrapped.MatchString(code):
		return "code is run by the interpreter itself: send the program alone, without the command around it"
	case syntax && notebook.MatchString(problem):
		return "this is no notebook: leave out lines that begin with ! or %"
	case noNetwork.MatchString(problem):
		return "there is no network, and trying again does not help"
	case noWriting.MatchString(problem):
		return "write to /workspace: this place is read-only"
	case noInput.MatchString(problem):
		return "there is no input: write the values into the code"
	}
	if found := first(noModule.FindStringSubmatch(problem)); found != "" {
		return l.missing(env, found)
	}
	if found := first(noCommand.FindStringSubmatch(problem)); found != "" {
		if slices.Contains(foreign[env.InterpreterType], found) {
			return mismatch
		}
		return l.unavailable(env, found)
	}
	if found := first(noProgram.FindStringSubmatch(problem)); found != "" {
		return l.unavailable(env, found)
	}
	if found := first(noName.FindStringSubmatch(problem)); found != "" {
		switch {
		case slices.Contains(foreign[env.InterpreterType], found):
			return mismatch
		case alone:
			return stateless
		}
		return ""
	}
	switch found := noFile.FindString(problem); {
	case found != "" && l.project != "":
		if strings.Contains(found, l.project) {
			return ""
		}
		return l.elsewhere(alone)
	case found != "" && alone:
		return "/workspace is empty at first; calls with the same session share its files, and the host's are not here"
	case alone && noConnection.MatchString(problem):
		return stateless
	}
	return ""
}

// The hints that more than one error has.
const (
	stateless        = "nothing of earlier calls is here: give all calls of a task the same session"
	mismatch         = "this env runs another language: choose env by the code's"
	nothingInstalled = "nothing can be installed or downloaded: do without, or ask the user to add it to this env"
)

// late is for a call that took too long.
func (l listing) late(a answer) string {
	limit := fmt.Sprintf("%g s", a.args.environment.Timeout.Seconds())
	switch {
	case a.args.Session != "":
		return ""
	case a.args.environment.Sessions():
		return limit + " is the limit of each call: do less in one, and keep what is done in a session"
	default:
		return limit + " is the limit of each call: do less in one"
	}
}

// missing is for a package that an environment does not have.
func (l listing) missing(env registry.Environment, name string) string {
	name = strings.ToLower(name)
	if i := strings.IndexByte(name, '.'); i > 0 {
		name = name[:i]
	}
	for _, other := range l.Names() {
		if other == env.Name || l.Ready()[other].InterpreterType != env.InterpreterType {
			continue
		}
		words := strings.FieldsFunc(strings.ToLower(describe(l.Ready()[other])), func(r rune) bool { return strings.ContainsRune(" ,;.:()", r) })
		if slices.Contains(words, name) {
			return "nothing can be installed: use env \"" + other + "\", which has it"
		}
	}
	if l.project != "" && env.InterpreterType == registry.Python && !slices.Contains(installers, name) {
		return nothingInstalled + "; modules of the project need sys.path.insert(0, \"" + l.project + "\")"
	}
	return nothingInstalled
}

// unavailable is for a command that an environment does not have.
func (l listing) unavailable(env registry.Environment, command string) string {
	if kind := languages[command]; kind != "" && kind != env.InterpreterType {
		if name := l.of(kind); name != "" {
			return "this env does not have it: use env \"" + name + "\" for such code"
		}
	}
	return nothingInstalled
}

// elsewhere is for a file that is not where the code looked for it.
func (l listing) elsewhere(alone bool) string {
	text := "the user's files are under " + l.project
	if alone {
		text += "; /workspace is empty at first, and shared by calls with the same session"
	}
	return text
}

// of returns the first environment of a type, or nothing.
func (l listing) of(kind string) string {
	for _, name := range l.Names() {
		if l.Ready()[name].InterpreterType == kind {
			return name
		}
	}
	return ""
}

// head is the beginning of a text.
func head(text string) string { return text[:min(len(text), hintBytes)] }

// ending is the end of what the code wrote to stderr.
func ending(a answer) string {
	text := a.stderr.Head
	if a.stderr.Cut > 0 {
		text = a.stderr.Tail
	}
	return strings.TrimRight(text[max(0, len(text)-hintBytes):], "\n")
}

// first is the first group that matched.
func first(groups []string) string {
	for i, group := range groups {
		if i > 0 && group != "" {
			return group
		}
	}
	return ""
}
