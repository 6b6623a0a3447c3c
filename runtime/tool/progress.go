package tool

import (
	"fmt"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/guard"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostile"
)

// progressEvery is the time between two reports. Clients give up after a time of
// silence.
const progressEvery = 4 * time.Second

// reportProgress calls report now and then, with the newest line of the call's progress, until stop
// is called; when stop returns, report will not be called again.
func reportProgress(every time.Duration, progress *sandbox.Progress, report func(seconds float64, line string)) (stop func()) {
	began := time.Now()
	done := make(chan struct{})
	var reporter sync.WaitGroup
	reporter.Go(func() {
		defer guard.Recover(nil)
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				elapsed := time.Since(began).Seconds() // MCP wants it to grow each time
				line := fmt.Sprintf("%.0f s", elapsed)
				if _, _, text := progress.Now(0); text != "" {
					line += ": " + hostile.Escape(text, nil)
				}
				report(elapsed, line)
			}
		}
	})
	return func() {
		close(done)
		reporter.Wait()
	}
}
