// Package fusion answers /run_code and /run_jupyter as SandboxFusion does, so that programs which
// evaluate and train models with it need another URL only. Facts are from its documentation and
// its sources (https://github.com/bytedance/SandboxFusion, sandbox/server/sandbox_api.py).
//
// A request becomes calls of MCP, which the server's own handler answers: principals, quotas, the
// audit log and the metrics are those of any other call.
package fusion

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/account"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/principal"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
)

const (
	// maxBody is the largest request, in bytes; bodyTime is how long it may take to arrive.
	maxBody  = 12 << 20
	bodyTime = 30 * time.Second
	// maxAnswers bounds the answers to the calls of a request, in bytes.
	maxAnswers = 12 << 20
	// maxFetch is how many files, and maxCells how many cells, one request may name.
	maxFetch = 64
	maxCells = 256
)

// Options configure the routes.
type Options struct {
	Environments  *registry.Registry
	Authenticator principal.Authenticator
	// Bytes has the memory that principals may hold for requests and answers.
	Bytes *account.Pool
}

// Routes returns a function that adds the routes to those of MCP, by which they are answered.
func Routes(o Options) func(*http.ServeMux) {
	return func(mux *http.ServeMux) {
		mux.HandleFunc("POST /run_code", func(w http.ResponseWriter, r *http.Request) {
			var request codeRequest
			if c := o.begin(w, r, mux, &request); c != nil {
				defer c.release()
				c.write(w, c.runCode(request))
			}
		})
		mux.HandleFunc("POST /run_jupyter", func(w http.ResponseWriter, r *http.Request) {
			var request jupyterRequest
			if c := o.begin(w, r, mux, &request); c != nil {
				defer c.release()
				c.write(w, c.runJupyter(request))
			}
		})
	}
}

// The statuses of a request, and of a command.
const (
	success      = "Success"
	failed       = "Failed"
	sandboxError = "SandboxError"

	finished  = "Finished"
	timedOut  = "TimeLimitExceeded"
	runFailed = "Error"
)

type codeRequest struct {
	Code       string             `json:"code"`
	Language   string             `json:"language"`
	Stdin      *string            `json:"stdin"`
	RunTimeout *float64           `json:"run_timeout"` // seconds
	Files      map[string]*string `json:"files"`       // base64
	FetchFiles []string           `json:"fetch_files"`
}

// command is the result of a command.
type command struct {
	Status        string  `json:"status"`
	ExecutionTime float64 `json:"execution_time"` // seconds
	ReturnCode    *int    `json:"return_code"`
	Stdout        string  `json:"stdout"`
	Stderr        string  `json:"stderr"`
}

type codeAnswer struct {
	Status        string            `json:"status"`
	Message       string            `json:"message"`
	CompileResult *command          `json:"compile_result"` // compiling is no step of its own
	RunResult     *command          `json:"run_result"`
	ExecutorPod   *string           `json:"executor_pod_name"`
	Files         map[string]string `json:"files"`
}

// languages are the types of interpreters that run a language of SandboxFusion. Others have the
// environment of their own name, in lower case.
var languages = map[string]string{
	"python": "python", "nodejs": "node", "typescript": "node", "bash": "bash", "ruby": "ruby",
}

// defaultRun is how long code may run if the request does not say, in seconds.
const defaultRun = 10

// environment returns the environment for a language: the first of those with its interpreter by
// name, if none has the name of the language or of the interpreter.
func (o Options) environment(language string) (found registry.Environment, err error) {
	now := o.Environments.Now()
	kind, known := languages[language]
	for _, name := range append([]string{strings.ToLower(language), kind}, now.Names()...) {
		env, ok := now.Environment(name)
		if ok && (!known && name == strings.ToLower(language) || known && env.InterpreterType == kind) {
			return env, nil
		}
	}
	return found, fmt.Errorf("no environment runs %.40q: there are %s", language, strings.Join(now.Names(), ", "))
}

func (c *caller) runCode(request codeRequest) any {
	answer := codeAnswer{Status: sandboxError, Files: map[string]string{}}
	env, meta, err := c.prepare(request.Language, request.Files, request.FetchFiles)
	if err == nil && len(request.FetchFiles) > 0 && !env.Sessions() {
		err = fmt.Errorf("environment %q has no sessions, from which files could be fetched", env.Name)
	}
	if err != nil {
		answer.Message = err.Error()
		return answer
	}
	if len(request.FetchFiles) > 0 {
		c.newSession()
		defer c.end(env)
	}
	if request.Stdin != nil {
		meta["stdin"] = *request.Stdin
	}
	meta["timeout"] = limit(request.RunTimeout, defaultRun, env)
	code := request.Code
	if env.InterpreterType == "python" {
		code += "\npass" // a program does not show the value of its last expression
	}
	result, err := c.call(env, code, meta)
	if err != nil {
		answer.Message = err.Error()
		answer.RunResult = &command{Status: runFailed, Stderr: err.Error()}
		return answer
	}
	answer.Status, answer.RunResult = success, result.command()
	if answer.RunResult.Status != finished || result.exit != 0 {
		answer.Status = failed
	}
	if err := c.fetch(request.FetchFiles, answer.Files); err != nil {
		answer.Status, answer.Message = sandboxError, err.Error()
	}
	return answer
}

