package framed

import (
	"bufio"
	"encoding/json"
	"os"
	"sync"
	"time"
)

// ReportsVariable names the descriptor for the reports of an artifact's program, if its metadata
// announces reports.
const ReportsVariable = "NIX_SANDBOX_REPORTS"

const (
	// maxReport bounds a line of a report, in bytes, and maxReports their number.
	maxReport  = 4 << 10
	maxReports = 16
	// maxStartFactor bounds by how much a program may ask for a longer start.
	maxStartFactor = 100
)

// isolations are the values that a program may report.
var isolations = map[string]bool{"kvm": true, "emulated": true}

// beginnings are the values that a program may report.
var beginnings = map[string]bool{"cold": true, "copy": true}

// launcher holds the reports of a sandbox's program. That is not part of the sandbox, and the
// frames go elsewhere, but its reports are bounded in the same way. A nil launcher has no reports.
type launcher struct {
	reports *os.File
	slower  chan struct{} // gets a value when the factor changes

	mu        sync.Mutex
	isolation string
	start     string
	factor    int
	// projectChanged says that the sandbox shows an earlier state of its project, and that no
	// answer has said so yet.
	projectChanged bool
}

func newLauncher(reports *os.File) *launcher {
	l := &launcher{reports: reports, slower: make(chan struct{}, 1), factor: 1}
	go l.follow()
	return l
}

// follow reads lines of JSON until their stream ends or makes no sense.
func (l *launcher) follow() {
	defer l.reports.Close()
	lines := bufio.NewReaderSize(l.reports, maxReport)
	for range maxReports {
		line, err := lines.ReadSlice('\n')
		if err != nil {
			return
		}
		var report struct {
			Isolation   string `json:"isolation"`
			Start       string `json:"start"`
			StartFactor int    `json:"start_factor"`
			Changed     bool   `json:"project_changed"`
		}
		if json.Unmarshal(line, &report) != nil {
			return
		}
		l.mu.Lock()
		if isolations[report.Isolation] {
			l.isolation = report.Isolation
		}
		if beginnings[report.Start] {
			l.start = report.Start
		}
		if report.StartFactor >= 1 && report.StartFactor <= maxStartFactor {
			l.factor = report.StartFactor
		}
		l.projectChanged = l.projectChanged || report.Changed
		l.mu.Unlock()
		select {
		case l.slower <- struct{}{}:
		default:
		}
	}
}

// slowness is how many times longer than usual everything takes that is not code.
func (l *launcher) slowness() time.Duration {
	if l == nil {
		return 1
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Duration(l.factor)
}

// changes gets a value when the slowness may have changed.
func (l *launcher) changes() <-chan struct{} {
	if l == nil {
		return nil
	}
	return l.slower
}

// takeProjectChanged returns once that the sandbox shows its project as it was.
func (l *launcher) takeProjectChanged() bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	changed := l.projectChanged
	l.projectChanged = false
	return changed
}

// isolated returns how the sandbox is isolated and how it began, or "" if that was not reported.
func (l *launcher) isolated() (isolation, start string) {
	if l == nil {
		return "", ""
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.isolation, l.start
}
