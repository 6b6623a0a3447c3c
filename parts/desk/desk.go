// Package desk is where the user finds a server that runs: a Unix socket in a folder of the user's,
// for commands beside the model's own stream. What can be asked there is a list of verbs, which
// the program that serves puts together.
//
// A connection is one question: a frame of package frame with the verb and its arguments, and then
// the frames that the verb and the client agree on. Only processes of the server's own user get an
// answer, and only those in its PID namespace: code in a sandbox is not. The number of connections, the size of each frame and the
// wait for the first one are bounded, and how long a client may leave an answer unread.
package desk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/guard"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/host"
)

const (
	// maxConns bounds the connections, maxFrame a frame of a client, in bytes, and askTimeout the
	// wait for its first one. writeTimeout is how long a client may leave an answer unread.
	maxConns     = 128
	maxFrame     = 1 << 20
	askTimeout   = 5 * time.Second
	writeTimeout = 30 * time.Second
)

// Verb answers one kind of question.
type Verb struct {
	Name string
	// Serve answers one question. Its context ends with the server; [Conn.Read] tells when the client
	// has gone.
	// The client gets the error; a [*config.Error] with its hint.
	Serve func(ctx context.Context, c *Conn) error
}

// Conn is a question of a client.
type Conn struct {
	args    json.RawMessage
	conn    *net.UnixConn
	reader  *frame.Reader
	writer  *frame.Writer
	patient bool
}

// question is the first frame of a client.
type question struct {
	Verb string          `json:"verb"`
	Args json.RawMessage `json:"args,omitempty"`
}

// answer is a frame of the server. The last one of a refused question has an Error.
type answer struct {
	Result any    `json:"result,omitempty"`
	Error  string `json:"error,omitempty"`
	Hint   string `json:"hint,omitempty"`
}

// Args decodes the arguments into v.
func (c *Conn) Args(v any) error {
	if err := json.Unmarshal(c.args, v); err != nil {
		return fmt.Errorf("the arguments cannot be read: %w", err)
	}
	return nil
}

// Read waits for the client's next frame. The error is io.EOF if the client sends no more.
func (c *Conn) Read(v any) error { return c.reader.Read(v) }

// Write sends a frame. It may be called at the same time as Read and itself.
func (c *Conn) Write(result any) error { return c.send(answer{Result: result}) }

// Patient has Write wait until the client reads, for streams that the user may stop, such as into a
// pager. It is called before the first Write. The wait ends with the client and with the server.
func (c *Conn) Patient() { c.patient = true }

func (c *Conn) send(a answer) error {
	if !c.patient {
		_ = c.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	}
	return c.writer.Write(a)
}

// Answer returns a verb that answers every question with the result of a function.
func Answer(name string, result func() any) Verb {
	return Verb{name, func(_ context.Context, c *Conn) error { return c.Write(result()) }}
}

// Serve listens in the first of the folders that can be used, until ctx ends. Sandboxes show the
// folders in shown: it uses no folder beneath them.
func Serve(ctx context.Context, folders, shown []string, verbs []Verb, log *slog.Logger) {
	listener, err := listen(folders, shown)
	if err != nil {
		log.Info("commands such as top and shell --session do not find this server", "error", err)
		return
	}
	log.Debug("the user's commands find this server", "socket", listener.Addr().String())
	defer context.AfterFunc(ctx, func() { listener.Close() })()
	byName := map[string]Verb{}
	for _, verb := range verbs {
		byName[verb.Name] = verb
	}
	places := make(chan struct{}, maxConns)
	for range maxConns {
		places <- struct{}{}
	}
	defer func() { // wait for the connections
		for range maxConns {
			<-places
		}
	}()
	for {
		conn, err := listener.AcceptUnix()
		if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			log.Debug("accept a command", "error", err)
			time.Sleep(100 * time.Millisecond) // no descriptors, for example
			continue
		}
		select {
		case <-places:
		default:
			conn.Close()
			continue
		}
		go func() {
			defer func() { places <- struct{}{} }()
			defer guard.Recover(nil)
			serve(ctx, conn, byName)
		}()
	}
}

// serve answers one connection.
func serve(ctx context.Context, conn *net.UnixConn, verbs map[string]Verb) {
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	if !host.IsOwn(conn) {
		return
	}
	c := &Conn{conn: conn, reader: frame.NewReader(conn), writer: frame.NewWriter(conn)}
	c.reader.Limit(maxFrame)
	_ = conn.SetReadDeadline(time.Now().Add(askTimeout))
	var q question
	if c.Read(&q) != nil {
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	c.args = q.Args
	verb, found := verbs[q.Verb]
	if !found {
		_ = c.send(answer{Error: fmt.Sprintf("this server, process %d, has no answer to %.40q", os.Getpid(), q.Verb), Hint: "it may be of another version, or without this feature: start it again"})
		return
	}
	if err := verb.Serve(ctx, c); err != nil {
		refusal := answer{Error: err.Error()}
		var wrong *config.Error
		if errors.As(err, &wrong) {
			refusal.Hint = wrong.Hint
		}
		_ = c.send(refusal) // to a client that may have gone
	}
}
