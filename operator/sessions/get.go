package sessions

import (
	"archive/tar"
	"context"
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

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/cli"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/format"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk/visit"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/sessionfiles"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/store"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
)

// maxGot bounds one file, in bytes: a file with holes is as large as code likes.
const maxGot = 4 << 30

// Get copies single files out of a live session, or out of the kept files of one.
func Get(std cli.Streams) *cobra.Command {
	var c choice
	var to string
	var pid int
	hasFiles := func(s *onDisk) bool { return !s.Asleep }
	cmd := &cobra.Command{
		Use:   "get SESSION PATH...",
		Short: "Copy files out of a live session, or out of the kept files of one",
		Long: "Copy files out of a session under their own names, and not executable. A path is one below\n" +
			"/workspace. Nothing is overwritten. Code wrote these files. Of a live session they are copied as\n" +
			"they are now; of another one as its last answered call left them, if the server kept them, with\n" +
			"keep_files or SESSION_KEEP_FILES=1.",
		Example: "  " + cli.Program + " get analysis outputs/plot.png notes.md --to results",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return command.Misuse("get needs a session and a path", cli.SeeHelp(cmd))
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			wanted, err := insideWorkspace(args[1:])
			if err != nil {
				return err
			}
			live, err := findLive(args[0], pid)
			switch {
			case err == nil && live.Principal == "" && c.project == "":
				return getLive(std.Out, live, c.env, wanted, to)
			case err != nil && !errors.As(err, new(*config.Error)): // several servers have one
				return err
			}
			one, err := c.findOne(args[0], hasFiles, "no session %q is live, or has kept files")
			if err != nil {
				return err
			}
			return getFiles(std.Out, one.stored, wanted, to)
		},
	}
	cmd.Flags().StringVar(&to, "to", ".", "copy them to this folder, `DIR`, which is made")
	cmd.Flags().IntVar(&pid, "pid", 0, "the live session of the server with the process `PID`, if several servers have one")
	c.addTo(cmd, hasFiles, false)
	return cmd
}

// insideWorkspace returns what the user wrote, by the path below /workspace.
func insideWorkspace(paths []string) (map[string]string, error) {
	wanted := map[string]string{}
	for _, name := range paths {
		inside := strings.TrimPrefix(path.Clean("/"+strings.TrimPrefix(name, "/workspace/")), "/")
		if inside == "" {
			return nil, command.Misuse(fmt.Sprintf("the path %q is the whole workspace", name), "try "+cli.Program+" sessions export")
		}
		wanted[inside] = name
	}
	return wanted, nil
}

// getLive copies files of a live session to a folder, like getFiles.
func getLive(w io.Writer, s *liveSession, env string, wanted map[string]string, to string) error {
	if err := makeFolder(to); err != nil {
		return err
	}
	for _, inside := range slices.Sorted(maps.Keys(wanted)) {
		target, size := filepath.Join(to, path.Base(inside)), 0
		err := writeNew(target, func(out io.Writer) error {
			args := visit.FileArgs{Place: visit.Place{Session: s.Name, Env: env}, Path: "/workspace/" + inside, Max: maxGot}
			client, err := s.server.Dial(context.Background(), "file", args)
			if err != nil {
				return err
			}
			defer client.Close()
			for {
				var part visit.FilePart
				if err := client.Read(&part); err != nil {
					return fmt.Errorf("copy %q: %w", wanted[inside], err)
				}
				if part.Ended {
					return nil
				}
				size += len(part.Bytes)
				if _, err := out.Write(part.Bytes); err != nil {
					return err
				}
			}
		})
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s (%d bytes)\n", format.Plain(target), size)
	}
	return nil
}

// getFiles copies files of a session to a folder. If one of them cannot be copied, those before it
// stay.
func getFiles(w io.Writer, s store.Session, wanted map[string]string, to string) error {
	if err := makeFolder(to); err != nil {
		return err
	}
	reader, writer := io.Pipe()
	defer reader.Close()
	go func() { writer.CloseWithError(sessionfiles.Tar(s, writer)) }()
	archive := tar.NewReader(reader)
	for len(wanted) > 0 {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			names := slices.Sorted(maps.Values(wanted))
			return &config.Error{Problem: fmt.Sprintf("the session has no file %q", strings.Join(names, `" and no "`)), Hint: "see " + cli.Program + " sessions export"}
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
			return &config.Error{Problem: fmt.Sprintf("%q is not a file, or another name of one", name), Hint: "try " + cli.Program + " sessions export"}
		case header.Size > maxGot:
			return &config.Error{Problem: fmt.Sprintf("%q has %d bytes, and at most %d are copied", name, header.Size, int64(maxGot)), Hint: "try " + cli.Program + " sessions export"}
		}
		target := filepath.Join(to, path.Base(inside))
		err = writeNew(target, func(out io.Writer) error {
			_, err := io.Copy(out, archive)
			return err
		})
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s (%d bytes)\n", format.Plain(target), header.Size)
	}
	return nil
}

// makeFolder makes the folder of --to, once the session is found.
func makeFolder(to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return &config.Error{Problem: fmt.Sprintf("--to is %q: %v", to, err), Hint: "name a folder that exists, or can be made"}
	}
	return nil
}

// writeNew writes a file that does not exist, and that appears when it is complete.
func writeNew(name string, write func(io.Writer) error) error {
	exists := &config.Error{Problem: format.Plain(name) + " exists", Hint: "use another name, or remove it first"}
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
