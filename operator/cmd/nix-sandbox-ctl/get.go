package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/keep/sessionfiles"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/keep/store"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
)

// maxGot bounds one file, in bytes: a file with holes is as large as code likes.
const maxGot = 4 << 30

// getCommand copies single files out of the kept files of a session.
func getCommand(std streams) *cobra.Command {
	var c choice
	var to string
	hasFiles := func(s *onDisk) bool { return !s.Asleep }
	cmd := &cobra.Command{
		Use:   "get SESSION PATH...",
		Short: "Copy files out of the kept files of a session",
		Long: "Copy files out of the kept files of a session, as its last answered call left them, under\n" +
			"their own names, and not executable. A path is one below /workspace. Nothing is overwritten.\n" +
			"Code wrote these files. A server keeps files with keep_files or SESSION_KEEP_FILES=1.",
		Example: "  " + program + " get analysis outputs/plot.png notes.md --to results",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return command.Misuse("get needs a session and a path", seeHelp(cmd))
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			one, err := c.findOne(args[0], hasFiles, "there are no kept files of a session %q")
			if err != nil {
				return err
			}
			return getFiles(std.out, one.stored, args[1:], to)
		},
	}
	cmd.Flags().StringVar(&to, "to", ".", "copy them to this folder, `DIR`")
	c.addTo(cmd, hasFiles, false)
	return cmd
}

// getFiles copies files of a session to a folder. If one of them cannot be copied, those before it
// stay.
func getFiles(w io.Writer, s store.Session, paths []string, to string) error {
	wanted := map[string]string{} // what the user wrote, by the path in the archive
	for _, name := range paths {
		inside := strings.TrimPrefix(path.Clean("/"+strings.TrimPrefix(name, "/workspace/")), "/")
		if inside == "" {
			return command.Misuse(fmt.Sprintf("the path %q is the whole workspace", name), "try "+program+" sessions export")
		}
		wanted[inside] = name
	}
	reader, writer := io.Pipe()
	defer reader.Close()
	go func() { writer.CloseWithError(sessionfiles.Tar(s, writer)) }()
	archive := tar.NewReader(reader)
	for len(wanted) > 0 {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			names := slices.Sorted(maps.Values(wanted))
			return &config.Error{Problem: fmt.Sprintf("the session has no file %q", strings.Join(names, `" and no "`)), Hint: "see " + program + " sessions export"}
		}
		if err != nil {
			return fmt.Errorf("read the files of session %q: %w", s.Session, err)
		}
		inside := path.Clean(header.Name)
		name, found := wanted[inside]
		if !found {
			continue
		}
		delete(wanted, inside)
		switch {
		case header.Typeflag != tar.TypeReg:
			return &config.Error{Problem: fmt.Sprintf("%q is not a file, or another name of one", name), Hint: "try " + program + " sessions export"}
		case header.Size > maxGot:
			return &config.Error{Problem: fmt.Sprintf("%q has %d bytes, and at most %d are copied", name, header.Size, int64(maxGot)), Hint: "try " + program + " sessions export"}
		}
		target := filepath.Join(to, path.Base(inside))
		err = writeNew(target, func(out io.Writer) error {
			_, err := io.Copy(out, archive)
			return err
		})
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s (%d bytes)\n", plain(target), header.Size)
	}
	return nil
}

// writeNew writes a file that does not exist, and that appears when it is complete.
func writeNew(name string, write func(io.Writer) error) error {
	exists := &config.Error{Problem: plain(name) + " exists", Hint: "use another name, or remove it first"}
	if _, err := os.Lstat(name); err == nil {
		return exists
	}
	out, err := os.CreateTemp(filepath.Dir(name), ".nix-sandbox-mcp-")
	if err != nil {
		return err
	}
	defer os.Remove(out.Name())
	err = write(out)
	if err == nil {
		err = out.Sync()
	}
	if err := errors.Join(err, out.Close()); err != nil {
		return err
	}
	// A rename would replace a file that was made meanwhile.
	if err := os.Link(out.Name(), name); errors.Is(err, os.ErrExist) {
		return exists
	} else if err != nil {
		return err
	}
	return nil
}
