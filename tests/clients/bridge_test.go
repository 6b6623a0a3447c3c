package clients

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"sync"
	"testing"
	"time"
)

// bridge serves a server's standard streams by HTTP, a process for each
// connection, because the conformance suite speaks nothing else. It carries
// messages and adds nothing: what the suite says of HTTP itself (streams,
// the Host and Origin fields) is about the bridge.
type bridge struct {
	t       *testing.T
	command []string

	mu    sync.Mutex
	conns map[string]*conn
	last  int
}

// conn is one server.
type conn struct {
	in      io.Writer
	writing sync.Mutex

	mu      sync.Mutex
	waiting map[string]chan json.RawMessage
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
	c, session := b.conn(r.Header.Get("Mcp-Session-Id"), message.Method)
	if c == nil {
		http.Error(w, "there is no such session", http.StatusNotFound)
		return
	}
	w.Header().Set("Mcp-Session-Id", session)
	reply, err := c.send(message.ID, body)
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadGateway)
	case reply == nil:
		w.WriteHeader(http.StatusAccepted)
	default:
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(reply)
	}
}

// conn returns the server of a session; initialize starts one.
func (b *bridge) conn(session, method string) (*conn, string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if method != "initialize" {
		return b.conns[session], session
	}
	b.last++
	session = fmt.Sprintf("bridge-%d", b.last)
	cmd := exec.Command(b.command[0], b.command[1:]...)
	cmd.Env = []string{"HOME=" + b.t.TempDir()}
	in, err := cmd.StdinPipe()
	if err != nil {
		b.t.Error(err)
		return nil, ""
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		b.t.Error(err)
		return nil, ""
	}
	c := &conn{in: in, waiting: map[string]chan json.RawMessage{}}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.read(out)
		_ = cmd.Wait()
	}()
	b.t.Cleanup(func() {
		in.Close()
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			b.t.Error("the server goes on after the end of its input")
			_ = cmd.Process.Kill()
			<-ended
		}
	})
	b.conns[session] = c
	return c, session
}

// send writes a message and, if it has an id, waits for the reply.
func (c *conn) send(id json.RawMessage, body []byte) (json.RawMessage, error) {
	var line json.RawMessage = body
	text, err := json.Marshal(line) // on one line
	if err != nil {
		return nil, err
	}
	var reply chan json.RawMessage
	if len(id) > 0 {
		reply = make(chan json.RawMessage, 1)
		c.mu.Lock()
		c.waiting[string(id)] = reply
		c.mu.Unlock()
	}
	c.writing.Lock()
	_, err = c.in.Write(append(text, '\n'))
	c.writing.Unlock()
	if err != nil || reply == nil {
		return nil, err
	}
	select {
	case text := <-reply:
		return text, nil
	case <-time.After(30 * time.Second):
		return nil, fmt.Errorf("the server did not answer %s", id)
	}
}

// read hands out replies until the server ends. Notifications have nowhere to
// go.
func (c *conn) read(out io.Reader) {
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var message struct{ ID json.RawMessage }
		if json.Unmarshal(line, &message) != nil || len(message.ID) == 0 {
			continue
		}
		c.mu.Lock()
		reply := c.waiting[string(message.ID)]
		delete(c.waiting, string(message.ID))
		c.mu.Unlock()
		if reply != nil {
			reply <- json.RawMessage(line)
		}
	}
}
