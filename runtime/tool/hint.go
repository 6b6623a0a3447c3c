package tool

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/lazyregexp"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// hintBytes is how much of the end of stderr, and of the beginning of the code, is searched for a
// hint, in bytes: the decisive line is there.
const hintBytes = 2 << 10

// These recognize the subject of an error in any language; the errors of single languages are data
// (registry.Errors). The matched text comes from a sandbox, so it decides only the words of a hint,
// and a hint never repeats it.
var (
	wrapped      = lazyregexp.New(`^\s*(\S+) +-`)
	shebang      = lazyregexp.New(`^#! ?\S*?(?:/env +(?:-S +)?)?([^\s/]+)(?:\s|$)`)
	envOfType    = lazyregexp.New(`@([a-z][a-z0-9_-]*)@`)
	noNetwork    = lazyregexp.New(`Name or service not known|[Nn]ame resolution|(?i:could not resolve|unable to resolve) host|Network is unreachable|ENOTFOUND|EAI_AGAIN|ENETUNREACH`)
	noWriting    = lazyregexp.New(`(?i)read-only file system`)
	noFile       = lazyregexp.New(`(?m)^.*(?:No such file or directory|ENOENT).*$`)
	noOutputs    = lazyregexp.New(`(?:No such file or directory|ENOENT|non-existent directory)[^\n]*['" ](?:\./)?outputs(?:['"/\n]|$)|['" ](?:\./)?outputs['"/:][^\n]*(?:No such file or|Not a) directory`)
	noSpace      = lazyregexp.New(`No space left on device|ENOSPC`)
	noMemory     = lazyregexp.New(`MemoryError|Cannot allocate memory|ENOMEM|bad_alloc|(?i:out of memory|allocation fail|failed to allocate memory)`)
	noProcess    = lazyregexp.New(`(?i:fork|spawn|thread)[^\n]*(?:Resource temporarily unavailable|EAGAIN)|can't (?:start|create) new thread|can't create Thread|(?m)fork\(.*\n.*\n.*Resource temporarily unavailable|frames? of [^\n]*(?:subprocess|multiprocessing|concurrent|asyncio)[^\n]*\n[^\n]*Resource temporarily unavailable`)
	toolError    = lazyregexp.New(`(?m)^(?:tools\.)?Tool(?:Error|Denied|Timeout)\b`)
	noConnection = lazyregexp.New(`Connection refused|ECONNREFUSED|Could not connect to server`)
)

// find returns the name in an error of any language, because code of one language starts programs
// of another. with picks the error.
func (l listing) find(text string, with func(registry.Errors) registry.Pattern) (name string, found bool) {
	for _, language := range l.Languages() {
		if name, found = with(language.Errors).Find(text); found {
			return name, true
		}
	}
	return "", false
}

// caller returns the language with an interpreter of that name, or nil.
func (l listing) caller(program string) *registry.Language {
	for _, language := range l.Languages() {
		if language.Calls(program) {
			return language
		}
	}
	return nil
}

// hint says what to do about an error if its own words leave that open; otherwise it returns "".
// Hints cost context, so there is at most one, and a successful call gets no hint.
func (l listing) hint(a answer) string {
	text := l.advice(a)
	if a.call.Env.OnDemand != nil { // which adds other packages
		text = strings.Replace(text, "nothing can be installed", "this cannot be installed", 1)
	}
	return text
}

