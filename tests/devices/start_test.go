package devices_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// A start with eight nodes and thirty libraries takes turns with one without devices. The
// figures are the medians of the differences between both of a turn, and what the fastest
// starts differ by:
//
//	go test -run - -bench Start -benchtime 100x ./tests/devices
func BenchmarkDevices_Start(b *testing.B) {
	m := newMachine(b)
	var nodes, mounts []string
	m.link("/dev/null", "dev/null")
	for i := range 8 {
		nodes = append(nodes, fmt.Sprintf(`{"path": "/dev/gpu%d", "hostPath": "DIR/dev/null"}`, i))
	}
	for i := range 30 {
		name := fmt.Sprintf("libgpu%d.so.1.2.3", i)
		must.Write(b, filepath.Join(m.dir, "lib", name), string(library(b, fmt.Sprintf("libgpu%d.so.1", i), "answer", 1)), 0o755)
		mounts = append(mounts, fmt.Sprintf(`{"hostPath": "DIR/lib/%s", "containerPath": "%s/%s"}`, name, lib, name))
	}
	m.specification("gpu.json", fmt.Sprintf(`{"cdiVersion": "0.5.0", "kind": "vendor.example/gpu", "devices": [
		{"name": "all", "containerEdits": {"deviceNodes": [%s], "mounts": [%s]}}]}`,
		strings.Join(nodes, ", "), strings.Join(mounts, ", ")))
	with := filepath.Join(undertest.Artifact(b, "devices-python"), "bin", "run")
	without := filepath.Join(undertest.Artifact(b, "devices-none"), "bin", "run")
	start := func(program string) (took, processor time.Duration) {
		cmd := exec.CommandContext(b.Context(), program)
		cmd.Env = []string{"NIX_SANDBOX_CDI=" + m.dir + "/cdi"}
		cmd.Stdin = strings.NewReader("pass")
		cmd.Stderr = os.Stderr
		begun := time.Now()
		must.Do(b, cmd.Run())
		return time.Since(begun), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	var times, processors [2][]time.Duration // without devices, and with
	for turn := 0; b.Loop(); turn++ {
		// Neither is always the one after the other's end.
		for _, which := range []int{turn % 2, 1 - turn%2} {
			took, processor := start([]string{without, with}[which])
			times[which] = append(times[which], took)
			processors[which] = append(processors[which], processor)
		}
	}
	b.ReportMetric(differ(times), "ms-longer")
	b.ReportMetric(differ(processors), "ms-processor")
	b.ReportMetric((slices.Min(times[1])-slices.Min(times[0])).Seconds()*1000, "ms-fastest")
	b.ReportMetric(0, "ns/op")
}

// differ returns the median of the differences of two lists, in milliseconds.
func differ(lists [2][]time.Duration) float64 {
	var differences []time.Duration
	for i, first := range lists[0] {
		differences = append(differences, lists[1][i]-first)
	}
	slices.Sort(differences)
	return differences[len(differences)/2].Seconds() * 1000
}
