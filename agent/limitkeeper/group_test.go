package limitkeeper

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// group makes a folder with the files of a control group. That the kernel writes to
// them as this test does is shown by tests/backends.
func group(t *testing.T) (g *Group, set func(killed, refused int)) {
	t.Helper()
	folder := t.TempDir()
	set = func(killed, refused int) {
		must.Write(t, filepath.Join(folder, "memory.events"), fmt.Sprintf("low 0\nhigh 0\nmax 9\noom %d\noom_kill %d\noom_group_kill 1\n", killed, killed), 0o600)
		must.Write(t, filepath.Join(folder, "pids.events"), fmt.Sprintf("max %d\n", refused), 0o600)
	}
	set(3, 4)
	must.Write(t, filepath.Join(folder, "memory.stat"), "anon 1\nshmem_thp 7\nshmem 4096\n", 0o600)
	must.Write(t, filepath.Join(folder, "cgroup.procs"), "", 0o600)
	fd := must.Get(unix.Open(folder, unix.O_DIRECTORY|unix.O_RDONLY, 0))(t)
	g = must.Get(OpenGroup(fd, Limits{Memory: 64 << 20, Tasks: 20}))(t)
	return g, set
}

func TestGroup_ReportsEachCrossingOnce(t *testing.T) {
	g, set := group(t)
	var got []Crossing
	take := func() { g.report(func(c Crossing) { got = append(got, c) }) }
	take()
	set(4, 4)
	take()
	take()
	set(4, 9)
	take()
	set(5, 10)
	take()
	take()
	want := []frame.Limit{
		{Name: frame.Memory, Value: 64, Used: 65}, {Name: frame.PIDs, Value: 20, Used: 21}, {Name: frame.Memory, Value: 64, Used: 65},
	}
	if len(got) != len(want) {
		t.Fatalf("it reports %+v, want %d crossings", got, len(want))
	}
	for i, c := range got {
		if c.Limit != want[i] || c.Usage.Files != 4096 {
			t.Errorf("crossing %d is %+v with %d bytes in files", i, c.Limit, c.Usage.Files)
		}
	}
}

// What code tries until it has been killed is not the next call's.
func TestGroup_ForgetsWhatTheReportEnded(t *testing.T) {
	g, set := group(t)
	set(3, 5)
	reported := 0
	for range 2 {
		g.report(func(Crossing) {
			reported++
			set(3, 500) // until it is killed
		})
	}
	if reported != 1 {
		t.Errorf("it reports %d crossings, want 1", reported)
	}
}

// Code that has all of its memory and asks for more crosses the limit, although the kernel
// kills none of it. What the kernel can take back, and what does not ask, crosses nothing.
func TestGroup_ReportsFullMemory(t *testing.T) {
	g, _ := group(t)
	folder := must.Get(os.Readlink(fmt.Sprintf("/proc/self/fd/%d", g.folder)))(t)
	asked := 9
	crossings := func(asks bool, stat string) (n int) {
		if asks {
			asked++
		}
		must.Write(t, filepath.Join(folder, "memory.events"), fmt.Sprintf("low 0\nhigh 0\nmax %d\noom 3\noom_kill 3\n", asked), 0o600)
		must.Write(t, filepath.Join(folder, "memory.stat"), stat, 0o600)
		g.reportFull(func(c Crossing) {
			n++
			if want := (frame.Limit{Name: frame.Memory, Value: 64, Used: 65}); c.Limit != want || c.Usage.Files != 1<<20 {
				t.Errorf("the crossing is %+v", c)
			}
		})
		return n
	}
	const full = "anon 2097152\nfile 1\nkernel 65011712\nshmem 1048576\nslab_reclaimable 1048576\n" // 64 MiB without the last
	for _, test := range []struct {
		asks bool
		stat string
		want int
	}{
		{false, full, 0},
		{true, full, 1},
		{false, full, 0},
		{true, "anon 2097152\nfile 60000000\nkernel 2097152\nshmem 1048576\nslab_reclaimable 0\n", 0},
		{true, "anon 1048576\nkernel 65011712\nshmem 1048576\nslab_reclaimable 4194304\n", 0},
	} {
		if got := crossings(test.asks, test.stat); got != test.want {
			t.Errorf("asks %v, %q: %d crossings, want %d", test.asks, test.stat, got, test.want)
		}
	}
}

func TestGroup_MovesProcesses(t *testing.T) {
	g, _ := group(t)
	must.Do(t, g.Join(4321))
	if text := string(must.Get(os.ReadFile(fmt.Sprintf("/proc/self/fd/%d/cgroup.procs", g.folder)))(t)); text != "4321" {
		t.Errorf("cgroup.procs got %q", text)
	}
}

func TestGroup_WatchEnds(t *testing.T) {
	g, set := group(t)
	set(4, 4)
	ctx, stop := context.WithCancel(t.Context())
	if err := g.watch(ctx, func(Crossing) { stop() }); err != nil {
		t.Error(err)
	}
}
