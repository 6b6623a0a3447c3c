package tool

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/metadata"
)

// arguments are those of one call, checked.
type arguments struct {
	Code    string
	Env     string
	Session string // empty where the call has none

	environment metadata.Environment
}

// arguments checks what the model sent. The error is a sentence for it.
func (t *Tool) arguments(raw json.RawMessage) (arguments, error) {
	fields := map[string]json.RawMessage{}
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &fields); err != nil {
			return arguments{}, errors.New("the arguments are not an object: call run with " + t.usage())
		}
	}
	var args arguments
	known := map[string]*string{"code": &args.Code, "env": &args.Env, "session": &args.Session}
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		value, ok := known[field]
		if !ok {
			return args, fmt.Errorf("unknown argument %.80q: call run with %s", field, t.usage())
		}
		if string(fields[field]) == "null" {
			delete(fields, field)
			continue
		}
		if err := json.Unmarshal(fields[field], value); err != nil {
			return args, fmt.Errorf("%s is not a string: call run with %s", field, t.usage())
		}
	}
	for _, field := range []string{"code", "env"} {
		if _, ok := fields[field]; !ok {
			return args, fmt.Errorf("%s is missing: call run with %s", field, t.usage())
		}
	}
	var ok bool
	if args.environment, ok = t.set.Environments[args.Env]; !ok {
		return args, t.unknown(args.Env)
	}
	if _, ok := fields["session"]; !ok {
		return args, nil
	}
	if !validSession.MatchString(args.Session) {
		return args, fmt.Errorf("session is %.80q: it must be 1 to 64 letters, digits, _ or -; leave it out to run without one", args.Session)
	}
	if !args.environment.Sessions() {
		return args, t.stateless(args.Env)
	}
	return args, nil
}

// usage names the arguments and the choices.
func (t *Tool) usage() string {
	usage := fmt.Sprintf("code (a string) and env (one of %s)", strings.Join(t.set.Names(), ", "))
	if len(t.withSessions()) > 0 {
		usage += ", and session (a string) to keep state"
	}
	return usage
}

// unknown answers a call of an environment that there is not.
func (t *Tool) unknown(env string) error {
	problem := fmt.Sprintf("there is no env %.80q", env)
	if t.set.Reason(env) != nil {
		problem = fmt.Sprintf("env %.80q could not be loaded, as the server's log explains", env)
	}
	if len(t.set.Environments) == 0 {
		return fmt.Errorf("%s, nor any other: ask the operator to configure one", problem)
	}
	return fmt.Errorf("%s; choose one of\n%s", problem, strings.Join(t.lines(), "\n"))
}

// stateless answers a session on an environment that has none.
func (t *Tool) stateless(env string) error {
	with := t.withSessions()
	if len(with) == 0 {
		return fmt.Errorf("env %q has no sessions, nor has any other: leave session out", env)
	}
	return fmt.Errorf("env %q has no sessions: leave session out, or use one of %s", env, strings.Join(with, ", "))
}
