package mcpstdio

import "sync"

// spare is how many goroutines wait for the next call.
const spare = 4

// workers run functions beside each other, on goroutines that have run one
// before where they can: answering a call takes a deep stack, and a new
// goroutine copies its stack several times until it has one, which was a
// tenth of the server's time of a short call.
type workers struct {
	running sync.WaitGroup
	next    chan func()
	waiting chan struct{} // holds a token for each goroutine that waits
}

func newWorkers() *workers {
	return &workers{next: make(chan func()), waiting: make(chan struct{}, spare)}
}

// do runs f on a goroutine other than the caller's.
func (w *workers) do(f func()) {
	w.running.Add(1)
	select {
	case w.next <- f:
	default:
		go w.work(f)
	}
}

func (w *workers) work(f func()) {
	for open := true; open; {
		w.run(f)
		select {
		case w.waiting <- struct{}{}:
		default:
			return
		}
		f, open = <-w.next
		<-w.waiting
	}
}

func (w *workers) run(f func()) {
	defer w.running.Done()
	f()
}

// end waits until all functions have returned. Nothing may be done after it.
func (w *workers) end() {
	w.running.Wait()
	close(w.next)
}
