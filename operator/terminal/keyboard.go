package terminal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// answerWithin is the time for a terminal to answer. A message takes less around the world and
// back.
const answerWithin = time.Second

// questions is how often the terminal is asked for its cursor. With 24 lines of 80 columns,
// there are 2^65 different answers.
const questions = 6

// keyboard is the input of a terminal: keys of the user, and the terminal's answers to questions
// of programs.
type keyboard struct {
	// gone is closed when the input has ended.
	gone chan struct{}

	mu sync.Mutex
	// want is the answer that drain waits for; nil while input goes to the program. recent has
	// the last bytes that were discarded.
	want, recent []byte
	seen         chan struct{} // closed when want has come
}

// feed copies in to a program's terminal until in ends. A read of a terminal
// cannot be cancelled, so this may last as long as the process.
func (k *keyboard) feed(p Program, in io.Reader) {
	defer close(k.gone)
	buf := make([]byte, 32<<10)
	for {
		n, err := in.Read(buf)
		if !k.discards(buf[:n]) {
			// The program may have ended.
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

// discards takes input if drain waits, and reports whether it did.
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

// drain discards input until the terminal has answered all questions of programs, or until
// answerWithin has passed. Terminals answer in order, so it asks a question of its own. A program
// must not be able to cause the same answer before that, so drain moves the cursor to random
// positions and asks for each. It puts the cursor back.
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
