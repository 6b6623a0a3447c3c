package watch

import (
	"cmp"
	"os"
	"slices"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/session"
)

// Session is a live session.
type Session struct {
	Principal    string  `json:"principal,omitempty"`
	ID           string  `json:"id"`
	Environments string  `json:"environments"`
	Calls        uint64  `json:"calls"`   // that it has had, also those that run
	Waiting      int     `json:"waiting"` // calls that run or wait
	Age          float64 `json:"age_seconds"`
	Idle         float64 `json:"idle_seconds"`
	MemoryMB     int64   `json:"memory_mb"` // the limits of its sandboxes
}

// Status is the state of a server at a moment.
type Status struct {
	Version      string      `json:"version"`
	PID          int         `json:"pid"`
	Time         time.Time   `json:"time"`
	Uptime       float64     `json:"uptime_seconds"`
	Environments []string    `json:"environments"`
	Memory       Memory      `json:"memory"`
	Principals   []Principal `json:"principals"`
	Sessions     []Session   `json:"sessions"`
	Running      []Call      `json:"running"`
	Recent       []Call      `json:"recent"`
}

var started = time.Now()

// Status returns the state of the server with these calls.
func (w *Calls) Status(version string, environments []string, sessions []session.Live) Status {
	s := Status{Version: version, PID: os.Getpid(), Time: time.Now(), Environments: environments, Memory: Measure()}
	s.Uptime = s.Time.Sub(started).Seconds()
	s.Principals, s.Running, s.Recent = w.Now()
	for _, l := range sessions {
		s.Sessions = append(s.Sessions, Session{
			l.Key.Principal, l.Key.ID, l.Environments, l.Calls, l.Waiting, s.Time.Sub(l.Started).Seconds(), s.Time.Sub(l.Used).Seconds(), l.MemoryMB,
		})
		at := slices.IndexFunc(s.Principals, func(p Principal) bool { return p.Name == l.Key.Principal })
		if at >= 0 {
			s.Principals[at].Sessions++
			s.Principals[at].MemoryMB += l.MemoryMB
		}
	}
	slices.SortFunc(s.Principals, func(a, b Principal) int {
		return cmp.Or(b.Running-a.Running, cmp.Compare(b.Calls, a.Calls), cmp.Compare(a.Name, b.Name))
	})
	return s
}
