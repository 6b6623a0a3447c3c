package jail

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// Root lends the rights of a folder's owner where nobody else decides which
// folder it is.
func TestOpenProject_NamesWhoDecides(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make folders of other users")
	}
	const alice, bob = 4001, 4002
	base := t.TempDir()
	folder := func(path string, owner int, mode os.FileMode) string {
		path = filepath.Join(base, path)
		must.Do(t, os.Mkdir(path, 0o700))
		must.Do(t, os.Chown(path, owner, owner))
		must.Do(t, unix.Chmod(path, uint32(mode)))
		return path
	}
	link := func(target, path string, owner int) string {
		path = filepath.Join(base, path)
		must.Do(t, os.Symlink(target, path))
		must.Do(t, os.Lchown(path, owner, owner))
		return path
	}
	private := folder("root", 0, 0o700)
	alices := folder("alice", alice, 0o755)
	folder("bob", bob, 0o755)
	bobs := folder("bob/folder", bob, 0o700)
	folder("all", 0, 0o777)
	folder("sticky", 0, 0o1777)
	shared := func(path string, owner, group int, mode uint32) {
		path = folder(path, owner, 0o700)
		must.Do(t, os.Chown(path, owner, group))
		must.Do(t, unix.Chmod(path, mode))
	}
	const team = 4003
	shared("team", 0, team, 0o775)
	shared("team-sticky", 0, team, 0o1775)
	shared("roots-group", 0, 0, 0o775)
	shared("own-group", alice, alice, 0o775)
	shared("in-roots-group", alice, 0, 0o775)
	for name, test := range map[string]struct {
		path string
		want bool
	}{
		"root's own":                               {private, true},
		"a user's own":                             {folder("alice/own", alice, 0o700), true},
		"a user's in root's":                       {bobs, true},
		"root's in a user's":                       {folder("alice/roots", 0, 0o755), false},
		"another user's in a user's":               {folder("alice/bobs", bob, 0o755), false},
		"a user's link to root's":                  {link(private, "alice/to-root", alice), false},
		"a user's relative link to root's":         {link("../root", "alice/up", alice), false},
		"a user's link to another's":               {link(bobs, "alice/to-bob", alice), false},
		"a user's link to their own":               {link(alices, "alice/to-own", alice), true},
		"root's link to a user's":                  {link(alices, "to-alice", 0), true},
		"root's where all may write":               {folder("all/roots", 0, 0o755), false},
		"a user's where all may write":             {folder("all/alices", alice, 0o755), false},
		"root's beside others":                     {folder("sticky/roots", 0, 0o755), true},
		"a user's beside others":                   {folder("sticky/alices", alice, 0o755), true},
		"a user's link beside others":              {link(private, "sticky/to-root", alice), false},
		"root's where a group may write":           {folder("team/roots", 0, 0o755), false},
		"root's beside a group's":                  {folder("team-sticky/roots", 0, 0o755), true},
		"a user's link beside a group's":           {link(private, "team-sticky/to-root", alice), false},
		"root's where root's group may":            {folder("roots-group/roots", 0, 0o755), true},
		"a user's where their own group may write": {folder("own-group/alices", alice, 0o755), true},
		"a user's where root's group may write":    {folder("in-roots-group/alices", alice, 0o755), true},
	} {
		t.Run(name, func(t *testing.T) {
			fd, owned, err := OpenProject(test.path)
			must.Do(t, err)
			defer unix.Close(fd)
			var got, want unix.Stat_t
			must.Do(t, unix.Fstat(fd, &got))
			must.Do(t, unix.Stat(test.path, &want))
			if got.Ino != want.Ino || got.Dev != want.Dev {
				t.Error("it is another folder")
			}
			if owned != test.want {
				t.Errorf("owned %v, want %v", owned, test.want)
			}
		})
	}
	loop := link("loop", "loop", 0)
	if _, _, err := OpenProject(loop); err == nil {
		t.Error("a link to itself was opened")
	}
}