func (l listing) advice(a answer) string {
	switch {
	case a.err != nil || a.result.Restart != nil:
		return ""
	case a.result.Outcome == frame.OutcomeTimeout:
		return l.late(a)
	case a.result.Outcome != frame.OutcomeOK || a.result.ExitCode == 0:
		return ""
	}
	env := a.call.Env
	// What a tool says of its own machine is not about the sandbox.
	if toolError.MatchString(errorText(a)) {
		return ""
	}
	code, problem := strings.TrimSpace(bounded.Head(a.call.Code, hintBytes)), errorText(a)
	_, syntax := l.find(problem, func(e registry.Errors) registry.Pattern { return e.Syntax })
	_, input := l.find(problem, func(e registry.Errors) registry.Pattern { return e.Input })
	alone := a.call.Session == "" && env.Sessions()
	if text := l.installable(env, code); text != "" {
		return text
	}
	for _, hint := range hintsOf(env.Language) {
		if text, applies := l.apply(hint, code, problem); applies {
			if env.Network != nil {
				text = strings.TrimPrefix(text, noInstalling)
			}
			return text
		}
	}
	wrappedBy, _ := registry.Pattern{Regexp: wrapped.Get()}.Find(code)
	firstLine, _ := registry.Pattern{Regexp: shebang.Get()}.Find(code)
	wrapper, named := l.caller(wrappedBy), l.caller(firstLine)
	switch {
	case syntax && wrapper != nil && wrapper.Type == env.InterpreterType:
		return "code is run by the interpreter itself: send the program alone, without the command around it"
	case syntax && wrapper != nil && l.of(wrapper.Type) != "":
		return "use env \"" + l.of(wrapper.Type) + "\", and send the program alone, without the command around it"
	case named != nil && named.Type != env.InterpreterType && l.of(named.Type) != "" && misread(env.Language, problem):
		return "this env has no such interpreter as the first line names: use env \"" + l.of(named.Type) + "\""
	case env.Network != nil && noNetwork.MatchString(problem):
		return networked(a, "by name")
	case env.Network != nil && noConnection.MatchString(problem):
		return networked(a, `and at other ports only what domains of [environments.`+env.Name+`.network] has as "HOST:PORT", which the user can add`)
	case noNetwork.MatchString(problem):
		return "there is no network, and trying again does not help"
	case noWriting.MatchString(problem):
		return "write to /workspace: this path is read-only"
	case noSpace.MatchString(problem):
		return "the disk is full: delete files that are not needed any more, or ask the user for more (workspace_mb)"
	case noMemory.MatchString(problem):
		return fmt.Sprintf("there are %d MB of memory: load and compute less at a time, or ask the user for more (memory_mb)", env.MemoryMB)
	case noProcess.MatchString(problem):
		return fewProcesses(env)
	case input:
		return "there is no input: write the values into the code"
	}
	if name, found := l.find(problem, func(e registry.Errors) registry.Pattern { return e.Module }); found {
		return l.missing(env, name)
	}
	if name, found := l.find(problem, func(e registry.Errors) registry.Pattern { return e.Command }); found {
		if env.Language.IsForeign(name) {
			return mismatch
		}
		return l.unavailable(env, name)
	}
	if name, found := l.find(problem, func(e registry.Errors) registry.Pattern { return e.Program }); found {
		return l.unavailable(env, name)
	}
	if name, found := l.find(problem, func(e registry.Errors) registry.Pattern { return e.Name }); found {
		switch {
		case env.Language.IsForeign(name):
			return mismatch
		case alone:
			return stateless
		}
		return ""
	}
	if noOutputs.MatchString(problem) { // code has gone to the project
		return "files for the user go to /workspace/outputs: use that path"
	}
	switch found := noFile.FindString(problem); {
	case found != "" && len(l.Project.mounts()) > 0:
		if slices.ContainsFunc(l.Project.mounts(), func(mount string) bool { return strings.Contains(found, mount) }) {
			return ""
		}
		return l.elsewhere(alone)
	case strings.Contains(found, othersMount):
		return "there is no " + othersMount + " here: use /workspace, and /workspace/outputs for files that the user is to get"
	case strings.Contains(found, usualMount):
		return "no project is shown here: ask the user to name its folder for this server (PROJECT_DIR)"
	case found != "" && alone:
		return "/workspace is empty at first, and shared by calls with the same session"
	case alone && noConnection.MatchString(problem):
		return stateless
	}
	return ""
}

// othersMount is the folder for files in a service that models know well.
const othersMount = "/mnt/data"

// usualMount is where sandboxes show a project, unless the operator chose another place.
const usualMount = "/project"

// apply returns a language's hint with the names of environments in it. applies is false if the
// hint is about another problem, or names a missing environment.
func (l listing) apply(hint registry.Hint, code, problem string) (text string, applies bool) {
	if hint.Code.Regexp != nil && !hint.Code.Matches(code) || hint.Error.Regexp != nil && !hint.Error.Matches(problem) {
		return "", false
	}
	applies = true
	text = envOfType.Get().ReplaceAllStringFunc(hint.Say, func(kind string) string {
		name := l.of(strings.Trim(kind, "@"))
		applies = applies && name != ""
		return name
	})
	return text, applies
}

// The hints that more than one error has.
const (
	stateless        = "nothing of earlier calls is here: give all calls of a task the same session"
	mismatch         = "this env runs another language: choose env by the code's"
	noInstalling     = "nothing can be installed: "
	nothingInstalled = "it cannot be installed: do without, or ask the user to add it to this env"
)

// notInstalled is the hint if no environment has the package or program.
func notInstalled(env registry.Environment) string {
	if env.Network == nil {
		return nothingInstalled
	}
	return "this env does not have it: install it below /workspace, from " + env.Network.Hosts(hostsBytes) + ", or ask the user to add it to this env"
}

// networked is the hint for a host that could not be reached by a certain way, in an environment
// with a network. If the proxy reported the reason, that suffices.
func networked(a answer, how string) string {
	if n := a.result.Network; n != nil && (n.Ended || len(n.Refused)+len(n.Failed) > 0) {
		return ""
	}
	return reach(a.call.Env.Network) + ", " + how
}

