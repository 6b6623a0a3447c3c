package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/interactive"
)

// answerWithin is how long a terminal may take to answer: more than a message
// takes around the world and back.
const answerWithin = time.Second

// questions is how often the terminal is asked for its cursor. With 24 lines of
// 80 columns, the answers are one of 2^65.
const questions = 6

// keyboard is the input of a terminal: what a user types, and the terminal's
// answers to programs that asked it something.
type keyboard struct {
	// gone is closed when the input has ended.
	gone chan struct{}

	mu sync.Mutex
	// want are the bytes that end what drain discards; nil while input goes to
	// the program. recent are the last bytes that were discarded.
	want, recent []byte
	seen         chan struct{} // closed when want has come
}

// feed copies in to a program's terminal until in ends. A read of a terminal
// cannot be cancelled, so this may last as long as the process.
func (k *keyboard) feed(p *interactive.Program, in io.Reader) {
	defer close(k.gone)
	buf := make([]byte, chunk)
	for {
		n, err := in.Read(buf)
		if !k.discards(buf[:n]) {
			// The program may have ended: then nobody wants the input.
			_ = p.Type(buf[:n])
		}
		if errors.Is(err, io.EOF) {
			_ = p.CloseInput()
		}
		if err != nil {
			return
		}
	}
}

// discards takes input while drain waits, and reports whether it did.
func (k *keyboard) discards(data []byte) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.want == nil {
		return false
	}
	k.recent = append(k.recent, data...)
	if bytes.Contains(k.recent, k.want) {
		k.want = nil
		close(k.seen)
		return true
	}
	k.recent = k.recent[max(0, len(k.recent)-len(k.want)):]
	return true
}

// drain discards input until the terminal has answered everything that programs
// asked, or until answerWithin has passed. Terminals answer in order, so it asks
// something itself. Programs must not be able to have the same answer on its way
// already, so it moves the cursor to random positions and asks for each. Then the
// cursor is where it was.
func (k *keyboard) drain(out io.Writer, size frame.Terminal) {
	var question, answer strings.Builder
	question.WriteString("\x1b7")
	for range questions {
		row, column := rand.IntN(int(size.Rows))+1, rand.IntN(int(size.Columns))+1
		fmt.Fprintf(&question, "\x1b[%d;%dH\x1b[6n", row, column)
		fmt.Fprintf(&answer, "\x1b[%d;%dR", row, column)
	}
	question.WriteString("\x1b8")
	k.mu.Lock()
	k.want, k.recent, k.seen = []byte(answer.String()), nil, make(chan struct{})
	k.mu.Unlock()
	_, _ = io.WriteString(out, question.String())
	over := time.NewTimer(answerWithin)
	defer over.Stop()
	select {
	case <-k.seen:
	case <-k.gone:
	case <-over.C:
	}
	k.mu.Lock()
	k.want = nil
	k.mu.Unlock()
}
