package sessions

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/cli"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/format"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk/visit"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/changes/policy"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/sessionfiles"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/keep/store"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
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
		Use:   "get SESSION [PATH...]",
		Short: "Copy files out of a live session, or out of the kept files of one",
		Long: "List the files of a session, or copy some under their own names, and not executable. A path is that\n" +
			"of a file or a folder below /workspace. Nothing is overwritten. Code wrote these files. Of a live\n" +
			"session they are copied as they are now; of another one as its last answered call left them, if the\n" +
			"server kept them, with keep_files or SESSION_KEEP_FILES=1.\n\n" +
			"Of a folder, files that programs obey or run by their names are left out, unless their own paths are\n" +
			"given.",
		Example: "  " + cli.Program + " get analysis\n" +
			"  " + cli.Program + " get analysis outputs notes.md --to results",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 1 {
				return command.Misuse("get needs a session", cli.SeeHelp(cmd))
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
				return getLive(std, live, c.env, wanted, to)
			case err != nil && !errors.As(err, new(*config.Error)): // several servers have one
				return err
			}
			one, err := c.findOne(args[0], hasFiles, "no session %q is live, or has kept files")
			if err != nil {
				return err
			}
			return getFiles(std, one.stored, wanted, to)
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

// choose returns where a file of a session is to be copied, below the folder of --to: to its own name, or
// into the folder that the user named. It returns "" for a file that is not wanted, or is left out, which it says.
func choose(log io.Writer, wanted map[string]string, inside string) string {
	if _, named := wanted[inside]; named {
		return path.Base(inside)
	}
	for folder := path.Dir(inside); folder != "."; folder = path.Dir(folder) {
		if _, named := wanted[folder]; named {
			target := path.Join(path.Base(folder), strings.TrimPrefix(inside, folder+"/"))
			if reason := policy.Result(target); reason != "" {
				fmt.Fprintf(log, "left out: %s: %s\n", format.Plain(inside), reason)
				return ""
			}
			return target
		}
	}
	return ""
}

// used takes what was found from the wanted paths that are left.
func used(left map[string]string, inside string) {
	for name := inside; name != "."; name = path.Dir(name) {
		delete(left, name)
	}
}

// maxListing bounds the list of a session's files, in bytes.
const maxListing = 1 << 20

// listing is a writer that keeps so much.
type listing struct{ bytes.Buffer }

func (l *listing) Write(p []byte) (int, error) {
	if l.Len()+len(p) > maxListing {
		return 0, fmt.Errorf("the session has more files than fit into a list of %d bytes", maxListing)
	}
	return l.Buffer.Write(p)
}

// list returns the regular files below /workspace of a live session, by their paths there, with their sizes
// in bytes. A program in the sandbox says so: nothing of it is true for sure.
func (s *liveSession) list(env string) (map[string]string, error) {
	// A program in another environment would start a sandbox for it.
	switch {
	case env == "":
		env = s.Environments[0]
	case !slices.Contains(s.Environments, env):
		return nil, &config.Error{Problem: fmt.Sprintf("session %q has no sandbox of env %q: it has %s", s.Name, env, strings.Join(s.Environments, "+")), Hint: "leave --env out"}
	}
	var out, log listing
	find := visit.OpenArgs{
		Place: visit.Place{Session: s.Name, Env: env}, Program: &frame.Program{Dir: "/workspace"},
		Text: `find . -type f -printf '%s %P\0'`,
	}
	g, err := enter(s.server, find, &out, &log)
	if err != nil {
		return nil, err
	}
	defer g.client.Close()
	<-g.ended
	if status, err := g.Wait(); err != nil || status != 0 {
		return nil, fmt.Errorf("list the files of session %q: status %d, %w: %s", s.Name, status, err, format.Plain(log.String()))
	}
	files := map[string]string{}
	for line := range strings.SplitSeq(out.String(), "\x00") {
		size, name, _ := strings.Cut(line, " ")
		if _, err := strconv.ParseUint(size, 10, 64); err == nil && filepath.IsLocal(name) && path.Clean(name) == name {
			files[name] = size
		}
	}
	return files, nil
}

