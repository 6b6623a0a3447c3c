// Package network tests what sandboxes with a network of named hosts reach, in the
// internet of package networld. The sandboxes are those of tests/networld/sandboxes.nix.
package network

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/jail"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/networld"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// begin makes a world for a test, or returns nil: the test has run in another process.
func begin(t *testing.T, options networld.Options) *networld.World {
	t.Helper()
	if !networld.Again(t) {
		return nil
	}
	w, err := networld.New(options)
	if errors.Is(err, networld.ErrImpossible) {
		t.Skip(err)
	}
	must.Do(t, err)
	t.Cleanup(w.Close)
	return w
}

// A call is one run of code in a sandbox on a world's host side.
type call struct {
	program string // bin/run of an artifact
	code    string
	project string // a folder of the host; empty for none
}

// run returns what the code printed to standard output. The error is that of the program,
// with what it wrote to standard error.
func (c call) run(ctx context.Context, w *networld.World) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience.For(patience.Long))
	defer cancel()
	var output, messages bytes.Buffer
	err := w.Do(func() error {
		cmd := exec.CommandContext(ctx, c.program)
		cmd.Stdin = bytes.NewReader([]byte(c.code))
		cmd.Stdout, cmd.Stderr = &output, &messages
		cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
		if c.project != "" {
			cmd.Env = append(cmd.Env, "PROJECT_DIR="+c.project)
		}
		return cmd.Run()
	})
	if err != nil {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(messages.Bytes()))
	}
	return output.String(), err
}

// binRun is a sandbox's program that runs code.
func binRun(t *testing.T, name string) string {
	t.Helper()
	return filepath.Join(undertest.Artifact(t, name), "bin", "run")
}

// withPrograms writes the description of a sandbox that has this machine's /usr instead
// of its own, so that programs can be tried which no package set has, and returns it: a
// program like bin/run.
func withPrograms(t *testing.T, program string) string {
	t.Helper()
	text := must.Get(os.ReadFile(program))(t)
	spec := must.Get(jail.ParseSpec(text))(t)
	line, _, _ := bytes.Cut(text, []byte("\n"))
	var flags []string
	path := ""
	for rest := spec.Flags; len(rest) > 0; {
		switch {
		case rest[0] == "--symlink" && (rest[2] == "/usr" || rest[2] == "/bin"):
			rest = rest[3:]
			continue
		case rest[0] == "--setenv" && rest[1] == "PATH":
			path = rest[2]
		}
		flags = append(flags, rest[0])
		rest = rest[1:]
	}
	spec.Flags = append(flags, "--setenv", "PATH", "/usr/local/go/bin:/usr/bin:"+path,
		"--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64")
	spec.Binds = append(slices.Clone(spec.Binds), jail.Bind{From: "/usr", To: "/usr"})
	spec.Reserved = slices.DeleteFunc(spec.Reserved, func(folder string) bool { return folder == "/usr" })
	// Not the folder of the test: where root starts the sandbox, another user reads this.
	folder := must.Get(os.MkdirTemp("", "network-"))(t)
	t.Cleanup(func() { os.RemoveAll(folder) })
	must.Do(t, os.Chmod(folder, 0o755))
	description := filepath.Join(folder, "run")
	must.Write(t, description, string(line)+"\n"+string(must.Get(json.Marshal(spec))(t)), 0o755)
	return description
}
