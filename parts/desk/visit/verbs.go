package visit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/guard"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/registry"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/sandbox"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// Verbs are the verbs of visits.
func (v *Visits) Verbs() []desk.Verb {
	return []desk.Verb{
		{Name: "sessions", Serve: v.list},
		{Name: "shell", Serve: v.shell},
		{Name: "evaluate", Serve: v.evaluate},
		{Name: "file", Serve: v.file},
		{Name: "forward", Serve: v.forward},
	}
}

// examineWithin bounds the wait for the sandboxes of a list.
const examineWithin = time.Second

// Session is a live session.
type Session struct {
	Name         string    `json:"name"`
	Principal    string    `json:"principal,omitempty"`
	Environments []string  `json:"environments"`
	Calls        int       `json:"calls"` // that run or wait
	Started      time.Time `json:"started"`
	Used         time.Time `json:"used"`
	// Memory is what its sandboxes use, in bytes, and MemoryMB what they may.
	Memory   int64 `json:"memory_bytes,omitempty"`
	MemoryMB int64 `json:"memory_mb"`
	// Ports are those on which its code listens.
	Ports []uint16 `json:"ports,omitempty"`
}

// list answers with the live sessions.
func (v *Visits) list(ctx context.Context, c *desk.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, examineWithin)
	defer cancel()
	all := []Session{}
	for _, l := range v.sessions.List() {
		one := Session{Name: l.Key.ID, Principal: l.Key.Principal, Calls: l.Waiting, Started: l.Started, Used: l.Used, MemoryMB: l.MemoryMB}
		for _, env := range v.sessions.Environments(l.Key) {
			one.Environments = append(one.Environments, env.Name)
			box, _, leave, err := v.sessions.Visit(l.Key, env.Name)
			if err != nil {
				continue
			}
			if box, ok := box.(sandbox.Visitable); ok {
				ports, memory, _ := box.Examine(ctx)
				one.Memory += memory
				one.Ports = append(one.Ports, ports...)
			}
			leave()
		}
		all = append(all, one)
	}
	return c.Write(all)
}

// Place names a sandbox of a session.
type Place struct {
	Session string `json:"session"`
	// Env is empty for the environment of the last call.
	Env string `json:"env,omitempty"`
}

// visit returns the sandbox of a place.
func (v *Visits) visit(p Place) (box sandbox.Visitable, env registry.Environment, leave func(), err error) {
	found, env, leave, err := v.sessions.Visit(call.Key{ID: p.Session}, p.Env)
	var other *call.OtherEnvError
	switch {
	case errors.As(err, &other):
		return nil, env, nil, &config.Error{
			Problem: fmt.Sprintf("session %q has no sandbox of env %q: it has %s", p.Session, other.Wanted, cmp.Or(other.Has, "none")),
			Hint:    "name one of these with --env",
		}
	case err != nil:
		return nil, env, nil, v.unknown(p.Session)
	}
	box, ok := found.(sandbox.Visitable)
	if !ok {
		leave()
		return nil, env, nil, fmt.Errorf("session %q cannot be visited", p.Session)
	}
	return box, env, leave, nil
}

// unknown is the error of a session that is not there for the user.
func (v *Visits) unknown(name string) error {
	for _, l := range v.sessions.List() {
		if l.Key.Principal != "" && (name == l.Key.ID || name == l.Key.Principal+"/"+l.Key.ID) {
			return &config.Error{Problem: fmt.Sprintf("session %q is one of %s, who is a principal over HTTP: it is theirs alone", name, l.Key.Principal), Hint: "only sessions of a server on standard streams can be visited"}
		}
	}
	return &config.Error{Problem: fmt.Sprintf("no session %q is live", name), Hint: "see nix-sandbox-mcp sessions"}
}

// ShellArgs are the arguments of the verb shell.
type ShellArgs struct {
	Place
	Terminal frame.Terminal `json:"terminal"`
}

// ShellInput is a frame of a client of the verb shell: bytes, or a new size.
type ShellInput struct {
	Bytes  []byte          `json:"bytes,omitempty"`
	Resize *frame.Terminal `json:"resize,omitempty"`
}

// ShellOutput is a frame of the server: the environment once it has begun, bytes, and the exit
// status at the end.
type ShellOutput struct {
	Env      string `json:"env,omitempty"`
	Bytes    []byte `json:"bytes,omitempty"`
	ExitCode *int   `json:"exit_code,omitempty"`
}

