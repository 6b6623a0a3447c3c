package e2e

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// builder is the process that builds beside a server (nix/wrapper/build.sh), with
// programs in place of Nix that refuse every package.
type builder struct {
	t        *testing.T
	input    *os.File
	folder   string // of its programs
	packages string
}

func startBuilder(t *testing.T) *builder {
	t.Helper()
	b := &builder{t: t, folder: t.TempDir(), packages: t.TempDir()}
	b.program("nix", "echo absent name")
	wrapper := must.Get(filepath.Abs("../../nix/wrapper"))(t)
	input, output, err := os.Pipe()
	must.Do(t, err)
	b.input = output
	cmd := exec.Command("bash", "-c", `kinds=() names=() values=() bases=(); . "$1/build.sh"`, "builder", wrapper)
	cmd.Stdin, cmd.Stderr = input, os.Stderr
	cmd.Env = append(os.Environ(), "PATH="+b.folder+":"+os.Getenv("PATH"), "NIX_SANDBOX_PACKAGES="+b.packages,
		"private="+t.TempDir(), "start_nix=none", "confine="+wrapper+"/project.sh", "deriver="+wrapper+"/derive.sh")
	must.Do(t, cmd.Start())
	input.Close()
	t.Cleanup(func() {
		output.Close()
		must.Do(t, cmd.Wait())
	})
	return b
}

// program makes a program that the builder finds. It waits for as long as a test holds
// it.
func (b *builder) program(name, commands string) {
	b.t.Helper()
	must.Write(b.t, filepath.Join(b.folder, name), fmt.Sprintf("#!/bin/sh\nwhile [ -e %s/%s.held ]; do sleep 0.01; done\n%s\n", b.folder, name, commands), 0o755)
}

func (b *builder) hold(program string) {
	b.t.Helper()
	must.Write(b.t, filepath.Join(b.folder, program+".held"), "", 0o644)
}

func (b *builder) release(program string) {
	b.t.Helper()
	must.Do(b.t, os.Remove(filepath.Join(b.folder, program+".held")))
}

func (b *builder) write(text string) {
	b.t.Helper()
	must.Get(io.WriteString(b.input, text))(b.t)
}

// key is the key of an environment that was asked for.
func (b *builder) key(letter string) string {
	b.t.Helper()
	key := strings.Repeat(letter, 64)
	must.Do(b.t, os.MkdirAll(filepath.Join(b.packages, key), 0o755))
	return key
}

// await waits until a key's folder has a file.
func (b *builder) await(key, file string) {
	b.t.Helper()
	patience.Until(b.t, key[:1]+"/"+file, func() bool {
		_, err := os.Stat(filepath.Join(b.packages, key, file))
		return err == nil
	})
}

// A line counts whole where the builder, which reads with a time limit while builds
// wait, has read a part of it when that is over.
func TestBuilder_ReadsLinesThatComeInParts(t *testing.T) {
	b := startBuilder(t)
	first, second, third := b.key("a"), b.key("b"), b.key("c")
	b.hold("nix")
	b.write("derive " + first + "\n")
	b.await(first, "building")
	b.write("derive " + second + "\nderive " + third[:20])
	patience.Until(t, "the builder has read what there is", func() bool {
		return must.Get(unix.IoctlGetInt(int(b.input.Fd()), unix.TIOCINQ))(t) == 0
	})
	b.release("nix")
	// It begins the second one only after it has given up reading the line.
	b.await(second, "failed")
	b.write(third[20:] + "\n")
	b.await(third, "failed")
}

// A request that comes when a build of the same environment has failed, and has not
// ended yet, is not lost.
func TestBuilder_BuildsAgainWhatIsAskedForAsABuildEnds(t *testing.T) {
	b := startBuilder(t)
	// It sorts the environments that are kept when a build has ended.
	b.program("sort", "exec "+must.Get(exec.LookPath("sort"))(t)+` "$@"`)
	must.Do(t, os.Symlink("/", filepath.Join(b.packages, b.key("b"), "result")))
	key := b.key("a")
	b.hold("sort")
	b.write("derive " + key + "\n")
	b.await(key, "failed")
	must.Do(t, os.Remove(filepath.Join(b.packages, key, "failed")))
	b.write("derive " + key + "\n")
	patience.Until(t, "the builder has read what there is", func() bool {
		return must.Get(unix.IoctlGetInt(int(b.input.Fd()), unix.TIOCINQ))(t) == 0
	})
	b.release("sort")
	b.await(key, "failed")
}
