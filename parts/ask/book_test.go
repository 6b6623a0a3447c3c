package ask

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
)

// way is a client's user in a test.
type way func(ctx context.Context, q call.Question) (call.Choice, error)

func (w way) Put(ctx context.Context, q call.Question) (call.Choice, error) { return w(ctx, q) }

// silent never answers.
var silent = way(func(ctx context.Context, _ call.Question) (call.Choice, error) {
	<-ctx.Done()
	return "", ctx.Err()
})

// asks is an executor whose calls ask about a matter.
type asks func(ctx context.Context, c call.Call)

func (a asks) Answer(ctx context.Context, c call.Call) (call.Result, error) {
	a(ctx, c)
	return call.Result{}, nil
}

func quiet() *Book { return New(slog.New(slog.DiscardHandler)) }

// decide has a call ask, and returns the choice.
func decide(ctx context.Context, b *Book, c call.Call, m call.Matter) (choice call.Choice) {
	_, _ = b.Executor(asks(func(ctx context.Context, c call.Call) { choice = c.User.Decide(ctx, m) })).Answer(ctx, c)
	return choice
}

var someTool = call.Matter{Kind: call.ToTool, Name: "github.create_issue", Arguments: `{"title":"x"}`}

func python(principal, session string, client call.Way) call.Call {
	return call.Call{Principal: principal, Session: session, Env: registry.Environment{Name: "python", AskWithin: time.Minute}, Client: client}
}

// While a question is open, whoever looks at the call sees what it waits for.
func TestDecide_SaysWhatTheCallWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := quiet()
		var progress sandbox.Progress
		progress.Follow(func(int) (stdout, stderr sandbox.Text, line string) { return stdout, stderr, "output" })
		c := python("a", "", way(func(context.Context, call.Question) (call.Choice, error) {
			if waits := progress.Waits(); !strings.Contains(waits, "the user's answer") {
				t.Errorf("it waits for %q", waits)
			}
			return call.Once, nil
		}))
		c.Progress = &progress
		if choice := decide(t.Context(), b, c, someTool); choice != call.Once || progress.Waits() != "" {
			t.Errorf("chose %q, waits for %q", choice, progress.Waits())
		}
	})
}

func TestBook_TakesTheFirstAnswerAndWithdrawsTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := quiet()
		_, stop := b.Listen("a")
		defer stop()
		withdrawn := false
		client := way(func(ctx context.Context, q call.Question) (call.Choice, error) {
			<-ctx.Done()
			withdrawn = true
			return "", ctx.Err()
		})
		var got call.Choice
		go func() { got = decide(t.Context(), b, python("a", "", client), someTool) }()
		synctest.Wait()
		open := b.Questions("a")
		if len(open) != 1 {
			t.Fatalf("open: %v", open)
		}
		if err := b.Answer("a", open[0].ID, call.Once); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got != call.Once || !withdrawn {
			t.Errorf("choice %q, withdrawn %v", got, withdrawn)
		}
		if err := b.Answer("a", open[0].ID, call.Once); !errors.Is(err, ErrAnswered) {
			t.Errorf("a second answer: %v", err)
		}
	})
}

func TestBook_RefusesWithoutAWayToAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := quiet()
		began := time.Now()
		if got := decide(t.Context(), b, python("a", "", nil), someTool); got != call.Nobody || time.Since(began) != 0 {
			t.Errorf("%q after %v", got, time.Since(began))
		}
		broken := way(func(context.Context, call.Question) (call.Choice, error) { return "", errors.New("gone") })
		if got := decide(t.Context(), b, python("a", "", broken), someTool); got != call.Nobody || time.Since(began) != 0 {
			t.Errorf("a client that cannot: %q after %v", got, time.Since(began))
		}
		if got := decide(t.Context(), b, python("a", "", silent), someTool); got != call.Nobody || time.Since(began) != time.Minute {
			t.Errorf("a client that is silent: %q after %v", got, time.Since(began))
		}
		// The last listener goes.
		_, stop := b.Listen("a")
		time.AfterFunc(time.Second, stop)
		began = time.Now()
		if got := decide(t.Context(), b, python("a", "", nil), someTool); got != call.Nobody || time.Since(began) != time.Second {
			t.Errorf("a listener that goes: %q after %v", got, time.Since(began))
		}
		if n := len(b.open) + len(b.each) + len(b.grants) + len(b.heard); n != 0 {
			t.Errorf("%d things are left", n)
		}
	})
}

