package main

import (
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/event"
)

var refused = event.Event{Kind: event.Refused, Reason: event.ByName, Name: "evil.example", Count: 1}

// start returns what reports to write, and has its goroutine end with the test.
func start(t *testing.T, write func(string)) (report func(event.Event)) {
	var over atomic.Bool
	report = sentences(func(line string) (int, error) {
		if over.Load() {
			runtime.Goexit()
		}
		write(line)
		return len(line), nil
	})
	t.Cleanup(func() {
		over.Store(true)
		report(refused)
	})
	return report
}

// Who was refused may end, and the program with it, as soon as the report returns.
func TestSentences_AreWrittenWhenTheReportReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got atomic.Value
		report := start(t, func(line string) {
			time.Sleep(writeWait / 2)
			got.Store(line)
		})
		report(refused)
		if want := "nix-sandbox-net: " + refused.Sentence() + "\n"; got.Load() != want {
			t.Errorf("written: %q, want %q", got.Load(), want)
		}
	})
}

// A terminal that somebody has stopped is waited for once, and again when it takes lines.
func TestSentences_WaitOnceForWhatIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stopped := make(chan struct{})
		report := start(t, func(string) { <-stopped })
		began := time.Now()
		for range 2 * maxLines {
			report(refused)
		}
		if took := time.Since(began); took != writeWait {
			t.Errorf("the reports took %v, want %v", took, writeWait)
		}
		close(stopped)
		synctest.Wait()
		began = time.Now()
		report(refused)
		if took := time.Since(began); took != 0 {
			t.Errorf("a report took %v when lines are taken again", took)
		}
	})
}