// writeList writes files with their sizes in bytes, sorted by name.
func writeList(w io.Writer, files map[string]string) error {
	var rows [][]string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		rows = append(rows, []string{format.Plain(name), files[name]})
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintln(w, "the session has no files")
		return err
	}
	return format.Table(w, []string{"PATH", "BYTES"}, rows)
}

// getLive copies files of a live session to a folder, like getFiles.
func getLive(std cli.Streams, s *liveSession, env string, wanted map[string]string, to string) error {
	files, err := s.list(env)
	switch {
	case err != nil:
		return err
	case len(wanted) == 0:
		return writeList(std.Out, files)
	}
	if err := makeFolder(to); err != nil {
		return err
	}
	left := maps.Clone(wanted)
	for name := range files {
		used(left, name)
	}
	// What is not in the list is not a file, and the server says why.
	for name := range left {
		files[name] = ""
	}
	for _, inside := range slices.Sorted(maps.Keys(files)) {
		chosen := choose(std.Err, wanted, inside)
		if chosen == "" {
			continue
		}
		target, size := filepath.Join(to, chosen), 0
		if err := makeFolder(filepath.Dir(target)); err != nil {
			return err
		}
		err := writeNew(target, func(out io.Writer) error {
			args := visit.FileArgs{Place: visit.Place{Session: s.Name, Env: env}, Path: "/workspace/" + inside, Max: maxGot}
			client, err := s.server.Dial(context.Background(), visit.FileVerbName, args)
			if err != nil {
				return err
			}
			defer client.Close()
			for {
				var part visit.FilePart
				if err := client.Read(&part); err != nil {
					return fmt.Errorf("copy %q: %w", cmp.Or(wanted[inside], inside), err)
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
		fmt.Fprintf(std.Out, "%s (%d bytes)\n", format.Plain(target), size)
	}
	return nil
}

// getFiles copies files of a session to a folder. If one of them cannot be copied, those before it
// stay.
func getFiles(std cli.Streams, s store.Session, wanted map[string]string, to string) error {
	reader, writer := io.Pipe()
	defer reader.Close()
	go func() { writer.CloseWithError(sessionfiles.Tar(s, writer)) }()
	archive := tar.NewReader(reader)
	if len(wanted) > 0 {
		if err := makeFolder(to); err != nil {
			return err
		}
	}
	left, files := maps.Clone(wanted), map[string]string{}
	for {
		header, err := archive.Next()
		switch {
		case errors.Is(err, io.EOF) && len(left) > 0:
			names := slices.Sorted(maps.Values(left))
			return &config.Error{Problem: fmt.Sprintf("the session has no file %q", strings.Join(names, `" and no "`)), Hint: "see " + cli.Program + " get " + format.Plain(s.Session)}
		case errors.Is(err, io.EOF) && len(wanted) == 0:
			return writeList(std.Out, files)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read the files of session %q: %w", s.Session, err)
		}
		inside := path.Clean(header.Name)
		name, isNamed := wanted[inside]
		switch {
		case isNamed && header.Typeflag == tar.TypeDir: // its files follow
			delete(left, inside)
			continue
		case isNamed && header.Typeflag != tar.TypeReg:
			return &config.Error{Problem: fmt.Sprintf("%q is not a file, or another name of one", name), Hint: "try " + cli.Program + " sessions export"}
		case header.Typeflag != tar.TypeReg:
			continue
		case len(wanted) == 0:
			files[inside] = strconv.FormatInt(header.Size, 10)
			continue
		}
		used(left, inside)
		chosen := choose(std.Err, wanted, inside)
		if chosen == "" {
			continue
		}
		if header.Size > maxGot {
			return &config.Error{Problem: fmt.Sprintf("%q has %d bytes, and at most %d are copied", cmp.Or(name, inside), header.Size, int64(maxGot)), Hint: "try " + cli.Program + " sessions export"}
		}
		target := filepath.Join(to, chosen)
		if err := makeFolder(filepath.Dir(target)); err != nil {
			return err
		}
		err = writeNew(target, func(out io.Writer) error {
			_, err := io.Copy(out, archive)
			return err
		})
		if err != nil {
			return err
		}
		fmt.Fprintf(std.Out, "%s (%d bytes)\n", format.Plain(target), header.Size)
	}
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
