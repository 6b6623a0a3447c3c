package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/keep/sessionfiles"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/keep/suspended"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
)

// sessionsCommand lists the sessions of which something is on disk: those that sleep, and
// those whose files are kept. Below it is what can be done with them.
func sessionsCommand(std streams) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "sessions",
		Short: "List the sessions that sleep, and those whose files are kept",
		Args:  atMost(0),
		RunE: func(*cobra.Command, []string) error {
			all, err := sessionsOnDisk()
			if err != nil {
				return err
			}
			rows := []sessionRow{}
			for _, s := range all {
				rows = append(rows, s.row)
			}
			if asJSON {
				return writeJSON(std.out, rows)
			}
			return writeSessions(std.out, rows)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON: an array of objects")
	cmd.AddCommand(removeSessionsCommand(), exportSessionCommand(std))
	return cmd
}

// sessionRow is a session in the list, and the schema of sessions --json.
type sessionRow struct {
	// Name is the session's, or the name of the folder that was set aside.
	Name      string `json:"name"`
	Env       string `json:"env,omitempty"`
	Principal string `json:"principal,omitempty"`
	// Asleep says that all of the session is on disk, and not its files alone.
	Asleep bool  `json:"asleep"`
	Files  int64 `json:"files"`
	Bytes  int64 `json:"bytes"`
	Disk   int64 `json:"disk_bytes"`
	// Saved is when it fell asleep, or when its files were saved last.
	Saved *time.Time `json:"saved,omitempty"`
	// Project is the folder that a session shows which sleeps.
	Project string `json:"project,omitempty"`
	// PID and Serves say which server has the files.
	PID    int    `json:"pid,omitempty"`
	Serves string `json:"serves,omitempty"`
	// Problem says why the files cannot be used.
	Problem string `json:"problem,omitempty"`
	// InUse says of one that sleeps that a server is waking it.
	InUse bool `json:"in_use,omitempty"`
}

// full is the name with the principal before it, where there is one.
func (r sessionRow) full() string {
	if r.Principal == "" {
		return r.Name
	}
	return r.Principal + "/" + r.Name
}

// onDisk is a session with its row in the list: one that sleeps, or one whose files are
// kept.
type onDisk struct {
	row    sessionRow
	asleep *suspended.Session
	files  *sessionfiles.Session
}

// sessionsOnDisk returns the sessions of this user: first those that sleep, then those
// whose files are kept, each the newest first.
func sessionsOnDisk() (all []onDisk, err error) {
	sleeping, keeping := config.SuspendedFolder(os.Getenv), config.KeptSessions(os.Getenv)
	if sleeping == "" || keeping == "" {
		return nil, &config.Error{Problem: "there is no folder of sessions", Hint: "set XDG_STATE_HOME or HOME to an absolute path"}
	}
	asleep, err := suspended.List(sleeping)
	if err != nil {
		return nil, err
	}
	for _, s := range asleep {
		all = append(all, onDisk{asleep: &s, row: sessionRow{
			Name: s.Session, Env: s.Env, Principal: s.Principal, Asleep: true, Disk: s.Bytes, Saved: &s.Suspended,
			Project: s.Project, InUse: s.InUse,
		}})
	}
	kept, err := sessionfiles.List(keeping)
	if err != nil {
		return nil, err
	}
	for _, s := range kept {
		all = append(all, onDisk{files: &s, row: keptRow(s)})
	}
	return all, nil
}

// keptRow is the row of a session whose files are kept.
func keptRow(s sessionfiles.Session) sessionRow {
	key := s.Key()
	r := sessionRow{Name: key.Session, Env: key.Env, Principal: key.Principal, Disk: s.Disk}
	if s.Head != nil {
		r.Files, r.Bytes, r.Saved = s.Head.Entries, s.Head.Bytes, &s.Head.Saved
	}
	if s.Holder != nil {
		r.PID, r.Serves = s.Holder.PID, s.Holder.About
	}
	switch {
	case s.SetAside:
		r.Name, r.Problem = filepath.Base(s.Folder), "set aside: its files are damaged"
	case s.Problem != nil:
		r.Problem = s.Problem.Error()
	}
	if r.Name == "" {
		r.Name = filepath.Base(s.Folder)
	}
	return r
}

