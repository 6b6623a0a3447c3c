package asking

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// world is code on one side of an Asking, and a server on the other.
type world struct {
	*Asking
	t        *testing.T
	socket   string
	fromCode *frame.Reader
	agentOut *frame.Writer
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, socket: filepath.Join(t.TempDir(), "socket")}
	outRead, outWrite, err := os.Pipe()
	must.Do(t, err)
	must.Do(t, outRead.SetReadDeadline(time.Now().Add(patience.Long)))
	w.fromCode, w.agentOut = frame.NewReader(outRead), frame.NewWriter(outWrite)
	w.Asking = must.Get(Listen(w.socket, w.agentOut.Write))(t)
	t.Cleanup(func() { w.Close(); outRead.Close(); outWrite.Close() })
	return w
}

func (w *world) connect() net.Conn {
	w.t.Helper()
	conn := must.Get(net.Dial("unix", w.socket))(w.t)
	must.Do(w.t, conn.SetDeadline(time.Now().Add(patience.Long)))
	w.t.Cleanup(func() { conn.Close() })
	return conn
}

func ask(t *testing.T, conn net.Conn, question string) {
	t.Helper()
	must.Get(conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(question))), question...)))(t)
}

func answerOf(t *testing.T, conn net.Conn) string {
	t.Helper()
	header := make([]byte, 4)
	must.Get(io.ReadFull(conn, header))(t)
	text := make([]byte, binary.BigEndian.Uint32(header))
	must.Get(io.ReadFull(conn, text))(t)
	return string(text)
}

// call reads the frames of a question.
func (w *world) call() (first frame.Reply, question string) {
	w.t.Helper()
	for {
		var part frame.Reply
		must.Do(w.t, w.fromCode.Read(&part))
		if part.Type != frame.Call {
			w.t.Fatalf("the runtime got %+v", part)
		}
		question += string(part.Contents)
		if !part.More {
			return part, question
		}
	}
}

func TestQuestionsAndAnswersOfAnySize(t *testing.T) {
	w := newWorld(t)
	w.Begin(7)
	conn := w.connect()
	for _, size := range []int{1, questionPart - 1, questionPart, questionPart + 1, MaxQuestion} {
		question := strings.Repeat("q", size)
		go ask(t, conn, question)
		asked, got := w.call()
		if got != question || asked.ID != 7 {
			t.Fatalf("size %d: a question of %d bytes, of execute %d", size, len(got), asked.ID)
		}
		parts := []string{strings.Repeat("a", size), strings.Repeat("b", size), "c"}
		go func() {
			for i, part := range parts {
				if i > 0 { // asked for
					var more frame.Reply
					_ = w.fromCode.Read(&more)
				}
				w.Take(frame.Request{Type: frame.Called, ID: 7, Ask: asked.Ask, Contents: []byte(part), Length: int64(2*size + 1), More: i < 2})
			}
		}()
		if got, want := answerOf(t, conn), strings.Join(parts, ""); got != want {
			t.Errorf("size %d: an answer of %d bytes, want %d", size, len(got), len(want))
		}
	}
}

// refusal reads an answer that is the agent's own.
func refusal(t *testing.T, conn net.Conn) string {
	t.Helper()
	var answer struct {
		Error struct{ Kind, Message string }
	}
	must.Do(t, json.Unmarshal([]byte(answerOf(t, conn)), &answer))
	return answer.Error.Kind + ": " + answer.Error.Message
}

func TestBetweenRunsTheSocketRefuses(t *testing.T) {
	w := newWorld(t)
	conn := w.connect()
	ask(t, conn, "{}")
	if got := refusal(t, conn); !strings.Contains(got, "outlived its call") {
		t.Errorf("before: %s", got)
	}
	w.Begin(1)
	ask(t, conn, "{}")
	if asked, _ := w.call(); asked.ID != 1 {
		t.Errorf("of execute %d", asked.ID)
	}
	// The result ends the question first, and nothing about it follows.
	w.End(1)
	must.Do(t, w.agentOut.Write(frame.Reply{Type: frame.Output, ID: 1, Data: "x"}, frame.Reply{Type: frame.Result, ID: 1}))
	if got := refusal(t, conn); !strings.Contains(got, "may have done its work") {
		t.Errorf("during: %s", got)
	}
	ask(t, conn, "{}")
	if got := refusal(t, conn); !strings.Contains(got, "outlived its call") {
		t.Errorf("after: %s", got)
	}
	var output, result frame.Reply
	must.Do(t, w.fromCode.Read(&output))
	must.Do(t, w.fromCode.Read(&result))
	if output.Type != frame.Output || result.Type != frame.Result {
		t.Errorf("%+v, %+v", output, result)
	}
	// The next execute's questions are its own.
	w.Begin(2)
	ask(t, conn, "{}")
	if asked, _ := w.call(); asked.ID != 2 {
		t.Errorf("of execute %d", asked.ID)
	}
}

func TestWhoeverAskedIsGone(t *testing.T) {
	w := newWorld(t)
	w.Begin(1)
	conn := w.connect()
	ask(t, conn, "{}")
	asked, _ := w.call()
	conn.Close()
	given, question := w.call()
	if given.Ask != asked.Ask || question != "" {
		t.Errorf("%+v", given)
	}
	// A late answer has nowhere to go, and harms nothing.
	w.Take(frame.Request{Type: frame.Called, ID: 1, Ask: asked.Ask, Contents: []byte("x"), Length: 1})
	w.Begin(2)
}

func TestTooLargeQuestion(t *testing.T) {
	w := newWorld(t)
	w.Begin(1)
	conn := w.connect()
	must.Get(conn.Write(binary.BigEndian.AppendUint32(nil, MaxQuestion+1)))(t)
	if got := refusal(t, conn); !strings.Contains(got, "512 KiB") {
		t.Error(got)
	}
	if n, err := conn.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("%d bytes, error %v", n, err)
	}
}
