package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// maxReply bounds one reply of QEMU, in bytes.
const maxReply = 1 << 20

// monitor speaks QMP with QEMU, which is not trusted more than the machine.
type monitor struct {
	connection *net.UnixConn
	replies    chan reply
	stopped    chan struct{} // closed when the machine stopped by itself
	stop       sync.Once
}

// reply is a message of QEMU's: the greeting, a reply or an event.
type reply struct {
	QMP    json.RawMessage `json:"QMP"`
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Description string `json:"desc"`
	} `json:"error"`
	Event string `json:"event"`
}

func newMonitor(connection *net.UnixConn) *monitor {
	q := &monitor{connection: connection, replies: make(chan reply, 1), stopped: make(chan struct{})}
	go q.follow()
	return q
}

func (q *monitor) follow() {
	defer close(q.replies)
	limited := &io.LimitedReader{R: q.connection, N: maxReply}
	decoder := json.NewDecoder(limited)
	for {
		var r reply
		if decoder.Decode(&r) != nil {
			return
		}
		limited.N = maxReply
		if r.Event == "STOP" {
			q.stop.Do(func() { close(q.stopped) })
		}
		if r.Event == "" {
			q.replies <- r
		}
	}
}

var errNoMonitor = errors.New("QEMU's monitor ended")

// greet begins a conversation.
func (q *monitor) greet() error {
	if _, open := <-q.replies; !open {
		return errNoMonitor
	}
	_, err := q.execute("qmp_capabilities", nil)
	return err
}

// execute runs a command of QEMU's. One is under way at a time.
func (q *monitor) execute(command string, arguments any) (json.RawMessage, error) {
	line, err := json.Marshal(struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
	}{command, arguments})
	if err != nil {
		return nil, err
	}
	if _, err := q.connection.Write(append(line, '\n')); err != nil {
		return nil, fmt.Errorf("%w: %w", errNoMonitor, err)
	}
	r, open := <-q.replies
	switch {
	case !open:
		return nil, errNoMonitor
	case r.Error != nil:
		return nil, fmt.Errorf("QEMU's %s: %s", command, oneLine(r.Error.Description))
	}
	return r.Return, nil
}
