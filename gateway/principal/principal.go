// Package principal finds out who sends a request.
//
// It promises that a request has a principal only if an [Authenticator] that the
// operator chose vouches for it, and that the log never has a token.
package principal

import (
	"errors"
	"net/http"
)

// Anonymous is the principal of every request if there is no Authenticator.
const Anonymous = "anonymous"

// Authenticator finds the principal of a request. It may be called at the same time.
type Authenticator interface {
	// Authenticate returns the name of the request's sender, to whom sessions and files belong.
	// The error is [ErrNone] if the request has no credentials of this kind, so that another
	// Authenticator may know it. Otherwise it is a [*Refusal].
	Authenticate(r *http.Request) (name string, err error)
}

// ErrNone reports a request without anything that says who sends it.
var ErrNone = errors.New("the request does not say who sends it")

// Refusal reports a request that says who sends it and is not believed.
type Refusal struct {
	// Reason is for the log. It has no part of a token.
	Reason string
	// Scope is the missing scope, if the token is valid otherwise.
	Scope string
}

func (e *Refusal) Error() string { return e.Reason }

// Chain asks one Authenticator after the other until one knows the request. An empty
// one takes every request for [Anonymous].
type Chain []Authenticator

// Authenticate implements [Authenticator].
func (c Chain) Authenticate(r *http.Request) (string, error) {
	if len(c) == 0 {
		return Anonymous, nil
	}
	for _, one := range c {
		if name, err := one.Authenticate(r); !errors.Is(err, ErrNone) {
			return name, err
		}
	}
	if r.Header.Get("Authorization") != "" {
		return "", &Refusal{Reason: "the request's token is not known"}
	}
	return "", ErrNone
}
