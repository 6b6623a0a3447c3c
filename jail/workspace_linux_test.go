package jail

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

func TestReadRequest_Workspace(t *testing.T) {
	spec := valid()
	folder := must.Get(os.Open(t.TempDir()))(t)
	defer folder.Close()
	read := func(value string) (int, error) {
		request, err := spec.ReadRequest(only(workspaceVariable, value))
		return request.Workspace, err
	}
	number := func(f *os.File) string { return strconv.Itoa(int(f.Fd())) }
	for value, want := range map[string]int{"": 0, number(folder): int(folder.Fd())} {
		if got, err := read(value); err != nil || got != want {
			t.Errorf("%q: descriptor %d, error %v, want %d", value, got, err, want)
		}
	}
	for _, value := range []string{"x", "0", "1", "-1", "999999", "1e1"} {
		if fd, err := read(value); err == nil || !strings.Contains(err.Error(), "NIX_SANDBOX_WORKSPACE is") || HintOf(err) == "" {
			t.Errorf("%q: descriptor %d, error %v with hint %q", value, fd, err, HintOf(err))
		}
	}
	spec.Workspace = nil
	if fd, err := read(number(folder)); err == nil || !strings.Contains(err.Error(), "cannot share its workspace") || HintOf(err) == "" {
		t.Errorf("descriptor %d, error %v", fd, err)
	}
}

// A workspace that others have needs an outer namespace, with a project and an
// overlay too, and everything of the host is then bound from there.
func TestArgumentsWithAWorkspace(t *testing.T) {
	spec := valid()
	for name, test := range map[string]struct {
		project       Project
		outer, inside []string
	}{
		"alone": {
			Project{},
			[]string{"--unshare-user", "--dir", "/shared"},
			[]string{"--bind", "/shared", "/workspace", "--remount-ro", "/"},
		},
		"a project": {
			Project{Dir: "/home/me", Mount: "/project"},
			[]string{"--unshare-user", "--dir", "/shared", "--ro-bind", "/home/me", "/host/0"},
			[]string{"--bind", "/shared", "/workspace", "--ro-bind", "/host/0", "/project", "--remount-ro", "/"},
		},
		"an overlay that is shared": {
			Project{Mount: "/code", Shared: true},
			[]string{"--unshare-user", "--dir", "/shared", "--dir", "/project"},
			[]string{"--bind", "/shared", "/workspace", "--bind", "/project", "/code", "--remount-ro", "/"},
		},
		"an overlay": {
			Project{Dir: "/home/me", Mount: "/project", Overlay: true},
			[]string{"--tmpfs", "/layer", "--dir", "/shared", "--ro-bind", "/home/me", "/host/0"},
			[]string{"--bind", "/shared", "/workspace", "--overlay-src", "/host/0", "--overlay", "/layer/upper", "/layer/work", "/project", "--remount-ro", "/"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			outer, inside := spec.plan(Request{Project: test.project, Workspace: 3})
			if diff := cmp.Diff(test.outer, outer); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(append(spec.Flags, test.inside...), inside); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A project that is shared comes from the holder of a workspace, as a descriptor.
func TestReadRequest_SharedProject(t *testing.T) {
	spec := valid()
	folder := must.Get(os.Open(t.TempDir()))(t)
	defer folder.Close()
	fd := strconv.Itoa(int(folder.Fd()))
	for _, test := range []struct{ workspace, overlay, problem string }{
		{fd, fd, ""},
		{fd, "", "no holder"}, {"", fd, "no holder"}, {fd, "1", "NIX_SANDBOX_OVERLAY is"}, {fd, "x", "NIX_SANDBOX_OVERLAY is"},
	} {
		variables := map[string]string{"PROJECT_DIR": t.TempDir(), "PROJECT_MODE": "shared", workspaceVariable: test.workspace, overlayVariable: test.overlay}
		request, err := spec.ReadRequest(func(name string) string { return variables[name] })
		switch {
		case test.problem != "":
			if err == nil || !strings.Contains(err.Error(), test.problem) || HintOf(err) == "" {
				t.Errorf("%+v: %+v, error %v", test, request, err)
			}
		case err != nil || request.Overlay != int(folder.Fd()):
			t.Errorf("%+v: %+v, error %v", test, request, err)
		default:
			if diff := cmp.Diff(Project{Mount: "/project", Shared: true}, request.Project); diff != "" {
				t.Error(diff)
			}
		}
	}
	// In the other modes the descriptor is ignored.
	if request, err := spec.ReadRequest(only(overlayVariable, "x")); err != nil || request.Overlay != 0 {
		t.Errorf("without a project: %+v, error %v", request, err)
	}
}

// A step in the outer namespace takes JSON and a program.
func TestRunStep_RefusesOtherArguments(t *testing.T) {
	for _, args := range [][]string{nil, {"{}"}, {"", "true"}, {"3", "true"}, {`{"mount":[]}`, "true"}, {`{"network":{"proxy":"x"}}`, "true"}} {
		if err := RunStep(args); err == nil || !strings.Contains(err.Error(), Step) {
			t.Errorf("%q: error %v", args, err)
		}
	}
}

// Only the users of sandboxes may own a workspace that root gives to one.
func TestIsSandboxUser(t *testing.T) {
	for user, want := range map[int]bool{
		0: false, 1000: false, 65534: false, 100000: false, ownUsers - 1: false, ownUsers + 1<<22: false, dynamicUsers + dynamicUserCount: false,
		ownUsers: true, ownUsers + 1<<22 - 1: true, dynamicUsers: true, dynamicUsers + dynamicUserCount - 1: true,
	} {
		if got := isSandboxUser(user); got != want {
			t.Errorf("user %d: %v, want %v", user, got, want)
		}
	}
	// Every user that is chosen is one.
	for _, users := range [][]span{{{0, 0, 4294967295}}, {{0, 100000, 65536}}} {
		for _, pid := range []int{1, 4335, 4336, 1<<22 - 1} {
			user, err := sandboxUser(users, users, pid)
			if err != nil || !isSandboxUser(user) {
				t.Errorf("process %d: user %d, error %v", pid, user, err)
			}
		}
	}
}
