package registry

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// store is Nix's store. Only Nix changes artifacts there.
const store = "/nix/store/"

// overflow is the owner that the kernel shows if a user namespace does not map the real one, as for
// root's files in a container of another user.
const overflow = 65534

// ownArtifact returns an error if a user other than root and this one can change the programs of an
// artifact: the server starts them with its own rights, even without a call.
func ownArtifact(entry string, env Environment) error {
	paths := []string{filepath.Dir(entry), entry}
	for _, program := range []string{env.Exec, env.SessionExec} {
		if program != "" {
			paths = append(paths, program)
		}
	}
	for _, path := range paths {
		resolved, err := filepath.EvalSymlinks(path)
		if err != nil {
			return fmt.Errorf("%s: cannot be followed: %w", path, err)
		}
		if strings.HasPrefix(resolved, store) {
			continue
		}
		if err := own(entry, resolved); err != nil {
			return err
		}
	}
	return nil
}

// own checks a file and the folders above it.
func own(entry, path string) error {
	for first := true; ; first = false {
		info, err := os.Lstat(path)
		if err != nil {
			return fmt.Errorf("%s: %w", entry, err)
		}
		const hint = "change that, or put the sandbox elsewhere"
		stat, ok := info.Sys().(*syscall.Stat_t)
		switch {
		case !ok:
		case stat.Uid != 0 && int(stat.Uid) != os.Geteuid() && !(stat.Uid == overflow && mapped()):
			return fmt.Errorf("%s: another user can change its programs, because %s belongs to user %d: %s", entry, path, stat.Uid, hint)
		// In a sticky folder such as /tmp, users can replace only their own files.
		case info.Mode()&0o002 != 0 && (first || info.Mode()&fs.ModeSticky == 0):
			return fmt.Errorf("%s: every user can change its programs, because all may write to %s: %s", entry, path, hint)
		case info.Mode()&0o020 != 0 && shared(stat) && (first || info.Mode()&fs.ModeSticky == 0):
			return fmt.Errorf("%s: the members of group %d can change its programs, because they may write to %s: %s", entry, stat.Gid, path, hint)
		}
		if path == "/" {
			return nil
		}
		path = filepath.Dir(path)
	}
}

// shared reports whether a file's group may have members other than its owner. Many systems give each
// user a private group with the user's number.
func shared(stat *syscall.Stat_t) bool { return stat.Gid != 0 && stat.Gid != stat.Uid }

// mapped reports whether this process is in a user namespace that has no number
// for some users.
var mapped = sync.OnceValue(func() bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && strings.Join(strings.Fields(string(text)), " ") != "0 0 4294967295"
})
