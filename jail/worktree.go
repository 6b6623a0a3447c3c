package jail

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/mountpoint"
)

// maxPointer bounds the files by which git finds a worktree and its repository, in bytes.
const maxPointer = 4 << 10

// commonFolder returns the folder of git's that a worktree shares with its repository, for a project
// that is a worktree (git-worktree(1), gitrepository-layout(5)), or "". The project's own file names
// it, and code may have written that: so the folder counts only if it names the worktree too, because
// whoever wrote the project could not have written there.
func (r ProjectRules) commonFolder(dir, mount string) string {
	text, err := readPointer(filepath.Join(dir, ".git"))
	private, found := strings.CutPrefix(text, "gitdir: ")
	if err != nil || !found {
		return ""
	}
	if !filepath.IsAbs(private) {
		private = filepath.Join(dir, private)
	}
	private = filepath.Clean(private)
	common := filepath.Dir(filepath.Dir(private))
	if filepath.Base(filepath.Dir(private)) != "worktrees" || mountpoint.Problem(common, r.Reserved) != "" ||
		mountpoint.Inside(common, mount) || mountpoint.Inside(mount, common) {
		return ""
	}
	back, err := readPointer(filepath.Join(private, "gitdir"))
	if err != nil {
		return ""
	}
	if !filepath.IsAbs(back) {
		back = filepath.Join(private, back)
	}
	theirs, err := os.Stat(filepath.Clean(back))
	ours, err2 := os.Stat(filepath.Join(dir, ".git"))
	info, err3 := os.Lstat(common)
	if err != nil || err2 != nil || err3 != nil || !os.SameFile(theirs, ours) || !info.IsDir() {
		return ""
	}
	return common
}

// readPointer returns the first line of a small regular file.
func readPointer(path string) (string, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return "", err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() || info.Size() > maxPointer {
		return "", errors.New("it is no small file")
	}
	text, err := io.ReadAll(io.LimitReader(file, maxPointer))
	line, _, _ := strings.Cut(string(text), "\n")
	return line, err
}