func writeSessions(w io.Writer, rows []sessionRow) error {
	if len(rows) == 0 {
		fmt.Fprintln(w, "no session sleeps, and no files of sessions are kept")
		return nil
	}
	var table [][]string
	for _, r := range rows {
		what, saved, note := count(int(r.Files), "file"), "", plain(r.Problem)
		if r.Asleep {
			what = "asleep"
			if r.Project != "" {
				note = "project " + plain(r.Project)
			}
		}
		if r.Saved != nil {
			saved = age(time.Since(*r.Saved)) + " ago"
		}
		if r.PID != 0 {
			note = strings.TrimSuffix(fmt.Sprintf("process %d, %s", r.PID, plain(r.Serves)), ", ")
		}
		table = append(table, []string{plain(r.full()), plain(r.Env), what, fmt.Sprintf("%.1f MB", float64(r.Disk)/1e6), saved, note})
	}
	return writeTable(w, []string{"NAME", "ENV", "ON DISK", "SIZE", "SAVED", "SERVER OR PROJECT"}, table)
}

// choice says which of several sessions of one name is meant: that of an environment, or
// of a project. Empty fields mean all.
type choice struct{ env, project string }

// sessionFlags adds the flags of a choice, and completes the first argument with the
// names of the sessions for which is returns true, and others too where the command takes
// several.
func sessionFlags(cmd *cobra.Command, c *choice, is func(onDisk) bool, after cobra.ShellCompDirective, several bool) {
	cmd.Flags().StringVar(&c.env, "env", "", "only the session of this `ENV`: several may have one name")
	cmd.Flags().StringVar(&c.project, "project", "", "only the session that sleeps and shows this folder, `DIR`")
	if err := cmd.MarkFlagDirname("project"); err != nil {
		panic(err) // the line above has added it
	}
	cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 && !several {
			return nil, after
		}
		all, _ := sessionsOnDisk()
		var names []cobra.Completion
		for _, s := range all {
			if is(s) {
				names = append(names, cobra.CompletionWithDesc(s.row.Name, s.row.Env))
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

func sleeps(s onDisk) bool   { return s.asleep != nil }
func hasFiles(s onDisk) bool { return s.files != nil }
func either(onDisk) bool     { return true }

// named returns the sessions that a name and a choice mean, of those for which is returns
// true. The error says that there is none; what says of what kind.
func (c choice) named(name string, is func(onDisk) bool, what string) (found []onDisk, err error) {
	all, err := sessionsOnDisk()
	if err != nil {
		return nil, err
	}
	project := c.project
	if project != "" {
		if project, err = filepath.Abs(project); err != nil {
			return nil, err
		}
	}
	for _, s := range all {
		if is(s) && (name == s.row.Name || name == s.row.full()) && (c.env == "" || c.env == s.row.Env) && (project == "" || project == s.row.Project) {
			found = append(found, s)
		}
	}
	if len(found) > 0 {
		return found, nil
	}
	if c.env != "" {
		name += " of " + c.env
	}
	return nil, &config.Error{Problem: fmt.Sprintf(what, name), Hint: "see " + program + " sessions"}
}

// one returns the only session that a name and a choice mean.
func (c choice) one(name string, is func(onDisk) bool, what string) (onDisk, error) {
	found, err := c.named(name, is, what)
	if err != nil || len(found) == 1 {
		return append(found, onDisk{})[0], err
	}
	var flags []string
	for _, s := range found {
		flag := "--env " + s.row.Env
		if s.row.Env == found[0].row.Env && s.row.Env == found[1].row.Env {
			flag = "--project " + s.row.Project
		}
		if !slices.Contains(flags, flag) {
			flags = append(flags, flag)
		}
	}
	return onDisk{}, command.Misuse(fmt.Sprintf("several sessions are called %q", name), "write "+strings.Join(flags, " or "))
}

func removeSessionsCommand() *cobra.Command {
	var c choice
	cmd := &cobra.Command{
		Use:     "rm NAME...",
		Short:   "Delete sessions that sleep, and kept files of sessions",
		Example: "  " + program + " sessions rm analysis",
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return command.Misuse("sessions rm needs a name", "see "+program+" sessions")
			}
			// Nothing is deleted where one of the names is wrong.
			var chosen []onDisk
			for _, name := range args {
				found, err := c.named(name, either, "nothing of a session %q is on disk")
				if err != nil {
					return err
				}
				chosen = append(chosen, found...)
			}
			for _, s := range chosen {
				if err := s.remove(); err != nil {
					return err
				}
			}
			return nil
		},
	}
	sessionFlags(cmd, &c, either, cobra.ShellCompDirectiveNoFileComp, true)
	return cmd
}

// remove deletes a session. The error is a [*config.Error] where a process has it.
func (s onDisk) remove() error {
	var err error
	if s.asleep != nil {
		err = s.asleep.Remove()
	} else {
		err = s.files.Remove()
	}
	var filesInUse *sessionfiles.InUseError
	var stateInUse *suspended.InUseError
	holder := ""
	switch {
	case errors.As(err, &filesInUse):
		holder = fmt.Sprintf("the server with the process %d", filesInUse.Holder.PID)
	case errors.As(err, &stateInUse):
		holder = "a server"
	case err != nil:
		return fmt.Errorf("delete session %q: %w", s.row.Name, err)
	default:
		return nil
	}
	return &config.Error{
		Problem: fmt.Sprintf("session %q of %s is in use by %s", s.row.Name, s.row.Env, holder),
		Hint:    "end that server, or wait until the session has ended",
	}
}

// archiveSuffix ends the name of an export.
const archiveSuffix = ".tar.zst"

func exportSessionCommand(std streams) *cobra.Command {
	var c choice
	cmd := &cobra.Command{
		Use:   "export NAME FILE" + archiveSuffix,
		Short: "Write the kept files of a session as a tar file",
		Long: "Write the kept files of a session as a tar file that zstd compressed; - is the standard\n" +
			"output. The files are what code wrote: unpack them into a folder of their own.",
		Example: "  " + program + " sessions export analysis analysis" + archiveSuffix,
		Args:    needs(2, "a name and a file"),
		RunE: func(_ *cobra.Command, args []string) error {
			name, file := args[0], args[1]
			if file != "-" && !strings.HasSuffix(file, archiveSuffix) {
				return command.Misuse(fmt.Sprintf("the file %q does not end in %s", file, archiveSuffix), "write "+file+archiveSuffix)
			}
			found, err := c.one(name, hasFiles, "no files of a session %q are kept")
			if err != nil {
				return err
			}
			if file == "-" {
				err = found.files.Export(std.out)
			} else {
				err = exportTo(file, *found.files)
			}
			if err != nil {
				return fmt.Errorf("export session %q: %w", name, err)
			}
			return nil
		},
	}
	sessionFlags(cmd, &c, hasFiles, cobra.ShellCompDirectiveDefault, false)
	return cmd
}

// exportTo writes a session to a file, which is there when it is whole.
func exportTo(file string, s sessionfiles.Session) error {
	if _, err := os.Lstat(file); err == nil {
		return &config.Error{Problem: file + " exists", Hint: "write another name, or remove it first"}
	}
	out, err := os.CreateTemp(filepath.Dir(file), ".export-")
	if err != nil {
		return err
	}
	defer os.Remove(out.Name())
	err = s.Export(out)
	if err == nil {
		err = out.Sync()
	}
	if err := errors.Join(err, out.Close()); err != nil {
		return err
	}
	// A file that was made meanwhile stays.
	return os.Link(out.Name(), file)
}
