package main

import (
	"encoding/json"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/network/relay"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/event"
)

// maxAsking bounds the connections that wait for an answer. Others are refused.
const maxAsking = 64

// asker asks whoever reads the events. It refuses when that has ended.
type asker struct {
	send func(line []byte) bool
	from *os.File // referred to here, because it would be closed otherwise

	mu      sync.Mutex
	last    uint64
	waiting map[uint64]chan event.Reason
	isOver  bool
}

// askUser returns a function that asks over the descriptor of events. Everything is refused if that
// is no socket of messages, from which an answer could come.
func askUser() relay.Ask {
	kind, err := unix.GetsockoptInt(eventsDescriptor, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil || kind != unix.SOCK_SEQPACKET {
		return func(string, uint16) event.Reason { return event.ByNobody }
	}
	a := &asker{waiting: map[uint64]chan event.Reason{}, send: func(line []byte) bool {
		n, err := unix.Write(eventsDescriptor, line)
		return err == nil && n == len(line)
	}}
	a.from = os.NewFile(eventsDescriptor, "events")
	go a.read(a.from.Read)
	return a.ask
}

// ask waits for an answer as long as whoever gives it lives: that bounds the time.
func (a *asker) ask(name string, port uint16) event.Reason {
	a.mu.Lock()
	if a.isOver || len(a.waiting) == maxAsking {
		a.mu.Unlock()
		return event.ByNobody
	}
	a.last++
	id, answer := a.last, make(chan event.Reason, 1)
	a.waiting[id] = answer
	a.mu.Unlock()
	line, err := json.Marshal(event.Event{Kind: event.Asked, Name: name, Port: port, Ask: id})
	if err != nil || !a.send(append(line, '\n')) {
		a.answer(event.Answer{Ask: id, Refused: event.ByNobody})
	}
	return <-answer
}

func (a *asker) answer(given event.Answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if waiting := a.waiting[given.Ask]; waiting != nil {
		delete(a.waiting, given.Ask)
		waiting <- given.Refused
	}
}

// read takes answers until their stream ends or makes no sense.
func (a *asker) read(from func([]byte) (int, error)) {
	var buffer [event.MaxLine]byte
	for {
		n, err := from(buffer[:])
		var given event.Answer
		if err != nil || bounded.JSON(buffer[:n], &given) != nil {
			break
		}
		a.answer(given)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.isOver = true
	for id, waiting := range a.waiting {
		delete(a.waiting, id)
		waiting <- event.ByNobody
	}
}