// always answers with a choice, and counts the questions.
func always(choice call.Choice, count *int) call.Way {
	var mu sync.Mutex
	return way(func(context.Context, call.Question) (call.Choice, error) {
		mu.Lock()
		defer mu.Unlock()
		*count++
		return choice, nil
	})
}

func TestBook_RemembersWhatWasAllowedForLonger(t *testing.T) {
	b := quiet()
	n := 0
	ask := func(principal, session string, choice call.Choice, m call.Matter) call.Choice {
		return decide(t.Context(), b, python(principal, session, always(choice, &n)), m)
	}
	step := func(name string, want int, wantChoice call.Choice, got call.Choice) {
		t.Helper()
		if n != want || got != wantChoice {
			t.Errorf("%s: %d questions and %q, want %d and %q", name, n, got, want, wantChoice)
		}
	}
	other := someTool
	other.Name = "github.delete_repo"
	step("once", 1, call.Once, ask("a", "s", call.Once, someTool))
	step("once is over", 2, call.ForSession, ask("a", "s", call.ForSession, someTool))
	step("the session", 2, call.Always, ask("a", "s", call.No, someTool))
	step("another tool", 3, call.No, ask("a", "s", call.No, other))
	step("another session", 4, call.No, ask("a", "t", call.No, someTool))
	step("no session", 5, call.No, ask("a", "", call.No, someTool))
	step("another principal", 6, call.No, ask("b", "s", call.No, someTool))
	b.forget(call.Key{Principal: "a", ID: "s"})
	step("a new session of the name", 7, call.Always, ask("a", "s", call.Always, someTool))
	step("always", 7, call.Always, ask("a", "t", call.No, someTool))
	step("always, of another principal", 8, call.No, ask("b", "t", call.No, someTool))
	b.forget(call.Key{Principal: "a", ID: ""})
	step("always stays", 8, call.Always, ask("a", "", call.No, someTool))
	step("a session that a call without one does not have", 9, call.Nobody, ask("c", "", call.ForSession, someTool))
}

func TestBook_IsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := quiet()
		ctx, cancel := context.WithCancel(t.Context())
		for range maxOpen {
			go decide(ctx, b, python("a", "", silent), someTool)
		}
		synctest.Wait()
		if n := len(b.Questions("a")); n != maxOpen {
			t.Errorf("%d open", n)
		}
		if got := decide(ctx, b, python("a", "", silent), someTool); got != call.Nobody {
			t.Errorf("one more: %q", got)
		}
		if len(b.Questions("b")) != 0 {
			t.Error("another principal sees questions")
		}
		n := 0
		if got := decide(ctx, b, python("b", "", always(call.Once, &n)), someTool); got != call.Once {
			t.Errorf("another principal: %q", got)
		}
		cancel()
		synctest.Wait()
		n = 0
		_, _ = b.Executor(asks(func(ctx context.Context, c call.Call) {
			for range 100 {
				c.User.Decide(ctx, someTool)
			}
		})).Answer(t.Context(), python("a", "", always(call.No, &n)))
		if n != maxOfCall || len(b.open) != 0 {
			t.Errorf("%d questions of one call, %d open", n, len(b.open))
		}
	})
}

func TestBook_AllQuestionsOfACallShareItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := quiet()
		began := time.Now()
		asked := 0
		client := way(func(ctx context.Context, q call.Question) (call.Choice, error) {
			asked++
			return silent(ctx, q)
		})
		_, _ = b.Executor(asks(func(ctx context.Context, c call.Call) {
			for range 3 {
				c.User.Decide(ctx, someTool)
				synctest.Wait()
			}
		})).Answer(t.Context(), python("a", "", client))
		if got := time.Since(began); got != time.Minute {
			t.Errorf("they wait for %v", got)
		}
		if asked != 1 {
			t.Errorf("the client is asked %d times, though no time is left after the first", asked)
		}
	})
}

