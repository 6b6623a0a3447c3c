package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sessionfiles"
)

// sessionsCommand lists the sessions whose files are kept, removes and exports them.
func sessionsCommand(std streams) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "sessions",
		Short: "List the sessions whose files are kept, and those of servers that keep them",
		Args:  atMost(0),
		RunE: func(*cobra.Command, []string) error {
			all, err := keptSessions()
			if err != nil {
				return err
			}
			rows := sessionRows(all, time.Now())
			if asJSON {
				encoder := json.NewEncoder(std.out)
				encoder.SetIndent("", "  ")
				return encoder.Encode(rows)
			}
			writeSessions(std.out, rows)
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON: an array of objects")
	cmd.AddCommand(removeSessionsCommand(), exportSessionCommand(std))
	return cmd
}

// keptSessions returns the sessions of this user.
func keptSessions() ([]sessionfiles.Session, error) {
	folder := config.KeptSessions(os.Getenv)
	if folder == "" {
		return nil, &config.Error{Problem: "there is no folder of kept sessions", Hint: "set XDG_STATE_HOME or HOME to an absolute path"}
	}
	return sessionfiles.List(folder)
}

// sessionRow is a session in the list, and the schema of sessions --json.
type sessionRow struct {
	// Name is the session's, or the name of the folder that was set aside.
	Name      string     `json:"name"`
	Env       string     `json:"env,omitempty"`
	Principal string     `json:"principal,omitempty"`
	Files     int64      `json:"files"`
	Bytes     int64      `json:"bytes"`
	Disk      int64      `json:"disk_bytes"`
	Saved     *time.Time `json:"saved,omitempty"`
	// PID and Serves say which server has the session.
	PID    int    `json:"pid,omitempty"`
	Serves string `json:"serves,omitempty"`
	// Problem says why the files cannot be used.
	Problem string `json:"problem,omitempty"`

	age time.Duration
}

