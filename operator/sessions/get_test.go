package sessions

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/seed"
)

const getVariable = "GET_TEST_FOLDER"

const gotBytes = 300_000

// A command that is killed at any moment leaves a whole file under its name, or none.
func TestWriteNew_IsKilledAtAnyMoment(t *testing.T) {
	if folder := os.Getenv(getVariable); folder != "" {
		fmt.Println("begun")
		for n := 0; ; n++ {
			must.Do(t, writeNew(filepath.Join(folder, fmt.Sprint(os.Getpid(), "-", n)), func(w io.Writer) error {
				for range 3 {
					if _, err := io.WriteString(w, strings.Repeat("x", gotBytes/3)); err != nil {
						return err
					}
				}
				return nil
			}))
		}
	}
	random, folder := seed.New(t), t.TempDir()
	for range 20 {
		cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), getVariable+"="+folder)
		out := must.Get(cmd.StdoutPipe())(t)
		must.Do(t, cmd.Start())
		must.Get(bufio.NewReader(out).ReadString('\n'))(t)
		time.Sleep(time.Duration(random.IntN(30_000)) * time.Microsecond)
		must.Do(t, cmd.Process.Kill())
		_ = cmd.Wait()
	}
	whole, partial := 0, 0
	for _, entry := range must.Get(os.ReadDir(folder))(t) {
		if strings.HasPrefix(entry.Name(), ".nix-sandbox-mcp-") {
			partial++
			continue
		}
		whole++
		if size := must.Get(entry.Info())(t).Size(); size != gotBytes {
			t.Errorf("%s has %d bytes", entry.Name(), size)
		}
	}
	t.Logf("%d whole files, %d partial ones", whole, partial)
	if whole == 0 || partial == 0 {
		t.Errorf("the control: %d whole files, %d partial ones", whole, partial)
	}
}

// On a full disk there is no file, and neither is there if its name is taken by a link, a pipe or a
// folder; and what the link names stays.
func TestWriteNew_LeavesWhatIsThere(t *testing.T) {
	if os.Getenv(getVariable) == "" {
		// The disk is a file system in a namespace of the test's own.
		cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), getVariable+"="+t.TempDir())
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		}
		if out, err := cmd.CombinedOutput(); err != nil && cmd.Process == nil {
			t.Skipf("no namespace can be made here: %v", err)
		} else if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	folder := os.Getenv(getVariable)
	if err := unix.Mount("tmpfs", folder, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("no file system can be mounted here: %v", err)
	}
	write := func(name string, size int) error {
		return writeNew(filepath.Join(folder, name), func(w io.Writer) error {
			_, err := io.WriteString(w, strings.Repeat("x", size))
			return err
		})
	}
	must.Write(t, filepath.Join(folder, "victim"), "victim", 0o644)
	must.Do(t, os.Symlink("victim", filepath.Join(folder, "link")))
	must.Do(t, os.Symlink("nowhere", filepath.Join(folder, "dangling")))
	must.Do(t, unix.Mkfifo(filepath.Join(folder, "pipe"), 0o644))
	must.Do(t, os.Mkdir(filepath.Join(folder, "folder"), 0o755))
	for _, name := range []string{"victim", "link", "dangling", "pipe", "folder"} {
		if err := write(name, 1); err == nil || !strings.Contains(err.Error(), "exists") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := write("large", 1<<20); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("on a full disk: %v", err)
	}
	must.Do(t, write("small", 1<<10)) // the control
	var names []string
	for _, entry := range must.Get(os.ReadDir(folder))(t) {
		names = append(names, entry.Name())
	}
	if got := strings.Join(names, " "); got != "dangling folder link pipe small victim" {
		t.Errorf("there are %s", got)
	}
	if text := must.Get(os.ReadFile(filepath.Join(folder, "victim")))(t); string(text) != "victim" {
		t.Errorf("the file there has %q", text)
	}
}