// misread reports whether an error is typical for a language that reads code of another. Code that
// ran in another interpreter fails with that one's errors.
func misread(language *registry.Language, problem string) bool {
	if language == nil {
		return false
	}
	e := language.Errors
	return e.Syntax.Matches(problem) || e.Name.Matches(problem) || e.Command.Matches(problem)
}

// hintsOf returns the hints of a language, which may be nil.
func hintsOf(language *registry.Language) []registry.Hint {
	if language == nil {
		return nil
	}
	return language.Hints
}

// late is for a call that took too long.
func (l listing) late(a answer) string {
	limit := fmt.Sprintf("%g s", a.call.TimeLimit().Seconds())
	switch {
	case noProcess.MatchString(errorText(a)):
		return fewProcesses(a.call.Env)
	case a.call.TimeLimit() < a.call.Env.MaxTimeout:
		return fmt.Sprintf("with timeout a call may run up to %g s", a.call.Env.MaxTimeout.Seconds())
	case a.call.Session != "":
		return ""
	case a.call.Env.Sessions():
		return limit + " is the limit of each call: do less in one, and keep what is done in a session"
	default:
		return limit + " is the limit of each call: do less in one"
	}
}

func fewProcesses(env registry.Environment) string {
	return fmt.Sprintf("at most %d processes and threads may run at a time", env.PIDs)
}

// missing is for a package that an environment does not have.
func (l listing) missing(env registry.Environment, name string) string {
	if text := l.offer(env, name, true); text != "" {
		return text
	}
	name = strings.ToLower(name)
	if i := strings.IndexByte(name, '.'); i > 0 {
		name = name[:i]
	}
	for _, other := range l.Names() {
		if other == env.BaseName() || l.Ready()[other].InterpreterType != env.InterpreterType {
			continue
		}
		words := strings.FieldsFunc(strings.ToLower(l.Ready()[other].Description), func(r rune) bool { return strings.ContainsRune(" ,;.:()", r) })
		if slices.Contains(words, name) {
			text := "use env \"" + other + "\", which has it"
			if env.Network == nil {
				text = noInstalling + text
			}
			return text
		}
	}
	if l.Project.Mount == "" || env.Language == nil || env.Language.ProjectModules == "" || slices.Contains(env.Language.Installers, name) {
		return notInstalled(env)
	}
	return notInstalled(env) + "; " + strings.ReplaceAll(env.Language.ProjectModules, "@project@", l.Project.Mount)
}

// offer is the hint that an environment would have a module or program with a package that calls
// may add, or "".
func (l listing) offer(env registry.Environment, missing string, isModule bool) string {
	if l.Packages == nil {
		return ""
	}
	return l.Packages.Offer(env, missing, isModule)
}

// installable is the hint for code that would install a package which a call may add, or "".
func (l listing) installable(env registry.Environment, code string) string {
	if env.OnDemand == nil || env.Language == nil {
		return ""
	}
	name, _ := env.Language.Errors.Install.Find(code)
	if env.HasProgram(name) {
		return ""
	}
	return cmp.Or(l.offer(env, name, true), l.offer(env, name, false))
}

func (l listing) unavailable(env registry.Environment, command string) string {
	if language := l.caller(command); language != nil && language.Type != env.InterpreterType {
		if name := l.of(language.Type); name != "" {
			return "this env does not have it: use env \"" + name + "\" for such code"
		}
	}
	if text := l.offer(env, command, false); text != "" {
		return text
	}
	for _, other := range l.those(func(other registry.Environment) bool { return other.HasProgram(command) }) {
		if other.Name != env.BaseName() {
			return fmt.Sprintf("this env does not have it: use env %q, which does", other.Name)
		}
	}
	return notInstalled(env)
}

// elsewhere is the hint for a file that the code expects in another place.
func (l listing) elsewhere(alone bool) string {
	text := "the user's files are under " + strings.Join(l.Project.mounts(), " and ")
	if alone {
		text += "; /workspace is empty at first, and shared by calls with the same session"
	}
	return text
}

// of returns the name of the first environment with this type of interpreter, or
// an empty string.
func (l listing) of(kind string) string {
	for _, env := range l.those(func(env registry.Environment) bool { return env.InterpreterType == kind }) {
		return env.Name
	}
	return ""
}

// errorText is the end of the code's stderr.
func errorText(a answer) string {
	text := a.result.Stderr.Head
	if a.result.Stderr.Cut > 0 {
		text = a.result.Stderr.Tail
	}
	return strings.TrimRight(sandbox.LastBytes(text, hintBytes), "\n")
}