// shell connects the client to a shell on a terminal in a session's sandbox.
func (v *Visits) shell(ctx context.Context, c *desk.Conn) error {
	var args ShellArgs
	if err := c.Args(&args); err != nil {
		return err
	}
	box, env, leave, err := v.visit(args.Place)
	if err != nil {
		return err
	}
	defer leave()
	done, ok := v.enter(ctx, call.Key{ID: args.Session}, box)
	if !ok {
		return tooMany(args.Session)
	}
	defer done()
	s, err := box.Open(ctx, &args.Terminal, 0)
	if err != nil {
		return fmt.Errorf("a shell in session %q: %w", args.Session, err)
	}
	defer s.Close()
	defer context.AfterFunc(ctx, func() { s.Close() })()
	if err := c.Write(ShellOutput{Env: env.Name}); err != nil {
		return err
	}
	go func() {
		defer s.Close() // the client has gone
		defer guard.Recover(nil)
		for {
			var in ShellInput
			if c.Read(&in) != nil {
				return
			}
			if in.Resize != nil {
				_ = s.Resize(*in.Resize)
			}
			if _, err := s.Write(in.Bytes); err != nil {
				return
			}
		}
	}()
	for buffer := make([]byte, frame.StreamPart); ; {
		n, err := s.Read(buffer)
		if n > 0 {
			if err := c.Write(ShellOutput{Bytes: buffer[:n]}); err != nil {
				return err
			}
		}
		if err != nil {
			status := s.ExitCode()
			return c.Write(ShellOutput{ExitCode: &status})
		}
	}
}

func tooMany(session string) error {
	return &config.Error{Problem: fmt.Sprintf("the user is in session %q %d times already", session, maxVisits), Hint: "end one of them"}
}

// EvaluateArgs are the arguments of the verb evaluate.
type EvaluateArgs struct {
	Place
	Code string `json:"code"`
}

// Evaluated is the answer to it.
type Evaluated struct {
	Env      string `json:"env"`
	Stdout   string `json:"stdout"`
	Stderr   string `json:"stderr"`
	Outcome  string `json:"outcome"`
	ExitCode int    `json:"exit_code"`
}

// evaluate runs code in the interpreter that the model uses, when no call of the session runs. If
// the client sends no more, the code is interrupted.
func (v *Visits) evaluate(ctx context.Context, c *desk.Conn) error {
	var args EvaluateArgs
	if err := c.Args(&args); err != nil {
		return err
	}
	key := call.Key{ID: args.Session}
	box, env, leave, err := v.visit(args.Place)
	if err != nil {
		return err
	}
	defer leave()
	done, ok := v.enter(ctx, key, box)
	if !ok {
		return tooMany(args.Session)
	}
	defer done()
	if args.Code == "" { // only to see whether it could
		return c.Write(Evaluated{Env: env.Name})
	}
	running, interrupt := context.WithCancel(context.WithValue(ctx, byUser{}, true))
	go func() {
		defer interrupt()
		defer guard.Recover(nil)
		_ = c.Read(new(struct{}))
	}()
	result, err := v.sessions.Answer(running, call.Call{Env: env, Session: key.ID, Code: args.Code})
	switch {
	case err != nil && running.Err() != nil && ctx.Err() == nil: // its turn has not come
		return c.Write(Evaluated{Env: env.Name, Outcome: frame.OutcomeCancelled})
	case err != nil:
		return err
	}
	return c.Write(Evaluated{env.Name, text(result.Stdout), text(result.Stderr), result.Outcome, result.ExitCode})
}

func text(t sandbox.Text) string {
	if t.Cut == 0 {
		return t.Head
	}
	return fmt.Sprintf("%s\n[%d bytes are left out]\n%s", t.Head, t.Cut, t.Tail)
}

// FileArgs are the arguments of the verb file.
type FileArgs struct {
	Place
	Path string `json:"path"` // absolute, in the sandbox
	Max  int64  `json:"max"`  // bytes
}

// FilePart is a frame of its answer. The last one has Ended set.
type FilePart struct {
	Bytes []byte `json:"bytes,omitempty"`
	Ended bool   `json:"ended,omitempty"`
}

// file sends a file of a session's workspace.
func (v *Visits) file(ctx context.Context, c *desk.Conn) error {
	var args FileArgs
	if err := c.Args(&args); err != nil {
		return err
	}
	box, _, leave, err := v.visit(args.Place)
	if err != nil {
		return err
	}
	defer leave()
	if _, err := box.CopyFile(ctx, parts{c}, args.Path, args.Max); err != nil {
		return err
	}
	return c.Write(FilePart{Ended: true})
}

// parts writes to the client.
type parts struct{ c *desk.Conn }

func (p parts) Write(data []byte) (int, error) { return len(data), p.c.Write(FilePart{Bytes: data}) }
