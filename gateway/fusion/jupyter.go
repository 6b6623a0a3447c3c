package fusion

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
)

type jupyterRequest struct {
	Cells        []string           `json:"cells"`
	CellTimeout  *float64           `json:"cell_timeout"`  // seconds; 0 is no limit
	TotalTimeout *float64           `json:"total_timeout"` // seconds
	Files        map[string]*string `json:"files"`         // base64
	FetchFiles   []string           `json:"fetch_files"`
}

// cell is the result of a cell.
type cell struct {
	Stdout  string           `json:"stdout"`
	Stderr  string           `json:"stderr"`
	Display []map[string]any `json:"display"`
	Error   []map[string]any `json:"error"`
}

type jupyterAnswer struct {
	Status      string            `json:"status"`
	Message     string            `json:"message"`
	Driver      *command          `json:"driver"`
	Cells       []cell            `json:"cells"`
	ExecutorPod *string           `json:"executor_pod_name"`
	Files       map[string]string `json:"files"`
}

// defaultTotal is how long all cells may run if the request does not say, in seconds.
const defaultTotal = 45

// setup has the session keep values that cells show, and taken prints them as JSON.
const (
	setup = `def __sandbox_fusion():
    import builtins, json, sys, types
    module, shown = types.ModuleType('sandbox_fusion'), []

    def show(value):
        if value is not None:
            builtins._ = None
            shown.append({'text/plain': repr(value)})
            builtins._ = value

    def take():
        print(json.dumps(shown))
        shown.clear()

    module.take = take
    sys.displayhook, sys.modules['sandbox_fusion'] = show, module
__sandbox_fusion()
del __sandbox_fusion
`
	taken = "__import__('sandbox_fusion').take()\npass"
)

func (c *caller) runJupyter(request jupyterRequest) any {
	answer := jupyterAnswer{Status: sandboxError, Cells: []cell{}, Files: map[string]string{}}
	env, meta, err := c.prepare("python", request.Files, request.FetchFiles)
	if err == nil && len(request.Cells) > maxCells {
		err = fmt.Errorf("the request has %d cells: %d are allowed", len(request.Cells), maxCells)
	}
	began := time.Now()
	if err == nil {
		c.newSession()
		defer c.end(env)
		_, err = c.call(env, setup, meta)
	}
	total := float64(defaultTotal)
	if request.TotalTimeout != nil && *request.TotalTimeout > 0 {
		total = *request.TotalTimeout
	}
	answer.Driver = &command{Status: finished, ReturnCode: new(int)}
	for _, code := range request.Cells {
		left := total - time.Since(began).Seconds()
		if err != nil || left <= 0 {
			break
		}
		var one cell
		var late bool
		one, late, err = c.runCell(env, code, min(limit(request.CellTimeout, left, env), left))
		if late || err != nil {
			answer.Driver.Status, answer.Driver.ReturnCode = timedOut, nil
			break
		}
		answer.Cells = append(answer.Cells, one)
	}
	answer.Driver.ExecutionTime = time.Since(began).Seconds()
	switch {
	case err != nil:
		answer.Message = err.Error()
		answer.Driver = &command{Status: runFailed, Stderr: err.Error()}
	case len(answer.Cells) < len(request.Cells):
		answer.Status, answer.Driver.Status, answer.Driver.ReturnCode = failed, timedOut, nil
	default:
		answer.Status = success
		if err := c.fetch(request.FetchFiles, answer.Files); err != nil {
			answer.Status, answer.Message = sandboxError, err.Error()
		}
	}
	return answer
}

// runCell runs a cell. late says that its time was over.
func (c *caller) runCell(env registry.Environment, code string, seconds float64) (one cell, late bool, err error) {
	got, err := c.call(env, code, map[string]any{"timeout": seconds})
	if err != nil || got.outcome == "timeout" {
		return one, true, err
	}
	one = cell{Stdout: got.stdout, Stderr: got.stderr, Display: []map[string]any{}, Error: []map[string]any{}}
	shown, err := c.call(env, taken, nil)
	if err != nil {
		return one, false, err
	}
	// The code may have printed there too; then it has hidden its values from itself.
	_ = json.Unmarshal([]byte(shown.stdout), &one.Display)
	one.Display = append(one.Display, got.images...)
	if got.exit != 0 {
		lines := strings.Split(strings.TrimRight(got.stderr, "\n"), "\n")
		name, value, _ := strings.Cut(lines[len(lines)-1], ": ")
		one.Error = append(one.Error, map[string]any{"ename": name, "evalue": value, "traceback": lines})
		one.Stderr = ""
	}
	return one, false, nil
}
