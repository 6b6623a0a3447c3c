package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/tidwall/gjson"
)

// What the files in the folder of an environment with packages are called, which is
// called by its key below [Folders.Packages].
const (
	// RequestFile has a [Request]; the runtime writes it.
	RequestFile = "request.json"
	// UsedFile is empty; its time is that of the last call. The runtime writes it.
	UsedFile = "used"
	// ResultLink leads to the artifact; the builder makes it.
	ResultLink = "result"
	// BuildingFile has a line "PID DONE TOTAL" while the builder is at it: its
	// process, and how many of how many store paths are there. TOTAL is 0 as long as
	// it is not known.
	BuildingFile = "building"
	// FailedFile says why there is no result: a line with the kind of failure and
	// its arguments, and what Nix said.
	FailedFile = "failed"
)

// maxDerivedEntries bounds the environments with packages that are read.
const maxDerivedEntries = 1000

// validKey is what the folder of one is called.
var validKey = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Request is what the builder is asked to build.
type Request struct {
	// Base is the name of the environment.
	Base string `json:"base"`
	// Recipe is the path of its recipe.
	Recipe string `json:"recipe"`
	// Packages are the names of what is added to it.
	Packages []string `json:"packages"`
}

// derive reads the environments with packages that are built. One that is wrong, or
// whose environment is another one by now, is as good as not there: a call has it
// built again.
func (s *Set) derive(folder string) {
	s.Derived = map[string]Environment{}
	for _, key := range DerivedKeys(folder) {
		request, err := ReadRequest(folder, key)
		if err != nil {
			continue
		}
		derived, err := ParseDerived(Derived{request.Base, request.Packages}.String())
		if err != nil {
			continue
		}
		base, ok := s.Environments[derived.Base]
		if !ok || base.OnDemand == nil || base.OnDemand.Key(derived) != key || base.OnDemand.Check(derived) != nil {
			continue
		}
		if env, err := base.ReadDerived(folder, derived); err == nil {
			s.Derived[env.Name] = env
		}
	}
}

// DerivedKeys returns the keys of a folder of environments with packages.
func DerivedKeys(folder string) []string {
	if folder == "" {
		return nil
	}
	file, err := os.Open(folder)
	if err != nil {
		return nil
	}
	defer file.Close()
	names, _ := file.Readdirnames(maxDerivedEntries)
	var keys []string
	for _, name := range names {
		if validKey.MatchString(name) {
			keys = append(keys, name)
		}
	}
	slices.Sort(keys)
	return keys
}

// RemoveDerived removes what was built under a key. The folder disappears as a whole,
// because a call may have it made again at any moment.
func RemoveDerived(folder, key string) error {
	gone := filepath.Join(folder, fmt.Sprintf(".gone-%s-%d", key, os.Getpid()))
	if err := os.RemoveAll(gone); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(folder, key), gone); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(gone)
}

// ReadRequest reads what the builder was asked for under a key.
func ReadRequest(folder, key string) (request Request, err error) {
	path := filepath.Join(folder, key, RequestFile)
	data, err := readFile(path)
	if err == nil {
		err = json.Unmarshal(data, &request)
	}
	if err != nil {
		return Request{}, fmt.Errorf("%s: %w", path, err)
	}
	return request, nil
}

// Added returns what calls added to an environment: of one to which nothing was added, its
// name and no packages.
func (e Environment) Added() Derived {
	if e.Derived != nil {
		return *e.Derived
	}
	return Derived{Base: e.Name}
}

// ErrNotBuilt reports an environment with packages that the builder has not built.
var ErrNotBuilt = errors.New("it is not built")

// ReadDerived reads what the builder made of an environment and packages, in the
// folder of all of them.
func (e Environment) ReadDerived(folder string, d Derived) (Environment, error) {
	link := filepath.Join(folder, e.OnDemand.Key(d), ResultLink)
	if _, err := os.Lstat(link); err != nil {
		return Environment{}, ErrNotBuilt
	}
	_, env, err := artifact(link, true, "", false, gjson.Result{})
	if err != nil {
		return Environment{}, err
	}
	if env.Language == nil {
		env.Language = e.Language
	}
	env.Name, env.Derived = d.String(), &d
	// What is added is added to the environment, in one name.
	env.OnDemand = e.OnDemand
	return env, nil
}
