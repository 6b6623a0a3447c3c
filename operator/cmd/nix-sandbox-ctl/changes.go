package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/keep/changes"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/keep/changes/gitpatch"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
)

// changesCommand lists, shows and applies what sessions changed in projects.
func changesCommand(std streams) *cobra.Command {
	var stat, patch, apply, asJSON bool
	cmd := &cobra.Command{
		Use:   "changes [SESSION [PATH]...]",
		Short: "List, show and apply what sessions changed in the project",
		Long: "List the sessions that changed a project which is an overlay (PROJECT_MODE=overlay), those of\n" +
			"servers that have ended too. With a session, show what it changed, or apply it to the project.\n\n" +
			"--apply applies everything or nothing. It refuses a file that is not what the session saw, unless\n" +
			"git can merge both; and what a program of this machine would execute or obey, such as .envrc,\n" +
			"CLAUDE.md or flake.nix, and links that leave the project, unless their own paths are given.",
		Example: "  " + program + " changes\n" +
			"  " + program + " changes work\n" +
			"  " + program + " changes work --apply\n" +
			"  " + program + " changes work --apply src tests/test_words.py",
		Args: func(cmd *cobra.Command, args []string) error {
			given := 0
			for _, flag := range []bool{stat, patch, apply, asJSON} {
				if flag {
					given++
				}
			}
			switch {
			case given > 1:
				return command.Misuse("--stat, --patch, --apply and --json cannot be given together", seeHelp(cmd))
			case len(args) == 0 && (stat || patch || apply):
				return command.Misuse("changes needs a session", "write one of those that "+cmd.CommandPath()+" lists")
			case len(args) > 0 && asJSON:
				return command.Misuse("--json is for the list of sessions", "leave out "+args[0])
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
			entries, broken := changes.List(folder)
			defer func() {
				for _, entry := range entries {
					entry.Close()
				}
			}()
			for _, err := range broken {
				fmt.Fprintf(visible(std.err), "%s: %v\n", program, err)
			}
			if len(args) == 0 {
				return listChanges(std.out, entries, asJSON)
			}
			entry := findChanges(entries, args[0])
			if entry == nil {
				return &config.Error{Problem: fmt.Sprintf("session %q has changed no project", args[0]), Hint: "see the sessions that have with " + program + " changes"}
			}
			ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			switch {
			case apply:
				return applyChanges(ctx, std, entry, args[1:])
			case stat:
				return writeStat(std.out, entry)
			case patch:
				_, err := io.Copy(visible(std.out), entry.Patch())
				return err
			}
			return showChanges(std, entry)
		},
	}
	cmd.Flags().BoolVar(&stat, "stat", false, "show the files and the numbers of lines")
	cmd.Flags().BoolVar(&patch, "patch", false, "write the patch, for git apply")
	cmd.Flags().BoolVar(&apply, "apply", false, "apply it to the project, or these paths of it")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write the list as JSON: an array of objects")
	return cmd
}

// changesRow is the schema of changes --json.
type changesRow struct {
	ID string `json:"id"`
	changes.Head
}

// listChanges lists sessions, the newest first. The older ones of a name are listed by
// their ids.
func listChanges(w io.Writer, entries []*changes.Entry, asJSON bool) error {
	if asJSON {
		rows := []changesRow{}
		for _, entry := range entries {
			rows = append(rows, changesRow{entry.ID, entry.Head})
		}
		return writeJSON(w, rows)
	}
	if len(entries) == 0 {
		fmt.Fprintln(w, "no session has changed a project")
		return nil
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "SESSION\tENV\tAGE\tFILES\tLINES\tPROJECT")
	named := map[string]bool{}
	for _, entry := range entries {
		name := entry.Session
		if named[name] {
			name = entry.ID
		}
		named[entry.Session] = true
		if entry.Principal != "" {
			name = entry.ID + " of " + entry.Principal
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t+%d -%d\t%s\n", plain(name), plain(entry.Env), age(time.Since(entry.Updated)),
			entry.Summary.Files(), entry.Summary.Lines.Added, entry.Summary.Lines.Deleted, plain(entry.Project))
	}
	return table.Flush()
}

// findChanges finds the newest patch of a session, or the one of an id; nil where there
// is none.
func findChanges(entries []*changes.Entry, name string) *changes.Entry {
	for _, entry := range entries {
		if entry.Session == name || entry.ID == name {
			return entry
		}
	}
	return nil
}

// headline says in one line what a patch is.
func headline(entry *changes.Entry) string {
	s := entry.Summary
	return fmt.Sprintf("session %s (%s), %s ago, of %s: %d added, %d changed, %d deleted",
		plain(entry.Session), plain(entry.Env), age(time.Since(entry.Updated)), plain(entry.Project), s.Added, s.Changed, s.Deleted)
}

// leftOut are lines that say what a patch does not have.
func leftOut(entry *changes.Entry) (lines []string) {
	s := entry.Summary
	if s.Incomplete {
		lines = append(lines, "incomplete: there were too many files to compare them all")
	}
	for _, left := range s.LeftOut {
		lines = append(lines, fmt.Sprintf("left out: %s: %s", plain(left.Path), plain(left.Reason)))
	}
	if more := s.LeftOutCount - len(s.LeftOut); more > 0 {
		lines = append(lines, fmt.Sprintf("left out: %d more", more))
	}
	return lines
}

// writeStat writes a line for each file.
func writeStat(w io.Writer, entry *changes.Entry) error {
	fmt.Fprintln(w, headline(entry))
	table := tabwriter.NewWriter(visible(w), 0, 0, 1, ' ', 0)
	err := gitpatch.Read(entry.Patch(), func(file gitpatch.File) error {
		kind := "changed"
		switch {
		case file.Before == gitpatch.Absent:
			kind = "added"
		case file.After == gitpatch.Absent:
			kind = "deleted"
		}
		size := fmt.Sprintf("+%d -%d", file.Lines.Added, file.Lines.Deleted)
		if !file.IsText() {
			size = "binary"
		}
		_, err := fmt.Fprintf(table, " %s\t%s\t%s\n", kind, size, gitpatch.Quote(file.Name))
		return err
	})
	for _, line := range leftOut(entry) {
		fmt.Fprintln(table, line)
	}
	return errors.Join(err, table.Flush())
}

// showChanges writes a patch as it is, or at a terminal with colours and in a pager.
func showChanges(std streams, entry *changes.Entry) error {
	if !isTerminal(std.out) {
		_, err := io.Copy(std.out, entry.Patch())
		return err
	}
	out, wait := pager(std)
	writePretty(out, entry, os.Getenv("NO_COLOR") == "")
	return wait()
}

// pager starts the user's pager. wait ends the output and waits for it. Where there is
// none, the output goes to the terminal.
func pager(std streams) (out io.Writer, wait func() error) {
	none := func() error { return nil }
	command := cmp.Or(os.Getenv("PAGER"), "less")
	if command == "cat" {
		return std.out, none
	}
	cmd := exec.Command("sh", "-c", command)
	cmd.Env = os.Environ()
	if os.Getenv("LESS") == "" {
		cmd.Env = append(cmd.Env, "LESS=FRX") // as git does
	}
	cmd.Stdout, cmd.Stderr = std.out, std.err
	if word, _, _ := strings.Cut(command, " "); !found(exec.LookPath(word)) {
		return std.out, none
	}
	in, err := cmd.StdinPipe()
	if err != nil || cmd.Start() != nil {
		return std.out, none
	}
	return in, func() error {
		in.Close()
		return cmd.Wait()
	}
}

// found reports whether a search succeeded.
func found[T any](_ T, err error) bool { return err == nil }

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
		_, _ = (&filter{w: out}).Write(append(text, '\n'))
		if colour != "" {
			out.WriteString(plane)
		}
	}
	line(bold, []byte(headline(entry)))
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

