package registry

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/bounded"
)

// Schema is the version of the metadata that this package reads.
const Schema = 1

// maxFile bounds a metadata file, in bytes; one environment takes about 500.
const maxFile = 4 << 20

// Set is everything that was read.
type Set struct {
	Environments map[string]Environment
	// Languages are the server's own, by interpreter type.
	Languages  map[string]*Language
	Builds     []Build
	Broken     []Broken
	Overridden []Overridden
	Session    Session
	Project    Project
	// Serve is nil in metadata of earlier versions.
	Serve    *Serve
	OnDemand Bounds
	// InboxMount is the path of the inbox in a sandbox.
	InboxMount string
	// defaults are the fields that an artifact of an earlier version lacks.
	defaults gjson.Result
}

// Build is an environment that Nix is building or could not build, or in a [Snapshot] also could
// not load. A [Set] may contain a usable environment of the same name.
type Build struct {
	Name  string
	Since time.Time // when it began
	// Failed says that the build is over. Reason contains the last lines of Nix's error, as the
	// model may read them, or "" if only the log has them.
	Failed bool
	Reason string
}

// Broken is an environment that was left out. There may be a usable one of the same name.
type Broken struct {
	Name string
	Err  error
}

// Overridden is an environment that is hidden by one of a sandbox folder.
type Overridden struct {
	Name string
	// Origin is the file or variable that the hidden environment came from.
	Origin string
}

// Session is how long sessions live, as the operator configured it.
type Session struct {
	Idle     time.Duration // since the last call
	Lifetime time.Duration // since the first call
	// SharedFiles lets a session have several environments.
	SharedFiles bool
	// KeepFiles keeps the files of sessions on disk, of all together at most KeepBytes.
	KeepFiles bool
	KeepBytes int64
	// Outputs is the folder to which outputs are copied, or empty.
	Outputs string
	// Suspend puts sessions to disk that can go on later, all together at most
	// SuspendBytes.
	Suspend      bool
	SuspendBytes int64
	// Forward lets the user reach ports of sandboxes.
	Forward bool
}

// Bounds limit packages on demand; the builder is told.
type Bounds struct {
	// MaxClosureMB and KeepMB are in MiB: of one environment, and of all that are
	// kept.
	MaxClosureMB, KeepMB int64
	// BuildSeconds is how long a build may take.
	BuildSeconds int64
	// MaxBuilds is how many run at once.
	MaxBuilds int64
	// KeepDays is how long an environment is kept that no call uses.
	KeepDays int64
}

// Project contains the operator's settings for the project, and the limits of a sandbox.
type Project struct {
	// Path is the folder on the host, or "" if only PROJECT_DIR names one.
	Path string
	// Mount is its path in the sandbox, and Reserved the paths there that it
	// may not overlap.
	Mount    string
	Reserved []string
	// Mode is one of Modes. RefusedModes are others that operators try, each with the reason for
	// its refusal.
	Mode         string
	Modes        []string
	RefusedModes map[string]string
	// Inherit names the variables of the server's environment that are
	// passed into every sandbox.
	Inherit []string
}

// Names returns the names of the usable environments in order.
func (s *Set) Names() []string {
	return slices.Sorted(maps.Keys(s.Environments))
}

// Read reads the server's metadata, given as JSON or as the path of a JSON file. The error reports
// unusable metadata; Set.Broken lists the problems of single environments.
func Read(server string) (*Set, error) {
	set := &Set{Environments: map[string]Environment{}}
	if err := set.server(server); err != nil {
		return nil, err
	}
	return set, nil
}

