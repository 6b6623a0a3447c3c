package registry

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/lazyregexp"
)

// Environment is one usable environment.
type Environment struct {
	Name            string `json:"-"`
	Description     string `json:"description"`
	Backend         string `json:"backend"`
	InterpreterType string `json:"interpreter_type"`
	// Language describes the interpreter, or is nil.
	Language *Language `json:"language,omitempty"`
	// Timeout is how long a call runs that does not say, MaxTimeout how long one
	// may ask to run, which is at least Timeout.
	Timeout    time.Duration `json:"-"`
	MaxTimeout time.Duration `json:"-"`
	// AskWithin is for how long the questions of a call may wait for the user.
	AskWithin time.Duration `json:"-"`
	MemoryMB  int64         `json:"-"`
	// CPUs is how many processors it may use; 0 is all of them.
	CPUs float64 `json:"cpus,omitempty"`
	// PIDs is how many processes and threads it may have.
	PIDs int64 `json:"-"`
	// OutputBytes bounds stdout and stderr together in an answer.
	OutputBytes int64 `json:"-"`
	// Prewarm is how many sandboxes shall be ready before a call comes.
	Prewarm int `json:"-"`
	// Inherit names the variables of the server's environment that its code gets, beside those that
	// all get.
	Inherit []string `json:"inherit_env"`
	// Network lists the reachable hosts, or is nil if there are none.
	Network *Network `json:"network,omitempty"`
	// Reports says that the artifact's programs report how they isolate a sandbox,
	// and Reads names variables of the server's environment that they read.
	Reports bool     `json:"reports,omitempty"`
	Reads   []string `json:"reads,omitempty"`
	// Suspend says that its sandboxes can be put to disk and go on later, and Branch
	// that a copy of one can go on beside it.
	Suspend bool `json:"suspend,omitempty"`
	Branch  bool `json:"branch,omitempty"`
	// OverheadMB and OverheadPIDs are used beside the code's limits.
	OverheadMB   int64 `json:"-"`
	OverheadPIDs int64 `json:"-"`
	// Closure identifies the contents, or is "" if the builder did not say.
	Closure string `json:"closure"`
	// Programs is the folder of the programs that its packages have, or "" if the builder did not
	// say.
	Programs string `json:"programs,omitempty"`
	// Needs is equal for environments with the same requirements on a machine, or "" if the builder
	// did not say.
	Needs string `json:"needs"`
	// OnDemand lists the packages that calls may add, or is nil. Nix says that code may add them too, while it runs.
	OnDemand *OnDemand `json:"packages_on_demand,omitempty"`
	Nix      bool      `json:"nix"`
	// Base is the name of the environment that a call added packages to, and Added are these
	// packages. Both are empty if no call did.
	Base  string   `json:"-"`
	Added []string `json:"-"`
	// BaseExec is the SessionExec of Base, or "".
	BaseExec string `json:"-"`
	// Exec runs code from its stdin; SessionExec speaks frames. Both are "" if the environment has
	// yet to be built.
	Exec        string `json:"exec"`
	SessionExec string `json:"session_exec"`
	// Origin is the file or variable that named the environment.
	Origin string `json:"-"`
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

// Includes reports whether the environment has the packages that calls added to another environment
// with the same base.
func (e Environment) Includes(other Environment) bool {
	return !slices.ContainsFunc(other.Added, func(name string) bool { return !slices.Contains(e.Added, name) })
}

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

// HasProgram reports whether a package of the environment has a program of that name.
func (e Environment) HasProgram(name string) bool {
	return e.Programs != "" && !strings.Contains(name, "/") && executable(filepath.Join(e.Programs, name)) == nil
}

// ValidName matches names of environments.
var ValidName = lazyregexp.New(`^[a-z0-9][a-z0-9_-]{0,63}$`)

// validType matches the types of interpreters.
var validType = lazyregexp.New(`^[a-z][a-z0-9_-]{0,31}$`)

// environment reads an environment from its fields and, if some are missing, the defaults. The error
// names the file and the first wrong field. The build checked the values; only their types are
// checked here.
func environment(where, prefix, name string, fields, defaults map[string]json.RawMessage) (Environment, error) {
	if !ValidName.MatchString(name) {
		return Environment{}, fmt.Errorf("%s: environment name %q must be 1 to 64 of a-z, 0-9, _ and -, and begin with a letter or digit", where, name)
	}
	all := map[string]json.RawMessage{}
	maps.Copy(all, defaults)
	maps.Copy(all, fields)
	if string(all["network"]) == `"none"` { // as {"mode": "none"}
		delete(all, "network")
	}
	text, err := json.Marshal(all)
	if err != nil {
		return Environment{}, fmt.Errorf("%s: %w", where, err)
	}
	var read struct {
		Environment
		Timeout    seconds `json:"timeout_seconds"`
		MaxTimeout seconds `json:"max_timeout_seconds,omitempty"`
		AskWithin  seconds `json:"ask_seconds"`
		MemoryMB   uint32  `json:"memory_mb"`
		PIDs       uint32  `json:"pids"`
		OutputKB   uint32  `json:"output_kb"`
		Prewarm    uint32  `json:"prewarm"`
		Ask        bool    `json:"packages_ask"`
		Overhead   struct {
			MemoryMB uint32 `json:"memory_mb"`
			PIDs     uint32 `json:"pids"`
		} `json:"overhead,omitempty"`
	}
	if err := decode(where, prefix, text, &read); err != nil {
		return Environment{}, err
	}
	env := read.Environment
	if !validType.MatchString(env.InterpreterType) {
		return Environment{}, fmt.Errorf("%s: %sinterpreter_type is %q, it must be 1 to 32 of a-z, 0-9, _ and -, and begin with a letter", where, prefix, env.InterpreterType)
	}
	env.Name, env.Origin = name, where
	env.Timeout, env.MaxTimeout = time.Duration(read.Timeout), time.Duration(max(read.MaxTimeout, read.Timeout))
	env.AskWithin = time.Duration(read.AskWithin)
	env.MemoryMB, env.PIDs = int64(read.MemoryMB), int64(read.PIDs)
	env.OutputBytes, env.Prewarm = int64(read.OutputKB)<<10, int(read.Prewarm)
	env.OverheadMB, env.OverheadPIDs = int64(read.Overhead.MemoryMB), int64(read.Overhead.PIDs)
	if env.Network != nil && env.Network.Mode == "none" {
		env.Network = nil
	}
	if o := env.OnDemand; o != nil && !o.All && len(o.Names) == 0 {
		env.OnDemand = nil
	} else if o != nil {
		o.Ask, o.Folder = read.Ask, filepath.Dir(filepath.Dir(env.Exec))
	}
	if env.Language != nil {
		env.Language.Type = env.InterpreterType
	}
	for _, program := range []struct{ field, path string }{{"exec", env.Exec}, {"session_exec", env.SessionExec}} {
		if err := executable(program.path); err != nil {
			return Environment{}, fmt.Errorf("%s: %s%s %w", where, prefix, program.field, err)
		}
	}
	return env, nil
}

// executable returns an error that continues a sentence with the name of a program's field, unless
// the path is that of a program.
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

// ValidPackage matches names of packages: attributes of a package set, without the dots of a path
// to one. ValidPath matches these paths.
var (
	ValidPackage = lazyregexp.New(`^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}$`)
	ValidPath    = lazyregexp.New(`^[A-Za-z0-9_][A-Za-z0-9_+-]{0,63}(\.[A-Za-z0-9_][A-Za-z0-9_+-]{0,63}){0,3}$`)
)

// UnmarshalJSON reads "all", or an array of names.
func (o *OnDemand) UnmarshalJSON(text []byte) error {
	if o.All = string(text) == `"all"`; o.All {
		return nil
	}
	if json.Unmarshal(text, &o.Names) != nil {
		return wrong(o, text)
	}
	return nil
}
