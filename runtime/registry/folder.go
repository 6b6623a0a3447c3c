package registry

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// maxEntries bounds the entries of a sandbox folder.
	maxEntries = 1000
	// maxReason bounds the shown reason of a failed build, in bytes.
	maxReason = 4 << 10
)

// The endings of files beside the artifacts in a folder of builds. Names of environments contain no
// dot.
const (
	building = ".building"
	failed   = ".failed"
	named    = ".named"
)

// Folders lists the sources of environments beside the server's own.
type Folders struct {
	// Folders are sandbox folders. Earlier ones win over later ones, and all of them over Builds,
	// which wins over the server's own environments. A missing folder counts as empty.
	Folders []string
	// Builds is the wrapper's folder of builds, or "". Beside links to artifacts it may contain
	//
	//	NAME.named     a link to an artifact that is called NAME here,
	//	NAME.building  a file: NAME is being built since it was written, by
	//	               the process with the id that it contains,
	//	NAME.failed    a file: NAME was not built; the end of it says why.
	Builds string
}

// With returns the set with the contents of these folders added. The error reports folders that
// cannot be read, and is in Set.Unread too: the set has what the others contain. Set.Broken lists the
// problems of single environments.
func (s *Set) With(folders Folders) (*Set, error) {
	all := *s
	all.Environments = map[string]Environment{}
	maps.Copy(all.Environments, s.Environments)
	all.Broken, all.Overridden, all.Builds = slices.Clone(s.Broken), slices.Clone(s.Overridden), nil
	var problems []error
	if folders.Builds != "" {
		problems = append(problems, all.folder(folders.Builds, true))
	}
	for _, folder := range slices.Backward(folders.Folders) {
		problems = append(problems, all.folder(folder, false))
	}
	all.Unread = errors.Join(problems...)
	return &all, all.Unread
}

// list returns the entries of a folder in order of their names, without
// hidden ones.
func list(path string) ([]fs.DirEntry, error) {
	folder, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY, 0) // a FIFO would be waited for
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read sandbox folder: %w", err)
	}
	defer folder.Close()
	entries, err := folder.ReadDir(maxEntries + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read sandbox folder: %w", err)
	}
	if len(entries) > maxEntries {
		return nil, fmt.Errorf("sandbox folder %s has more than %d entries: point NIX_SANDBOX_DIR at a folder of sandboxes only", path, maxEntries)
	}
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return strings.HasPrefix(e.Name(), ".") })
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, nil
}

// folder reads the artifacts in a sandbox folder: each of its folders, and
// folders that its links lead to, that contains a metadata.json. It reads them in
// the order of their names, so that of two artifacts of one name the last one wins.
func (s *Set) folder(path string, builds bool) error {
	entries, err := list(path)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		at := filepath.Join(path, entry.Name())
		if builds && entry.Type().IsRegular() {
			s.build(at, entry.Name())
			continue
		}
		called := ""
		if name, isAlias := strings.CutSuffix(entry.Name(), named); builds && isAlias {
			called = name
		}
		name, env, err := artifact(at, entry.Type()&fs.ModeSymlink != 0, called, s.defaults)
		switch {
		case errors.Is(err, errNoArtifact):
		case err != nil:
			s.Broken = append(s.Broken, Broken{cmp.Or(called, name, entry.Name()), err})
		default:
			if hidden, ok := s.Environments[name]; ok {
				s.Overridden = append(s.Overridden, Overridden{name, hidden.Origin})
			}
			s.add(name, env)
		}
	}
	return nil
}

// errNoArtifact reports an entry that is not meant as a sandbox, or is not complete yet.
var errNoArtifact = errors.New("no artifact")

