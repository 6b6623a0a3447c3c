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

// The files in the folder of an environment with packages. The folder is named by its key, below
// [Folders.Packages].
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
	// FailedFile says why there is no result: a line with the kind of failure and its arguments,
	// then the output of Nix.
	FailedFile = "failed"
)

// maxDerivedEntries bounds the environments with packages that are read.
const maxDerivedEntries = 1000

// validKey matches the names of such folders.
var validKey = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Request asks the builder for an environment.
type Request struct {
	// Base is the name of the environment.
	Base string `json:"base"`
	// Recipe is the path of its recipe.
	Recipe string `json:"recipe"`
	// Packages names the additional packages.
	Packages []string `json:"packages"`
}

// derive reads the environments with packages that are built. A broken one, or one with a base that
// has changed, is ignored, so that a call has it built again.
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

// RemoveDerived removes the build with a key. The folder disappears as a whole, because a call may
// have it made again at any moment.
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

// ReadRequest reads the request with a key.
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

// Added returns the packages that calls added to an environment: its own name and no packages if
// they added none.
func (e Environment) Added() Derived {
	if e.Derived != nil {
		return *e.Derived
	}
	return Derived{Base: e.Name}
}

// ErrNotBuilt reports an environment with packages that the builder has not built.
var ErrNotBuilt = errors.New("it is not built")

// ReadDerived reads the builder's result for an environment and packages, in the folder of all
// results.
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
	// Further packages are added to the base, in one name.
	env.OnDemand = e.OnDemand
	return env, nil
}
