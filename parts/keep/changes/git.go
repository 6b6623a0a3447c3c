package changes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes/gitpatch"
)

// gitTimeout bounds one run of git.
const gitTimeout = 20 * time.Second

// git runs git in an empty repository of its own. Of the project's repositories it uses
// only the patterns of ignored files and the objects. It reads none of their settings,
// attributes and indexes, so they cannot have it start a program or fetch anything.
type git struct{ dir string }

// newGit returns an error that wraps [exec.ErrNotFound] if there is no git. The caller
// calls close.
func newGit() (*git, error) {
	if _, err := exec.LookPath("git"); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "nix-sandbox-mcp-git-")
	if err != nil {
		return nil, err
	}
	for _, folder := range []string{"objects", "refs", "info"} {
		err = errors.Join(err, os.Mkdir(filepath.Join(dir, folder), 0o700))
	}
	err = errors.Join(err, os.WriteFile(filepath.Join(dir, "HEAD"), []byte("ref: refs/heads/main\n"), 0o600))
	return &git{dir}, err
}

func (g *git) close() { os.RemoveAll(g.dir) }

// run runs git in a folder with further variables. It returns at most maxFile bytes.
func (g *git) run(ctx context.Context, dir string, input io.Reader, variables []string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, gitTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "git", append([]string{"-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"}, args...)...)
	cmd.Dir, cmd.Stdin, cmd.WaitDelay = dir, input, time.Second
	cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + g.dir, "LC_ALL=C", "GIT_DIR=" + g.dir, "GIT_CONFIG_NOSYSTEM=1",
		"GIT_ATTR_NOSYSTEM=1", "GIT_NO_LAZY_FETCH=1", "GIT_ALLOW_PROTOCOL=",
	}, variables...)
	out, errs := &limitedBuffer{limit: maxFile}, &limitedBuffer{limit: 1 << 20}
	cmd.Stdout, cmd.Stderr = out, errs
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && errs.Len() > 0 {
		err = fmt.Errorf("%w: %.500s", err, bytes.TrimSpace(errs.Bytes()))
	}
	return out.Bytes(), err
}

// limitedBuffer fails when it would have more than limit bytes.
type limitedBuffer struct {
	bytes.Buffer
	limit int
}

func (b *limitedBuffer) Write(data []byte) (int, error) {
	if b.Len()+len(data) > b.limit {
		return 0, errors.New("git writes too much")
	}
	return b.Buffer.Write(data)
}

// ignored returns the names that git ignores in a repository. The user's own list of ignored
// files counts too.
func (g *git) ignored(ctx context.Context, top string, names []string) ([]string, error) {
	exclude, err := readSmall(filepath.Join(gitFolder(top), "info", "exclude"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read what the repository ignores: %w", err)
	}
	if err := os.WriteFile(filepath.Join(g.dir, "info", "exclude"), exclude, 0o600); err != nil {
		return nil, err
	}
	own := []string{"GIT_WORK_TREE=" + top}
	for _, name := range []string{"HOME", "XDG_CONFIG_HOME"} {
		if value, set := os.LookupEnv(name); set {
			own = append(own, name+"="+value)
		}
	}
	// A path that begins so is no pattern of git's.
	const here = "./"
	input := here + strings.Join(names, "\x00"+here) + "\x00"
	out, err := g.run(ctx, top, strings.NewReader(input), own, "check-ignore", "--no-index", "--stdin", "-z")
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 { // no file is ignored
		err = nil
	}
	if err != nil {
		return nil, fmt.Errorf("ask git what %s ignores: %w", top, err)
	}
	var ignored []string
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		ignored = append(ignored, strings.TrimPrefix(name, here))
	}
	return ignored, nil
}

// blob returns a content by its id from the repository of a folder.
func (g *git) blob(ctx context.Context, top, id string) ([]byte, error) {
	return g.run(ctx, g.dir, nil, []string{"GIT_OBJECT_DIRECTORY=" + filepath.Join(gitFolder(top), "objects")}, "cat-file", "blob", id)
}

// merge merges two changes of a text, or fails if they conflict.
func (g *git) merge(ctx context.Context, ours, base, theirs []byte) ([]byte, error) {
	for name, content := range map[string][]byte{"ours": ours, "base": base, "theirs": theirs} {
		if err := os.WriteFile(filepath.Join(g.dir, name), content, 0o600); err != nil {
			return nil, err
		}
	}
	return g.run(ctx, g.dir, nil, nil, "merge-file", "-p", "ours", "base", "theirs")
}

// topOf returns the root of the repository that a file of the project belongs to, or "".
func topOf(project, name string) string {
	for dir := filepath.Dir(filepath.Join(project, name)); ; dir = filepath.Dir(dir) {
		if _, err := os.Lstat(filepath.Join(dir, ".git")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			return ""
		}
	}
}

// gitFolder returns the folder with the objects of a repository. In work trees and
// submodules .git is a file that names it (gitrepository-layout(5)).
func gitFolder(top string) string {
	at := filepath.Join(top, ".git")
	follow := func(file, prefix string) {
		text, err := readSmall(file)
		if target, found := strings.CutPrefix(strings.TrimSpace(string(text)), prefix); err == nil && found && target != "" {
			if !filepath.IsAbs(target) {
				target = filepath.Join(filepath.Dir(file), target)
			}
			at = target
		}
	}
	follow(at, "gitdir: ")
	follow(filepath.Join(at, "commondir"), "")
	return at
}

// readSmall reads a regular file of at most 1 MiB.
func readSmall(name string) ([]byte, error) {
	file, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() > 1<<20 {
		return nil, errors.Join(err, fmt.Errorf("%s is not a small regular file", gitpatch.Quote(name)))
	}
	return io.ReadAll(io.LimitReader(file, 1<<20))
}
