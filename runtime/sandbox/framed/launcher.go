package framed

import (
	"bufio"
	"encoding/json"
	"os"
	"sync"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/guard"
)

// ReportsVariable names the descriptor for the reports of an artifact's program, if its metadata
// announces reports.
const ReportsVariable = "NIX_SANDBOX_REPORTS"

const (
	// maxReport bounds a line of a report, in bytes, and maxReports their number.
	maxReport  = 4 << 10
	maxReports = 16
	// machinePatience is how many times longer than usual everything may take in a virtual machine that is not
	// code: its instructions may be emulated.
	machinePatience = 12
)

// report is what a sandbox's program has reported.
type report struct {
	Isolation string `json:"isolation"`
	Start     string `json:"start"`
	// ProjectChanged says that the sandbox shows an earlier state of its project.
	ProjectChanged bool `json:"project_changed"`
}

// launcher holds the reports of a sandbox's program. That is not part of the sandbox, and the
// frames go elsewhere, but its reports are bounded in the same way. A nil launcher has no reports.
type launcher struct {
	mu    sync.Mutex
	last  report
	shown bool // an answer has said that the project is another one
}

func newLauncher(reports *os.File) *launcher {
	l := &launcher{}
	go l.follow(reports)
	return l
}

// follow reads lines of JSON until their stream ends or makes no sense. A line changes only the
// fields that it has.
func (l *launcher) follow(reports *os.File) {
	defer reports.Close()
	defer guard.Recover(nil)
	lines := bufio.NewReaderSize(reports, maxReport)
	for range maxReports {
		line, err := lines.ReadSlice('\n')
		next := l.said()
		if err != nil || json.Unmarshal(line, &next) != nil {
			return
		}
		l.mu.Lock()
		l.last = next
		l.mu.Unlock()
	}
}

// said returns what has been reported.
func (l *launcher) said() report {
	if l == nil {
		return report{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// takeProjectChanged returns once that the sandbox shows its project as it was.
func (l *launcher) takeProjectChanged() bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	changed := l.last.ProjectChanged && !l.shown
	l.shown = l.shown || changed
	return changed
}
