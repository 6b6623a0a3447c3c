package server_test

import (
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/agenttest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// A request that comes before everything else is answered too.
func TestFirstRequestIsAnswered(t *testing.T) {
	for range 5 {
		a := agenttest.Start(t, "command", agenttest.Command(false, "bash", "-c"))
		a.Send(frame.Request{Type: frame.Save, ID: 1})
		if reply := a.Receive(); reply.Type != frame.Part || reply.ID != 1 {
			t.Fatalf("it answers %+v", reply)
		}
	}
}
