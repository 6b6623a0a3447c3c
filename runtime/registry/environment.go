package registry

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/gjson"
)

// maxSeconds bounds every time in the metadata: a year.
const maxSeconds = 365 * 24 * 3600

// Environment is one usable environment.
type Environment struct {
	Name            string
	Description     string
	Backend         string
	InterpreterType string
	// Language is what is known of the interpreter; nil where that is nothing.
	Language *Language
	Timeout  time.Duration
	MemoryMB int64
	// CPUs is how many processors it may use; 0 is all of them.
	CPUs float64
	// PIDs is how many processes and threads it may have.
	PIDs int64
	// OutputBytes is what an answer may carry of stdout and stderr together.
	OutputBytes int64
	// Prewarm is how many sandboxes shall be ready before a call comes.
	Prewarm int
	// Closure identifies what is inside; empty where the builder did not say.
	Closure string
	// Exec runs code from its stdin; SessionExec speaks frames.
	Exec        string
	SessionExec string
	// Origin is the file or variable that named the environment.
	Origin string
}

// Sessions says whether the environment keeps state across calls.
func (e Environment) Sessions() bool {
	return e.Language != nil && e.Language.Sessions
}

func backends() []string   { return []string{"jail"} }
func stdinModes() []string { return []string{"arg", "pipe"} }

