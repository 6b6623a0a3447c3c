package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
)

// layout is a folder that looks like groups: what a kernel shows can be
// imitated, what it does cannot.
func layout(t *testing.T, own string, files map[string]string) Paths {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		name = filepath.Join(root, "groups", name)
		must.Do(t, os.MkdirAll(filepath.Dir(name), 0o755))
		must.Do(t, os.WriteFile(name, []byte(text), 0o644))
	}
	paths := Paths{Groups: filepath.Join(root, "groups"), Own: filepath.Join(root, "own")}
	must.Do(t, os.WriteFile(paths.Own, []byte(own), 0o644))
	return paths
}

func group(name, controllers string) map[string]string {
	return map[string]string{
		filepath.Join(name, "cgroup.controllers"):     controllers + "\n",
		filepath.Join(name, "cgroup.procs"):           "",
		filepath.Join(name, "cgroup.subtree_control"): "",
	}
}

func merge(all ...map[string]string) map[string]string {
	out := map[string]string{}
	for _, files := range all {
		for name, text := range files {
			out[name] = text
		}
	}
	return out
}

func TestLook(t *testing.T) {
	const full = "cpuset cpu io memory pids"
	me := os.Getuid()
	user := me
	if user == 0 {
		user = 1000 // another's, to whom nothing here belongs
	}
	for name, test := range map[string]struct {
		own   string
		files map[string]string
		uid   int
		want  candidate // folder relative to the groups'
		err   string
	}{
		"a service of systemd": {
			"0::/system.slice/mcp.service/supervisor\n",
			merge(group("", full), group("system.slice/mcp.service", full), group("system.slice/mcp.service/supervisor", "")),
			user, candidate{folder: "system.slice/mcp.service", cpu: true}, "",
		},
		"without the controller cpu": {
			"0::/a/supervisor\n", merge(group("", full), group("a", "memory pids"), group("a/supervisor", "")),
			user, candidate{folder: "a"}, "",
		},
		"root of a system": {
			"0::/user.slice/session-1.scope\n", merge(group("", full), group("user.slice/session-1.scope", full)),
			0, candidate{folder: ".", cpu: true, shared: true}, "",
		},
		"root of a container": {
			"0::/\n", merge(group("", full), map[string]string{"cgroup.type": "domain\n"}),
			0, candidate{folder: ".", move: true, cpu: true}, "",
		},
		"a group of somebody else": {
			"0::/user.slice/session-1.scope\n", merge(group("", full), group("user.slice/session-1.scope", full)),
			-1, candidate{}, "no control group was delegated",
		},
		"no controllers below": {
			"0::/a/supervisor\n", merge(group("", full), group("a", "cpu"), group("a/supervisor", "")),
			-1, candidate{}, "no control group was delegated",
		},
		"version 1":         {"9:pids:/\n0::/\n", map[string]string{"memory/tasks": ""}, 0, candidate{}, "not version 2"},
		"memory is missing": {"0::/\n", group("", "cpu pids"), 0, candidate{}, "no controller memory"},
		"outside the mount": {"0::/../other\n", group("", full), -1, candidate{}, "is not shown"},
		"not in version 2":  {"9:pids:/a\n", group("", full), -1, candidate{}, "is not shown"},
	} {
		t.Run(name, func(t *testing.T) {
			paths := layout(t, test.own, test.files)
			got, err := paths.choose(test.uid)
			if test.err != "" {
				var unavailable *Unavailable
				if !errors.As(err, &unavailable) || unavailable.Hint == "" || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("error %v, want one with %q and a hint", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			test.want.folder = filepath.Join(paths.Groups, test.want.folder)
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(candidate{})); diff != "" {
				t.Error(diff)
			}
		})
	}
	t.Run("own group, of this user", func(t *testing.T) {
		if me == 0 {
			t.Skip("to root every group is open, so that owning one says nothing")
		}
		paths := layout(t, "0::/scope\n", merge(group("", full), group("scope", full)))
		got, err := paths.choose(me)
		if err != nil || !got.move || filepath.Base(got.folder) != "scope" {
			t.Errorf("found %+v, error %v, want the group scope and to move down", got, err)
		}
	})
}

func TestSettings(t *testing.T) {
	for name, test := range map[string]struct {
		limits Limits
		want   []setting
	}{
		"none": {Limits{}, nil},
		"all": {Limits{Memory: 512 << 20, Tasks: 256, CPUs: 1.5}, []setting{
			{"memory.max", "570425344", false},
			{"memory.swap.max", "0", true},
			{"pids.max", "288", false},
			{"cpu.max", "150000 100000", false},
			{"memory.oom.group", "1", false},
		}},
		"with a network": {Limits{Memory: 512 << 20, Tasks: 256}.WithNetwork(), []setting{
			{"memory.max", "603979776", false},
			{"memory.swap.max", "0", true},
			{"pids.max", "304", false},
			{"memory.oom.group", "1", false},
		}},
		"with a network, and no limits": {Limits{}.WithNetwork(), nil},
		"a sliver of a processor":       {Limits{CPUs: 0.0001}, []setting{{"cpu.max", "1000 100000", false}}},
	} {
		if diff := cmp.Diff(test.want, test.limits.ofSandbox(), cmp.AllowUnexported(setting{})); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestValue(t *testing.T) {
	const text = "low 0\nhigh 1\nmax 22\noom 3\noom_kill 4\noom_group_kill 5\n"
	for key, want := range map[string]int64{"oom_kill": 4, "oom": 3, "max": 22, "kill": 0, "oom_group_kill": 5} {
		if got := value(text, key); got != want {
			t.Errorf("%s: %d, want %d", key, got, want)
		}
	}
}

// Without a tree everything works, and the agent's limit keeper acts alone.
func TestNil(t *testing.T) {
	var tree *Tree
	g, err := tree.New(Limits{Memory: 1}, Owner{Name: "alice"})
	if g != nil || err != nil {
		t.Fatalf("group %v, error %v, want none", g, err)
	}
	g.Apply(nil)
	if killed, err := g.Killed(); err != nil || killed.Processes != 0 {
		t.Errorf("%d processes killed, error %v", killed.Processes, err)
	}
	if err := errors.Join(g.Give(Owner{Name: "bob"}), g.Close(t.Context())); err != nil {
		t.Error(err)
	}
}

// A group that cannot have all of its limits is none.
func TestHalfAGroupIsNone(t *testing.T) {
	tree := &Tree{folder: t.TempDir(), owners: map[string]*ownerGroup{}} // where no file of a group appears
	for _, owner := range []Owner{{}, {Name: "alice"}} {
		if group, err := tree.New(Limits{Memory: 1 << 20}, owner); err == nil {
			t.Errorf("a group without a limit: %+v", group)
		}
	}
	if left, err := os.ReadDir(tree.folder); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, error %v", left, err)
	}
}

// Systemd delegates groups to processes of its machine, and not to a pod.
func TestHintInPod(t *testing.T) {
	paths := layout(t, "0::/own\n", map[string]string{"cgroup.controllers": "cpu memory pids\n"})
	for _, host := range []string{"", "10.96.0.1"} {
		t.Setenv("KUBERNETES_SERVICE_HOST", host)
		_, err := Find(t.Context(), paths)
		var unavailable *Unavailable
		if !errors.As(err, &unavailable) || strings.Contains(unavailable.Hint, "systemd-run") != (host == "") || unavailable.Hint == "" {
			t.Errorf("KUBERNETES_SERVICE_HOST=%s: %#v", host, err)
		}
	}
}
