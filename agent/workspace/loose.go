package workspace

import (
	"cmp"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

const (
	// maxLoose bounds the loose files of one answer.
	maxLoose = 100
	// temporary is the other folder that code uses without being told. Its files cannot be read
	// through the agent, but an answer can say that they were written.
	temporary = "/tmp"
)

// Loose has the files of a sandbox that has no session: those directly in the workspace and in /tmp,
// which code saved without a thought of outputs.
type Loose map[string]stamp

// Loose returns what is there now.
func (r *Root) Loose() Loose {
	found := Loose{}
	for _, folder := range []string{r.Path, temporary} {
		dir, err := os.Open(folder)
		if err != nil {
			continue
		}
		names, _ := dir.Readdirnames(MaxEntries)
		for _, name := range names {
			var st unix.Stat_t
			if isScratch(name) || folder == temporary && !strings.Contains(name, ".") ||
				unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
				continue
			}
			found[path.Join(folder, name)] = stamp{inode: st.Ino, size: uint64(st.Size), mtime: st.Mtim.Nano(), change: st.Ctim.Nano(), linked: st.Nlink > 1}
		}
		dir.Close()
	}
	return found
}

// isScratch reports whether a name is hidden, or one that mktemp(1) or Python's tempfile makes: tmp. and
// ten characters, or tmp and eight.
func isScratch(name string) bool {
	rest, found := strings.CutPrefix(name, "tmp")
	return strings.HasPrefix(name, ".") || found && !strings.Contains(strings.TrimPrefix(rest, "."), ".") &&
		(len(rest) == 8 || len(rest) == 11 && rest[0] == '.')
}

// Left returns the loose files that are new or have changed since then, in the order in which they
// were written, without those that Changed found under another name.
func (r *Root) Left(since Loose) []frame.File {
	now := r.Loose()
	shown := map[uint64]bool{}
	for _, s := range r.seen {
		shown[s.inode] = s.linked
	}
	var files []frame.File
	for name, s := range now {
		if since[name] != s && !(s.linked && shown[s.inode]) {
			files = append(files, frame.File{Path: name, Size: int64(s.size), Linked: true})
		}
	}
	slices.SortFunc(files, func(a, b frame.File) int {
		return cmp.Or(cmp.Compare(now[a.Path].mtime, now[b.Path].mtime), strings.Compare(a.Path, b.Path))
	})
	return files[:min(len(files), maxLoose)]
}