// artifact reads one artifact. The name is "" if it could not be read; called is the one that
// the folder gives it, or "". The result names the artifact itself rather than its links, which may
// lead elsewhere at the next call.
func artifact(entry string, link bool, called string, defaults map[string]json.RawMessage) (string, Environment, error) {
	folder, err := filepath.EvalSymlinks(entry)
	switch {
	case errors.Is(err, fs.ErrNotExist) && link:
		return "", Environment{}, fmt.Errorf("%s: leads to %s, which does not exist: build the sandbox again, or remove the link", entry, target(entry))
	case errors.Is(err, fs.ErrNotExist):
		return "", Environment{}, errNoArtifact
	case err != nil:
		return "", Environment{}, fmt.Errorf("%s: cannot be followed: %w", entry, err)
	}
	file := filepath.Join(entry, "metadata.json")
	inside := filepath.Join(folder, "metadata.json")
	if info, err := os.Stat(inside); err == nil && !info.Mode().IsRegular() {
		return "", Environment{}, fmt.Errorf("%s: is no file: make the sandbox with mkSandbox, or remove it", file)
	}
	data, err := readFile(inside)
	switch {
	case errors.Is(err, fs.ErrNotExist) && link:
		return "", Environment{}, fmt.Errorf("%s: leads to %s, which has no metadata.json: link it to what mkSandbox makes", entry, folder)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return "", Environment{}, errNoArtifact
	case err != nil:
		return "", Environment{}, err
	}
	fields, err := parse(file, data)
	var own struct {
		Name string `json:"name"`
	}
	if err == nil {
		err = decode(file, "", data, &own)
	}
	if err != nil {
		return "", Environment{}, err
	}
	for field, program := range map[string]string{"exec": "run", "session_exec": "session-run"} {
		fields[field], _ = json.Marshal(filepath.Join(folder, "bin", program))
	}
	env, err := environment(file, "", own.Name, fields, defaults)
	name := own.Name
	if err == nil && called != "" {
		name, env.Name = called, called
		if !ValidName.MatchString(called) {
			err = fmt.Errorf("%s: %q is no name of an environment", entry, called)
		}
	}
	if err == nil {
		err = ownArtifact(entry, env)
	}
	return name, env, err
}

// ReadArtifact reads the environment that a link leads to. It has the artifact's own name.
func ReadArtifact(link string) (Environment, error) {
	_, env, err := artifact(link, true, "", nil)
	return env, err
}

func target(link string) string {
	to, err := os.Readlink(link)
	if err != nil {
		return "a path that cannot be read"
	}
	return to
}

// build reads the wrapper's report of a build.
func (s *Set) build(path, file string) {
	name, ended := strings.CutSuffix(file, failed)
	if ended {
		s.Builds = append(s.Builds, Build{Name: name, Failed: true, Reason: tail(path)})
		return
	}
	name, runs := strings.CutSuffix(file, building)
	if !runs {
		return
	}
	info, err := os.Stat(path)
	if err != nil {
		// It has ended since the folder was listed, which may be before its artifact was there: the
		// next look at the folder finds that.
		s.Builds = append([]Build{{Name: name, Since: time.Now()}}, s.Builds...)
		return
	}
	build := Build{Name: name, Since: info.ModTime()}
	if !alive(tail(path)) {
		build.Failed, build.Reason = true, "the build was killed: start the server again to repeat it"
	}
	// That it failed counts more than that it ran.
	s.Builds = append([]Build{build}, s.Builds...)
}

// alive reports whether a process with this id exists. It returns true if the text is not an id,
// because then the process may exist.
func alive(text string) bool {
	id, err := strconv.Atoi(strings.TrimSpace(text))
	return err != nil || id < 1 || !errors.Is(syscall.Kill(id, 0), syscall.ESRCH)
}

// tail returns the last lines of a file as text that may be shown, or "" if it cannot be read.
func tail(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return ""
	}
	from := max(0, info.Size()-maxReason)
	data, err := io.ReadAll(io.NewSectionReader(file, from, maxReason))
	if err != nil {
		return ""
	}
	text := strings.ToValidUTF8(string(data), "\uFFFD")
	if _, rest, found := strings.Cut(text, "\n"); from > 0 && found {
		text = rest
	}
	return strings.TrimSpace(text)
}