func sessionRows(all []sessionfiles.Session, now time.Time) []sessionRow {
	rows := []sessionRow{}
	for _, s := range all {
		key := s.Key()
		r := sessionRow{Name: key.Session, Env: key.Env, Principal: key.Principal, Disk: s.Disk}
		if s.Head != nil {
			r.Files, r.Bytes, r.Saved = s.Head.Entries, s.Head.Bytes, &s.Head.Saved
			r.age = max(0, now.Sub(s.Head.Saved))
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
		rows = append(rows, r)
	}
	return rows
}

func writeSessions(w io.Writer, rows []sessionRow) {
	if len(rows) == 0 {
		fmt.Fprintln(w, "no files of sessions are kept")
		return
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tENV\tFILES\tSIZE\tSAVED\tSERVER")
	for _, r := range rows {
		name, saved, server := plain(r.Name), "", plain(r.Problem)
		if r.Principal != "" {
			name = plain(r.Principal) + "/" + name
		}
		if r.Saved != nil {
			saved = age(r.age) + " ago"
		}
		if r.PID != 0 {
			server = strings.TrimSuffix(fmt.Sprintf("process %d, %s", r.PID, plain(r.Serves)), ", ")
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\t%s\n", name, plain(r.Env), r.Files, fmt.Sprintf("%.1f MB", float64(r.Disk)/1e6), saved, server)
	}
	_ = table.Flush()
}

// named returns the sessions that a name means: of all environments, or of one.
func named(all []sessionfiles.Session, name, env string) (found []sessionfiles.Session) {
	for i, r := range sessionRows(all, time.Now()) {
		full := r.Name
		if r.Principal != "" {
			full = r.Principal + "/" + r.Name
		}
		if (name == r.Name || name == full) && (env == "" || env == r.Env) {
			found = append(found, all[i])
		}
	}
	return found
}

// noSuchSession is the error for a name that means no session.
func noSuchSession(name, env string) error {
	if env != "" {
		name += " of " + env
	}
	return &config.Error{Problem: fmt.Sprintf("no files of a session %q are kept", name), Hint: "see " + program + " sessions"}
}

// sessionEnvFlag adds the flag --env.
func sessionEnvFlag(cmd *cobra.Command, env *string) {
	cmd.Flags().StringVar(env, "env", "", "only the session of this `ENV`: several may have one name")
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if cmd.Name() == "export" && len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		all, _ := keptSessions()
		var names []cobra.Completion
		for _, r := range sessionRows(all, time.Now()) {
			names = append(names, cobra.CompletionWithDesc(r.Name, r.Env))
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

func removeSessionsCommand() *cobra.Command {
	var env string
	cmd := &cobra.Command{
		Use:     "rm NAME...",
		Short:   "Remove the kept files of sessions",
		Example: "  " + program + " sessions rm analysis",
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &misuse{"sessions rm needs a name", "see " + program + " sessions"}
			}
			all, err := keptSessions()
			if err != nil {
				return err
			}
			// Nothing is removed where one of the names is wrong.
			var chosen []sessionfiles.Session
			for _, name := range args {
				found := named(all, name, env)
				if len(found) == 0 {
					return noSuchSession(name, env)
				}
				chosen = append(chosen, found...)
			}
			for _, s := range chosen {
				var inUse *sessionfiles.InUseError
				err := s.Remove()
				if errors.As(err, &inUse) {
					return &config.Error{
						Problem: fmt.Sprintf("session %q of %s is in use by the server with the process %d", inUse.Key.Session, inUse.Key.Env, inUse.Holder.PID),
						Hint:    "end that server, or wait until the session has ended",
					}
				}
				if err != nil {
					return fmt.Errorf("remove the files of session %q: %w", s.Key().Session, err)
				}
			}
			return nil
		},
	}
	sessionEnvFlag(cmd, &env)
	return cmd
}

// archiveSuffix ends the name of an export.
const archiveSuffix = ".tar.zst"

func exportSessionCommand(std streams) *cobra.Command {
	var env string
	cmd := &cobra.Command{
		Use:   "export NAME FILE" + archiveSuffix,
		Short: "Write the kept files of a session as a tar file",
		Long: "Write the kept files of a session as a tar file that zstd compressed; - is the standard\n" +
			"output. The files are what code wrote: unpack them into a folder of their own.",
		Example: "  " + program + " sessions export analysis analysis" + archiveSuffix,
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) < 2:
				return &misuse{"sessions export needs a name and a file", seeHelp(cmd)}
			case len(args) > 2:
				return &misuse{fmt.Sprintf("unknown argument %q", args[2]), seeHelp(cmd)}
			}
			name, file := args[0], args[1]
			if file != "-" && !strings.HasSuffix(file, archiveSuffix) {
				return &misuse{fmt.Sprintf("the file %q does not end in %s", file, archiveSuffix), "write " + file + archiveSuffix}
			}
			all, err := keptSessions()
			if err != nil {
				return err
			}
			found := named(all, name, env)
			switch len(found) {
			case 0:
				return noSuchSession(name, env)
			case 1:
			default:
				var envs []string
				for _, s := range found {
					envs = append(envs, s.Key().Env)
				}
				return &misuse{fmt.Sprintf("several sessions are called %q", name), "write --env " + strings.Join(envs, " or --env ")}
			}
			if file == "-" {
				return exported(found[0].Export(std.out), name)
			}
			return exportTo(file, name, found[0])
		},
	}
	sessionEnvFlag(cmd, &env)
	return cmd
}

// exportTo writes a session to a file, which is there when it is whole.
func exportTo(file, name string, s sessionfiles.Session) error {
	if _, err := os.Lstat(file); err == nil {
		return &config.Error{Problem: file + " exists", Hint: "write another name, or remove it first"}
	}
	out, err := os.CreateTemp(filepath.Dir(file), ".export-")
	if err != nil {
		return exported(err, name)
	}
	defer os.Remove(out.Name())
	err = s.Export(out)
	if err == nil {
		err = out.Sync()
	}
	if err := errors.Join(err, out.Close()); err != nil {
		return exported(err, name)
	}
	// A file that was made meanwhile stays.
	return exported(os.Link(out.Name(), file), name)
}

func exported(err error, name string) error {
	if err != nil {
		return fmt.Errorf("export session %q: %w", name, err)
	}
	return nil
}
