package tool

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/lazyregexp"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
)

// ValidSession matches names of sessions.
var ValidSession = lazyregexp.New(`^[A-Za-z0-9_-]{1,64}$`)

// call makes a call of the model's arguments. The error is a sentence for the model; the call then
// has the arguments that could be read. Started returns the environments that a live session was
// started from.
func (l listing) call(arguments any, started func(session string) []registry.Environment) (call.Call, error) {
	var c call.Call
	fields, ok := arguments.(map[string]any)
	if !ok && arguments != nil {
		return c, errors.New("the arguments are not an object: call run with " + l.usage())
	}
	known := map[string]*string{"code": &c.Code, "env": &c.Env.Name, "session": &c.Session}
	if l.hasBranches() {
		known["from"] = &c.From
	}
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		value, ok := known[field]
		if field == timeout && l.maxTimeout() > 0 {
			continue // what it may be depends on the environment
		}
		if !ok {
			return c, fmt.Errorf("unknown argument %.80q: call run with %s", field, l.usage())
		}
		if fields[field] == nil {
			continue
		}
		if *value, ok = fields[field].(string); !ok {
			return c, fmt.Errorf("%s is not a string: call run with %s", field, l.usage())
		}
	}
	for _, field := range []string{"code", "env"} {
		if fields[field] == nil {
			return c, fmt.Errorf("%s is missing: call run with %s", field, l.usage())
		}
	}
	name := c.Env.Name
	hasSession := fields["session"] != nil
	valid := ValidSession.MatchString(c.Session)
	var live []registry.Environment
	if hasSession && valid {
		live = started(c.Session)
	}
	env, ok, err := l.environment(name, live)
	if err != nil {
		return c, err
	}
	switch {
	case !ok:
		return c, l.noEnvironment(name)
	case hasSession && !valid:
		return c, fmt.Errorf("session is %.80q: it must be 1 to 64 letters, digits, _ or -; leave it out to run without one", c.Session)
	case hasSession && !env.Sessions():
		return c, l.noSessions(env.Name)
	case c.From != "" && !hasSession:
		return c, fmt.Errorf("from is %.80q and there is no session that could begin as its copy: name a new one in session, or leave from out", c.From)
	case c.From != "" && !ValidSession.MatchString(c.From):
		return c, fmt.Errorf("from is %.80q: it must be the id of a session; leave it out to begin without one", c.From)
	}
	c.Env = env
	if given := fields[timeout]; given != nil && l.maxTimeout() > 0 {
		c.Timeout, ok = timeLimit(given, env)
		if !ok {
			return c, badTimeout(given, env)
		}
	}
	return c, nil
}

// environment returns the environment that a call names in a session that has sandboxes of the
// live environments. The error is a sentence for the model.
func (l listing) environment(name string, live []registry.Environment) (env registry.Environment, ok bool, err error) {
	if l.Packages != nil {
		base, _, adds := strings.Cut(name, "+")
		if _, pending := l.Pending(base); adds && pending {
			return env, false, l.noEnvironment(base)
		}
		if env, ok, err = l.Packages.Environment(l.Snapshot, name, live); ok || err != nil {
			return env, ok, err
		}
	}
	// A session stays with the artifact that it has.
	if at := slices.IndexFunc(live, func(env registry.Environment) bool { return env.Name == name }); at >= 0 {
		return live[at], true, nil
	}
	if env, ok = l.Environment(name); ok {
		return env, ok, nil
	}
	// While it was built it may have been announced by the last word of its reference, such as default.
	for _, other := range l.Names() {
		if env, ok = l.Environment(other); ok && filepath.Base(filepath.Dir(env.Origin)) == name {
			return env, true, nil
		}
	}
	return registry.Environment{}, false, nil
}

// timeout is the name of an argument that only some servers have.
const timeout = "timeout"

// maxTimeout is the longest time that a call may ask for, or 0 if no environment lets a call ask
// for more than its usual time.
func (l listing) maxTimeout() time.Duration {
	var longest time.Duration
	for _, env := range l.Ready() {
		if env.MaxTimeout > env.Timeout {
			longest = max(longest, env.MaxTimeout)
		}
	}
	return longest
}

