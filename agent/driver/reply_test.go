package driver_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/driver"
)

func TestParseReply(t *testing.T) {
	for line, want := range map[string]driver.Reply{
		"ready":                   {Kind: driver.Ready},
		"done 00000000000000ff 0": {Kind: driver.Done, Nonce: 255},
		"done ffffffffffffffff 255": {
			Kind: driver.Done, Nonce: 1<<64 - 1, Status: 255,
		},
		"leave 00000000000000ff": {Kind: driver.Leave, Nonce: 255},
		"stop 00000000000000ff":  {Kind: driver.Stop, Nonce: 255},
		"soon 00000000000000ff":  {Kind: driver.Soon, Nonce: 255},
	} {
		got, err := driver.ParseReply(line)
		if err != nil {
			t.Errorf("%q: %v", line, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q: %s", line, diff)
		}
	}
	for _, line := range []string{
		"", " ", "ready ", "ready 1", "READY", "done", "done 1 0", "done 00000000000000ff", "done 00000000000000ff 256",
		"done 00000000000000ff -1", "done 00000000000000ff 0 ", "done 00000000000000ff  0", "done 0x000000000000ff 0",
		"done +0000000000000ff 0", "leave 00000000000000ff 0", "stop", "done 00000000000000ff 0\r", "\x00", strings.Repeat("x", driver.MaxLine),
	} {
		if got, err := driver.ParseReply(line); err == nil {
			t.Errorf("%q: %+v, want an error", line, got)
		}
	}
}

func FuzzParseReply(f *testing.F) {
	f.Add("ready")
	f.Add("done 00000000000000ff 0")
	f.Add("leave 00000000000000ff")
	f.Fuzz(func(t *testing.T, line string) {
		r, err := driver.ParseReply(line)
		if err != nil {
			if len(err.Error()) > 8*driver.MaxLine {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		if len(line) >= driver.MaxLine || r.Status < 0 || r.Status > 255 || r.Kind != driver.Done && r.Status != 0 || r.Kind == driver.Ready && r.Nonce != 0 {
			t.Errorf("%q: %+v", line, r)
		}
	})
}

// What the agent writes always fits into a line and names the call.
func TestCallLine(t *testing.T) {
	call := driver.Call{Nonce: 1<<64 - 1, Last: true, Number: 1<<64 - 1, Size: 16 << 20}
	if got, want := call.Line(), "last ffffffffffffffff 18446744073709551615 16777216\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	call = driver.Call{Nonce: 255, Number: 1}
	if got, want := call.Line(), "call 00000000000000ff 1 0\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if n := len(call.Line()); n > driver.MaxLine {
		t.Errorf("%d bytes", n)
	}
}
