package clients

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

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/cli"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/clients/clientfile"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/format"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/terminal"
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
	install, uninstall, dryRun bool
	shell, allow               bool
	scope                      string
	here                       bool // the server shows the folder in which it is started
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
	case i.install && i.uninstall:
		return command.Misuse("both --install and --uninstall were given", "keep one of them")
	case i.shell && c.Shell == nil:
		return command.Misuse(name+" has no hook for its shell commands", "leave --shell out, or use claude-code, codex, gemini-cli or opencode")
	case i.allow && !i.shell:
		return command.Misuse("--allow is for --shell", "add --shell")
	case !i.install && !i.uninstall && (i.dryRun || i.scope != userScope):
		return command.Misuse("--dry-run and --scope are for --install", "try "+cli.Program+" client-config "+name+" --install")
	case i.scope == projectScope && !hasScope:
		return command.Misuse(name+" can only be told of a server for all projects", "leave --scope out, or add by hand what client-config prints without --install")
	case (i.install || i.uninstall) && c.Add == nil && c.Format != "json":
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

// apply adds a server to a client or takes it away, by the client's command or in its files, or shows
// what that would change. If the error is of a file, all files stay as they are.
func (i *installation) apply(ctx context.Context, std cli.Streams, name string, c client, s server, project string) error {
	const byHand = "add by hand what client-config prints without --install"
	var all []beside
	if s.words == nil {
		all = append(all, beside{Files: c.Files, Text: s.text, Format: "json"})
	}
	if c.Allow != nil {
		all = append(all, beside{Files: c.Allow.Files, Text: c.Allow.Text, Format: "json"})
	}
	if c.Shell != nil && (i.shell || i.uninstall) {
		all = append(all, beside{Files: c.Shell.Files, Text: fill(c.Shell.Text, s.names), Format: c.Shell.Format})
	}
	for _, one := range all { // before anything changes
		if _, err := i.change(one, project); err != nil {
			return &config.Error{Problem: err.Error(), Hint: "nothing was changed: correct the file, or " + byHand}
		}
	}
	out := terminal.Visible(std.Out)
	if s.words != nil {
		if err := i.add(ctx, std, c, s, project); errors.Is(err, exec.ErrNotFound) {
			return &config.Error{Problem: s.words[0] + " is not on your PATH", Hint: "install it, or " + byHand}
		} else if err != nil {
			return &config.Error{Problem: err.Error(), Hint: byHand}
		}
	}
	// Two of them may be in one file, and the client's command may have changed that too.
	for _, one := range all {
		f, err := i.change(one, project)
		if err == nil {
			err = i.finish(out, f)
		}
		if err != nil {
			return &config.Error{Problem: err.Error(), Hint: "make the file writable, or " + byHand}
		}
	}
	switch {
	case i.uninstall || i.dryRun:
	case i.shell && c.Shell.Note != "":
		fmt.Fprintf(out, "now %s\n", c.Shell.Note)
	default:
		fmt.Fprintf(out, "now start %s again: its server %q has the tool run\n", name, clientfile.Name)
		if i.here {
			fmt.Fprintf(out, "its code can see the folder in which you start %s: --project none shows it none\n", name)
		}
		if c.Trust != "" {
			fmt.Fprintf(out, "in %s, %s\n", name, c.Trust)
		}
	}
	return nil
}

// finish writes a file, or shows what that would change.
func (i *installation) finish(out io.Writer, f file) error {
	switch {
	case bytes.Equal(f.old, f.new) && i.uninstall:
	case bytes.Equal(f.old, f.new):
		fmt.Fprintf(out, "%s has it already\n", f.path)
	case i.dryRun:
		fmt.Fprint(out, udiff.Unified(f.path, f.path, string(f.old), string(f.new)))
	case f.new == nil:
		if err := os.Remove(f.path); err != nil {
			return err
		}
		fmt.Fprintf(out, "removed %s\n", f.path)
	default:
		kept, err := f.write()
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "wrote %s%s\n", f.path, kept)
	}
	return nil
}

// add runs the client's command that adds or removes a server. An earlier entry of
// this server is replaced.
func (i *installation) add(ctx context.Context, std cli.Streams, c client, s server, project string) error {
	out, log := terminal.Visible(std.Out), terminal.Visible(std.Err)
	if i.uninstall {
		err := i.run(ctx, out, log, c.Add.Remove, s, project)
		var status *exec.ExitError
		if errors.As(err, &status) { // it had no such server, and has said so
			err = nil
		}
		return err
	}
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
		words, shown = append(words, word), append(shown, format.ShellQuote(word))
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

// change reads a file, and adds a text to it or takes that away.
func (i *installation) change(one beside, project string) (f file, err error) {
	path := one.Files.User
	if i.scope == projectScope {
		path = one.Files.Project
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
	err = nil
	switch {
	case one.Format != "json" && i.uninstall:
	case one.Format != "json":
		f.new = []byte(one.Text)
	case i.uninstall:
		f.new, err = clientfile.Remove(f.old, one.Text)
	default:
		f.new, err = clientfile.Merge(f.old, one.Text)
	}
	if err != nil {
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
		fmt.Fprintf(log, "%s: warning: %s: nix-collect-garbage removes %s, and the client then finds no server\n", cli.Program, problem, path)
		fmt.Fprintf(log, "%s: hint: install the server (nix profile install), or use --install, which keeps it\n", cli.Program)
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
