// Package asking lets the code of a call ask the server something: to call a tool, or to add packages. Code connects
// to a Unix socket of the agent, and its question goes to the server between the agent's other frames: the sandbox
// needs no network, no port and no descriptor, and a virtual machine works as a jail does.
//
// A question belongs to the execute that runs when it is asked. Without one it is refused here.
// On the socket, questions and answers are JSON with their length before them, in four bytes,
// big-endian. A connection carries one question after the other.
package asking

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

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
	backlog        = 64
	// questionPart is the largest part of a question in one frame, in bytes.
	questionPart = 128 << 10
	headerSize   = 4
	// readTimeout bounds how long the rest of a question may take after its length.
	readTimeout = 10 * time.Second
)

// Asking relays questions. The methods of a nil one have no effect.
type Asking struct {
	listener    *os.File
	slots       chan struct{} // of questions
	connections chan struct{}

	telling sync.Mutex // of frames, so that each comes before the end of its execute
	out     func(...any) error

	mu      sync.Mutex
	running []uint64 // executes without a result; the first runs
	last    uint64
	open    map[uint64]*question
}

// Listen listens at a socket, for questions that out sends in frames.
func Listen(socket string, out func(...any) error) (*Asking, error) {
	// Package net would add a megabyte to the agent.
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	listener := os.NewFile(uintptr(fd), socket)
	err = unix.Bind(fd, &unix.SockaddrUnix{Name: socket})
	if err == nil {
		err = unix.Listen(fd, backlog)
	}
	if err != nil {
		listener.Close()
		return nil, fmt.Errorf("listen for questions of code: %w", err)
	}
	a := &Asking{
		listener: listener, out: out, open: map[uint64]*question{},
		slots: make(chan struct{}, maxAsking), connections: make(chan struct{}, maxConnections),
	}
	go a.accept()
	return a, nil
}

// Close ends the listening.
func (a *Asking) Close() error {
	if a == nil {
		return nil
	}
	return a.listener.Close()
}

// question was put to the server.
type question struct {
	run    uint64
	parts  chan frame.Request // has room for the one part that is on its way
	ended  chan struct{}      // closed when its execute has a result
	number uint64
}

// tell sends a frame about a question, unless that has ended: after the result of its execute,
// the server does not take it.
func (a *Asking) tell(q *question, reply frame.Reply) error {
	a.telling.Lock()
	defer a.telling.Unlock()
	select {
	case <-q.ended:
		return nil
	default:
	}
	reply.Type, reply.ID, reply.Ask = frame.Call, q.run, q.number
	return a.out(reply)
}

// Begin notes that an execute runs.
func (a *Asking) Begin(run uint64) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running = append(a.running, run)
}

// End ends the questions of an execute, before its result is sent.
func (a *Asking) End(run uint64) {
	if a == nil {
		return
	}
	a.telling.Lock()
	defer a.telling.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running = slices.DeleteFunc(a.running, func(id uint64) bool { return id == run })
	for number, q := range a.open {
		if q.run == run {
			delete(a.open, number)
			close(q.ended)
		}
	}
}

// Take hands a part of an answer to its question.
func (a *Asking) Take(part frame.Request) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if q := a.open[part.Ask]; q != nil {
		select {
		case q.parts <- part:
		default: // the server sends a part only when it was asked for it
		}
	}
}

func (a *Asking) accept() {
	raw, err := a.listener.SyscallConn()
	if err != nil {
		return
	}
	for {
		fd, wrong := -1, error(nil)
		err := raw.Read(func(listener uintptr) bool {
			fd, _, wrong = unix.Accept4(int(listener), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
			return !errors.Is(wrong, unix.EAGAIN)
		})
		if err != nil { // it is closed
			return
		}
		if wrong != nil { // too many files are open
			time.Sleep(10 * time.Millisecond)
			continue
		}
		conn := os.NewFile(uintptr(fd), "connection")
		select {
		case a.connections <- struct{}{}:
			go func() {
				defer func() { <-a.connections }()
				defer conn.Close()
				a.serve(conn)
			}()
		default:
			conn.Close()
		}
	}
}

// serve answers the questions of a connection until it breaks.
func (a *Asking) serve(conn *os.File) {
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
		a.slots <- struct{}{}
		err := a.relayQuestion(conn, in, size)
		<-a.slots
		if err != nil {
			return
		}
	}
}

// relayQuestion reads a question and answers it. The error is of the connection.
func (a *Asking) relayQuestion(conn *os.File, in *bufio.Reader, size uint32) error {
	_ = conn.SetReadDeadline(time.Now().Add(readTimeout))
	text := make([]byte, size)
	if _, err := io.ReadFull(in, text); err != nil {
		return err
	}
	_ = conn.SetReadDeadline(time.Time{})
	if size == 0 {
		return refuse(conn, "a question is JSON, and this one is empty")
	}
	q := a.register()
	if q == nil {
		return refuse(conn, "the server answers code only while a call of run is going on: this process outlived its call")
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
	err := a.answer(conn, q, text, gone)
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

func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// register registers a question of the execute that runs; it returns nil if no execute does.
func (a *Asking) register() *question {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.running) == 0 {
		return nil
	}
	a.last++
	q := &question{run: a.running[0], parts: make(chan frame.Request, 1), ended: make(chan struct{}), number: a.last}
	a.open[q.number] = q
	return q
}

// answer sends the question and writes the parts of its answer to the connection.
func (a *Asking) answer(conn *os.File, q *question, text []byte, gone <-chan struct{}) error {
	for more := true; more; {
		part := text[:min(questionPart, len(text))]
		text = text[len(part):]
		more = len(text) > 0
		if err := a.tell(q, frame.Reply{Contents: part, More: more}); err != nil {
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
			a.giveUp(q)
			return io.ErrClosedPipe
		}
		message := part.Contents
		if first {
			message = append(binary.BigEndian.AppendUint32(nil, uint32(part.Length)), message...)
		}
		if !part.More {
			a.take(q)
		}
		if _, err := conn.Write(message); err != nil {
			a.giveUp(q)
			return err
		}
		if !part.More {
			return nil
		}
		if err := a.tell(q, frame.Reply{More: true}); err != nil {
			return err
		}
	}
}

// take removes a question, and reports whether it was open.
func (a *Asking) take(q *question) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, open := a.open[q.number]
	delete(a.open, q.number)
	return open
}

// giveUp tells the server that an answer is not wanted.
func (a *Asking) giveUp(q *question) {
	if a.take(q) {
		_ = a.tell(q, frame.Reply{})
	}
}

// refuse answers in the form of the server's own refusals (package gate).
func refuse(conn *os.File, why string) error {
	text, err := json.Marshal(map[string]any{"error": map[string]string{"kind": "denied", "message": why}})
	if err != nil {
		return err
	}
	_, err = conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...))
	return err
}
