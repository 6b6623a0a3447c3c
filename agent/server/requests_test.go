package server

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// The code that waits is bounded, and counts no longer when it runs or is given
// up. No interpreter takes part: the test is the executor.
func TestEnqueue_BoundsTheCodeThatWaits(t *testing.T) {
	var sent bytes.Buffer
	s := &Server{out: frame.NewWriter(&sent), queue: make(chan task, maxWaiting), calls: map[uint64]*call{}}
	large := strings.Repeat("x", maxCode/4-1)
	execute := func(id uint64) {
		must.Do(t, s.request(frame.Request{Type: frame.Execute, ID: id, Code: large, Keep: true}))
	}
	interrupt := func(id uint64) { must.Do(t, s.request(frame.Request{Type: frame.Interrupt, ID: id})) }
	// replied compares what was sent since the last time.
	replied := func(want ...frame.Reply) {
		t.Helper()
		var got []frame.Reply
		for frames := frame.NewReader(&sent); ; {
			var reply frame.Reply
			if err := frames.Read(&reply); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			got = append(got, reply)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
	}
	refused := func(id uint64) frame.Reply {
		return frame.Reply{Type: frame.Error, ID: id, Message: "64 MiB of code wait already"}
	}
	cancelled := func(id uint64) frame.Reply {
		return frame.Reply{Type: frame.Result, ID: id, Outcome: frame.OutcomeCancelled, ExitCode: 130, State: frame.StateKept}
	}
	for round := range uint64(2) {
		first := 10 * round
		for id := first; id < first+4; id++ {
			execute(id)
		}
		replied()
		execute(100)
		replied(refused(100))
		for id := first; id < first+3; id++ {
			interrupt(id)
			replied(cancelled(id))
		}
		// The executor finds the cancelled calls in the queue and runs the last.
		for id := first; id < first+4; id++ {
			if c := (<-s.queue).call; s.take(c) != (id == first+3) {
				t.Fatalf("call %d is taken: %v", id, id != first+3)
			}
		}
	}
	// More than may wait, one after the other.
	for id := uint64(30); id < 38; id++ {
		execute(id)
		if !s.take((<-s.queue).call) {
			t.Fatalf("call %d is not taken", id)
		}
	}
	replied()
}
