package call

import (
	"context"
	"errors"
)

// Observer is told of calls. Its methods may be called at the same time, and calls wait for them.
type Observer interface {
	// Begin is called when a call begins. It returns a function that is called once, before the
	// answer leaves, with the result and the error of [Executor.Execute].
	Begin(Call) (end func(Result, error))
}

// Observe returns an Executor that tells observers of each call. Without observers it is
// next.
func Observe(next Executor, observers ...Observer) Executor {
	if len(observers) == 0 {
		return next
	}
	return &observed{next, observers}
}

type observed struct {
	next      Executor
	observers []Observer
}

// errPanicked is the error for observers of a call with an executor that panicked.
var errPanicked = errors.New("the server failed to run this call")

func (o *observed) Answer(ctx context.Context, call Call) (result Result, err error) {
	ends := make([]func(Result, error), len(o.observers))
	for i, observer := range o.observers {
		ends[i] = observer.Begin(call)
	}
	err = errPanicked
	defer func() {
		for _, end := range ends {
			end(result, err)
		}
	}()
	result, err = o.next.Answer(ctx, call)
	return result, err
}

// ReportRefusal tells observers of a call that was refused before it reached an executor.
func ReportRefusal(call Call, why error, observers ...Observer) {
	for _, observer := range observers {
		observer.Begin(call)(Result{}, why)
	}
}
