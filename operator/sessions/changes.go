package sessions

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/cli"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/format"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/terminal"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes/gitpatch"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostile"
)

// Changes lists, shows and applies what sessions changed in projects.
func Changes(std cli.Streams) *cobra.Command {
	var stat, patch, apply, everything, picking, discard, asJSON bool
	var env string
	cmd := &cobra.Command{
		Use:   "changes [SESSION [PATH]...]",
		Short: "List, show and apply what sessions changed in the project",
		Long: "List the sessions that changed a project which is an overlay (PROJECT_MODE=overlay), those of\n" +
			"servers that have ended too. With a session, show what it changed, or apply it to the project.\n\n" +
			"--apply writes text files with the names of source code, prose and data. Files that git ignores\n" +
			"and caches are left out. Everything else is refused unless its own path is given, or --all after\n" +
			"a look at the patch: binary and executable files, links, names that begin with a dot, and files\n" +
			"that configure or build, such as Makefile, package.json or CLAUDE.md. A file that has changed in\n" +
			"the project is merged by git, or left out. ID@DIGEST, which is shown with a patch, applies that\n" +
			"patch and no later one.\n\n" +
			"--pick shows each file, and asks what to apply of it. --discard takes the patch from the list,\n" +
			"until the session changes more.",
		Example: "  " + cli.Program + " changes\n" +
			"  " + cli.Program + " changes work\n" +
			"  " + cli.Program + " changes work --apply\n" +
			"  " + cli.Program + " changes work --apply src package.json\n" +
			"  " + cli.Program + " changes work --apply --all\n" +
			"  " + cli.Program + " changes work --pick",
		Args: func(cmd *cobra.Command, args []string) error {
			given := 0
			for _, flag := range []bool{stat, patch, apply, picking, discard, asJSON} {
				if flag {
					given++
				}
			}
			switch {
			case given > 1:
				return command.Misuse("--stat, --patch, --apply, --pick, --discard and --json cannot be given together", cli.SeeHelp(cmd))
			case len(args) == 0 && (stat || patch || apply || picking || discard):
				return command.Misuse("changes needs a session", "use one that "+cmd.CommandPath()+" lists")
			case len(args) > 0 && asJSON:
				return command.Misuse("--json is for the list of sessions", "leave out "+args[0])
			case everything && (!apply || len(args) != 1):
				return command.Misuse("--all is for --apply without paths", cli.SeeHelp(cmd))
			case len(args) > 1 && !apply:
				return command.Misuse(fmt.Sprintf("unknown argument %q", args[1]), "paths are for --apply")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			folder := config.ChangesFolder(os.Getenv)
			if folder == "" {
				return &config.Error{Problem: "there is no folder of changes", Hint: "set XDG_STATE_HOME or HOME to an absolute path, as for the server"}
			}
			all, broken := changes.List(folder)
			defer func() {
				for _, entry := range all {
					entry.Close()
				}
			}()
			entries := slices.DeleteFunc(slices.Clone(all), func(entry *changes.Entry) bool {
				return env != "" && !slices.Contains(strings.Split(entry.Env, ", "), env)
			})
			for _, err := range broken {
				fmt.Fprintf(terminal.Visible(std.Err), "%s: %v\n", cli.Program, err)
			}
			if len(args) == 0 {
				return listChanges(std.Out, entries, asJSON)
			}
			entry, err := findChanges(entries, args[0])
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			switch {
			case apply:
				return applyChanges(ctx, std, entry, args[1:], everything)
			case picking:
				return pickChanges(ctx, std, entry)
			case discard:
				if err := entry.MarkDiscarded(); err != nil {
					return err
				}
				_, err := fmt.Fprintf(std.Out, "discarded: %s changes %s shows it for 30 days\n", cli.Program, format.Plain(entry.ID))
				return err
			case stat:
				err = writeStat(std.Out, entry)
			case patch:
				_, err = io.Copy(terminal.Visible(std.Out), entry.Patch())
			default:
				err = showChanges(std, entry)
			}
			return errors.Join(err, entry.MarkShown())
		},
	}
	cmd.Flags().StringVar(&env, "env", "", "only sessions of this `ENV`: several may have one name")
	cmd.Flags().BoolVar(&stat, "stat", false, "show the files and the numbers of lines")
	cmd.Flags().BoolVar(&patch, "patch", false, "write the patch, for git apply")
	cmd.Flags().BoolVar(&apply, "apply", false, "apply it to the project, or these paths of it")
	cmd.Flags().BoolVar(&everything, "all", false, "with --apply: also what is refused without its path, once you have seen the patch")
	cmd.Flags().BoolVar(&picking, "pick", false, "ask for each file whether to apply it, or which hunks of it")
	cmd.Flags().BoolVar(&discard, "discard", false, "take the patch from the list")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write the list as JSON: an array of objects")
	return cmd
}

// changesRow is the schema of changes --json.
type changesRow struct {
	ID        string `json:"id"`
	Applied   bool   `json:"applied"`
	Discarded bool   `json:"discarded"`
	changes.Head
}

// listChanges lists sessions, the newest first. Sessions with the same name are listed by
// their ids.
func listChanges(w io.Writer, entries []*changes.Entry, asJSON bool) error {
	if asJSON {
		rows := []changesRow{}
		for _, entry := range entries {
			rows = append(rows, changesRow{entry.ID, entry.IsApplied(), entry.IsDiscarded(), entry.Head})
		}
		return format.JSON(w, rows)
	}
	if len(entries) == 0 {
		fmt.Fprintln(w, "no session has changed a project")
		return nil
	}
	if entries = slices.DeleteFunc(entries, (*changes.Entry).IsDone); len(entries) == 0 {
		fmt.Fprintln(w, "all changes are applied or discarded")
		return nil
	}
	var rows [][]string
	named := map[string]int{}
	for _, entry := range entries {
		named[entry.Session]++
	}
	for _, entry := range entries {
		name := entry.Session
		if named[name] > 1 {
			name = entry.ID
		}
		if entry.Principal != "" {
			name += " of " + entry.Principal
		}
		s := entry.Summary
		rows = append(rows, []string{format.Plain(name), format.Plain(entry.Env), format.Age(time.Since(entry.Updated)), strconv.Itoa(s.Files() - s.Caches),
			fmt.Sprintf("+%d -%d", s.Lines.Added, s.Lines.Deleted), format.Plain(entry.Project)})
	}
	return format.Table(w, []string{"SESSION", "ENV", "AGE", "FILES", "LINES", "PROJECT"}, rows)
}

// minDigest is the least number of hexadecimal digits that name a patch.
const minDigest = 8

// findChanges finds the patch that a name means: that of a session or of an id, either of
// them with @ and the beginning of the patch's sum.
func findChanges(entries []*changes.Entry, name string) (*changes.Entry, error) {
	name, digest, hasDigest := strings.Cut(name, "@")
	var found []*changes.Entry
	for _, entry := range entries {
		if entry.ID == name {
			found = []*changes.Entry{entry}
			break
		}
		if entry.Session == name {
			found = append(found, entry)
		}
	}
	switch {
	case len(found) == 0:
		return nil, &config.Error{Problem: fmt.Sprintf("session %q has changed no project", name), Hint: "see which sessions have: " + cli.Program + " changes"}
	case len(found) > 1:
		var ids []string
		for _, entry := range found[:min(len(found), maxListed)] {
			ids = append(ids, "\n  "+entry.ID+": "+headline(entry))
		}
		return nil, &config.Error{Problem: fmt.Sprintf("%d sessions are called %q:%s", len(found), name, strings.Join(ids, "")), Hint: "use the id of one of them"}
	case hasDigest && (len(digest) < minDigest || !strings.HasPrefix(found[0].Sum, digest)):
		return nil, &config.Error{Problem: fmt.Sprintf("the patch %s is not the one with the digest %q any more", found[0].ID, digest), Hint: fmt.Sprintf("see the present one with %s changes %s", cli.Program, found[0].ID)}
	case !hasDigest:
		return found[0], nil
	}
	return found[0], found[0].MarkShown() // the digest says that the user has seen it
}

// headline says in one line what a patch is.
func headline(entry *changes.Entry) string {
	s := entry.Summary
	principal := ""
	if entry.Principal != "" {
		principal = " of " + format.Plain(entry.Principal)
	}
	return fmt.Sprintf("session %s (%s)%s, %s ago, of %s: %d added, %d changed, %d deleted",
		format.Plain(entry.Session), format.Plain(entry.Env), principal, format.Age(time.Since(entry.Updated)), format.Plain(entry.Project), s.Added, s.Changed, s.Deleted)
}

// applies is the command that applies a patch and no later one.
func applies(entry *changes.Entry) string {
	return fmt.Sprintf("%s changes %s@%.12s --apply", cli.Program, format.Plain(entry.ID), format.Plain(entry.Sum))
}

// leftOut are lines that say what a patch does not have.
func leftOut(entry *changes.Entry) (lines []string) {
	s := entry.Summary
	if s.Incomplete {
		lines = append(lines, "incomplete: there were too many files to compare them all")
	}
	for _, left := range s.LeftOut {
		lines = append(lines, fmt.Sprintf("left out: %s: %s", format.Plain(left.Path), format.Plain(left.Reason)))
	}
	if more := s.LeftOutCount - len(s.LeftOut); more > 0 {
		lines = append(lines, fmt.Sprintf("left out: %d more", more))
	}
	return lines
}

// writeStat writes a line for each file.
func writeStat(w io.Writer, entry *changes.Entry) error {
	fmt.Fprintln(w, headline(entry))
	table := tabwriter.NewWriter(terminal.Visible(w), 0, 0, 1, ' ', 0)
	err := gitpatch.Read(entry.Patch(), func(file gitpatch.File) error {
		kind := "changed"
		switch {
		case file.Before == gitpatch.Absent:
			kind = "added"
		case file.After == gitpatch.Absent:
			kind = "deleted"
		}
		size := fmt.Sprintf("+%d -%d", file.Lines.Added, file.Lines.Deleted)
		switch {
		case !file.IsText():
			size = "binary"
		case kind == "changed" && file.Before != file.After && file.After == gitpatch.Executable:
			size += ", executable"
		case kind == "changed" && file.Before != file.After:
			size += ", not executable"
		}
		_, err := fmt.Fprintf(table, " %s\t%s\t%s\n", kind, size, gitpatch.Quote(file.Name))
		return err
	})
	for _, line := range leftOut(entry) {
		fmt.Fprintln(table, line)
	}
	fmt.Fprintln(table, "apply it with: "+applies(entry))
	return errors.Join(err, table.Flush())
}

// showChanges writes a patch as it is, or at a terminal with colours and in a pager.
func showChanges(std cli.Streams, entry *changes.Entry) error {
	if !terminal.Is(std.Out) {
		_, err := io.Copy(std.Out, entry.Patch())
		return err
	}
	out, wait := pager(std)
	writePretty(out, entry, os.Getenv("NO_COLOR") == "")
	return wait()
}

// pager starts the user's pager. wait ends the output and waits for it. If there is no pager,
// the output goes to the terminal.
func pager(std cli.Streams) (out io.Writer, wait func() error) {
	none := func() error { return nil }
	command := cmp.Or(os.Getenv("PAGER"), "less")
	if command == "cat" {
		return std.Out, none
	}
	cmd := exec.Command("sh", "-c", command)
	cmd.Env = os.Environ()
	if os.Getenv("LESS") == "" {
		cmd.Env = append(cmd.Env, "LESS=FRX") // as git does
	}
	cmd.Stdout, cmd.Stderr = std.Out, std.Err
	word, _, _ := strings.Cut(command, " ")
	if _, err := exec.LookPath(word); err != nil {
		return std.Out, none
	}
	in, err := cmd.StdinPipe()
	if err != nil || cmd.Start() != nil {
		return std.Out, none
	}
	return in, func() error {
		in.Close()
		return cmd.Wait()
	}
}

// The colours of a patch, as git has them.
const (
	bold  = "\x1b[1m"
	red   = "\x1b[31m"
	green = "\x1b[32m"
	cyan  = "\x1b[36m"
	plane = "\x1b[m"
)

// writePretty writes a patch for a terminal. What code wrote is shown without any of its
// control sequences: they could hide lines.
func writePretty(w io.Writer, entry *changes.Entry, colours bool) {
	out := bufio.NewWriter(w)
	defer out.Flush()
	line := func(colour string, text []byte) {
		text = bytes.TrimSuffix(text, []byte("\n"))
		for _, control := range []string{"\x1b", "\r", "\a", "\b"} {
			text = bytes.ReplaceAll(text, []byte(control), []byte{'^', control[0] ^ 0x40})
		}
		if !colours {
			colour = ""
		}
		out.WriteString(colour)
		_, _ = hostile.Terminal(out, true).Write(append(text, '\n'))
		if colour != "" {
			out.WriteString(plane)
		}
	}
	line(bold, []byte(headline(entry)))
	line("", []byte("apply it with: "+applies(entry)))
	for _, text := range leftOut(entry) {
		line("", []byte(text))
	}
	lines := bufio.NewReaderSize(entry.Patch(), 64<<10)
	inHunk := false
	for {
		text, err := lines.ReadBytes('\n')
		if len(text) > 0 {
			colour := ""
			switch {
			case bytes.HasPrefix(text, []byte("diff --git ")):
				colour, inHunk = bold, false
			case bytes.HasPrefix(text, []byte("@@ ")):
				colour, inHunk = cyan, true
			case !inHunk:
				colour = bold
			case text[0] == '+':
				colour = green
			case text[0] == '-':
				colour = red
			}
			line(colour, text)
		}
		if err != nil {
			return
		}
	}
}

// maxListed is how many files or patches are listed for one reason.
const maxListed = 20

// applyChanges applies a patch and says what was done.
func applyChanges(ctx context.Context, std cli.Streams, entry *changes.Entry, paths []string, all bool) error {
	see := fmt.Sprintf("see it with %s changes %s", cli.Program, format.Plain(entry.ID))
	if entry.Summary.Incomplete && len(paths) == 0 {
		return &config.Error{Problem: "the changes are incomplete: there were too many files to compare them all", Hint: "give the paths to apply, or \".\" for what there is"}
	}
	if shown := entry.Shown(); shown != "" && shown != entry.Sum {
		return &config.Error{Problem: "the session has changed more since you saw its patch, and nothing was applied", Hint: see + ", and apply it then"}
	}
	if all && entry.Shown() != entry.Sum {
		return &config.Error{Problem: "you have not seen this patch yet, and nothing was applied", Hint: see + ", and apply it then"}
	}
	for i, name := range paths {
		// As the user's shell completes it, in the project or above it.
		if _, err := os.Lstat(name); err == nil && !filepath.IsAbs(name) {
			if absolute, err := filepath.Abs(name); err == nil && strings.HasPrefix(absolute, entry.Project+string(filepath.Separator)) {
				paths[i] = absolute
			}
		}
	}
	if all {
		applied, err := changes.ApplyAll(ctx, entry)
		return report(std, entry, applied, err)
	}
	applied, err := changes.Apply(ctx, entry, paths)
	return report(std, entry, applied, err)
}

// report says what was applied of a patch, and what was not.
func report(std cli.Streams, entry *changes.Entry, applied *changes.Applied, err error) error {
	see := fmt.Sprintf("see it with %s changes %s", cli.Program, format.Plain(entry.ID))
	byHand := fmt.Sprintf("take what conflicts by hand: %s changes %s --patch", cli.Program, format.Plain(entry.ID))
	var conflict *changes.ConflictError
	var unknown *changes.UnknownPathError
	out, log := terminal.Visible(std.Out), terminal.Visible(std.Err)
	switch {
	case errors.As(err, &conflict):
		writeRefusals(log, "conflict", conflict.Files)
		return &config.Error{Problem: err.Error(), Hint: byHand}
	case errors.As(err, &unknown):
		return &config.Error{Problem: err.Error(), Hint: see + " --stat"}
	case err != nil:
		return err
	}
	writeRefusals(log, "conflict", applied.Conflicts)
	writeRefusals(log, "refused", applied.Refused)
	if n := len(applied.Ignored); n > 0 {
		fmt.Fprintf(log, "left out: %d that git ignores, such as %s\n", n, gitpatch.Quote(applied.Ignored[0]))
	}
	if n := len(applied.Caches); n > 0 {
		fmt.Fprintf(log, "left out: %s of caches and installed packages, such as %s\n", format.Count(n, "file"), gitpatch.Quote(applied.Caches[0]))
	}
	for _, name := range applied.Merged {
		fmt.Fprintf(out, "merged: %s\n", gitpatch.Quote(name))
	}
	for _, line := range leftOut(entry) {
		// Commits stay in the sandbox, as --stat says.
		if !strings.HasSuffix(line, changes.GitsOwn) {
			fmt.Fprintln(log, line)
		}
	}
	if len(applied.Written)+len(applied.Deleted)+len(applied.Same) == 0 {
		return &config.Error{Problem: "nothing was applied", Hint: see + ", and give the path of each file to apply"}
	}
	fmt.Fprintf(out, "applied to %s: %d written, %d deleted", format.Plain(entry.Project), len(applied.Written), len(applied.Deleted))
	if n := len(applied.Same); n > 0 {
		fmt.Fprintf(out, ", %d already so", n)
	}
	if n := len(applied.Refused); n > 0 {
		fmt.Fprintf(out, ", %d refused: give their paths, or see the patch and use --all", n)
	}
	fmt.Fprintln(out)
	if n := len(applied.Conflicts); n > 0 {
		return &config.Error{Problem: format.Count(n, "file conflicts with what the project has, and was left as it is", "files conflict with what the project has, and were left as they are"), Hint: byHand}
	}
	if applied.Left == 0 {
		return entry.MarkApplied()
	}
	return nil
}

// writeRefusals writes a line for each file, and one for the rest if many have one reason.
func writeRefusals(w io.Writer, what string, files []changes.Refusal) {
	count := map[string]int{}
	for _, file := range files {
		if count[file.Reason]++; count[file.Reason] <= maxListed {
			fmt.Fprintf(w, "%s: %s: %s\n", what, gitpatch.Quote(file.Path), format.Plain(file.Reason))
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(count)) {
		if more := count[reason] - maxListed; more > 0 {
			fmt.Fprintf(w, "%s: %d more: %s\n", what, more, format.Plain(reason))
		}
	}
}
