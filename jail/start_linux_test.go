package jail

import (
	"io"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestArguments(t *testing.T) {
	spec := valid()
	for name, test := range map[string]struct {
		project Project
		want    []string
	}{
		"no project": {Project{}, []string{
			"--unshare-user", "--setenv", "A", "with space\nand line", "--remount-ro", "/",
		}},
		"a project is mounted before the seal": {Project{"/home/me/my project", "/project"}, []string{
			"--unshare-user", "--setenv", "A", "with space\nand line",
			"--ro-bind", "/home/me/my project", "/project", "--remount-ro", "/",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			list := string(spec.arguments(test.project))
			got := strings.Split(strings.TrimSuffix(list, "\x00"), "\x00")
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestMemfile(t *testing.T) {
	want := strings.Repeat("flag\x00", 100_000)
	fd, err := memfile("test", []byte(want))
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "memfile")
	defer file.Close()
	got, err := io.ReadAll(file)
	if err != nil || string(got) != want {
		t.Errorf("read %d bytes, error %v, want %d bytes", len(got), err, len(want))
	}
}

func TestStartRefusesWithoutFilter(t *testing.T) {
	spec := valid()
	spec.Bubblewrap, spec.Seccomp = "/bin/true", t.TempDir()+"/filter"
	err := spec.Start(Project{})
	if err == nil || !strings.Contains(err.Error(), spec.Seccomp) || HintOf(err) == "" {
		t.Errorf("error %v with hint %q, want the filter's name and a hint", err, HintOf(err))
	}
}

func TestStartRefusesWithoutBubblewrap(t *testing.T) {
	spec := valid()
	spec.Seccomp = "/dev/null"
	spec.Bubblewrap = t.TempDir() + "/bwrap"
	err := spec.Start(Project{})
	if err == nil || !strings.Contains(err.Error(), spec.Bubblewrap) || HintOf(err) == "" {
		t.Errorf("error %v with hint %q, want the program's name and a hint", err, HintOf(err))
	}
}
