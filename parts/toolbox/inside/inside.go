// Package inside is the part of the toolbox in the agent. Code connects to a Unix socket of the
// agent, and what it asks there goes to the server between the agent's own frames: the sandbox
// needs no network, no port and no descriptor, and a virtual machine works as a jail does.
//
// A question belongs to the execute that runs when it is asked. Without one it is refused here.
// On the socket, questions and answers are JSON with their length before them, in four bytes,
// big-endian. A connection carries one question after the other.
package inside

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// Socket is the name of the agent's socket: an abstract one, which no code can remove, and which
// exists in the network namespace of the sandbox alone.
const Socket = "@nix-sandbox-tools"

const (
	// MaxQuestion is the largest question, in bytes.
	MaxQuestion = 512 << 10
	// maxAsking is how many questions are on their way at a time; others wait.
	maxAsking = 32
	// maxConnections bounds the connections at a time. Others are closed at once.
	maxConnections = 512
	// questionPart is the largest part of a question in one frame, in bytes.
	questionPart = 128 << 10
	headerSize   = 4
	// readTimeout bounds how long the rest of a question may take after its length.
	readTimeout = 10 * time.Second
)

// Between puts the toolbox between the streams of the runtime and the agent. It returns the
// streams for the agent.
func Between(in io.ReadCloser, out io.Writer) (io.ReadCloser, io.Writer, error) {
	listener, err := net.Listen("unix", Socket)
	if err != nil {
		return nil, nil, fmt.Errorf("listen for tool calls: %w", err)
	}
	to, from := between(listener, in, out)
	return to, from, nil
}

func between(listener net.Listener, in io.ReadCloser, out io.Writer) (io.ReadCloser, io.Writer) {
	r := newRelay(out)
	read, write := io.Pipe()
	go func() {
		_ = write.CloseWithError(r.requests(in, write))
		listener.Close()
	}()
	go r.accept(listener)
	return struct {
		io.Reader
		io.Closer
	}{read, in}, r
}

// relay knows which execute runs, and the questions of its code.
type relay struct {
	slots       chan struct{} // of questions
	connections chan struct{}

	writing sync.Mutex
	out     io.Writer
	frames  *frame.Writer // to out

	mu      sync.Mutex
	running []uint64 // executes without a result, the first of which runs
	last    uint64
	open    map[uint64]*question
}

// question was put to the server.
type question struct {
	run    uint64
	parts  chan frame.Request // has room for the one part that is on its way
	ended  chan struct{}      // closed when its execute has a result
	number uint64
}

func newRelay(out io.Writer) *relay {
	return &relay{
		slots: make(chan struct{}, maxAsking), connections: make(chan struct{}, maxConnections),
		out: out, frames: frame.NewWriter(out), open: map[uint64]*question{},
	}
}

// tell sends a frame about a question, unless that has ended: after the result of its execute,
// the server does not take it.
func (r *relay) tell(q *question, reply frame.Reply) error {
	r.writing.Lock()
	defer r.writing.Unlock()
	select {
	case <-q.ended:
		return nil
	default:
	}
	reply.Type, reply.ID, reply.Ask = frame.Call, q.run, q.number
	return r.frames.Write(reply)
}

// requests passes frames on to the agent, but for answers to questions.
func (r *relay) requests(in io.Reader, agent io.Writer) error {
	var buf bytes.Buffer
	for {
		buf.Reset()
		if _, err := io.CopyN(&buf, in, headerSize); err != nil {
			return err
		}
		size := binary.BigEndian.Uint32(buf.Bytes())
		if size > frame.MaxPayload {
			return frame.ErrTooLarge
		}
		if _, err := io.CopyN(&buf, in, int64(size)); err != nil {
			return errors.Join(io.ErrUnexpectedEOF, err)
		}
		payload := buf.Bytes()[headerSize:]
		switch {
		case isType(payload, frame.Called):
			var part frame.Request
			if err := json.Unmarshal(payload, &part); err != nil {
				return err
			}
			r.called(part)
			continue
		case isType(payload, frame.Execute):
			r.mu.Lock()
			r.running = append(r.running, idOf(payload))
			r.mu.Unlock()
		}
		if _, err := agent.Write(buf.Bytes()); err != nil {
			return err
		}
		if buf.Cap() > questionPart {
			buf = bytes.Buffer{}
		}
	}
}

// isType reports whether a frame has a type. Both ends write the type first.
func isType(payload []byte, name string) bool {
	return bytes.HasPrefix(payload, []byte(`{"type":"`+name+`"`))
}

func idOf(payload []byte) uint64 {
	var message struct {
		ID uint64 `json:"id"`
	}
	_ = json.Unmarshal(payload, &message) // the agent's own reader reports it
	return message.ID
}

// Write takes whole frames of the agent. The result of an execute ends its questions first.
func (r *relay) Write(p []byte) (int, error) {
	r.writing.Lock()
	defer r.writing.Unlock()
	for rest := p; len(rest) > headerSize; {
		size := headerSize + int(binary.BigEndian.Uint32(rest))
		if size > len(rest) {
			break
		}
		payload := rest[headerSize:size]
		if isType(payload, frame.Result) || isType(payload, frame.Error) {
			r.end(idOf(payload))
		}
		rest = rest[size:]
	}
	return r.out.Write(p)
}