// limit returns how long code may run, in seconds: as long as was asked for, or as the environment
// allows.
func limit(asked *float64, otherwise float64, env registry.Environment) float64 {
	seconds := otherwise
	if asked != nil && *asked > 0 {
		seconds = *asked
	}
	return min(seconds, env.MaxTimeout.Seconds())
}

// prepare returns the environment for a language, and what its first call is given.
func (c *caller) prepare(language string, files map[string]*string, fetch []string) (env registry.Environment, meta map[string]any, err error) {
	env, err = c.environment(language)
	if err == nil && len(fetch) > maxFetch {
		err = fmt.Errorf("fetch_files has %d files: %d are allowed", len(fetch), maxFetch)
	}
	given := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err != nil || files[name] == nil {
			continue
		}
		relative, isInside := inWorkspace(name)
		if !isInside {
			err = fmt.Errorf("the file %.80q is not below /workspace: use a relative path", name)
		}
		given[relative] = map[string]string{"base64": *files[name]}
	}
	meta = map[string]any{}
	if len(given) > 0 {
		meta["files"] = given
	}
	return env, meta, err
}

// inWorkspace returns a path relative to the workspace, in which code runs.
func inWorkspace(name string) (relative string, isInside bool) {
	if path.IsAbs(name) {
		return strings.CutPrefix(path.Clean(name), "/workspace/")
	}
	relative = path.Clean(name)
	return relative, relative != "." && relative != ".." && !strings.HasPrefix(relative, "../")
}

// fetch reads files of the session into a map, in base64. A file that cannot be read is left out, as
// SandboxFusion leaves it out. The error is that there is no room for the rest.
func (c *caller) fetch(names []string, into map[string]string) error {
	for _, name := range names {
		relative, isInside := inWorkspace(name)
		if !isInside {
			continue
		}
		parts := strings.Split(relative, "/")
		for i, part := range parts {
			parts[i] = url.PathEscape(part)
		}
		uri := "sandbox://" + c.session + "/" + strings.Join(parts, "/")
		var answer struct{ Contents []struct{ Text, Blob string } }
		err := c.ask("resources/read", uri, map[string]any{"uri": uri}, &answer)
		if errors.Is(err, errNoRoom) {
			return err
		}
		if err != nil || len(answer.Contents) == 0 {
			continue
		}
		if one := answer.Contents[0]; one.Blob != "" {
			into[name] = one.Blob
		} else {
			into[name] = base64.StdEncoding.EncodeToString([]byte(one.Text))
		}
	}
	return nil
}

// begin authenticates a request and decodes its body into a value, or answers it and returns nil.
func (o Options) begin(w http.ResponseWriter, r *http.Request, mux http.Handler, into any) *caller {
	refuse := func(status int, words string) *caller {
		w.Header().Set("Connection", "close")
		http.Error(w, words, status)
		return nil
	}
	who, err := o.Authenticator.Authenticate(r)
	if err != nil {
		w.Header().Set("WWW-Authenticate", "Bearer")
		return refuse(http.StatusUnauthorized, "this server takes calls with a token: send Authorization: Bearer TOKEN")
	}
	if r.ContentLength < 0 || r.ContentLength > maxBody {
		return refuse(http.StatusRequestEntityTooLarge, fmt.Sprintf("a request needs a Content-Length of at most %d bytes", maxBody))
	}
	ctx, cancel := context.WithTimeout(r.Context(), bodyTime)
	defer cancel()
	// The request is in memory as text, decoded, and as a message.
	release, err := o.Bytes.Take(ctx, who, account.RequestBytes+3*r.ContentLength)
	if err != nil {
		return refuse(http.StatusServiceUnavailable, "the server is busy with other requests: send it again later")
	}
	out := http.NewResponseController(w)
	_ = out.SetReadDeadline(time.Now().Add(bodyTime))
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	_ = out.SetReadDeadline(time.Time{})
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		release()
		return refuse(http.StatusUnprocessableEntity, fmt.Sprintf("the request is not what SandboxFusion takes: %v", err))
	}
	return &caller{Options: o, request: r, mux: mux, who: who, held: []func(){release}}
}

func (c *caller) write(w http.ResponseWriter, answer any) {
	text, err := json.Marshal(answer)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(bodyTime))
	_, _ = io.Copy(w, bytes.NewReader(text))
}
