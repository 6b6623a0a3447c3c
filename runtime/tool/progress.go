package tool

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// progressEvery is the time between two reports. Clients give up after a time of
// silence.
const progressEvery = 4 * time.Second

// reportProgress calls progress now and then until stop is called; when stop
// returns, progress will not be called again. The newest line that newLine was
// called with goes with each report.
func reportProgress(every time.Duration, progress func(seconds float64, line string)) (newLine func(string), stop func()) {
	began := time.Now()
	var newest atomic.Pointer[string]
	done := make(chan struct{})
	var reporter sync.WaitGroup
	reporter.Go(func() {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				elapsed := time.Since(began).Seconds() // MCP wants it to grow each time
				line := fmt.Sprintf("%.0f s", elapsed)
				if text := newest.Load(); text != nil {
					line += ": " + printable(*text)
				}
				progress(elapsed, line)
			}
		}
	})
	return func(line string) { newest.Store(&line) }, func() {
		close(done)
		reporter.Wait()
	}
}
