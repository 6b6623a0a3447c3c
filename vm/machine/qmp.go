package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/hostile"
)

// maxReply bounds one reply of QEMU, in bytes.
const maxReply = 1 << 20

// monitor speaks QMP with QEMU, which is not trusted more than the machine.
type monitor struct {
	connection *net.UnixConn
	replies    chan reply
	stopped    chan struct{} // closed when the machine stopped by itself
	stop       sync.Once
	pid        atomic.Int64 // QEMU's process id, as its messages have it; 0 before the first
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

// newMonitor speaks with a QEMU that has not started yet.
func newMonitor(connection *net.UnixConn) (*monitor, error) {
	if err := identify(connection); err != nil {
		return nil, err
	}
	q := &monitor{connection: connection, replies: make(chan reply, 1), stopped: make(chan struct{})}
	go q.follow()
	return q, nil
}

func (q *monitor) follow() {
	defer close(q.replies)
	limited := &io.LimitedReader{R: q, N: maxReply}
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
	return q.executeWith(nil, command, arguments)
}

// executeWith runs a command with a file, which QEMU gets a copy of.
func (q *monitor) executeWith(file *os.File, command string, arguments any) (json.RawMessage, error) {
	line, err := json.Marshal(struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
	}{command, arguments})
	if err != nil {
		return nil, err
	}
	var rights []byte
	if file != nil {
		rights = syscall.UnixRights(int(file.Fd()))
	}
	if _, _, err := q.connection.WriteMsgUnix(append(line, '\n'), rights, nil); err != nil {
		return nil, fmt.Errorf("%w: %w", errNoMonitor, err)
	}
	r, open := <-q.replies
	switch {
	case !open:
		return nil, errNoMonitor
	case r.Error != nil:
		return nil, fmt.Errorf("QEMU's %s: %s", command, hostile.Message(r.Error.Description))
	}
	return r.Return, nil
}

// stateFile is the name that QEMU knows the file of a machine's state by.
const stateFile = "state"

// keepShared says that memory that lies in a file is no part of the state.
func (q *monitor) keepShared() error {
	_, err := q.execute("migrate-set-capabilities", map[string]any{
		"capabilities": []any{map[string]any{"capability": "x-ignore-shared", "state": true}},
	})
	return err
}

// transfer gives QEMU a file for the state of a machine, has it save there or restore
// from there, and waits until query says that it is over.
func (q *monitor) transfer(file *os.File, command, query string, over func(status string) (bool, error), within time.Duration) error {
	if err := q.keepShared(); err != nil {
		return err
	}
	if _, err := q.executeWith(file, "getfd", map[string]any{"fdname": stateFile}); err != nil {
		return err
	}
	if _, err := q.execute(command, map[string]any{"uri": "fd:" + stateFile}); err != nil {
		return err
	}
	for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(500 * time.Microsecond) {
		text, err := q.execute(query, nil)
		if err != nil {
			return err
		}
		var answer struct {
			Status  string `json:"status"`
			Problem string `json:"error-desc"`
		}
		if err := json.Unmarshal(text, &answer); err != nil {
			return err
		}
		if done, err := over(answer.Status); done || err != nil {
			if answer.Problem != "" {
				err = fmt.Errorf("%w: %s", err, hostile.Message(answer.Problem))
			}
			return err
		}
	}
	return fmt.Errorf("QEMU's %s is not over within %v", command, within)
}

// save writes the state of a machine, which stops, to a file.
func (q *monitor) save(file *os.File, within time.Duration) error {
	if _, err := q.execute("stop", nil); err != nil {
		return err
	}
	return q.transfer(file, "migrate", "query-migrate", func(status string) (bool, error) {
		switch status {
		case "completed":
			return true, nil
		case "failed", "cancelled":
			return true, errors.New("QEMU did not save the machine")
		}
		return false, nil
	}, within)
}

// stateSet is the number of the set of descriptors that QEMU knows that file by.
const stateSet = 2

// saveDevices writes the state of all devices of a machine that stands still to a file
// that is open for writing alone. The memory is no part of it: QEMU has no other way
// to leave out memory that is the machine's own. The name of the command is history;
// it needs no Xen (qapi/migration.json of QEMU).
func (q *monitor) saveDevices(file *os.File) error {
	if _, err := q.executeWith(file, "add-fd", map[string]any{"fdset-id": stateSet}); err != nil {
		return err
	}
	_, err := q.execute("xen-save-devices-state", map[string]any{
		"filename": fmt.Sprintf("/dev/fdset/%d", stateSet),
		"live":     false, // so that the machine keeps its disk and may go on
	})
	_, closeErr := q.execute("remove-fd", map[string]any{"fdset-id": stateSet})
	return errors.Join(err, closeErr)
}

// restore reads the state of a machine from a file, and has it go on.
func (q *monitor) restore(file *os.File, within time.Duration) error {
	err := q.transfer(file, "migrate-incoming", "query-status", func(status string) (bool, error) {
		return status != "inmigrate", nil
	}, within)
	if err == nil {
		_, err = q.execute("cont", nil)
	}
	return err
}