// applyChanges applies a patch and says what was done.
func applyChanges(ctx context.Context, std streams, entry *changes.Entry, paths []string) error {
	if entry.Summary.Incomplete && len(paths) == 0 {
		return &config.Error{Problem: "the changes are incomplete: there were too many files to compare them all", Hint: "give the paths that are to be applied, or \".\" for what there is"}
	}
	for i, name := range paths {
		// As the user's shell completes it, in the project or above it.
		if _, err := os.Lstat(name); err == nil && !filepath.IsAbs(name) {
			if absolute, err := filepath.Abs(name); err == nil && strings.HasPrefix(absolute, entry.Project+string(filepath.Separator)) {
				paths[i] = absolute
			}
		}
	}
	applied, err := changes.Apply(ctx, entry, paths)
	var refused *changes.RefusedError
	var unknown *changes.UnknownPathError
	out, log := visible(std.out), visible(std.err)
	switch {
	case errors.As(err, &refused):
		named := false
		for _, file := range refused.Files {
			named = named || file.Kind != changes.Differs
			fmt.Fprintf(log, "refused: %s: %s\n", gitpatch.Quote(file.Path), plain(file.Reason))
		}
		hint := "apply the other files by giving their paths"
		if named {
			hint = fmt.Sprintf("see them with %s changes %s; --apply . applies all others, and those whose own paths follow it", program, plain(entry.Session))
		}
		return &config.Error{Problem: err.Error(), Hint: hint}
	case errors.As(err, &unknown):
		return &config.Error{Problem: err.Error(), Hint: fmt.Sprintf("see what it changed with %s changes %s --stat", program, plain(entry.Session))}
	case err != nil:
		return err
	}
	if applied.Recovered {
		fmt.Fprintln(log, "an earlier apply had been killed, and was undone first")
	}
	for _, file := range applied.Skipped {
		fmt.Fprintf(log, "skipped: %s: %s\n", gitpatch.Quote(file.Path), plain(file.Reason))
	}
	for _, name := range applied.Merged {
		fmt.Fprintf(out, "merged: %s\n", gitpatch.Quote(name))
	}
	for _, line := range leftOut(entry) {
		fmt.Fprintln(log, line)
	}
	fmt.Fprintf(out, "applied to %s: %d written, %d deleted", plain(entry.Project), len(applied.Written), len(applied.Deleted))
	if n := len(applied.Same); n > 0 {
		fmt.Fprintf(out, ", %d already so", n)
	}
	fmt.Fprintln(out)
	return nil
}
