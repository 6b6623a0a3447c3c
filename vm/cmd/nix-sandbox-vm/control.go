package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/machine"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/vm/snapshot"
)

const (
	// controlVariable names the descriptor of a socket for the server's requests that are not
	// frames, because code could forge frames (docs/contracts.md, C1).
	controlVariable = "NIX_SANDBOX_CONTROL"
	// fromVariable names a folder with a machine that was saved on such a request.
	fromVariable = "NIX_SANDBOX_FROM"
)

// maxControl bounds a line of that socket, in bytes.
const maxControl = 16 << 10

// doSave is the only request so far.
const doSave = "save"

// controlRequest asks for the machine to be saved in a folder that does not exist yet.
type controlRequest struct {
	Do string `json:"do"`
	To string `json:"to"`
	// Keep says that the machine goes on; otherwise the launcher ends.
	Keep bool `json:"keep"`
}

type controlAnswer struct {
	Did   string `json:"did"`
	Error string `json:"error,omitempty"` // a sentence; the machine goes on
	// Bytes is the size of the folder, PauseMS how long the machine was paused.
	Bytes   int64 `json:"bytes,omitempty"`
	PauseMS int64 `json:"pause_ms,omitempty"`
}

// openControl opens the socket that the variable names. It returns nil if the variable is empty.
func openControl(value string) (*os.File, error) {
	if value == "" {
		return nil, nil
	}
	return given(controlVariable, value)
}

// controller answers requests about a machine.
type controller struct {
	spec    *machine.Spec
	serving *serving
	pauser  *pauser // nil if nothing happens before the first call
	project *machine.Project
	// saved is closed when the machine was saved and is not to go on.
	saved chan struct{}
}

// follow answers requests until the stream ends or makes no sense.
func (c *controller) follow(control io.ReadWriter) {
	lines := bufio.NewReaderSize(control, maxControl)
	for {
		line, err := lines.ReadSlice('\n')
		if err != nil {
			return
		}
		var request controlRequest
		if json.Unmarshal(line, &request) != nil {
			return
		}
		answer := controlAnswer{Did: request.Do}
		switch {
		case request.Do != doSave:
			answer.Error = fmt.Sprintf("the launcher does not know the request %.40q", request.Do)
		case !filepath.IsAbs(request.To):
			answer.Error = fmt.Sprintf("%q is no absolute path", request.To)
		default:
			err = c.save(request, &answer)
		}
		if err != nil {
			answer.Error = strings.ReplaceAll(err.Error(), "\n", "; ")
		}
		over := request.Do == doSave && !request.Keep && answer.Error == ""
		if json.NewEncoder(control).Encode(answer) != nil && !over {
			return
		}
		if over {
			close(c.saved)
			return
		}
	}
}

// save saves the machine. After an error it goes on.
func (c *controller) save(request controlRequest, answer *controlAnswer) (err error) {
	if c.pauser != nil {
		if err := errors.Join(c.pauser.resume("", true), c.pauser.beforeCall()); err != nil {
			return err
		}
	}
	meta := snapshot.Meta{Made: time.Now(), Accelerator: string(c.serving.Accelerator), Branch: request.Keep}
	if meta.Key, err = c.spec.Key(c.serving.Accelerator); err != nil {
		return err
	}
	draft, err := snapshot.Create(request.To)
	if err != nil {
		return err
	}
	defer draft.Close()
	began := time.Now()
	rest, err := c.serving.Capture(draft.Memory, draft.State)
	if err != nil {
		return err
	}
	still := true
	goOn := func() error {
		still = false
		answer.PauseMS = time.Since(began).Milliseconds()
		return c.serving.Continue()
	}
	defer func() {
		if still && err != nil {
			err = errors.Join(err, goOn())
		}
	}()
	if request.Keep {
		if err := goOn(); err != nil {
			return err
		}
	}
	if err := rest(); err != nil {
		return err
	}
	if c.project != nil {
		if err := draft.AddProject(c.project.Image(request.Keep)); err != nil {
			return err
		}
	}
	if answer.Bytes, err = draft.Bytes(); err != nil {
		return err
	}
	return draft.Commit(meta)
}
