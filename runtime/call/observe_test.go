package call

import (
	"context"
	"errors"
	"testing"
)

// recorder notes what it is told.
type recorder struct {
	began []Call
	ended []string
}

func (r *recorder) Begin(c Call) func(Result, error) {
	r.began = append(r.began, c)
	return func(result Result, err error) { r.ended = append(r.ended, Outcome(result, err)) }
}

type panicking struct{}

func (panicking) Answer(context.Context, Call) (Result, error) { panic("a defect") }

func TestObserve_TellsOfEachCallOnce(t *testing.T) {
	var a, b recorder
	ok := Result{}
	ok.Outcome = "ok"
	calls := Observe(fixed{ok, nil}, &a, &b)
	_, _ = calls.Answer(t.Context(), Call{Session: "s"})
	_, _ = Observe(fixed{Result{}, context.Canceled}, &a, &b).Answer(t.Context(), Call{})
	ReportRefusal(Call{Session: "t"}, errors.New("no"), &a, &b)
	func() {
		defer func() { _ = recover() }()
		_, _ = Observe(panicking{}, &a, &b).Answer(t.Context(), Call{})
	}()
	for _, r := range []recorder{a, b} {
		if len(r.began) != 4 || r.began[0].Session != "s" || r.began[2].Session != "t" {
			t.Errorf("began: %+v", r.began)
		}
		want := []string{"ok", "cancelled", "refused", "refused"}
		for i, got := range r.ended {
			if i >= len(want) || got != want[i] {
				t.Errorf("ended: %q, want %q", r.ended, want)
			}
		}
	}
	if next := (panicking{}); Observe(next) != Executor(next) {
		t.Error("without observers there is another executor in front")
	}
}
