package main

import (
	"context"
	"fmt"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
)

const (
	// idleSessions are measured, and the figures are those of manySessions.
	idleSessions = 90
	manySessions = 500
	// settleTime is how long after its last call a session is measured, and idleTime
	// for how long.
	settleTime = 80 * time.Second
	idleTime   = 20 * time.Second
)

// idle is what live sessions cost in which nothing runs.
type idle struct {
	Sessions int `json:"sessions"`
	// CPU is the processor time that [manySessions] take, in percent of one processor:
	// that of their sandboxes, and that of the server.
	CPU    float64 `json:"cpu_percent_of_500"`
	Server float64 `json:"server_cpu_percent"`
	Memory float64 `json:"memory_mib"` // a session, of all languages together
}

// idleSessions measures sessions of all interpreters that run nothing.
func (b *bench) idleSessions(ctx context.Context, say func(string, ...any)) (idle, error) {
	var languages []string
	for _, language := range []string{"python", "bash", "node"} {
		if b.has(language) {
			languages = append(languages, language)
		}
	}
	result := idle{Sessions: idleSessions}
	l := launch{program: b.server, metadata: b.cold, env: append([]string{fmt.Sprintf("SESSION_MAX=%d", idleSessions)}, b.env...)}
	s, _, err := l.start(ctx)
	if err != nil {
		return result, err
	}
	defer s.Close()
	say("%d idle sessions", idleSessions)
	err = many(idleSessions, starters, func(i int) error {
		return bounded(ctx, func(ctx context.Context) error {
			language := languages[i%len(languages)]
			w := small[language]
			_, err := s.run(ctx, b.found[language].environment, fmt.Sprintf("idle-%d", i), w.code, w.want)
			return err
		})
	})
	if err != nil {
		return result, err
	}
	time.Sleep(settleTime)
	server := func() time.Duration {
		p, err := procfs.Read(s.PID())
		if err != nil {
			return 0
		}
		own, _ := p.Times()
		return own
	}
	all, own := treeCPU(s.PID()), server()
	began := time.Now()
	time.Sleep(idleTime)
	all, own, took := treeCPU(s.PID())-all, server()-own, time.Since(began)
	size, err := procfs.Memory(procfs.Descendants(s.PID())...)
	if err != nil {
		return result, err
	}
	percent := func(used time.Duration) float64 { return 100 * used.Seconds() / took.Seconds() }
	result.CPU = percent(all-own) * manySessions / idleSessions
	result.Server = percent(own)
	result.Memory = mebibytes(size) / idleSessions
	return result, nil
}
