package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/audit"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
)

// auditCommand reads audit logs.
func auditCommand(std streams) *cobra.Command {
	var last string
	verify := &cobra.Command{
		Use:   "verify FILE",
		Short: "Check that an audit log was not changed",
		Long: "Check that no record of an audit log was changed, removed, added or moved, in FILE and in the\n" +
			"older FILE.1, FILE.2 and so on. Only --last finds missing records at the end: it takes a hash\n" +
			"that the server's log or this command has printed before.",
		Example: "  " + program + " audit verify /var/log/nix-sandbox-mcp/audit.jsonl",
		Args:    needs(1, "a file"),
		RunE:    func(_ *cobra.Command, args []string) error { return verifyAudit(std.out, args[0], last) },
	}
	verify.Flags().StringVar(&last, "last", "", "fail unless a record has this `HASH`")
	cmd := &cobra.Command{Use: "audit", Short: "Check audit logs"}
	cmd.AddCommand(verify)
	return cmd
}

// whichLog is the hint if a file cannot be read.
const whichLog = "name the file of NIX_SANDBOX_AUDIT or audit_file"

// verifyAudit verifies the files of a log from the oldest on.
func verifyAudit(out io.Writer, path, last string) error {
	chain := audit.Chain{Wanted: last}
	files := 0
	for n := audit.Files; n >= 0; n-- {
		name := path
		if n > 0 {
			name = fmt.Sprintf("%s.%d", path, n)
		}
		file, err := os.Open(name)
		if n > 0 && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return &config.Error{Problem: err.Error(), Hint: whichLog}
		}
		err = chain.Verify(file)
		file.Close()
		var read *fs.PathError
		if errors.As(err, &read) {
			return &config.Error{Problem: fmt.Sprintf("%s cannot be read: %v", name, read.Err), Hint: whichLog}
		}
		if err != nil {
			return &config.Error{Problem: fmt.Sprintf("%s, %v", name, err), Hint: "the records before that line are as they were written; do not rely on the others"}
		}
		files++
	}
	if last != "" && !chain.Found {
		return &config.Error{Problem: fmt.Sprintf("no record of %s has the hash %s", path, last), Hint: "records are missing, at the end or in an older file"}
	}
	if chain.Records == 0 {
		fmt.Fprintf(out, "%s has no records.\n", path)
		return nil
	}
	const form = "2006-01-02 15:04:05"
	fmt.Fprintf(out, "%d records, number %d to %d, from %s to %s (UTC), in %s: nothing was changed.\n",
		chain.Records, chain.First, chain.Last, chain.Begin.UTC().Format(form), chain.End.UTC().Format(form), count(files, "file"))
	if chain.First > 1 {
		fmt.Fprintf(out, "The records before number %d are missing: the log has rotated, or somebody removed its oldest files.\n", chain.First)
	}
	if chain.Lost > 0 {
		fmt.Fprintf(out, "%s could not be written when they came.\n", count(int(chain.Lost), "record"))
	}
	if chain.Cut > 0 {
		fmt.Fprintf(out, "%s cut when the server or the machine ended.\n", count(chain.Cut, "line was", "lines were"))
	}
	fmt.Fprintf(out, "last hash: %s\n", chain.Hash)
	return nil
}