func (r *relay) end(run uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = slices.DeleteFunc(r.running, func(id uint64) bool { return id == run })
	for number, q := range r.open {
		if q.run == run {
			delete(r.open, number)
			close(q.ended)
		}
	}
}

// called hands a part of an answer to its question.
func (r *relay) called(part frame.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q := r.open[part.Ask]; q != nil {
		select {
		case q.parts <- part:
		default: // the server sends a part only when it was asked for it
		}
	}
}

func (r *relay) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // too many files are open
			time.Sleep(10 * time.Millisecond)
			continue
		}
		select {
		case r.connections <- struct{}{}:
			go func() {
				defer func() { <-r.connections }()
				defer conn.Close()
				r.serve(conn)
			}()
		default:
			conn.Close()
		}
	}
}

// serve answers the questions of a connection until it breaks.
func (r *relay) serve(conn net.Conn) {
	header := make([]byte, headerSize)
	in := bufio.NewReader(conn)
	for {
		if _, err := io.ReadFull(in, header); err != nil {
			return
		}
		size := binary.BigEndian.Uint32(header)
		if size > MaxQuestion {
			_ = refuse(conn, fmt.Sprintf("a call may have at most %d KiB of arguments: write large data to a file that the tool can read, or send it in parts", MaxQuestion>>10))
			return
		}
		r.slots <- struct{}{}
		err := r.relayQuestion(conn, in, size)
		<-r.slots
		if err != nil {
			return
		}
	}
}

// relayQuestion reads a question and answers it. The error is of the connection.
func (r *relay) relayQuestion(conn net.Conn, in *bufio.Reader, size uint32) error {
	_ = conn.SetReadDeadline(time.Now().Add(readTimeout))
	text := make([]byte, size)
	if _, err := io.ReadFull(in, text); err != nil {
		return err
	}
	_ = conn.SetReadDeadline(time.Time{})
	if size == 0 {
		return refuse(conn, "a question is JSON with server, tool and arguments")
	}
	q := r.register()
	if q == nil {
		return refuse(conn, "tools are reached while a call of run is going on: this process outlived its call")
	}
	// Whoever asked may be killed: then the answer is not wanted. The next question may come as
	// soon as the answer is written, so this takes no place.
	gone, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		if _, err := in.Peek(1); err != nil && !isTimeout(err) {
			close(gone)
		}
	}()
	err := r.answer(conn, q, text, gone)
	_ = conn.SetReadDeadline(time.Unix(1, 0))
	<-watched
	_ = conn.SetReadDeadline(time.Time{})
	select {
	case <-gone:
		return io.ErrClosedPipe
	default:
		return err
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// register registers a question of the execute that runs; it returns nil if no execute does.
func (r *relay) register() *question {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.running) == 0 {
		return nil
	}
	r.last++
	q := &question{run: r.running[0], parts: make(chan frame.Request, 1), ended: make(chan struct{}), number: r.last}
	r.open[q.number] = q
	return q
}

// answer sends the question and writes the parts of its answer to the connection.
func (r *relay) answer(conn net.Conn, q *question, text []byte, gone <-chan struct{}) error {
	for more := true; more; {
		part := text[:min(questionPart, len(text))]
		text = text[len(part):]
		more = len(text) > 0
		if err := r.tell(q, frame.Reply{Contents: part, More: more}); err != nil {
			return err
		}
	}
	for first := true; ; first = false {
		var part frame.Request
		select {
		case part = <-q.parts:
		case <-q.ended:
			if first {
				return refuse(conn, "the call of run ended before the tool answered: the tool may have done its work")
			}
			return io.ErrUnexpectedEOF
		case <-gone:
			r.giveUp(q)
			return io.ErrClosedPipe
		}
		message := part.Contents
		if first {
			message = append(binary.BigEndian.AppendUint32(nil, uint32(part.Length)), message...)
		}
		if !part.More {
			r.take(q)
		}
		if _, err := conn.Write(message); err != nil {
			r.giveUp(q)
			return err
		}
		if !part.More {
			return nil
		}
		if err := r.tell(q, frame.Reply{More: true}); err != nil {
			return err
		}
	}
}

// take removes a question, and reports whether it was open.
func (r *relay) take(q *question) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, open := r.open[q.number]
	delete(r.open, q.number)
	return open
}

// giveUp tells the server that an answer is not wanted.
func (r *relay) giveUp(q *question) {
	if r.take(q) {
		_ = r.tell(q, frame.Reply{})
	}
}

// refuse answers in the form of the server's own refusals (package gate).
func refuse(conn net.Conn, why string) error {
	text, err := json.Marshal(map[string]any{"error": map[string]string{"kind": "denied", "message": why}})
	if err != nil {
		return err
	}
	_, err = conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...))
	return err
}
