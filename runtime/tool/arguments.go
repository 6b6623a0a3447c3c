package tool

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
)

// arguments are those of one call, checked.
type arguments struct {
	Code    string
	Env     string
	Session string // empty where the call has none

	environment registry.Environment
}

// arguments checks what the model sent. The error is a sentence for it. Started
// says what a live session was started from.
func (l listing) arguments(raw json.RawMessage, started func(session string) (registry.Environment, bool)) (arguments, error) {
	fields := map[string]json.RawMessage{}
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &fields); err != nil {
			return arguments{}, errors.New("the arguments are not an object: call run with " + l.usage())
		}
	}
	var args arguments
	known := map[string]*string{"code": &args.Code, "env": &args.Env, "session": &args.Session}
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		value, ok := known[field]
		if !ok {
			return args, fmt.Errorf("unknown argument %.80q: call run with %s", field, l.usage())
		}
		if string(fields[field]) == "null" {
			delete(fields, field)
			continue
		}
		if err := json.Unmarshal(fields[field], value); err != nil {
			return args, fmt.Errorf("%s is not a string: call run with %s", field, l.usage())
		}
	}
	for _, field := range []string{"code", "env"} {
		if _, ok := fields[field]; !ok {
			return args, fmt.Errorf("%s is missing: call run with %s", field, l.usage())
		}
	}
	// A session stays with the artifact that it has.
	env, ok := started(args.Session)
	if !ok || env.Name != args.Env {
		env, ok = l.Environment(args.Env)
	}
	if args.environment = env; !ok {
		return args, l.unknown(args.Env)
	}
	if _, ok := fields["session"]; !ok {
		return args, nil
	}
	if !validSession.MatchString(args.Session) {
		return args, fmt.Errorf("session is %.80q: it must be 1 to 64 letters, digits, _ or -; leave it out to run without one", args.Session)
	}
	if !args.environment.Sessions() {
		return args, l.stateless(args.Env)
	}
	return args, nil
}

// usage names the arguments and the choices.
func (l listing) usage() string {
	usage := fmt.Sprintf("code (a string) and env (one of %s)", l.choices(""))
	if len(l.withSessions()) > 0 {
		usage += ", and session (a string) to keep state"
	}
	return usage
}

// answerBytes and namesBytes are what an answer of ours and the names in one
// may take: the model has the whole list in the tool's description.
const (
	answerBytes = 250
	namesBytes  = 120
)

// choices names environments, those first whose name begins as wanted does.
func (l listing) choices(wanted string) string {
	names := slices.Clone(l.Names())
	alike := func(name string) int {
		n := 0
		for n < min(len(name), len(wanted)) && name[n] == wanted[n] {
			n++
		}
		return n
	}
	slices.SortStableFunc(names, func(a, b string) int { return alike(b) - alike(a) })
	return list(names)
}

// list joins as many names as fit, and at least one.
func list(names []string) string {
	text := ""
	for i, name := range names {
		if i > 0 && len(text)+len(name) > namesBytes {
			return fmt.Sprintf("%s and %d more, which the tool's description lists", text, len(names)-i)
		}
		if i > 0 {
			text += ", "
		}
		text += name
	}
	return text
}

// unknown answers a call of an environment that there is not.
func (l listing) unknown(env string) error {
	problem := fmt.Sprintf("there is no env %.80q", env)
	if entry, pending := l.Pending(env); pending {
		switch {
		case entry.State == registry.Building:
			return fmt.Errorf("env %q is still being built, for %.0f s so far: call again later%s", env, time.Since(entry.Since).Seconds(), l.meanwhile())
		case entry.Reason != "":
			return fmt.Errorf("env %q could not be built: tell the user what Nix said%s\n%s", env, l.meanwhile(), entry.Reason)
		}
		problem = fmt.Sprintf("env %.80q could not be loaded, as the server's log explains", env)
	}
	if len(l.Names()) == 0 {
		return fmt.Errorf("%s, nor any other: ask the operator to configure one", problem)
	}
	if lines := strings.Join(l.lines(), "\n"); len(problem)+len(lines) <= answerBytes {
		return fmt.Errorf("%s; choose one of\n%s", problem, lines)
	}
	return fmt.Errorf("%s; choose one of %s", problem, l.choices(env))
}

// meanwhile names the environments that can be used instead, as the end of a
// sentence.
func (l listing) meanwhile() string {
	if len(l.Names()) == 0 {
		return ""
	}
	return ", or use one of " + l.choices("")
}

// stateless answers a session on an environment that has none.
func (l listing) stateless(env string) error {
	with := l.withSessions()
	if len(with) == 0 {
		return fmt.Errorf("env %q has no sessions, nor has any other: leave session out", env)
	}
	return fmt.Errorf("env %q has no sessions: leave session out, or use one of %s", env, list(with))
}
