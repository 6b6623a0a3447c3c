package registry

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/order"
)

// Schema is the version of the metadata that this package reads.
const Schema = 1

// maxFile bounds a metadata file, in bytes; one environment takes about 500.
const maxFile = 4 << 20

// Set is everything that was read.
type Set struct {
	Environments map[string]Environment `json:"-"`
	// Languages are the server's own, by interpreter type.
	Languages map[string]*Language `json:"interpreters,omitempty"`
	Builds    []Build              `json:"-"`
	Broken    []Broken             `json:"-"`
	// Unread is the error of folders that cannot be read, or nil.
	Unread     error        `json:"-"`
	Overridden []Overridden `json:"-"`
	Session    Session      `json:"-"`
	Project    Project      `json:"-"`
	// Serve is nil in metadata without it.
	Serve    *Serve       `json:"serve,omitempty"`
	OnDemand order.Bounds `json:"on_demand,omitempty"`
	// InboxMount is the path of the inbox in a sandbox.
	InboxMount string `json:"-"`
	// defaults are the fields that an artifact of another version may lack.
	defaults map[string]json.RawMessage
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

// Broken is an environment that was left out. There may be a usable environment with the same name.
type Broken struct {
	Name string
	Err  error
}

// Overridden is an environment that is hidden by an artifact in a sandbox folder.
type Overridden struct {
	Name string
	// Origin is the file or variable that the hidden environment came from.
	Origin string
}

// Session is how long sessions live, as the operator configured it.
type Session struct {
	Idle     time.Duration `json:"-"` // since the last call
	Lifetime time.Duration `json:"-"` // since the first call
	// SharedFiles lets a session have several environments.
	SharedFiles bool `json:"shared_files"`
	// KeepFiles keeps the files of sessions on disk, of all together at most KeepBytes.
	KeepFiles bool  `json:"keep_files"`
	KeepBytes int64 `json:"-"`
	// Outputs is the folder to which outputs are copied, or empty.
	Outputs string `json:"outputs,omitempty"`
	// Suspend puts sessions to disk that can go on later, all together at most
	// SuspendBytes.
	Suspend      bool  `json:"suspend"`
	SuspendBytes int64 `json:"-"`
	// Forward lets the user reach ports of sandboxes.
	Forward bool `json:"forward,omitempty"`
}

// Project contains the operator's settings for the project, and the limits of a sandbox.
type Project struct {
	// Path is the folder on the host, or "" if only PROJECT_DIR names one.
	Path string `json:"path,omitempty"`
	// Mount is its path in the sandbox, and Reserved the paths there that it
	// may not overlap.
	Mount    string   `json:"mount_point"`
	Reserved []string `json:"reserved"`
	// Mode is one of Modes. RefusedModes are others that operators try, each with the reason for
	// its refusal.
	Mode         string            `json:"mode"`
	Modes        []string          `json:"modes"`
	RefusedModes map[string]string `json:"refused_modes"`
	// Inherit names the variables of the server's environment that are
	// passed into every sandbox.
	Inherit []string `json:"-"`
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
	where, text := "NIX_SANDBOX_METADATA", []byte(source)
	if !strings.HasPrefix(strings.TrimSpace(source), "{") {
		where = source
		var err error
		if text, err = readFile(source); err != nil {
			return err
		}
	}
	if _, err := parse(where, text); err != nil {
		return err
	}
	read := struct {
		*Set
		Environments map[string]json.RawMessage `json:"environments"`
		Defaults     map[string]json.RawMessage `json:"defaults,omitempty"`
		Session      struct {
			Session
			Idle      seconds `json:"idle_timeout_seconds"`
			Lifetime  seconds `json:"max_lifetime_seconds"`
			KeepMB    uint32  `json:"keep_mb"`
			SuspendMB uint32  `json:"suspend_mb"`
		} `json:"session"`
		Project struct {
			Project
			Inherit struct {
				Variables []string `json:"vars,omitempty"`
			} `json:"inherit_env,omitempty"`
		} `json:"project"`
		Inbox struct {
			Mount string `json:"mount_point"`
		} `json:"inbox"`
	}{Set: s}
	if err := decode(where, "", text, &read); err != nil {
		return err
	}
	s.defaults, s.InboxMount = read.Defaults, read.Inbox.Mount
	s.Session, s.Project = read.Session.Session, read.Project.Project
	s.Session.Idle, s.Session.Lifetime = time.Duration(read.Session.Idle), time.Duration(read.Session.Lifetime)
	s.Session.KeepBytes, s.Session.SuspendBytes = int64(read.Session.KeepMB)<<20, int64(read.Session.SuspendMB)<<20
	s.Project.Inherit = read.Project.Inherit.Variables
	if s.Serve != nil {
		if _, ok := s.Serve.Quotas[DefaultClass]; !ok || s.Serve.Listen == "" {
			return fmt.Errorf("%s: serve lacks listen or quotas.%s", where, DefaultClass)
		}
	}
	maps.DeleteFunc(s.Languages, func(_ string, language *Language) bool { return language == nil })
	for kind, language := range s.Languages {
		language.Type = kind
	}
	for _, name := range slices.Sorted(maps.Keys(read.Environments)) {
		prefix := "environments." + name
		var fields map[string]json.RawMessage
		err := decode(where, prefix, read.Environments[name], &fields)
		var env Environment
		if err == nil {
			env, err = environment(where, prefix+".", name, fields, s.defaults)
		}
		if err != nil {
			s.Broken = append(s.Broken, Broken{name, err})
			continue
		}
		s.add(name, env)
	}
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

// parse returns the fields of a metadata document after checking that it is JSON and of our schema.
func parse(where string, text []byte) (fields map[string]json.RawMessage, err error) {
	if !json.Valid(text) {
		return nil, fmt.Errorf("%s: not valid JSON", where)
	}
	if err := decode(where, "", text, &fields); err != nil {
		return nil, err
	}
	switch schema := fields["schema"]; {
	case schema == nil:
		return nil, fmt.Errorf("%s: schema is missing, it must be %d", where, Schema)
	case string(schema) != strconv.Itoa(Schema):
		return nil, fmt.Errorf("%s: schema is %s, this runtime reads schema %d", where, schema, Schema)
	}
	return fields, nil
}

// readFile reads a metadata file of at most maxFile bytes.
func readFile(path string) ([]byte, error) {
	data, err := bounded.ReadFile(path, maxFile)
	if err != nil {
		return nil, fmt.Errorf("read metadata: %w", err)
	}
	return data, nil
}
