package framed

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// A stream takes what was granted, and every frame beyond that is a rule that the agent breaks.
func TestVisit_HoldsTheAgentToItsWindow(t *testing.T) {
	of := func(replies ...frame.Reply) error {
		st := newVisit(nil)
		st.granted = frame.Window - 10 // so much was sent
		for _, reply := range replies {
			if err := st.take(reply); err != nil {
				return err
			}
		}
		return nil
	}
	bytes := func(n int) frame.Reply { return frame.Reply{Type: frame.Bytes, Contents: make([]byte, n)} }
	credit := func(n int64) frame.Reply { return frame.Reply{Type: frame.Credit, Size: n} }
	opened := frame.Reply{Type: frame.Opened}
	for name, test := range map[string]struct {
		replies []frame.Reply
		want    string
	}{
		"all of it":        {[]frame.Reply{opened, bytes(frame.Window), credit(10), bytes(0)}, ""},
		"too much":         {[]frame.Reply{opened, bytes(frame.Window), bytes(1)}, "more on a stream than it may"},
		"after its end":    {[]frame.Reply{opened, bytes(0), bytes(1)}, "more on a stream than it may"},
		"an empty flood":   {[]frame.Reply{opened, bytes(0), bytes(0)}, "more on a stream than it may"},
		"took too much":    {[]frame.Reply{opened, credit(11)}, "more of a stream than was sent"},
		"took nothing":     {[]frame.Reply{opened, credit(0)}, "more of a stream than was sent"},
		"gave back":        {[]frame.Reply{opened, credit(-1)}, "more of a stream than was sent"},
		"opened twice":     {[]frame.Reply{opened, opened}, "opened a stream twice"},
		"something else":   {[]frame.Reply{opened, {Type: frame.Output}}, `sent "output" on a stream`},
		"an enormous gift": {[]frame.Reply{opened, credit(1 << 62)}, "more of a stream than was sent"},
	} {
		err := of(test.replies...)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A reader gets everything and then the end, and grants what it took.
func TestVisit_ReadGrantsWhatItTook(t *testing.T) {
	ours, theirs, err := os.Pipe()
	must.Do(t, err)
	defer ours.Close()
	defer theirs.Close()
	st := newVisit(&Sandbox{stdin: theirs, frames: frame.NewWriter(theirs)})
	st.id = 7
	want := bytes.Repeat([]byte("0123456789abcdef"), frame.Window/16)
	must.Do(t, st.take(frame.Reply{Type: frame.Bytes, Contents: want[:frame.Window-1]}))
	got := make([]byte, frame.Window-1)
	must.Get(io.ReadFull(st, got))(t)
	var granted frame.Request
	must.Do(t, frame.NewReader(ours).Read(&granted))
	if granted.Type != frame.Credit || granted.ID != 7 || granted.Length != frame.Window-1 {
		t.Errorf("%+v", granted)
	}
	must.Do(t, st.take(frame.Reply{Type: frame.Bytes, Contents: want[frame.Window-1:]}))
	must.Do(t, st.take(frame.Reply{Type: frame.Bytes}))
	if rest, err := io.ReadAll(st); err != nil || !bytes.Equal(append(got, rest...), want) {
		t.Errorf("%d bytes, %v", len(rest), err)
	}
}

// A program that ends at once has been opened, and one that could not be opened has not.
func TestVisit_OpensWhatHasEnded(t *testing.T) {
	st := newVisit(nil)
	st.last = &frame.Reply{Message: "no such port"}
	close(st.ended)
	if err := st.awaitOpened(t.Context(), nil); err == nil || err.Error() != "no such port" {
		t.Errorf("%v", err)
	}
	close(st.opened)
	for range 100 { // both are true, in any order
		must.Do(t, st.awaitOpened(t.Context(), nil))
	}
}
