package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/aymanbagabas/go-udiff"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/clientfile"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/machine"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
)

const (
	userScope    = "user"
	projectScope = "project"
	// storeFolder is Nix's store, whose garbage collection removes everything that no link leads to.
	storeFolder = "/nix/store"
	// maxClientFile bounds a client's file, in bytes: Claude Code's has the history of projects.
	maxClientFile = 64 << 20
	// addWithin is the time for a client's command that adds a server.
	addWithin = time.Minute
	// rootWithin is the time for nix-store to make a root.
	rootWithin = time.Minute
)

// installation says into which of a client's files its text is to be written.
type installation struct {
	install, dryRun bool
	scope           string
}

// check checks the flags.
func (i *installation) check(name string, c client) error {
	hasScope := c.Files.Project != ""
	if c.Add != nil {
		hasScope = slices.Contains(c.Add.Start, "@SCOPE@")
	}
	switch {
	case i.scope != userScope && i.scope != projectScope:
		return command.Misuse(fmt.Sprintf("--scope is %q", i.scope), "use user or project")
	case !i.install && (i.dryRun || i.scope != userScope):
		return command.Misuse("--dry-run and --scope are for --install", "try "+program+" client-config "+name+" --install")
	case i.scope == projectScope && !hasScope:
		return command.Misuse(name+" can only be told of a server for all projects", "leave --scope out, or add by hand what client-config prints without --install")
	case i.install && c.Add == nil && c.Format != "json":
		return command.Misuse(name+" has no command that adds a server", "add by hand what client-config prints without --install")
	}
	return nil
}

// file is a client's file with its old and its new content. Old is nil if the file is new.
type file struct {
	path     string
	old, new []byte
	mode     fs.FileMode
}

// apply adds a server to a client, by the client's command or in its file, or shows what that would
// change. If the error is of a file, all files stay as they are.
func (i *installation) apply(ctx context.Context, std streams, name string, c client, s server, project string) error {
	const byHand = "add by hand what client-config prints without --install"
	var changes []file
	merge := func(at files, text string) error {
		f, err := i.merge(at, project, text)
		if err != nil {
			return &config.Error{Problem: err.Error(), Hint: "nothing was changed: correct the file, or " + byHand}
		}
		changes = append(changes, f)
		return nil
	}
	if c.Allow != nil {
		if err := merge(c.Allow.Files, c.Allow.Text); err != nil {
			return err
		}
	}
	out := visible(std.out)
	if s.words == nil {
		if err := merge(c.Files, s.text); err != nil {
			return err
		}
	} else if err := i.add(ctx, std, c, s, project); errors.Is(err, exec.ErrNotFound) {
		return &config.Error{Problem: s.words[0] + " is not on your PATH", Hint: "install it, or " + byHand}
	} else if err != nil {
		return &config.Error{Problem: err.Error(), Hint: byHand}
	}
	for _, f := range slices.Backward(changes) {
		switch {
		case bytes.Equal(f.old, f.new):
			fmt.Fprintf(out, "%s has it already\n", f.path)
		case i.dryRun:
			fmt.Fprint(out, udiff.Unified(f.path, f.path, string(f.old), string(f.new)))
		default:
			kept, err := f.write()
			if err != nil {
				return &config.Error{Problem: err.Error(), Hint: "make the file writable, or " + byHand}
			}
			fmt.Fprintf(out, "wrote %s%s\n", f.path, kept)
		}
	}
	return nil
}

// add runs the client's command that adds a server. An earlier entry of this server is replaced.
func (i *installation) add(ctx context.Context, std streams, c client, s server, project string) error {
	out, log := visible(std.out), visible(std.err)
	if c.Add.Get != nil && !i.dryRun {
		var entry bytes.Buffer
		if err := i.run(ctx, &entry, &entry, c.Add.Get, s, project); err != nil {
			if errors.Is(err, exec.ErrNotFound) {
				return err
			}
		} else if !strings.Contains(strings.ReplaceAll(strings.ToLower(entry.String()), "_", "-"), "nix-sandbox") {
			return fmt.Errorf("%s has another server called %q", c.Add.Get[0], clientfile.Name)
		} else if err := i.run(ctx, io.Discard, log, c.Add.Remove, s, project); err != nil {
			return err
		}
	}
	return i.run(ctx, out, log, s.words, s, project)
}

// run runs a command of the client, in the project if the server is for that, or shows it.
func (i *installation) run(ctx context.Context, out, log io.Writer, template []string, s server, project string) error {
	var words, shown []string
	for _, word := range template {
		word = strings.ReplaceAll(word, "@SCOPE@", i.scope)
		for name, value := range s.names {
			word = strings.ReplaceAll(word, "@"+name+"@", value)
		}
		words, shown = append(words, word), append(shown, shellQuote(word))
	}
	line := strings.Join(shown, " ")
	if i.dryRun {
		fmt.Fprintln(out, line)
		return nil
	}
	ctx, stop := context.WithTimeout(ctx, addWithin)
	defer stop()
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Stdout, cmd.Stderr = out, log
	if i.scope == projectScope {
		cmd.Dir = project
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", line, err)
	}
	return nil
}

