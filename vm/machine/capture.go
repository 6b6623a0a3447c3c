package machine

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/protocol"
)

var errUncapturable = errors.New("this virtual machine was not started to be captured")

// Capture freezes the processes of the machine and writes the state of its devices, and the memory
// pages that it has written to, to two new files. If Capture succeeds, the machine is paused until
// [Machine.Continue]; after an error it continues if it can. rest writes the other pages of the
// memory, at any time.
//
// No frame may be on its way into the machine: it would be lost. The machine must be capturable, or
// have begun with a state.
func (m *Machine) Capture(memory, state *os.File) (rest func() error, err error) {
	if m.memory == nil {
		return nil, errUncapturable
	}
	if err := m.Ask(protocol.Request{Do: protocol.Freeze}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			if stuck := m.Continue(); stuck != nil {
				err = fmt.Errorf("%w, and the virtual machine does not go on: %w", err, stuck)
			}
		}
	}()
	if err := m.Pause(); err != nil {
		return nil, err
	}
	if err := m.qmp.saveDevices(state); err != nil {
		return nil, err
	}
	if err := memory.Truncate(m.size); err != nil {
		return nil, err
	}
	return m.copyMemory(memory)
}

// Continue continues a paused machine and its processes.
func (m *Machine) Continue() error {
	if _, err := m.qmp.execute("cont", nil); err != nil {
		return err
	}
	return m.Thaw(time.Now())
}

const pageSize = 4096

// part is how many pages are copied at once.
const part = 256

var zeros [pageSize]byte

// writeSparse writes those pages that are not zero to a new file.
func writeSparse(to *os.File, pages []byte, at int64) error {
	isZero := func(at int) bool { return string(pages[at:at+pageSize]) == string(zeros[:]) }
	for from := 0; from < len(pages); {
		end := from
		for end < len(pages) && !isZero(end) {
			end += pageSize
		}
		if end > from {
			if _, err := to.WriteAt(pages[from:end], at+int64(from)); err != nil {
				return err
			}
		}
		for from = end; from < len(pages) && isZero(from); from += pageSize {
		}
	}
	return nil
}
