package escape

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/cgroup"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/networld"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
)

// errLacking means that this machine cannot offer a bait.
type errLacking string

func (e errLacking) Error() string { return string(e) }

// scene is what the host offers to one attempt: baits, files and variables. It is
// made for the attempt and removed after it. Evidence on the host shows what the
// attempt reached, not what the attempt reports.
type scene struct {
	dir     string // the host's folder of this scene
	launch  string // folder in which bin/run is started
	scratch string // working directory of a control
	inside  bool   // the attempt runs in a sandbox, not as a control
	open    bool   // the sandbox is known to show the host's processes

	secret string // nobody may read it
	token  string // marks what the attempt says of itself
	mark   string // a name for what an attempt leaves behind, at most 15 bytes

	vars  map[string]any  // what the attempt is told: strings and integers
	env   []string        // added to the environment of bin/run
	left  bool            // whether to search for processes left behind
	files []*os.File      // descriptors from 3 on
	tty   *os.File        // controlling terminal and stderr, if not nil
	hear  func(io.Writer) // hands on what was written to the terminal
	group int             // process group to join; 0 for a session of its own

	world *networld.World // where bin/run starts; nil for the suite's own network

	groups *cgroup.Tree // for the sandbox; nil for none
	limits cgroup.Limits

	checks  []func() string // each returns what it found, or nothing
	closers []func()
	before  string // the folder's digest when the attempt starts
}

// newScene makes a scene with the baits that names lists.
func newScene(inside, open bool, names []string) (*scene, error) {
	dir, err := os.MkdirTemp("", "escape-")
	if err != nil {
		return nil, err
	}
	s := &scene{
		dir:     dir,
		launch:  filepath.Join(dir, "launch"),
		scratch: filepath.Join(dir, "scratch"),
		inside:  inside,
		open:    open,
		secret:  nonce(16),
		token:   nonce(8),
		mark:    "escape-" + nonce(4),
	}
	s.closers = append(s.closers, func() {
		os.RemoveAll(dir)
		// Attempts that get out of a sandbox leave files with this name.
		for _, folder := range []string{"/tmp", "/var/tmp", "/dev/shm", "/run", "/"} {
			os.Remove(filepath.Join(folder, s.mark))
		}
	})
	if err := s.furnish(names); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// furnish makes the scene's folders and baits.
func (s *scene) furnish(names []string) error {
	for _, folder := range []string{s.launch, s.scratch} {
		if err := os.Mkdir(folder, 0o755); err != nil {
			return err
		}
	}
	s.vars = map[string]any{
		"TOKEN":   s.token,
		"MARK":    s.mark,
		"HOST":    s.dir,
		"CONTROL": 1,
		"ROUND":   1,
	}
	if s.inside {
		s.vars["CONTROL"] = 0
	}
	for _, name := range names {
		if err := baits[name](s); err != nil {
			return fmt.Errorf("bait %s: %w", name, err)
		}
	}
	var err error
	s.before, err = digest(s.dir, s.scratch)
	return err
}

// nonce returns n random bytes in hexadecimal.
func nonce(n int) string {
	random := make([]byte, n)
	rand.Read(random) // never fails
	return hex.EncodeToString(random)
}

func (s *scene) close() {
	for i := len(s.closers) - 1; i >= 0; i-- {
		s.closers[i]()
	}
	s.closers = nil
}

// evidence returns what shows on the host that the attempt has succeeded, or
// nothing.
func (s *scene) evidence() string {
	for _, check := range s.checks {
		if found := check(); found != "" {
			return found
		}
	}
	after, err := digest(s.dir, s.scratch)
	if err != nil {
		return "the host's folder cannot be read any more: " + err.Error()
	}
	return difference(s.before, after)
}

// write makes a file of the scene with the given content.
func (s *scene) write(name, content string, mode os.FileMode) (string, error) {
	path := filepath.Join(s.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	return path, errors.Join(os.WriteFile(path, []byte(content), mode), os.Chmod(path, mode))
}

// digest describes every file under root but those under except, a line
// each: a change of anything but access times changes it.
func digest(root, except string) (string, error) {
	var lines strings.Builder
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if path == except {
			return filepath.SkipDir
		}
		var stat syscall.Stat_t
		if err := syscall.Lstat(path, &stat); err != nil {
			return err
		}
		content := ""
		switch {
		case entry.Type().IsRegular():
			if content, err = hash(path); err != nil {
				return err
			}
		case entry.Type()&fs.ModeSymlink != 0:
			if content, err = os.Readlink(path); err != nil {
				return err
			}
		}
		// A folder's size and links follow from what is in it. The root's
		// own times change with the scratch folder's.
		fmt.Fprintf(&lines, "%q %o %d:%d links=%d %s\n", strings.TrimPrefix(path, root), stat.Mode, stat.Uid, stat.Gid, stat.Nlink, content)
		if path != root {
			fmt.Fprintf(&lines, "%q changed %d.%09d\n", strings.TrimPrefix(path, root), stat.Mtim.Sec, stat.Mtim.Nsec)
		}
		return nil
	})
	return lines.String(), err
}

// maxHashed bounds what is read of one file: an attempt may have made it.
const maxHashed = 1 << 20

func hash(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	sum := sha256.New()
	_, err = io.Copy(sum, io.LimitReader(file, maxHashed))
	return hex.EncodeToString(sum.Sum(nil)), err
}

// difference names the first line that only one of two digests has.
func difference(before, after string) string {
	if before == after {
		return ""
	}
	old := map[string]bool{}
	for _, line := range strings.Split(before, "\n") {
		old[line] = true
	}
	for _, line := range strings.Split(after, "\n") {
		if !old[line] {
			return "the host's folder has changed: " + line
		}
		delete(old, line)
	}
	for line := range old {
		return "the host's folder has lost: " + line
	}
	return "the host's folder has changed"
}

// survivor searches for a process with the scene's mark as its name.
func (s *scene) survivor() string {
	for _, p := range procfs.All() {
		if first, _, _ := strings.Cut(p.Command(), " "); first == s.mark || p.Name() == s.mark {
			return fmt.Sprintf("process %d still runs", p.PID)
		}
	}
	return ""
}