func TestQuestion_QuotesWhatCodeChose(t *testing.T) {
	hostile := "{\"title\":\"x\"}\n\nDo you allow nothing? \x1b[2J\u202egpj.exe\u200b שלום \xff \U000e0041"
	m := someTool
	m.Arguments = hostile
	q := word(python("", "s", nil), m)
	lines := strings.Split(q.Text, "\n")
	want := []string{
		"Code in a sandbox (environment python, session s) calls the tool",
		"> github.create_issue",
		"with",
		`> {"title":"x"}\n\nDo you allow nothing? \x1b[2J\u202egpj.exe\u200b \u05e9`,
		`> \u05dc\u05d5\u05dd \xff \U000e0041`,
	}
	if strings.Join(lines, "\n") != strings.Join(want, "\n") {
		t.Errorf("%q, want %q", lines, want)
	}
	m.Arguments = strings.Repeat("a", 1500) + "MIDDLE" + strings.Repeat("b", 1500)
	long := word(python("", "s", nil), m).Text
	if strings.Contains(long, "MIDDLE") || len(long) > 3000 || !strings.Contains(long, "(1006 bytes are not shown; all 3006 have the SHA-256 ") {
		t.Errorf("a long one is %q", long)
	}
	m.Arguments = strings.Replace(m.Arguments, "MIDDLE", "MIDDLF", 1)
	if other := word(python("", "s", nil), m).Text; other == long {
		t.Error("two long texts have one question")
	}
}

// A long value hides no other argument, and a question is bounded whatever code chose.
func TestQuestion_ShowsEachArgument(t *testing.T) {
	m := someTool
	m.Arguments = `{"amount":9999,"note":"` + strings.Repeat("n", 5000) + `","to":"mal\u202elory","x":{"a":"` + strings.Repeat("y", 3000) + `"}}`
	text := word(python("", "", nil), m).Text
	for _, want := range []string{"\n> \"amount\": 9999\n", "\n> \"note\": \"nnn", "(500 of 5002 bytes are shown; all have the SHA-256 ", "\n> \"to\": \"mal\\u202elory\"\n", "\n> \"x\": {\"a\":"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	var many []string
	for i := range 64 {
		many = append(many, fmt.Sprintf(`"%s%02d":"%s"`, strings.Repeat("k", 126), i, strings.Repeat("v", 8000)))
	}
	m.Arguments = "{" + strings.Join(many, ",") + "}"
	text = word(python("", "", nil), m).Text
	if strings.Count(text, "kk") < 64 || !strings.Contains(text, "k63") || len(text) > 40_000 {
		t.Errorf("%d bytes", len(text))
	}
}

func FuzzQuote(f *testing.F) {
	f.Add("a\nb")
	f.Add("\xff\u202e")
	f.Add(`{"a\u202e":"\n","b":[1]}`)
	f.Fuzz(func(t *testing.T, text string) {
		for _, line := range strings.Split(Quote(text)+"\n"+quoteArguments(text), "\n") {
			if !strings.HasPrefix(line, "> ") && !strings.HasPrefix(line, "(") || len(line) > 200 {
				t.Errorf("%q has the line %q", text, line)
			}
			for _, r := range line {
				if r < ' ' || r == 0x7f || r == 0x202e || r == 0xfffd {
					t.Errorf("%q shows %U", text, r)
				}
			}
		}
	})
}

// Whoever listens for everyone makes questions of each principal possible, and leaves those open that
// another listener can still answer.
func TestBook_ListensForEveryone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := quiet()
		changed, stop := b.Listen(Everyone)
		_, stopOwn := b.Listen("a")
		choices := map[string]chan call.Choice{"a": make(chan call.Choice, 1), "b": make(chan call.Choice, 1)}
		for principal, choice := range choices {
			go func() { choice <- decide(t.Context(), b, python(principal, "", nil), someTool) }()
		}
		synctest.Wait()
		if got := len(b.Questions(Everyone)); got != 2 || len(b.Questions("a")) != 1 || len(b.Questions("")) != 0 || len(changed) != 1 {
			t.Errorf("everyone sees %d questions", got)
		}
		stop()
		if choice := <-choices["b"]; choice != call.Nobody {
			t.Errorf("nobody listens, and it is %q", choice)
		}
		own := b.Questions("a")
		if len(own) != 1 || b.Answer("b", own[0].ID, call.Once) == nil || b.Answer(Everyone, own[0].ID, call.Once) != nil {
			t.Errorf("questions %+v", own)
		}
		if choice := <-choices["a"]; choice != call.Once {
			t.Errorf("chose %q", choice)
		}
		stopOwn()
	})
}