// server reads the metadata that the server was built with.
func (s *Set) server(source string) error {
	where, text := "NIX_SANDBOX_METADATA", source
	if !strings.HasPrefix(strings.TrimSpace(source), "{") {
		where = source
		data, err := readFile(source)
		if err != nil {
			return err
		}
		text = string(data)
	}
	root, err := parse(where, text)
	if err != nil {
		return err
	}
	environments := root.Get("environments")
	if !environments.IsObject() {
		return fmt.Errorf("%s: environments is %s, it must be an object of environments by name", where, kind(environments))
	}
	s.defaults = root.Get("defaults")
	fields := reader{where: where, object: root.Get("session"), prefix: "session."}
	s.Session = Session{
		Idle:     fields.seconds("idle_timeout_seconds"),
		Lifetime: fields.seconds("max_lifetime_seconds"),

		SharedFiles: fields.boolean("shared_files"),
		KeepFiles:   fields.boolean("keep_files"),
		KeepBytes:   int64(fields.number("keep_mb")) << 20,
		Outputs:     fields.text("outputs", ""),

		Forward:      fields.flag("forward"),
		Suspend:      fields.boolean("suspend"),
		SuspendBytes: int64(fields.number("suspend_mb")) << 20,
	}
	project := reader{where: where, object: root.Get("project"), prefix: "project."}
	s.Project = Project{
		Path:         project.text("path", ""),
		Mount:        project.required("mount_point"),
		Reserved:     project.strings("reserved"),
		Mode:         project.required("mode"),
		Modes:        project.strings("modes"),
		RefusedModes: project.sentences("refused_modes"),
		Inherit:      project.names("inherit_env.vars"),
	}
	inbox := reader{where: where, object: root.Get("inbox"), prefix: "inbox."}
	s.InboxMount = inbox.required("mount_point")
	if object := root.Get("on_demand"); object.Exists() {
		bounds := reader{where: where, object: object, prefix: "on_demand."}
		s.OnDemand = Bounds{
			MaxClosureMB: bounds.whole("max_closure_mb"),
			KeepMB:       bounds.whole("keep_mb"),
			BuildSeconds: bounds.whole("build_seconds"),
			MaxBuilds:    bounds.whole("max_builds"),
			KeepDays:     bounds.whole("keep_days"),
		}
		fields.err = cmp.Or(fields.err, bounds.err)
	}
	known := reader{where: where, object: root}
	s.Languages = known.languages("interpreters")
	s.Serve, err = serve(where, root.Get("serve"))
	if err := errors.Join(fields.err, project.err, inbox.err, known.err, err); err != nil {
		return err
	}
	environments.ForEach(func(key, value gjson.Result) bool {
		name := key.String()
		env, err := environment(where, "environments."+name+".", name, value, s.defaults)
		if err != nil {
			s.Broken = append(s.Broken, Broken{name, err})
			return true
		}
		s.add(name, env)
		return true
	})
	return nil
}

// add puts an environment into the set. Fields that its artifact lacks come from the server's own
// metadata.
func (s *Set) add(name string, env Environment) {
	if env.Language == nil {
		env.Language = s.Languages[env.InterpreterType]
	}
	if env.Description == "" && env.Language != nil {
		env.Description = env.Language.Description
	}
	s.Environments[name] = env
}

// parse returns the root of a metadata document after checking that it is
// JSON and of our schema.
func parse(where, text string) (gjson.Result, error) {
	// gjson reads broken JSON too, so it is checked first; by encoding/json,
	// which refuses nesting that would exhaust the stack.
	if !json.Valid([]byte(text)) {
		return gjson.Result{}, fmt.Errorf("%s: not valid JSON", where)
	}
	root := gjson.Parse(text)
	if !root.IsObject() {
		return gjson.Result{}, fmt.Errorf("%s: is %s, it must be an object", where, kind(root))
	}
	schema := root.Get("schema")
	if !schema.Exists() {
		return gjson.Result{}, fmt.Errorf("%s: schema is missing, it must be %d", where, Schema)
	}
	if schema.Type != gjson.Number || schema.Num != Schema {
		return gjson.Result{}, fmt.Errorf("%s: schema is %s, this runtime reads schema %d", where, schema.Raw, Schema)
	}
	return root, nil
}

// readFile reads a metadata file of at most maxFile bytes.
func readFile(path string) ([]byte, error) {
	data, err := bounded.ReadFile(path, maxFile)
	if err != nil {
		return nil, fmt.Errorf("read metadata: %w", err)
	}
	return data, nil
}
