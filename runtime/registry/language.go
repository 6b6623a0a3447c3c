package registry

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/tidwall/gjson"
)

// Language describes an interpreter with a name to the runtime. Nix writes it from the
// interpreter's folder (nix/interpreters) into the metadata of each environment that runs it, as
// the object "language", and into the server's, among "interpreters", for artifacts without it.
type Language struct {
	// Type is the interpreter_type: not a field, but the object's name.
	Type string
	// Sessions says that variables outlive a call.
	Sessions bool
	// Description describes environments without a description of their own.
	Description string
	// Probe is code that prints 42 and a newline, or "".
	Probe string
	// Programs are the interpreter's names in code, without a version at their end.
	Programs []string
	// ForeignWords begin code of other languages and have no meaning in this one.
	ForeignWords []string
	// Installers are the modules that would install others.
	Installers []string
	// ProjectModules says how code loads a module of the project, with @project@ for the project's
	// folder; it is "" if no advice is needed.
	ProjectModules string
	// Errors find errors in the stderr of code.
	Errors Errors
	// Hints answer mistakes that are likely in this language; the first that
	// matches counts.
	Hints []Hint
}

// Hint advises after a failure of code.
type Hint struct {
	Code  *regexp.Regexp // matches the beginning of the code; nil matches any
	Error *regexp.Regexp // matches the end of what the code wrote to stderr; nil matches any
	// Say is a sentence. @TYPE@ in it stands for the name of an environment with that type of
	// interpreter; without such an environment the hint does not apply.
	Say string
}

// Errors recognize the subject of an error. The first group of each, except Syntax and Input, is
// the missing name. nil matches nothing.
type Errors struct {
	Syntax  *regexp.Regexp // code that the interpreter cannot read
	Module  *regexp.Regexp // a module or package
	Name    *regexp.Regexp // a variable or function
	Command *regexp.Regexp // a command of a shell
	Program *regexp.Regexp // a program that code tried to start
	Input   *regexp.Regexp // stdin is empty
	// Install matches code, rather than an error, that would install a package.
	Install *regexp.Regexp
}

// Bounds of the fields of a language.
const (
	maxLanguages = 64
	maxHints     = 64
	maxWords     = 64
	maxWord      = 40   // bytes
	maxSentence  = 200  // bytes
	maxCode      = 1000 // bytes
	maxPattern   = 400  // bytes
)

var validType = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,31}$`)

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

// language reads the object of that name, or returns nil if it is absent.
func (r *reader) language(field, kindOf string) *Language {
	object, ok := r.get(field)
	if !ok || !r.check(field, object, object.IsObject(), "an object") {
		return nil
	}
	fields := reader{where: r.where, prefix: r.prefix + field + ".", object: object}
	errs := reader{where: r.where, prefix: fields.prefix + "errors.", object: object.Get("errors")}
	l := &Language{
		Type:           kindOf,
		Sessions:       fields.flag("sessions"),
		Description:    fields.line("description", maxSentence),
		Probe:          fields.line("probe", maxCode),
		Programs:       fields.words("programs"),
		ForeignWords:   fields.words("foreign_words"),
		Installers:     fields.words("installers"),
		ProjectModules: fields.line("project_modules", maxSentence),
		Errors: Errors{
			Syntax:  errs.pattern("syntax"),
			Module:  errs.pattern("module"),
			Name:    errs.pattern("name"),
			Command: errs.pattern("command"),
			Program: errs.pattern("program"),
			Input:   errs.pattern("input"),
			Install: errs.pattern("install"),
		},
	}
	if fields.err == nil {
		fields.err = errs.err
	}
	l.Hints = fields.hints("hints")
	if r.err = fields.err; r.err != nil {
		return nil
	}
	return l
}

func (r *reader) hints(field string) []Hint {
	value, ok := r.get(field)
	if !ok {
		return nil
	}
	items := value.Array()
	if !value.IsArray() || len(items) > maxHints {
		r.fail(field, fmt.Sprintf("must be an array of at most %d objects", maxHints))
		return nil
	}
	var hints []Hint
	for i, item := range items {
		one := reader{where: r.where, prefix: fmt.Sprintf("%s%s.%d.", r.prefix, field, i), object: item}
		hint := Hint{Code: one.pattern("code"), Error: one.pattern("error"), Say: one.line("say", maxSentence)}
		if one.err == nil && (hint.Say == "" || hint.Code == nil && hint.Error == nil) {
			one.fail("say", "is missing, or code and error are: it must be a sentence and what it answers")
		}
		if r.err = one.err; r.err != nil {
			return nil
		}
		hints = append(hints, hint)
	}
	return hints
}

func (r *reader) languages(field string) map[string]*Language {
	object, ok := r.get(field)
	if !ok || !r.check(field, object, object.IsObject(), "an object") {
		return nil
	}
	fields := reader{where: r.where, prefix: r.prefix + field + ".", object: object}
	all := map[string]*Language{}
	object.ForEach(func(key, _ gjson.Result) bool {
		switch {
		case !validType.MatchString(key.Str):
			fields.err = fmt.Errorf("%s: %s has %q in it, which is no interpreter type", r.where, field, key.Str)
		case len(all) == maxLanguages:
			r.fail(field, fmt.Sprintf("has more than %d in it", maxLanguages))
		default:
			all[key.Str] = fields.language(key.Str, key.Str)
		}
		return fields.err == nil && r.err == nil
	})
	if r.err == nil {
		r.err = fields.err
	}
	return all
}

// line reads a text of one line and at most so many bytes.
func (r *reader) line(field string, most int) string {
	text := r.text(field, "")
	if r.err == nil && (len(text) > most || strings.ContainsAny(text, "\r\n")) {
		r.fail(field, fmt.Sprintf("has %d bytes, it must be one line of at most %d", len(text), most))
	}
	return text
}

func (r *reader) words(field string) []string {
	words := r.list(field, fmt.Sprintf("a word of at most %d bytes", maxWord), func(word string) bool { return word != "" && len(word) <= maxWord })
	if len(words) > maxWords {
		r.fail(field, fmt.Sprintf("has %d words, it must have at most %d", len(words), maxWords))
	}
	return words
}

// pattern reads a regular expression; ^ and $ match at lines.
func (r *reader) pattern(field string) *regexp.Regexp {
	text := r.line(field, maxPattern)
	if r.err != nil || text == "" {
		return nil
	}
	pattern, err := regexp.Compile("(?m)" + text)
	if err != nil {
		r.fail(field, fmt.Sprintf("is %q, it must be a regular expression: %v", text, err))
		return nil
	}
	return pattern
}
