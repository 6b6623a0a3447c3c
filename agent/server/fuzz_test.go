package server_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/interpreter"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/server"
	. "github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/agenttest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// Whatever arrives, the server ends with its stream and has sent nothing but
// whole frames.
func FuzzRequests(f *testing.F) {
	for _, requests := range [][]any{
		{frame.Request{Type: frame.Ping, ID: 1}},
		{frame.Request{Type: frame.Execute, ID: 1, Code: "x", TimeoutMS: 1000}, frame.Request{Type: frame.Interrupt, ID: 1}},
		{frame.Request{Type: frame.Configure, Env: map[string]string{"A": "b"}, OutputBytes: 1}},
		{frame.Request{Type: frame.Read, Path: "x"}, frame.Request{Type: frame.Read, Path: "../x", Offset: -1}},
	} {
		var stream bytes.Buffer
		must.Do(f, frame.NewWriter(&stream).Write(requests...))
		f.Add(stream.Bytes())
	}
	f.Add([]byte{0, 0, 0, 2, '{'})
	table := Table()
	root := f.TempDir()
	f.Fuzz(func(t *testing.T, stream []byte) {
		var sent bytes.Buffer
		err := server.Serve(context.Background(), table, server.Config{
			Spec: interpreter.Spec{Command: []string{"true"}, Root: root, Env: os.Environ()},
			In:   io.NopCloser(bytes.NewReader(stream)),
			Out:  &sent,
			Log:  io.Discard,
		})
		if err != nil {
			t.Fatal(err)
		}
		r := frame.NewReader(&sent)
		for {
			var reply frame.Reply
			err := r.Read(&reply)
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if reply.Type == "" {
				t.Fatalf("reply %+v", reply)
			}
		}
	})
}
