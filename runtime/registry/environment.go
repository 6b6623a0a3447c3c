package registry

import (
	"cmp"
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

// Environment is one usable environment.
type Environment struct {
	Name            string
	Description     string
	Backend         string
	InterpreterType string
	// Language describes the interpreter, or is nil.
	Language *Language
	// Timeout is how long a call runs that does not say, MaxTimeout how long one
	// may ask to run, which is at least Timeout.
	Timeout    time.Duration
	MaxTimeout time.Duration
	// AskWithin is for how long the questions of a call may wait for the user, or 0 for the usual
	// time.
	AskWithin time.Duration
	MemoryMB  int64
	// CPUs is how many processors it may use; 0 is all of them.
	CPUs float64
	// PIDs is how many processes and threads it may have.
	PIDs int64
	// OutputBytes bounds stdout and stderr together in an answer.
	OutputBytes int64
	// Prewarm is how many sandboxes shall be ready before a call comes.
	Prewarm int
	// Network lists the reachable hosts, or is nil if there are none.
	Network *Network
	// Reports says that the artifact's programs report how they isolate a sandbox,
	// and Reads names variables of the server's environment that they read.
	Reports bool
	Reads   []string
	// Suspend says that its sandboxes can be put to disk and go on later, and Branch
	// that a copy of one can go on beside it.
	Suspend, Branch bool
	// OverheadMB and OverheadPIDs are used beside the code's limits.
	OverheadMB   int64
	OverheadPIDs int64
	// Closure identifies the contents, or is "" if the builder did not say.
	Closure string
	// Needs is equal for environments with the same requirements on a machine, or "" if the builder
	// did not say.
	Needs string
	// OnDemand lists the packages that calls may add, or is nil.
	OnDemand *OnDemand
	// Base is the name of the environment that a call added packages to, and Added are these
	// packages. Both are empty if no call did.
	Base  string
	Added []string
	// Exec runs code from its stdin; SessionExec speaks frames. Both are "" if the environment has
	// yet to be built.
	Exec        string
	SessionExec string
	// Origin is the file or variable that named the environment.
	Origin string
}

// OnDemand says which packages calls may add to an environment.
type OnDemand struct {
	// All allows every package of the package set.
	All bool
	// Ask says that the user is asked before packages are built.
	Ask bool
	// Names are the allowed packages otherwise, in the order of the configuration.
	Names []string
	// Folder is the artifact's, which has further files about packages.
	Folder string
}

// BaseName returns the name of the environment without packages that calls added.
func (e Environment) BaseName() string { return cmp.Or(e.Base, e.Name) }

// Sessions says whether the environment keeps state across calls.
func (e Environment) Sessions() bool {
	return e.Language != nil && e.Language.Sessions
}

// Secrets name the variables of the server's environment that the environment's
// launcher reads.
func (e Environment) Secrets() []string {
	if e.Network == nil {
		return e.Reads
	}
	return slices.Concat(e.Reads, e.Network.Secrets)
}

// ValidName matches names of environments.
var ValidName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}$`)

// environment checks an entry of the server's metadata. Defaults are the fields
// that it may lack.
func environment(where, prefix, name string, object, defaults gjson.Result) (Environment, error) {
	if !object.IsObject() {
		return Environment{}, fmt.Errorf("%s: %s is %s, it must be an object", where, strings.TrimSuffix(prefix, "."), kind(object))
	}
	fields := reader{where: where, object: object, defaults: defaults, prefix: prefix}
	run := fields.required("exec")
	serve := fields.required("session_exec")
	return fields.environment(name, run, serve)
}

// artifactEnvironment checks an artifact in a sandbox folder. Defaults are the
// fields that it may lack.
func artifactEnvironment(folder, file, name string, object, defaults gjson.Result) (Environment, error) {
	fields := reader{where: file, object: object, defaults: defaults}
	return fields.environment(name, filepath.Join(folder, "bin", "run"), filepath.Join(folder, "bin", "session-run"))
}

// environment reads the fields that both forms share. The first wrong one is the error. The build
// checked the values; only their types are checked here.
func (r *reader) environment(name, run, serve string) (Environment, error) {
	if r.err == nil && !ValidName.MatchString(name) {
		r.err = fmt.Errorf("%s: environment name %q must be 1 to 64 of a-z, 0-9, _ and -, and begin with a letter or digit", r.where, name)
	}
	if declared := r.text("name", name); r.err == nil && declared != name {
		r.fail("name", fmt.Sprintf("is %q, but the environment is called %q", declared, name))
	}
	env := Environment{
		Name:            name,
		Backend:         r.required("backend"),
		Description:     r.required("description"),
		InterpreterType: r.required("interpreter_type"),
		Timeout:         r.seconds("timeout_seconds"),
		MaxTimeout:      r.secondsOrNull("max_timeout_seconds"),
		MemoryMB:        r.whole("memory_mb"),
		CPUs:            r.numberOrNull("cpus"),
		PIDs:            r.whole("pids"),
		OutputBytes:     r.whole("output_kb") << 10,
		Prewarm:         int(r.whole("prewarm")),
		Closure:         r.required("closure"),
		Needs:           r.required("needs"),
		Exec:            run,
		SessionExec:     serve,
		Origin:          r.where,
	}
	if r.err == nil && !validType.MatchString(env.InterpreterType) {
		r.fail("interpreter_type", fmt.Sprintf("is %q, it must be 1 to 32 of a-z, 0-9, _ and -, and begin with a letter", env.InterpreterType))
	}
	env.MaxTimeout = max(env.MaxTimeout, env.Timeout)
	if _, ok := r.get("ask_seconds"); ok {
		env.AskWithin = r.seconds("ask_seconds")
	}
	env.Network = r.network("network")
	if env.OnDemand = r.onDemand("packages_on_demand", filepath.Dir(filepath.Dir(run))); env.OnDemand != nil {
		env.OnDemand.Ask = r.flag("packages_ask")
	}
	env.Reports, env.Reads = r.flag("reports"), r.names("reads")
	env.Suspend, env.Branch = r.flag("suspend"), r.flag("branch")
	if value, ok := r.get("overhead"); ok && r.check("overhead", value, value.IsObject(), "an object") {
		env.OverheadMB, env.OverheadPIDs = r.whole("overhead.memory_mb"), r.whole("overhead.pids")
	}
	env.Language = r.language("language", env.InterpreterType)
	for _, program := range []struct{ field, path string }{{"exec", run}, {"session_exec", serve}} {
		if r.err != nil {
			break
		}
		if err := executable(program.path); err != nil {
			r.fail(program.field, err.Error())
		}
	}
	if r.err != nil {
		return Environment{}, r.err
	}
	return env, nil
}

// executable describes a problem with the path of a program, for use after its field's name. It
// returns "" if there is none.
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
	// defaults are fields that the object may lack.
	defaults gjson.Result
	err      error
}

func (r *reader) fail(field, what string) {
	r.err = fmt.Errorf("%s: %s%s %s", r.where, r.prefix, field, what)
}

// get returns a field. It returns false if the field is absent or null, or after an error.
func (r *reader) get(field string) (gjson.Result, bool) {
	value := r.object.Get(field)
	if !value.Exists() {
		value = r.defaults.Get(field)
	}
	return value, r.err == nil && value.Exists() && value.Type != gjson.Null
}

// need returns a field, which may be null. A missing field is an error. It returns false if the
// field is missing, or after an error.
func (r *reader) need(field string) (gjson.Result, bool) {
	value, _ := r.get(field)
	if r.err == nil && !value.Exists() {
		r.fail(field, "is missing")
	}
	return value, r.err == nil
}

// check records an error if a value is wrong. It returns false after any error.
func (r *reader) check(field string, value gjson.Result, is bool, must string) bool {
	if r.err == nil && !is {
		r.fail(field, "is "+kind(value)+", it must be "+must)
	}
	return r.err == nil
}

// text returns a string, or unset if the field is absent or null.
func (r *reader) text(field, unset string) string {
	value, ok := r.get(field)
	if !ok || !r.check(field, value, value.Type == gjson.String, "a string") {
		return unset
	}
	return value.Str
}

func (r *reader) required(field string) string {
	value, _ := r.need(field)
	r.check(field, value, value.Type == gjson.String, "a string")
	return value.Str
}

// number returns a number from 0 to 2147483647, the range of the types that it
// is stored in.
func (r *reader) number(field string) float64 {
	value, _ := r.need(field)
	switch {
	case !r.check(field, value, value.Type == gjson.Number, "a number"):
		return 0
	case !(value.Num >= 0 && value.Num <= math.MaxInt32):
		r.fail(field, fmt.Sprintf("is %s, it must be a number from 0 to %d", value.Raw, math.MaxInt32))
		return 0
	}
	return value.Num
}

// numberOrNull returns 0 for null.
func (r *reader) numberOrNull(field string) float64 {
	if value, ok := r.need(field); !ok || value.Type == gjson.Null {
		return 0
	}
	return r.number(field)
}

func (r *reader) whole(field string) int64 {
	value := r.number(field)
	if r.err == nil && value != math.Trunc(value) {
		r.fail(field, fmt.Sprintf("is %v, it must be a whole number", value))
		return 0
	}
	return int64(value)
}

func (r *reader) seconds(field string) time.Duration { return seconds(r.number(field)) }

// secondsOrNull returns 0 for null.
func (r *reader) secondsOrNull(field string) time.Duration { return seconds(r.numberOrNull(field)) }

func seconds(number float64) time.Duration { return time.Duration(number * float64(time.Second)) }

func (r *reader) boolean(field string) bool {
	value, _ := r.need(field)
	r.check(field, value, value.IsBool(), "a boolean")
	return value.Bool()
}

// flag returns a boolean: false if the field is absent or null.
func (r *reader) flag(field string) bool {
	value, ok := r.get(field)
	return ok && r.check(field, value, value.IsBool(), "a boolean") && value.Bool()
}

// list returns an array of strings that each satisfy is, or nil if the field is absent or null.
func (r *reader) list(field, thing string, is func(string) bool) (list []string) {
	value, ok := r.get(field)
	if !ok || !r.check(field, value, value.IsArray(), "an array, each item "+thing) {
		return nil
	}
	for _, item := range value.Array() {
		if item.Type != gjson.String || !is(item.Str) {
			r.fail(field, fmt.Sprintf("contains %.100s, each item must be %s", item.Raw, thing))
			return nil
		}
		list = append(list, item.Str)
	}
	return list
}

// strings returns an array of strings, which must not be absent.
func (r *reader) strings(field string) []string {
	value, _ := r.need(field)
	r.check(field, value, value.IsArray(), "an array of strings")
	return r.list(field, "a string", func(string) bool { return true })
}

func (r *reader) sentences(field string) map[string]string {
	value, _ := r.need(field)
	if !r.check(field, value, value.IsObject(), "an object of strings") {
		return nil
	}
	object := map[string]string{}
	value.ForEach(func(key, item gjson.Result) bool {
		object[key.Str] = item.Str
		return r.check(field+"."+key.Str, item, item.Type == gjson.String, "a string")
	})
	return object
}

var validVariable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func (r *reader) names(field string) []string {
	return r.list(field, "the name of a variable", validVariable.MatchString)
}

// ValidPackage matches names of packages: attributes of a package set, without the dots of a path
// to one.
var ValidPackage = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}$`)

// onDemand reads the packages that calls may add: "all", or an array of names. An artifact of an
// earlier version has none.
func (r *reader) onDemand(field, folder string) *OnDemand {
	if value, _ := r.get(field); value.Type == gjson.String && value.Str == "all" {
		return &OnDemand{All: true, Folder: folder}
	}
	names := r.list(field, `the name of a package (or "all" instead of the array)`, ValidPackage.MatchString)
	if len(names) == 0 {
		return nil
	}
	return &OnDemand{Names: names, Folder: folder}
}

// kind names the type of a value in error messages.
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