// validName is what an environment may be called.
var validName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}$`)

// environment checks an entry of the server's metadata.
func environment(where, prefix, name string, object gjson.Result) (Environment, error) {
	if !object.IsObject() {
		return Environment{}, fmt.Errorf("%s: %s is %s, it must be an object", where, strings.TrimSuffix(prefix, "."), kind(object))
	}
	fields := reader{where: where, object: object, prefix: prefix}
	run := fields.text("exec", "")
	serve := fields.text("session_exec", "")
	if fields.err == nil && run == "" {
		fields.fail("exec", "is missing")
	}
	if fields.err == nil && serve == "" {
		fields.fail("session_exec", "is missing")
	}
	return fields.environment(name, run, serve)
}

// artifactEnvironment checks an artifact in a sandbox folder.
func artifactEnvironment(folder, file, name string, object gjson.Result) (Environment, error) {
	fields := reader{where: file, object: object}
	return fields.environment(name, filepath.Join(folder, "bin", "run"), filepath.Join(folder, "bin", "session-run"))
}

// environment reads the fields that both forms share. The first wrong one is
// the error.
func (r *reader) environment(name, run, serve string) (Environment, error) {
	if r.err == nil && !validName.MatchString(name) {
		r.err = fmt.Errorf("%s: environment name %q must be 1 to 64 of a-z, 0-9, _ and -, and begin with a letter or digit", r.where, name)
	}
	if declared := r.text("name", name); r.err == nil && declared != name {
		r.fail("name", fmt.Sprintf("is %q, but the environment is called %q", declared, name))
	}
	env := Environment{
		Name:            name,
		Backend:         r.choice("backend", "", backends()),
		Description:     r.text("description", ""),
		InterpreterType: r.text("interpreter_type", Command),
		Timeout:         time.Duration(r.number("timeout_seconds", 30, 0.001, maxSeconds) * float64(time.Second)),
		MemoryMB:        r.whole("memory_mb", 512, 1, math.MaxInt32),
		CPUs:            r.number("cpus", 0, 0.01, 4096),
		PIDs:            r.whole("pids", 256, 1, math.MaxInt32),
		OutputBytes:     r.whole("output_kb", 32, 1, 1024) << 10,
		Prewarm:         int(r.whole("prewarm", 1, 0, 1000)),
		Closure:         r.text("closure", ""),
		Exec:            run,
		SessionExec:     serve,
		Origin:          r.where,
	}
	if r.err == nil && !validType.MatchString(env.InterpreterType) {
		r.fail("interpreter_type", fmt.Sprintf("is %q, it must be 1 to 32 of a-z, 0-9, _ and -, and begin with a letter", env.InterpreterType))
	}
	env.Language = r.language("language", env.InterpreterType)
	// These are the backend's and the agent's to use; a wrong one would be a
	// sandbox that is not what its operator wrote, so they are checked here.
	r.text("interpreter", "")
	r.choice("stdin_mode", "arg", stdinModes())
	r.whole("workspace_mb", 256, 1, math.MaxInt32)
	if network := r.object.Get("network"); network.Exists() && !network.IsObject() && r.err == nil {
		r.fail("network", "is "+kind(network)+", it must be an object")
	}
	for _, program := range []struct{ field, path string }{{"exec", run}, {"session_exec", serve}} {
		if err := executable(program.path); err != nil && r.err == nil {
			r.fail(program.field, err.Error())
		}
	}
	if r.err != nil {
		return Environment{}, r.err
	}
	return env, nil
}

// executable says what is wrong with the path of a program, for use after
// its field's name.
func executable(path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("is %q, it must be an absolute path", path)
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("is %s, which does not exist", path)
	case err != nil:
		return fmt.Errorf("is %s, which cannot be used: %w", path, err)
	case !info.Mode().IsRegular():
		return fmt.Errorf("is %s, which is not a file", path)
	case info.Mode().Perm()&0o111 == 0:
		return fmt.Errorf("is %s, which is not executable", path)
	}
	return nil
}

// reader reads fields of one object and keeps the first error.
type reader struct {
	where  string // the file
	prefix string // of the field's name in errors, with its dot
	object gjson.Result
	err    error
}

func (r *reader) fail(field, what string) {
	r.err = fmt.Errorf("%s: %s%s %s", r.where, r.prefix, field, what)
}

// get returns a field, and false where it is absent, null or an error came
// before.
func (r *reader) get(field string) (gjson.Result, bool) {
	value := r.object.Get(field)
	return value, r.err == nil && value.Exists() && value.Type != gjson.Null
}

func (r *reader) text(field, unset string) string {
	value, ok := r.get(field)
	if !ok {
		return unset
	}
	if value.Type != gjson.String {
		r.fail(field, "is "+kind(value)+", it must be a string")
		return unset
	}
	return value.Str
}

func (r *reader) choice(field, unset string, choices []string) string {
	value := r.text(field, unset)
	if r.err != nil {
		return unset
	}
	if value == "" {
		r.fail(field, "is missing, it must be one of "+strings.Join(choices, ", "))
	} else if !slices.Contains(choices, value) {
		r.fail(field, fmt.Sprintf("is %q, it must be one of %s", value, strings.Join(choices, ", ")))
	}
	return value
}

func (r *reader) number(field string, unset, least, most float64) float64 {
	value, ok := r.get(field)
	if !ok {
		return unset
	}
	if value.Type != gjson.Number {
		r.fail(field, "is "+kind(value)+", it must be a number")
		return unset
	}
	if !(value.Num >= least && value.Num <= most) {
		r.fail(field, fmt.Sprintf("is %s, it must be from %v to %v", value.Raw, least, most))
		return unset
	}
	return value.Num
}

func (r *reader) whole(field string, unset, least, most int64) int64 {
	value := r.number(field, float64(unset), float64(least), float64(most))
	if r.err == nil && value != math.Trunc(value) {
		r.fail(field, fmt.Sprintf("is %v, it must be a whole number", value))
		return unset
	}
	return int64(value)
}

// validVariable is what an environment variable may be called.
var validVariable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func (r *reader) names(field string) []string {
	value, ok := r.get(field)
	if !ok {
		return nil
	}
	if !value.IsArray() {
		r.fail(field, "is "+kind(value)+", it must be an array of names of variables")
		return nil
	}
	var names []string
	for _, item := range value.Array() {
		if item.Type != gjson.String || !validVariable.MatchString(item.Str) {
			r.fail(field, fmt.Sprintf("holds %s, which is no name of a variable", item.Raw))
			return nil
		}
		names = append(names, item.Str)
	}
	return names
}

// kind names what a value is, for error messages.
func kind(value gjson.Result) string {
	switch {
	case !value.Exists():
		return "missing"
	case value.IsObject():
		return "an object"
	case value.IsArray():
		return "an array"
	}
	switch value.Type {
	case gjson.String:
		return "a string"
	case gjson.Number:
		return "a number"
	case gjson.True, gjson.False:
		return "a boolean"
	default:
		return "null"
	}
}