// merge reads a file, and adds a text to it.
func (i *installation) merge(files files, project, text string) (f file, err error) {
	path := files.User
	if i.scope == projectScope {
		path = files.Project
	}
	if f.path, err = expanded(path, project); err != nil {
		return f, err
	}
	f.mode = 0o600
	// A link is kept, because its target is what its owner wants to be changed.
	real, err := filepath.EvalSymlinks(f.path)
	if err == nil {
		if strings.HasPrefix(real, storeFolder+"/") {
			return f, fmt.Errorf("%s is a file that Nix wrote (%s)", f.path, real)
		}
		f.path = real
	} else if info, _ := os.Lstat(f.path); info != nil && info.Mode()&fs.ModeSymlink != 0 {
		return f, fmt.Errorf("%s is a link that cannot be followed: %w", f.path, err)
	}
	if info, err := os.Stat(f.path); err == nil {
		if !info.Mode().IsRegular() {
			return f, fmt.Errorf("%s is no regular file", f.path)
		}
		f.mode = info.Mode().Perm()
	}
	if f.old, err = bounded.ReadFile(f.path, maxClientFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return f, fmt.Errorf("%s cannot be read: %w", f.path, err)
	}
	if f.new, err = clientfile.Merge(f.old, text); err != nil {
		return f, fmt.Errorf("%s %w", f.path, err)
	}
	return f, nil
}

// write writes the file, and a copy of the old one beside it. kept says where that is.
func (f file) write() (kept string, err error) {
	if err := makeFolder(filepath.Dir(f.path)); err != nil {
		return "", err
	}
	if f.old != nil {
		// A copy of the same second is not replaced.
		backup := f.path + time.Now().Format(".2006-01-02T15-04-05.000000.bak")
		if err := replace(backup, f.path, f.old, f.mode); err != nil {
			return "", err
		}
		kept = "; the old file is " + backup
	}
	return kept, replace(f.path, f.path, f.new, f.mode)
}

// makeFolder makes a folder and those above it.
func makeFolder(path string) error {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	above := filepath.Dir(path)
	if err := makeFolder(above); err != nil {
		return err
	}
	return errors.Join(os.Mkdir(path, 0o700), giveAs(above, path))
}

// giveAs gives a path to the owner of another one, if this is root, who may have the HOME of a user.
func giveAs(like, path string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	info, err := os.Stat(like)
	if err != nil {
		return err
	}
	owner := info.Sys().(*syscall.Stat_t)
	return os.Chown(path, int(owner.Uid), int(owner.Gid))
}

// replace writes a file as a whole or not at all. It belongs to the owner of another one, or of its
// folder if that is missing.
func replace(path, like string, data []byte, mode fs.FileMode) error {
	if _, err := os.Stat(like); err != nil {
		like = filepath.Dir(path)
	}
	temporary, err := os.CreateTemp(filepath.Dir(path), ".nix-sandbox-mcp-")
	if err != nil {
		return err
	}
	defer os.Remove(temporary.Name())
	_, err = temporary.Write(data)
	if err = errors.Join(err, giveAs(like, temporary.Name()), temporary.Chmod(mode), temporary.Sync(), temporary.Close()); err != nil {
		return err
	}
	return os.Rename(temporary.Name(), path)
}

// unexpanded replaces ${NAME:-DEFAULT} in a path as a shell does.
func unexpanded(path string) string {
	return os.Expand(path, func(name string) string {
		name, other, _ := strings.Cut(name, ":-")
		return cmp.Or(os.Getenv(name), other)
	})
}

// expanded returns the absolute path of a client's file. A relative one is in the project.
func expanded(path, project string) (string, error) {
	path = unexpanded(path)
	rest, ok := strings.CutPrefix(path, "~")
	switch {
	case filepath.IsAbs(path):
		return path, nil
	case !ok:
		return filepath.Abs(filepath.Join(project, path))
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("find %s: %w", path, err)
	}
	return home + rest, nil
}

// self is the absolute path by which this program was started. It does not follow links: a link
// such as result/ stays when the next build replaces its target.
func self() (string, error) {
	path, err := exec.LookPath(os.Args[0])
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return "", fmt.Errorf("find the path of this program: %w", err)
	}
	return path, nil
}

// lasting returns a path of a program of the store that stays when the garbage is collected: that
// of a profile, or else of a link that it makes if keep says so. Without one, it warns.
func lasting(path string, keep bool, log io.Writer) (string, error) {
	for _, folder := range filepath.SplitList(os.Getenv("PATH")) {
		installed := filepath.Join(folder, filepath.Base(path))
		if real, err := filepath.EvalSymlinks(installed); err == nil && real == path && filepath.IsAbs(folder) && !strings.HasPrefix(folder, storeFolder+"/") {
			return installed, nil
		}
	}
	warn := func(problem string) (string, error) {
		fmt.Fprintf(log, "%s: warning: %s: nix-collect-garbage removes %s, and the client then finds no server\n", program, problem, path)
		fmt.Fprintf(log, "%s: hint: install the server (nix profile install), or use --install, which keeps it\n", program)
		return path, nil
	}
	link := config.ServerLink(os.Getenv)
	if !keep || link == "" {
		return warn("nothing keeps this server")
	}
	name, rest, _ := strings.Cut(strings.TrimPrefix(path, storeFolder+"/"), "/")
	if err := os.MkdirAll(filepath.Dir(link), 0o700); err != nil {
		return "", err
	}
	if _, err := machine.Output(context.Background(), rootWithin, nil, "nix-store", "--realise", filepath.Join(storeFolder, name), "--add-root", link, "--indirect"); err != nil {
		return warn(fmt.Sprintf("nix-store could not make the link %s (%v)", link, err))
	}
	return filepath.Join(link, rest), nil
}
