package jail

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
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
		"a project is mounted before the seal": {Project{Dir: "/home/me/my project", Mount: "/project"}, []string{
			"--unshare-user", "--setenv", "A", "with space\nand line",
			"--ro-bind", "/home/me/my project", "/project", "--remount-ro", "/",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			outer, got := spec.plan(Request{Project: test.project})
			if diff := cmp.Diff(test.want, got); diff != "" || outer != nil {
				t.Error(diff, outer)
			}
		})
	}
}

// What the sandbox sees of the host is bound in the outer namespace first; the
// second bubblewrap makes the sandbox in there and finds it under those names.
func TestArgumentsWithALayer(t *testing.T) {
	spec := valid()
	spec.Binds = []Bind{{"/srv/data", "/data"}}
	outer, inside := spec.plan(Request{Project: Project{Dir: "/home/me/my:project", Mount: "/project", Overlay: true}, Inbox: "/home/me/in"})
	wantOuter := []string{"--tmpfs", "/layer", "--ro-bind", "/srv/data", "/host/0", "--ro-bind", "/home/me/in", "/host/1", "--ro-bind", "/home/me/my:project", "/host/2"}
	wantInside := []string{
		"--unshare-user", "--setenv", "A", "with space\nand line",
		"--ro-bind", "/host/0", "/data",
		"--ro-bind", "/host/1", "/inbox",
		"--overlay-src", "/host/2", "--overlay", "/layer/upper", "/layer/work", "/project",
		"--remount-ro", "/",
	}
	if diff := cmp.Diff(wantOuter, outer); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(wantInside, inside); diff != "" {
		t.Error(diff)
	}
	wantCommand := []string{"/nix/store/a/bin/agent", "run", "--layer", "/project"}
	if diff := cmp.Diff(wantCommand, spec.command(Request{Project: Project{Mount: "/project", Overlay: true}})); diff != "" {
		t.Error(diff)
	}
}

func TestVariables(t *testing.T) {
	spec := valid()
	spec.Variables = filepath.Join(t.TempDir(), "variables")
	must.Do(t, os.WriteFile(spec.Variables, []byte("A=1\x00B=two\nlines=\x00C=\x00\x00=no name\x00nothing\x00"), 0o600))
	got := must.Get(spec.variables())(t)
	if diff := cmp.Diff([]string{"--setenv", "A", "1", "--setenv", "B", "two\nlines=", "--setenv", "C", ""}, got); diff != "" {
		t.Error(diff)
	}
	must.Do(t, os.Truncate(spec.Variables, maxVariables+1))
	if _, err := spec.variables(); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("error %v", err)
	}
	spec.Variables += "-none"
	if _, err := spec.variables(); err == nil || !strings.Contains(err.Error(), spec.Variables) || HintOf(err) == "" {
		t.Errorf("error %v with hint %q", err, HintOf(err))
	}
}

func TestCheckBinds(t *testing.T) {
	folder := t.TempDir()
	file, socket := filepath.Join(folder, "file"), filepath.Join(folder, "socket")
	must.Do(t, os.WriteFile(file, nil, 0o600))
	listener := must.Get(net.Listen("unix", socket))(t)
	defer listener.Close()
	for from, want := range map[string]string{
		folder: "", file: "",
		folder + "/none": "which does not exist",
		file + "/x":      "cannot be read",
		socket:           "neither a folder nor a file",
		"/dev/null":      "neither a folder nor a file",
	} {
		spec := valid()
		spec.Binds = []Bind{{from, "/data"}}
		err := spec.checkBinds()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) || HintOf(err) == "") {
			t.Errorf("%s: error %v, want one with %q", from, err, want)
		}
	}
}

func TestMemfile(t *testing.T) {
	want := strings.Repeat("flag\x00", 100_000)
	fd := must.Get(memfile("test", []byte(want)))(t)
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
	err := spec.Start(Request{})
	if err == nil || !strings.Contains(err.Error(), spec.Seccomp) || HintOf(err) == "" {
		t.Errorf("error %v with hint %q, want the filter's name and a hint", err, HintOf(err))
	}
}

func TestStartRefusesWithoutBubblewrap(t *testing.T) {
	spec := valid()
	spec.Seccomp = "/dev/null"
	spec.Bubblewrap = t.TempDir() + "/bwrap"
	err := spec.Start(Request{})
	if err == nil || !strings.Contains(err.Error(), spec.Bubblewrap) || HintOf(err) == "" {
		t.Errorf("error %v with hint %q, want the program's name and a hint", err, HintOf(err))
	}
}
