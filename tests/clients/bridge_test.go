package clients

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"sync"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcpclient"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// bridge serves a server's standard streams by HTTP, a process for each
// connection, because the conformance suite speaks nothing else. It carries
// messages and adds nothing: what the suite says of HTTP itself (streams,
// the Host and Origin fields) is about the bridge.
type bridge struct {
	t       *testing.T
	command []string

	mu    sync.Mutex
	conns map[string]*mcpclient.Client // by session
}

// maxMessage bounds a message of the suite, in bytes.
const maxMessage = 1 << 20

func (b *bridge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodPost:
		b.post(w, r)
	case http.MethodDelete:
		w.WriteHeader(http.StatusOK) // the server ends with the test
	default:
		// There is no stream of the server's own.
		w.Header().Set("Allow", "POST, DELETE")
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
}

func (b *bridge) post(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxMessage))
	var message struct {
		ID     json.RawMessage
		Method string
	}
	if err == nil {
		err = json.Unmarshal(body, &message)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c, session, err := b.conn(r.Header.Get("Mcp-Session-Id"), message.Method)
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	w.Header().Set("Mcp-Session-Id", session)
	line, err := json.Marshal(json.RawMessage(body)) // on one line
	if err == nil {
		_, err = c.Write(append(line, '\n'))
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	if len(message.ID) == 0 {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), patience.Long)
	defer cancel()
	reply, err := c.Await(ctx, string(message.ID))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(reply.Line)
}

// conn returns the server of a session; initialize starts one.
func (b *bridge) conn(session, method string) (*mcpclient.Client, string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if method != "initialize" {
		if c := b.conns[session]; c != nil {
			return c, session, nil
		}
		return nil, "", fmt.Errorf("there is no session %q", session)
	}
	session = fmt.Sprintf("bridge-%d", len(b.conns)+1)
	cmd := exec.Command(b.command[0], b.command[1:]...)
	cmd.Env = []string{"HOME=" + b.t.TempDir()}
	c, err := mcpclient.Start(cmd, func(fault string) { b.t.Error(fault) })
	if err != nil {
		return nil, "", err
	}
	b.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience.Long)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			b.t.Error(err)
		}
	})
	b.conns[session] = c
	return c, session, nil
}
