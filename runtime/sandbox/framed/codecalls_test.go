package framed

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// asking returns the questions of a call, and what the agent is told.
func asking(t *testing.T, plain func(ctx context.Context, question []byte) []byte) (*codeCalls, chan frame.Request) {
	t.Helper()
	told := make(chan frame.Request, 2*maxAsking)
	answer := func(ctx context.Context, _ sandbox.Sandbox, question []byte) []byte { return plain(ctx, question) }
	a := newCodeCalls(t.Context(), nil, sandbox.Request{Ask: answer, Timeout: time.Minute}, func(m frame.Request) { told <- m })
	t.Cleanup(a.end)
	return a, told
}

func takes(t *testing.T, a *codeCalls, replies ...frame.Reply) {
	t.Helper()
	for _, reply := range replies {
		if err := a.take(reply); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAsks_PassAnswersInParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		want := bytes.Repeat([]byte("x"), 2*answerPart+1)
		a, told := asking(t, func(_ context.Context, question []byte) []byte {
			if string(question) != "one two" {
				t.Errorf("asked %q", question)
			}
			return want
		})
		takes(t, a, frame.Reply{ID: 3, Ask: 9, Contents: []byte("one "), More: true}, frame.Reply{ID: 3, Ask: 9, Contents: []byte("two")})
		var got []byte
		for more := true; more; {
			part := <-told
			if part.Type != frame.Called || part.ID != 3 || part.Ask != 9 || len(part.Contents) > answerPart {
				t.Fatalf("%+v", part)
			}
			got = append(got, part.Contents...)
			synctest.Wait()
			if len(told) > 0 {
				t.Fatal("a part came that nobody asked for")
			}
			if more = part.More; more {
				takes(t, a, frame.Reply{ID: 3, Ask: 9, More: true})
			}
		}
		if !bytes.Equal(got, want) || len(a.open) != 0 {
			t.Errorf("%d bytes, %d questions are open", len(got), len(a.open))
		}
		takes(t, a, frame.Reply{ID: 3, Ask: 9}) // too late to give it up
	})
}

// What code leaves unread of its answers keeps little more memory than its own size.
func TestAsks_HoldWhatIsLeft(t *testing.T) {
	const questions, size = 16, 8 << 20
	synctest.Test(t, func(t *testing.T) {
		a, told := asking(t, func(context.Context, []byte) []byte { return make([]byte, size) })
		for i := range uint64(questions) {
			takes(t, a, frame.Reply{ID: 3, Ask: i, Contents: []byte("one")})
			for part := range (size - 1) / answerPart {
				if first := <-told; len(first.Contents) != answerPart {
					t.Fatalf("part %d has %d bytes", part, len(first.Contents))
				}
				if part < (size-1)/answerPart-1 {
					takes(t, a, frame.Reply{ID: 3, Ask: i, More: true})
				}
			}
			synctest.Wait()
		}
		runtime.GC()
		var memory runtime.MemStats
		runtime.ReadMemStats(&memory)
		if a.waiting > questions*2*answerPart || memory.HeapAlloc > questions*size/2 {
			t.Errorf("%d bytes wait, and %d MiB are held", a.waiting, memory.HeapAlloc>>20)
		}
	})
}

// A question ends with its call, at the call's time limit, and when the code gives it up. It gets no
// answer then, which could let code fail before it is told that its time is over.
// A panic costs its question an error, and no other question its answer.
func TestAsks_OutlastAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, told := asking(t, func(_ context.Context, question []byte) []byte {
			if string(question) == "bad" {
				panic("a test")
			}
			return []byte("fine")
		})
		for ask, test := range map[uint64][2]string{1: {"bad", failed}, 2: {"good", "fine"}} {
			takes(t, a, frame.Reply{ID: 3, Ask: ask, Contents: []byte(test[0])})
			if part := <-told; part.Ask != ask || string(part.Contents) != test[1] {
				t.Errorf("%s is answered %q", test[0], part.Contents)
			}
		}
		synctest.Wait()
		if len(a.open) != 0 {
			t.Errorf("%d questions are open", len(a.open))
		}
	})
}

func TestAsks_End(t *testing.T) {
	for name, end := range map[string]func(*codeCalls){
		"its call":       func(a *codeCalls) { a.end() },
		"its time limit": func(*codeCalls) { time.Sleep(time.Minute) },
		"the code":       func(a *codeCalls) { _ = a.take(frame.Reply{Ask: 1}) },
	} {
		synctest.Test(t, func(t *testing.T) {
			var ended atomic.Bool // a timer that ends the question is not ordered after a read here
			a, told := asking(t, func(ctx context.Context, _ []byte) []byte {
				<-ctx.Done()
				ended.Store(true)
				return []byte("late")
			})
			takes(t, a, frame.Reply{Ask: 1, Contents: []byte("x")})
			synctest.Wait()
			if ended.Load() {
				t.Errorf("%s: it ends by itself", name)
			}
			end(a)
			synctest.Wait()
			if !ended.Load() || len(told) != 0 {
				t.Errorf("%s: ended %v, %d answers", name, ended.Load(), len(told))
			}
		})
	}
}

