// Package sessions has the commands about sessions and the servers that run them: what is live or on
// disk, what code changed, and how a user takes part.
package sessions

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/cli"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/format"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/sessionfiles"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/store"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/suspended"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
)

// List lists what is on disk of sessions: suspended sessions, and kept files. The
// commands below it delete and export that.
func List(std cli.Streams) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "sessions",
		Short: "List live and suspended sessions, and the kept files of others",
		Args:  cli.AtMost(0),
		RunE: func(*cobra.Command, []string) error {
			all, err := sessionsOnDisk()
			if err != nil {
				return err
			}
			servers, err := find()
			if err != nil {
				return err
			}
			live := liveSessions(servers)
			if asJSON {
				for _, s := range live {
					all = append(all, onDisk{Name: s.Name, Env: strings.Join(s.Environments, "+"), Principal: s.Principal, PID: s.PID, Live: &s})
				}
				return format.JSON(std.Out, all)
			}
			if err := writeLive(std.Out, live); err != nil || len(live) > 0 && len(all) == 0 {
				return err
			}
			return writeSessions(std.Out, all)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON: an array of objects")
	cmd.AddCommand(removeSessionsCommand(), exportSessionCommand(std))
	return cmd
}

// onDisk is a suspended session, or a session with kept files. Its fields are the schema of
// sessions --json.
type onDisk struct {
	// Name is the name of the session. If its files were set aside, it is that of their folder.
	Name      string `json:"name"`
	Env       string `json:"env,omitempty"`
	Principal string `json:"principal,omitempty"`
	// Asleep says that the session is suspended. Otherwise only its files are on disk.
	Asleep bool  `json:"asleep"`
	Files  int64 `json:"files"`
	Bytes  int64 `json:"bytes"`
	Disk   int64 `json:"disk_bytes"`
	// Saved is the time of the suspension, or of the last save of the files.
	Saved *time.Time `json:"saved,omitempty"`
	// Project is the folder that a suspended session shows.
	Project string `json:"project,omitempty"`
	// PID and Serves name the server that uses the files.
	PID    int    `json:"pid,omitempty"`
	Serves string `json:"serves,omitempty"`
	// Problem says why the files cannot be used.
	Problem string `json:"problem,omitempty"`
	// InUse says that a server is about to resume the session.
	InUse bool `json:"in_use,omitempty"`
	// Live is a session of a running server, which need not be on disk.
	Live *liveSession `json:"live,omitempty"`

	stored store.Session
}

// full is the name, after the principal if there is one.
func (s *onDisk) full() string { return strings.TrimPrefix(s.Principal+"/"+s.Name, "/") }

// sessionsOnDisk returns the sessions of this user: first suspended ones, then those with kept
// files, each from the newest on.
func sessionsOnDisk() ([]onDisk, error) {
	states, files := config.SuspendedFolder(os.Getenv), config.KeptSessions(os.Getenv)
	if states == "" || files == "" {
		return nil, &config.Error{Problem: "there is no folder of sessions", Hint: "set XDG_STATE_HOME or HOME to an absolute path"}
	}
	all := []onDisk{}
	asleep, err := suspended.List(states)
	if err != nil {
		return nil, err
	}
	for _, s := range asleep {
		all = append(all, onDisk{
			Name: s.Session, Env: s.Env, Principal: s.Principal, Asleep: true, Disk: s.Head.Bytes, Saved: &s.Head.Saved,
			Project: s.Project, InUse: s.Holder != nil, stored: s,
		})
	}
	kept, err := store.List(files)
	if err != nil {
		return nil, err
	}
	for _, s := range kept {
		if s.Head == nil || s.Head.Data != "" { // else only a note is left
			all = append(all, keptFiles(s))
		}
	}
	return all, nil
}

func keptFiles(s store.Session) onDisk {
	one := onDisk{Name: cmp.Or(s.Session, filepath.Base(s.Folder)), Env: s.Env, Principal: s.Principal, Disk: s.Disk, stored: s}
	if s.Head != nil {
		one.Files, one.Bytes, one.Saved = s.Head.Entries, s.Head.Size, &s.Head.Saved
	}
	if s.Holder != nil {
		one.PID, one.Serves = s.Holder.PID, s.Holder.About
	}
	switch {
	case s.SetAside:
		one.Name, one.Problem = filepath.Base(s.Folder), "set aside: its files are damaged"
	case s.Problem != nil:
		one.Problem = s.Problem.Error()
	}
	return one
}

// writeLive writes the sessions of running servers.
func writeLive(w io.Writer, live []liveSession) error {
	if len(live) == 0 {
		return nil
	}
	var rows [][]string
	for _, s := range live {
		unused, memory := format.Age(time.Since(s.Used)), fmt.Sprintf("of %d MB", s.MemoryMB)
		if s.Calls > 0 {
			unused = "runs " + format.Count(s.Calls, "call")
		}
		if s.Memory > 0 {
			memory = fmt.Sprintf("%d %s", s.Memory>>20, memory)
		}
		server := fmt.Sprintf("process %d", s.PID)
		if s.Client != "" {
			server += " of " + format.Plain(s.Client)
		}
		name := strings.TrimPrefix(s.Principal+"/"+s.Name, "/")
		rows = append(rows, []string{format.Plain(name), format.Plain(strings.Join(s.Environments, "+")), format.Age(time.Since(s.Started)), unused, memory, server})
	}
	if err := format.Table(w, []string{"LIVE", "ENV", "FOR", "UNUSED", "MEMORY", "SERVER"}, rows); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w)
	return err
}

