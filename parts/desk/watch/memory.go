package watch

import (
	"bytes"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
)

// Memory is the memory of this server and of the processes below it.
type Memory struct {
	Server    int64 `json:"server_bytes"`
	Sandboxes int64 `json:"sandboxes_bytes"` // without the pages of programs and libraries
	Processes int   `json:"sandboxes_processes"`
}

// memoryPause bounds how often the processes are read: however many ask, it costs the
// same.
const memoryPause = 2 * time.Second

var measured struct {
	sync.Mutex
	Memory
	at time.Time
}

// Measure measures all processes.
func Measure() Memory {
	measured.Lock()
	defer measured.Unlock()
	if time.Since(measured.at) < memoryPause {
		return measured.Memory
	}
	pid := os.Getpid()
	type process struct {
		parent int
		bytes  int64
	}
	all := map[int]process{}
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		id, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		text, _ := bounded.ReadFile("/proc/"+entry.Name()+"/status", 16<<10)
		all[id] = process{int(field(text, "PPid:")), (field(text, "RssAnon:") + field(text, "RssShmem:") + field(text, "VmSwap:")) << 10}
	}
	var total Memory
	for id, p := range all {
		if id == pid {
			total.Server = p.bytes
			continue
		}
		for up, n := p.parent, 0; up > 1 && n < 64; up, n = all[up].parent, n+1 {
			if up == pid {
				total.Sandboxes += p.bytes
				total.Processes++
				break
			}
		}
	}
	measured.Memory, measured.at = total, time.Now()
	return total
}

// field returns a number of /proc/PID/status, or 0 if the field is missing.
func field(text []byte, name string) int64 {
	_, rest, _ := bytes.Cut(text, []byte("\n"+name))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	words := bytes.Fields(line)
	if len(words) == 0 {
		return 0
	}
	n, _ := strconv.ParseInt(string(words[0]), 10, 64)
	return n
}