// An agent that breaks a rule is told from an honest one.
func TestAsks_Refuse(t *testing.T) {
	for rule, send := range map[string]func(*codeCalls) error{
		"more at a time": func(a *codeCalls) (err error) {
			for n := range uint64(maxAsking + 1) {
				if err == nil {
					err = a.take(frame.Reply{Ask: n, Contents: []byte("x")})
				}
			}
			return err
		},
		"more bytes": func(a *codeCalls) (err error) {
			for range 6 {
				if err == nil {
					err = a.take(frame.Reply{Ask: 1, Contents: make([]byte, maxQuestion/5), More: true})
				}
			}
			return err
		},
		"there is not yet": func(a *codeCalls) error {
			_ = a.take(frame.Reply{Ask: 1, Contents: []byte("x")})
			return a.take(frame.Reply{Ask: 1, More: true})
		},
		"asked more than": func(a *codeCalls) (err error) {
			for range maxAskTotal + 1 {
				if err == nil {
					err = a.take(frame.Reply{Ask: 1})
				}
			}
			return err
		},
	} {
		a, _ := asking(t, func(ctx context.Context, _ []byte) []byte {
			<-ctx.Done()
			return nil
		})
		if err := send(a); err == nil || !strings.Contains(err.Error(), rule) {
			t.Errorf("%s: %v", rule, err)
		}
	}
}

// A question that the code gives up keeps its place until the work on it ends.
func TestAsks_KeepThePlaceOfWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		finish := make(chan struct{})
		a, told := asking(t, func(context.Context, []byte) []byte {
			<-finish
			return []byte("late")
		})
		var err error
		for n := range uint64(4 * maxAsking) {
			if err = a.take(frame.Reply{Ask: n, Contents: []byte("x")}); err != nil {
				break
			}
			takes(t, a, frame.Reply{Ask: n}, frame.Reply{Ask: n})
		}
		if err == nil || len(a.open) != maxAsking {
			t.Errorf("%d questions are worked on: %v", len(a.open), err)
		}
		close(finish)
		synctest.Wait()
		if len(a.open) != 0 || a.left != 0 || len(told) != 0 {
			t.Errorf("after the work %d are open, %d given up, and %d answers came", len(a.open), a.left, len(told))
		}
		takes(t, a, frame.Reply{Ask: 1000, Contents: []byte("x")})
		synctest.Wait()
		if len(told) != 1 {
			t.Error("there is no place after the work")
		}
	})
}

// Answers that the agent does not read are bounded in number and in bytes.
func TestAsks_BoundWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newCodeCalls(t.Context(), nil, sandbox.Request{Ask: func(context.Context, sandbox.Sandbox, []byte) []byte { return []byte("x") }, Timeout: time.Minute}, nil)
		defer a.end()
		read := make(chan struct{})
		a.tell = func(frame.Request) { <-read }
		var err error
		asked := 0
		for ; err == nil && asked < 8*maxAsking; asked++ {
			err = a.take(frame.Reply{Ask: uint64(asked), Contents: []byte("x")})
			synctest.Wait()
		}
		if err == nil || asked < maxAsking {
			t.Errorf("after %d answers that it does not read: %v", asked, err)
		}
		close(read)
		synctest.Wait()
		if a.telling != 0 {
			t.Errorf("%d wait", a.telling)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		large := make([]byte, maxWaiting/2+answerPart)
		a, told := asking(t, func(context.Context, []byte) []byte { return large })
		for n := range uint64(3) {
			takes(t, a, frame.Reply{Ask: n, Contents: []byte("x")})
			synctest.Wait()
			if part := <-told; part.More != (n == 0) || n > 0 && string(part.Contents) != tooMuch {
				t.Errorf("answer %d has %d bytes in its first part, more: %v", n, len(part.Contents), part.More)
			}
		}
		takes(t, a, frame.Reply{Ask: 0}, frame.Reply{Ask: 4, Contents: []byte("x")})
		synctest.Wait()
		if part := <-told; !part.More || a.waiting != len(large)-answerPart {
			t.Errorf("after the first is given up, %d bytes wait", a.waiting)
		}
	})
}

// An answer is charged for until its last part is passed, it is given up, or its call ends.
func TestAsks_AreCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := int64(0)
		large := make([]byte, 2*answerPart)
		a, told := asking(t, func(context.Context, []byte) []byte { return large })
		a.hold = func(n int64) (func(), error) {
			if held+n > 2*int64(len(large)) {
				return nil, errors.New("full")
			}
			held += n
			return sync.OnceFunc(func() { held -= n }), nil
		}
		for n := range uint64(3) {
			takes(t, a, frame.Reply{Ask: n, Contents: []byte("x")})
			synctest.Wait()
			if part := <-told; part.More != (n < 2) || n == 2 && string(part.Contents) != noRoom {
				t.Errorf("answer %d has %d bytes in its first part, more: %v", n, len(part.Contents), part.More)
			}
		}
		takes(t, a, frame.Reply{Ask: 0, More: true})
		if <-told; held != int64(len(large)) {
			t.Errorf("%d bytes are charged after the first was passed", held)
		}
		takes(t, a, frame.Reply{Ask: 1})
		synctest.Wait()
		if held != 0 {
			t.Errorf("%d bytes are charged after the second was given up", held)
		}
		takes(t, a, frame.Reply{Ask: 5, Contents: []byte("x")})
		synctest.Wait()
		a.close()
		if <-told; held != 0 {
			t.Errorf("%d bytes are charged after the call", held)
		}
	})
}