func writeSessions(w io.Writer, all []onDisk) error {
	if len(all) == 0 {
		fmt.Fprintln(w, "no session is live or suspended, and no files of sessions are kept")
		return nil
	}
	var rows [][]string
	for _, s := range all {
		what, saved, note := format.Count(int(s.Files), "file"), "", format.Plain(s.Problem)
		if s.Asleep {
			what = "suspended"
		}
		if s.Project != "" {
			note = "project " + format.Plain(s.Project)
		}
		if s.PID != 0 {
			note = strings.TrimSuffix(fmt.Sprintf("process %d, %s", s.PID, format.Plain(s.Serves)), ", ")
		}
		if s.Saved != nil {
			saved = format.Age(time.Since(*s.Saved)) + " ago"
		}
		rows = append(rows, []string{format.Plain(s.full()), format.Plain(s.Env), what, fmt.Sprintf("%.1f MB", float64(s.Disk)/1e6), saved, note})
	}
	return format.Table(w, []string{"NAME", "ENV", "ON DISK", "SIZE", "SAVED", "SERVER OR PROJECT"}, rows)
}

// choice tells several sessions with one name apart. An empty field matches all.
type choice struct{ env, project string }

// addTo adds the flags of a choice, and completes arguments with the names of the sessions for
// which is returns true: the first argument, or all of them if there may be several.
func (c *choice) addTo(cmd *cobra.Command, is func(*onDisk) bool, several bool) {
	cmd.Flags().StringVar(&c.env, "env", "", "only the session of this `ENV`: several may have one name")
	cmd.Flags().StringVar(&c.project, "project", "", "only the suspended session that shows this folder, `DIR`")
	if err := cmd.MarkFlagDirname("project"); err != nil {
		panic(err) // the line above has added it
	}
	cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 && !several {
			return nil, cobra.ShellCompDirectiveDefault
		}
		all, _ := sessionsOnDisk()
		var names []cobra.Completion
		for _, s := range all {
			if is(&s) {
				names = append(names, cobra.CompletionWithDesc(s.Name, s.Env))
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// find returns the sessions with a name that match the choice, and for which is returns true.
// If there are none, the error is the sentence none with the name in it.
func (c *choice) find(name string, is func(*onDisk) bool, none string) (found []onDisk, err error) {
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
		if is(&s) && (name == s.Name || name == s.full()) && (c.env == "" || c.env == s.Env) && (project == "" || project == s.Project) {
			found = append(found, s)
		}
	}
	if len(found) > 0 {
		return found, nil
	}
	if c.env != "" {
		name += " of " + c.env
	}
	return nil, &config.Error{Problem: fmt.Sprintf(none, name), Hint: "see " + cli.Program + " sessions"}
}

// findOne is find for a command that takes one session.
func (c *choice) findOne(name string, is func(*onDisk) bool, none string) (*onDisk, error) {
	found, err := c.find(name, is, none)
	if err != nil {
		return nil, err
	}
	if len(found) > 1 {
		var flags []string
		for _, s := range found {
			flags = append(flags, "--env "+s.Env)
		}
		return nil, command.Misuse(fmt.Sprintf("several sessions are called %q", name), "use "+strings.Join(flags, " or "))
	}
	return &found[0], nil
}

func removeSessionsCommand() *cobra.Command {
	var c choice
	any := func(*onDisk) bool { return true }
	cmd := &cobra.Command{
		Use:     "rm NAME...",
		Short:   "Delete suspended sessions, and kept files of sessions",
		Example: "  " + cli.Program + " sessions rm analysis",
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return command.Misuse("sessions rm needs a name", "see "+cli.Program+" sessions")
			}
			// If one of the names is wrong, none is deleted.
			var chosen []onDisk
			for _, name := range args {
				found, err := c.find(name, any, "there is no saved session %q")
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
	c.addTo(cmd, any, true)
	return cmd
}

// remove deletes a session. The error is a [*config.Error] if a process uses it.
func (s *onDisk) remove() error {
	err := s.stored.Remove()
	var inUse *store.InUseError
	switch {
	case errors.As(err, &inUse):
		return &config.Error{
			Problem: fmt.Sprintf("session %q of %s is in use by the server with the process %d", s.Name, s.Env, inUse.Holder.PID),
			Hint:    "end that server, or wait until the session has ended",
		}
	case err != nil:
		return fmt.Errorf("delete session %q: %w", s.Name, err)
	}
	return nil
}

// archiveSuffix ends the name of an export.
const archiveSuffix = ".tar.zst"

func exportSessionCommand(std cli.Streams) *cobra.Command {
	var c choice
	hasFiles := func(s *onDisk) bool { return !s.Asleep }
	cmd := &cobra.Command{
		Use:   "export NAME FILE" + archiveSuffix,
		Short: "Write the kept files of a session as a tar file",
		Long: "Write the kept files of a session as a tar file, compressed by zstd; - is the standard\n" +
			"output. Code wrote these files: unpack them into a folder of their own.",
		Example: "  " + cli.Program + " sessions export analysis analysis" + archiveSuffix,
		Args:    cli.Needs(2, "a name and a file"),
		RunE: func(_ *cobra.Command, args []string) error {
			name, file := args[0], args[1]
			if file != "-" && !strings.HasSuffix(file, archiveSuffix) {
				return command.Misuse(fmt.Sprintf("the file %q does not end in %s", file, archiveSuffix), "try "+file+archiveSuffix)
			}
			one, err := c.findOne(name, hasFiles, "there are no kept files of a session %q")
			if err != nil {
				return err
			}
			if file == "-" {
				err = sessionfiles.Export(one.stored, std.Out)
			} else {
				err = writeNew(file, func(out io.Writer) error { return sessionfiles.Export(one.stored, out) })
			}
			if err != nil {
				return fmt.Errorf("export session %q: %w", name, err)
			}
			return nil
		},
	}
	c.addTo(cmd, hasFiles, false)
	return cmd
}
