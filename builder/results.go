package builder

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/order"
)

const (
	// gone begins the name of a folder that is being removed.
	gone = ".gone-"
	// maxMetadata bounds the metadata of an artifact, in bytes.
	maxMetadata = 4 << 20
	// openAttempts bounds how often a folder is made that disappears, because it is removed at this moment.
	openAttempts = 10
	day          = 24 * time.Hour
)

// results are the folders of finished builds.
type results struct{ folder string }

func (r *results) has(key string) bool {
	_, err := os.Stat(filepath.Join(r.folder, key, order.ResultLink, "metadata.json"))
	return err == nil
}

// open makes the folder of a result that is about to be built.
func (r *results) open(o order.Order) (string, error) {
	folder := filepath.Join(r.folder, o.Key)
	request, err := json.Marshal(map[string]any{"base": o.Base, "recipe": o.Recipe, "packages": o.Packages})
	if err != nil {
		return "", err
	}
	for range openAttempts {
		err = os.MkdirAll(folder, 0o700)
		for name, text := range map[string][]byte{order.RequestFile: request, order.BuildingFile: nil} {
			err = cmp.Or(err, os.WriteFile(filepath.Join(folder, name), text, 0o600))
		}
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	r.remove(filepath.Join(folder, order.FailedFile))
	return folder, err
}

// close ends a build. The failure is nil if there is a result.
func (r *results) close(key string, failure *order.Failure) {
	folder := filepath.Join(r.folder, key)
	if failure != nil {
		text := fmt.Sprintf("%s %s\n%s\n", failure.Kind, failure.Package, failure.Text)
		_ = os.WriteFile(filepath.Join(folder, order.FailedFile), []byte(text), 0o600) // for the list of packages
	} else if _, err := os.Stat(filepath.Join(folder, order.UsedFile)); err != nil {
		_ = os.WriteFile(filepath.Join(folder, order.UsedFile), nil, 0o600) // a call is about to use it
	}
	r.remove(filepath.Join(folder, order.BuildingFile))
}

func (r *results) remove(path string) { _ = os.Remove(path) }

// sizeOf returns the size that an artifact states of itself, in bytes.
func sizeOf(artifact string) int64 {
	var metadata struct {
		Bytes int64 `json:"closure_bytes"`
	}
	if text, err := bounded.ReadFile(filepath.Join(artifact, "metadata.json"), maxMetadata); err == nil {
		_ = json.Unmarshal(text, &metadata)
	}
	return metadata.Bytes
}

// kept is a result.
type kept struct {
	folder, owner string
	used          time.Time
	bytes         int64
}

// expire removes results that no call has used for as long as the bounds say. If all of them take too much, whoever
// has most loses the ones used longest ago, but not the one used last of all; a result counts for the
// principal of its last call. Nix's garbage collection then may take them. A folder without a result is there
// for a day.
func (r *results) expire(bounds order.Bounds) {
	entries, err := os.ReadDir(r.folder)
	if err != nil {
		return
	}
	var all []kept
	for _, entry := range entries {
		folder := filepath.Join(r.folder, entry.Name())
		if strings.HasPrefix(entry.Name(), gone) { // of a builder that was killed
			_ = os.RemoveAll(folder)
		}
		if !validKey.MatchString(entry.Name()) {
			continue
		}
		info, err := os.Stat(folder)
		if err != nil {
			continue
		}
		if _, err := os.Lstat(filepath.Join(folder, order.ResultLink)); err != nil {
			// It may be about to be built.
			if time.Since(info.ModTime()) > day {
				r.giveUp(folder)
			}
			continue
		}
		one := kept{folder: folder, bytes: sizeOf(filepath.Join(folder, order.ResultLink))}
		if used, err := os.Stat(filepath.Join(folder, order.UsedFile)); err == nil {
			one.used = used.ModTime()
			text, _ := bounded.ReadFile(filepath.Join(folder, order.UsedFile), 64)
			one.owner = strings.TrimSpace(string(text))
		}
		if time.Since(one.used) > time.Duration(bounds.KeepDays)*day {
			r.giveUp(folder)
			continue
		}
		all = append(all, one)
	}
	r.makeRoom(all, bounds.KeepMB<<20)
}

// makeRoom removes results until the others take at most so many bytes.
func (r *results) makeRoom(all []kept, most int64) {
	slices.SortFunc(all, func(a, b kept) int { return b.used.Compare(a.used) })
	each, total := map[string]int64{}, int64(0)
	for _, one := range all {
		each[one.owner] += one.bytes
		total += one.bytes
	}
	for total > most && len(each) > 0 {
		loser := slices.MaxFunc(slices.Sorted(maps.Keys(each)), func(a, b string) int { return cmp.Compare(each[a], each[b]) })
		at := len(all) - 1
		for at > 0 && all[at].owner != loser {
			at--
		}
		if at <= 0 { // only the one used last is left
			delete(each, loser)
			continue
		}
		r.giveUp(all[at].folder)
		total -= all[at].bytes
		each[loser] -= all[at].bytes
		all = slices.Delete(all, at, at+1)
	}
}

// giveUp removes the folder of a result. It disappears as a whole, because it may be made again at any moment.
func (r *results) giveUp(folder string) {
	to := filepath.Join(r.folder, fmt.Sprintf("%s%s-%d", gone, filepath.Base(folder), os.Getpid()))
	if os.Rename(folder, to) == nil {
		_ = os.RemoveAll(to)
	}
}
