// Package lazyregexp has regular expressions that are compiled when they are first used.
//
// Every command starts a program that has all expressions of its packages, and most commands use
// none of them. An expression with a repetition such as {0,63} takes 50 µs.
package lazyregexp

import (
	"regexp"
	"sync"
)

// Regexp is a regular expression. Its methods may be called at the same time.
type Regexp struct {
	text string
	get  func() *regexp.Regexp
}

// New returns an expression of Go's syntax. A wrong one panics at its first use.
func New(text string) *Regexp {
	return &Regexp{text, sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })}
}

// Get returns the compiled expression.
func (r *Regexp) Get() *regexp.Regexp { return r.get() }

// String returns the text of the expression.
func (r *Regexp) String() string { return r.text }

// MatchString reports whether a text has a match.
func (r *Regexp) MatchString(text string) bool { return r.get().MatchString(text) }

// FindString returns the first match in a text, or "".
func (r *Regexp) FindString(text string) string { return r.get().FindString(text) }
