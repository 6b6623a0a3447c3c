package packages

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/lazyregexp"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/order"
)

const (
	// maxEntries bounds the environments with packages that are read: more than the builder keeps.
	maxEntries = 20_000
	// maxRequest bounds a request, in bytes.
	maxRequest = 16 << 10
)

// validKey matches the names of such folders.
var validKey = lazyregexp.New(`^[0-9a-f]{64}$`)

// Request is what was ordered of the builder.
type Request struct {
	// Base is the name of the environment.
	Base string `json:"base"`
	// Recipe is the path of its recipe.
	Recipe string `json:"recipe"`
	// Packages names the additional packages.
	Packages []string `json:"packages"`
}

// Built returns the usable environments with packages in a folder, sorted by name, for the
// environments of a set. A broken one, or one with a base that has changed, is left out: a call
// has it built again.
func Built(folder string, environments map[string]registry.Environment) (built []registry.Environment) {
	for _, key := range Keys(folder) {
		request, err := ReadRequest(folder, key)
		if err != nil {
			continue
		}
		name, err := Parse(Name{request.Base, request.Packages}.String())
		if err != nil {
			continue
		}
		base, ok := environments[name.Base]
		if !ok || base.OnDemand == nil || Key(base, name) != key || check(base, name) != nil {
			continue
		}
		if env, err := Read(folder, base, name); err == nil {
			built = append(built, env)
		}
	}
	slices.SortFunc(built, func(a, b registry.Environment) int { return strings.Compare(a.Name, b.Name) })
	return built
}

// Keys returns the keys of a folder of environments with packages.
func Keys(folder string) []string {
	if folder == "" {
		return nil
	}
	file, err := os.Open(folder)
	if err != nil {
		return nil
	}
	defer file.Close()
	names, _ := file.Readdirnames(maxEntries)
	var keys []string
	for _, name := range names {
		if validKey.MatchString(name) {
			keys = append(keys, name)
		}
	}
	slices.Sort(keys)
	return keys
}

// Remove removes the build with a key. The folder disappears as a whole, because a call may
// have it made again at any moment.
func Remove(folder, key string) error {
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
	path := filepath.Join(folder, key, order.RequestFile)
	data, err := bounded.ReadFile(path, maxRequest)
	if err == nil {
		err = json.Unmarshal(data, &request)
	}
	if err != nil {
		return Request{}, fmt.Errorf("%s: %w", path, err)
	}
	return request, nil
}

// ErrNotBuilt reports an environment with packages that the builder has not built.
var ErrNotBuilt = errors.New("it is not built")

// Read reads the environment that the builder made of a base and packages, from the folder of
// all results. The error is [ErrNotBuilt] if it was not built.
func Read(folder string, base registry.Environment, name Name) (registry.Environment, error) {
	link := filepath.Join(folder, Key(base, name), order.ResultLink)
	if _, err := os.Lstat(link); err != nil || folder == "" {
		return registry.Environment{}, ErrNotBuilt
	}
	env, err := registry.ReadArtifact(link)
	if err != nil {
		return registry.Environment{}, err
	}
	if env.Language == nil {
		env.Language = base.Language
	}
	env.Name, env.Base, env.Added = name.String(), name.Base, name.Packages
	env.BaseExec = cmp.Or(base.BaseExec, base.SessionExec)
	// Further packages are added to the base, in one name.
	env.OnDemand = base.OnDemand
	return env, nil
}
