package registry

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Language describes an interpreter with a name to the runtime. Nix writes it from the
// interpreter's folder (nix/interpreters) into the metadata of each environment that runs it, as
// the object "language", and into the server's, among "interpreters", for artifacts without it.
type Language struct {
	// Type is the interpreter_type: not a field, but the object's name.
	Type string `json:"-"`
	// Sessions says that variables outlive a call.
	Sessions bool `json:"sessions"`
	// Description describes environments without a description of their own.
	Description string `json:"description"`
	// Probe is code that prints 42 and a newline, or "".
	Probe string `json:"probe"`
	// Programs are the interpreter's names in code, without a version at their end.
	Programs []string `json:"programs"`
	// ForeignWords begin code of other languages and have no meaning in this one.
	ForeignWords []string `json:"foreign_words"`
	// Installers are the modules that would install others.
	Installers []string `json:"installers"`
	// ProjectModules says how code loads a module of the project, with @project@ for the project's
	// folder; it is "" if no advice is needed.
	ProjectModules string `json:"project_modules"`
	// Errors find errors in the stderr of code.
	Errors Errors `json:"errors"`
	// Hints answer mistakes that are likely in this language; the first that
	// matches counts.
	Hints []Hint `json:"hints"`
}

// Hint advises after a failure of code.
type Hint struct {
	Code  Pattern `json:"code"`  // matches the beginning of the code; the zero value matches any
	Error Pattern `json:"error"` // matches the end of what the code wrote to stderr; the zero value matches any
	// Say is a sentence. @TYPE@ in it stands for the name of an environment with that type of
	// interpreter; without such an environment the hint does not apply.
	Say string `json:"say"`
}

// Errors recognize the subject of an error. The first group of each, except Syntax and Input, is
// the missing name. The zero value matches nothing.
type Errors struct {
	Syntax  Pattern `json:"syntax"`  // code that the interpreter cannot read
	Module  Pattern `json:"module"`  // a module or package
	Name    Pattern `json:"name"`    // a variable or function
	Command Pattern `json:"command"` // a command of a shell
	Program Pattern `json:"program"` // a program that code tried to start
	Input   Pattern `json:"input"`   // stdin is empty
	// Install matches code, rather than an error, that would install a package.
	Install Pattern `json:"install"`
}

// Pattern is a regular expression in which ^ and $ match at lines, or the zero value.
type Pattern struct{ *regexp.Regexp }

// UnmarshalText reads an expression. An empty one is the zero value.
func (p *Pattern) UnmarshalText(text []byte) (err error) {
	if len(text) == 0 {
		return nil
	}
	if p.Regexp, err = compiled.get("(?m)" + string(text)); err != nil {
		return wrong(p, strconv.AppendQuote(nil, string(text)))
	}
	return nil
}

// expressions are shared by environments of one language, in whose metadata each is written: to compile
// them takes half of the start, and 150 KiB, for each environment.
type expressions struct {
	mu  sync.Mutex
	all map[string]*regexp.Regexp
}

var compiled = expressions{all: map[string]*regexp.Regexp{}}

// maxExpressions bounds what is kept when metadata changes while the server runs.
const maxExpressions = 1000

func (e *expressions) get(text string) (*regexp.Regexp, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if one := e.all[text]; one != nil {
		return one, nil
	}
	one, err := regexp.Compile(text)
	if err != nil {
		return nil, err
	}
	if len(e.all) >= maxExpressions {
		clear(e.all)
	}
	e.all[text] = one
	return one, nil
}

// Matches reports whether a text matches. None matches the zero value.
func (p Pattern) Matches(text string) bool { return p.Regexp != nil && p.MatchString(text) }

// Find returns the first group with text of a match, or "", and whether there is a match.
func (p Pattern) Find(text string) (name string, found bool) {
	if p.Regexp == nil {
		return "", false
	}
	groups := p.FindStringSubmatch(text)
	for _, group := range groups[min(1, len(groups)):] {
		if group != "" {
			return group, true
		}
	}
	return "", groups != nil
}

// Calls reports whether a program's name, with or without a version at its end, is one of this
// language's interpreters.
func (l *Language) Calls(program string) bool {
	return slices.Contains(l.Programs, strings.TrimRight(program, "0123456789."))
}

// IsForeign says whether a word tells that code is in another language. No word
// is foreign to a language that is not known.
func (l *Language) IsForeign(word string) bool {
	return l != nil && slices.Contains(l.ForeignWords, word)
}