// usualTimeout is how long a call may run that asks for no time, or 0 if that depends on its
// environment.
func (l listing) usualTimeout() (usual time.Duration) {
	for i, name := range l.Names() {
		if limit := l.Ready()[name].Timeout; i == 0 || limit == usual {
			usual = limit
		} else {
			return 0
		}
	}
	return usual
}

// timeLimit returns how long code may run by an argument, rounded up to a millisecond, the unit of
// the agent's time limits. ok is false if the argument is not a number of seconds that the
// environment allows.
func timeLimit(given any, env registry.Environment) (limit time.Duration, ok bool) {
	seconds, ok := given.(float64)
	if !ok || !(seconds > 0) || seconds > env.MaxTimeout.Seconds() {
		return 0, false
	}
	limit = time.Duration(math.Ceil(seconds*1000)) * time.Millisecond
	return min(limit, env.MaxTimeout), true
}

// badTimeout describes a wrong argument, and says what to write.
func badTimeout(given any, env registry.Environment) error {
	allowed := fmt.Sprintf("use seconds, more than 0 and at most %g, or leave it out for %g", env.MaxTimeout.Seconds(), env.Timeout.Seconds())
	switch seconds, isNumber := given.(float64); {
	case !isNumber:
		text, _ := json.Marshal(given) // decoded from JSON
		return fmt.Errorf("timeout is %.80s, which is not a number: %s", text, allowed)
	case seconds > env.MaxTimeout.Seconds():
		return fmt.Errorf("timeout is %g, more than env %q allows, whose max_timeout_seconds is %g: %s", seconds, env.Name, env.MaxTimeout.Seconds(), allowed)
	default:
		return fmt.Errorf("timeout is %g: %s", seconds, allowed)
	}
}

// usage names the arguments and the environments.
func (l listing) usage() string {
	usage := fmt.Sprintf("code (a string) and env (one of %s)", l.choices(""))
	if len(l.withSessions()) > 0 {
		usage += ", and session (a string) to keep state"
	}
	if l.hasBranches() {
		usage += ", and from (a session) to begin as its copy"
	}
	if longest := l.maxTimeout(); longest > 0 {
		usage += fmt.Sprintf(", and timeout (seconds, at most %g)", longest.Seconds())
	}
	return usage
}

// answerBytes bounds a refusal, namesBytes the names in one: the model has the
// whole list in the tool's description.
const (
	answerBytes = 250
	namesBytes  = 100
)

// choices names the environments, beginning with the names that share the most leading letters with
// wanted.
func (l listing) choices(wanted string) string {
	names := slices.Clone(l.Names())
	if len(names) == 0 {
		names = l.building()
	}
	shared := func(name string) int {
		n := 0
		for n < min(len(name), len(wanted)) && name[n] == wanted[n] {
			n++
		}
		return n
	}
	slices.SortStableFunc(names, func(a, b string) int { return shared(b) - shared(a) })
	return joinNames(names)
}

// joinNames joins as many names as namesBytes allow, and at least one.
func joinNames(names []string) string {
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

// noEnvironment refuses a call of an environment that does not exist, or not
// yet.
func (l listing) noEnvironment(env string) error {
	problem := fmt.Sprintf("there is no env %.80q", env)
	if entry, pending := l.Pending(env); pending {
		switch {
		case !entry.Failed:
			return &buildingError{fmt.Sprintf("env %q is still being built, for %.0f s so far: call again, which waits for it%s", env, time.Since(entry.Since).Seconds(), l.alternatives())}
		case entry.Reason != "":
			return fmt.Errorf("env %q could not be built: tell the user what Nix said%s\n%s", env, l.alternatives(), markImitations("Nix", entry.Reason))
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

// buildingError refuses a call of an environment that is being built.
type buildingError struct{ text string }

func (e *buildingError) Error() string { return e.text }

// alternatives ends a sentence with the environments that can be used instead.
func (l listing) alternatives() string {
	if len(l.Names()) == 0 {
		return ""
	}
	return ", or use one of " + l.choices("")
}

// noSessions refuses a session of an environment without sessions.
func (l listing) noSessions(env string) error {
	with := l.withSessions()
	if len(with) == 0 {
		return fmt.Errorf("env %q has no sessions, nor has any other: leave session out", env)
	}
	return fmt.Errorf("env %q has no sessions: leave session out, or use one of %s", env, joinNames(with))
}
