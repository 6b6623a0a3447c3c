package sandbox

import "context"

// Limit returns a Starter that runs at most n sandboxes at a time: a further start waits until
// another sandbox is gone. Each sandbox costs an interpreter's memory.
func Limit(next Starter, n int) Starter {
	return &limit{next, make(chan struct{}, n)}
}

type limit struct {
	next  Starter
	slots chan struct{} // contains an element for each sandbox
}

func (l *limit) Start(ctx context.Context, spec Spec) (Sandbox, error) {
	select {
	case l.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	// Both may have been possible.
	if err := ctx.Err(); err != nil {
		<-l.slots
		return nil, err
	}
	box, err := l.next.Start(ctx, spec)
	if err != nil {
		<-l.slots
		return nil, err
	}
	box.OnEnd(func() { <-l.slots })
	return box, nil
}
