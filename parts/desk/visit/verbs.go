package visit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

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
		{Name: "open", Serve: v.open},
		{Name: "project", Serve: v.project},
		{Name: "linger", Serve: v.linger},
		{Name: FileVerbName, Serve: v.file},
		{Name: ForwardVerbName, Serve: v.forward},
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

// OpenArgs are the arguments of the verb open: a terminal with a shell, or a text for a shell without
// one. The session of a text begins if it is not live.
type OpenArgs struct {
	Place
	Terminal *frame.Terminal `json:"terminal,omitempty"`
	Program  *frame.Program  `json:"program,omitempty"`
	Text     string          `json:"text,omitempty"`
}

// Input is a frame of a client of the verb open: bytes, the end of the input, a new size, or the
// number of a signal. After bytes, the next ones or the end wait for [Output.Taken]: so signals
// overtake input that the program does not read.
type Input struct {
	Bytes  []byte          `json:"bytes,omitempty"`
	Ended  bool            `json:"ended,omitempty"`
	Resize *frame.Terminal `json:"resize,omitempty"`
	Signal int             `json:"signal,omitempty"`
}

// Output is a frame of the server: the environment once the program has begun, bytes, and the exit
// status at the end.
type Output struct {
	Env string `json:"env,omitempty"`
	// Mark comes with Env: what only this session's sandbox is called while it lives. Begun says that
	// it began for this program.
	Mark   string `json:"mark,omitempty"`
	Begun  bool   `json:"begun,omitempty"`
	Bytes  []byte `json:"bytes,omitempty"`
	Stderr bool   `json:"stderr,omitempty"`
	// Taken says that the program, or a pipe to it, has the last bytes.
	Taken bool `json:"taken,omitempty"`
	// Remarks come with the exit status.
	Remarks  []string `json:"remarks,omitempty"`
	ExitCode *int     `json:"exit_code,omitempty"`
}

// open connects the client to a program in a session's sandbox.
func (v *Visits) open(ctx context.Context, c *desk.Conn) error {
	var args OpenArgs
	if err := c.Args(&args); err != nil {
		return err
	}
	key := call.Key{ID: args.Session}
	first := Output{}
	if args.Program != nil {
		var err error
		if first.Begun, err = v.begin(ctx, &args.Place); err != nil {
			return err
		}
		if args.Program.Start == "" {
			args.Program.Start = v.Project.Mount
		}
	}
	box, env, leave, err := v.visit(args.Place)
	if err != nil {
		return err
	}
	defer leave()
	settle := func(context.Context) []string { return nil }
	if args.Program == nil { // otherwise the model made the command
		done, ok := v.enter(ctx, key, box)
		if !ok {
			return &config.Error{Problem: fmt.Sprintf("the user is in session %q %d times already", args.Session, maxVisits), Hint: "end one of them"}
		}
		defer done()
	} else {
		settle = v.sessions.Beside(key, env.Name)
		defer func() { settle(context.WithoutCancel(ctx)) }()
	}
	var ask sandbox.Ask
	if env.Nix && v.Ask != nil {
		ask = v.Ask(call.Call{Env: env, Session: args.Session})
	}
	s, err := box.Open(ctx, frame.Request{Terminal: args.Terminal, Program: args.Program, Code: args.Text}, ask)
	if err != nil {
		return fmt.Errorf("a shell in session %q: %w", args.Session, err)
	}
	defer s.Close()
	defer context.AfterFunc(ctx, func() { s.Close() })()
	c.Patient()
	first.Env, first.Mark = env.Name, v.session(key).mark
	if err := c.Write(first); err != nil {
		return err
	}
	input := make(chan Input, 1)
	go func() {
		defer close(input)
		defer s.Close() // the client has gone
		defer guard.Recover(nil)
		for {
			var in Input
			if c.Read(&in) != nil {
				return
			}
			if in.Resize != nil {
				_ = s.Resize(*in.Resize)
			}
			if in.Signal != 0 {
				_ = s.Signal(in.Signal)
			}
			if in.Ended || len(in.Bytes) > 0 {
				select {
				case input <- in:
				default:
					return // it did not wait
				}
			}
		}
	}()
	go func() {
		defer s.Close()
		defer guard.Recover(nil)
		for in := range input {
			if in.Ended {
				_ = s.CloseWrite()
				continue
			}
			_, _ = s.Write(in.Bytes) // a program may end without its input
			if c.Write(Output{Taken: true}) != nil {
				return
			}
		}
	}()
	for buffer := make([]byte, frame.StreamPart); ; {
		n, stream, err := s.Next(buffer)
		if n > 0 {
			if err := c.Write(Output{Bytes: buffer[:n], Stderr: stream == frame.Stderr}); err != nil {
				return err
			}
		}
		if err != nil {
			status := s.ExitCode()
			remarks := settle(context.WithoutCancel(ctx)) // what the client does next may look at it
			settle = func(context.Context) []string { return nil }
			return c.Write(Output{ExitCode: &status, Remarks: remarks})
		}
	}
}

// begin makes sure that a session has a sandbox, and completes its place. It reports whether the
// session has just begun.
func (v *Visits) begin(ctx context.Context, p *Place) (begun bool, err error) {
	if _, env, leave, err := v.sessions.Visit(call.Key{ID: p.Session}, p.Env); err == nil {
		leave()
		p.Env = env.Name
		return false, nil
	}
	ready := v.Environments()
	name := cmp.Or(p.Env, usualEnv(ready))
	env, found := ready.Environment(name)
	switch build, pending := ready.Pending(name); {
	case pending && !build.Failed:
		return false, &config.Error{Problem: fmt.Sprintf("the environment %q is being built", name), Hint: "run the command again in a minute"}
	case pending:
		return false, &config.Error{Problem: fmt.Sprintf("the environment %q could not be built: %s", name, build.Reason), Hint: "name another one with --env: " + strings.Join(ready.Names(), ", ")}
	case !found:
		return false, &config.Error{Problem: fmt.Sprintf("there is no environment %q", name), Hint: "name one of these with --env: " + strings.Join(ready.Names(), ", ")}
	case !env.Sessions():
		return false, &config.Error{Problem: fmt.Sprintf("the environment %q keeps no sessions", name), Hint: "name another one with --env"}
	}
	p.Env = name
	// A call without code begins it.
	if _, err := v.sessions.Answer(context.WithValue(ctx, byUser{}, true), call.Call{Env: env, Session: p.Session}); err != nil {
		return false, fmt.Errorf("begin session %q: %w", p.Session, err)
	}
	return true, nil
}

// projectEnv is the name of the environment that the project's own flake describes, and shellEnv of
// the one for projects without.
const projectEnv, shellEnv = "project", "bash"

// usualEnv is the project's own environment if there is one that could be built, or bash.
func usualEnv(ready *registry.Snapshot) string {
	build, pending := ready.Pending(projectEnv)
	if _, found := ready.Environment(projectEnv); found || pending && !build.Failed {
		return projectEnv
	}
	return shellEnv
}

// ProjectArgs are the arguments of the verb project.
type ProjectArgs struct {
	Session string `json:"session"`
}

// Project is the answer to it.
type Project struct {
	sandbox.Project
	// Live says that the session is.
	Live bool
}

// project answers with the project that the server shows, by which commands choose their server.
func (v *Visits) project(_ context.Context, c *desk.Conn) error {
	var args ProjectArgs
	if err := c.Args(&args); err != nil {
		return err
	}
	return c.Write(Project{v.Project, len(v.sessions.Environments(call.Key{ID: args.Session})) > 0})
}

const (
	// lingerTime is how long a server that a command started is without a session until it ends, and
	// lingerEvery how often it looks. maxLog bounds its log, a file, in bytes.
	lingerTime  = 10 * time.Minute
	lingerEvery = 30 * time.Second
	maxLog      = 1 << 20
)

// linger has the server end some time after its last session: it has no client that would end it.
func (v *Visits) linger(_ context.Context, c *desk.Conn) error {
	v.lingers.Do(func() {
		go v.end(time.Tick(lingerEvery), func() { _ = unix.Kill(os.Getpid(), unix.SIGTERM) })
	})
	return c.Write(struct{}{})
}

// end calls stop when no session has been live for a time.
func (v *Visits) end(ticks <-chan time.Time, stop func()) {
	defer guard.Recover(nil)
	used := time.Now()
	for now := range ticks {
		if info, err := os.Stderr.Stat(); err == nil && info.Mode().IsRegular() && info.Size() > maxLog {
			_ = os.Stderr.Truncate(0) // it is open for appending
		}
		if len(v.sessions.List()) > 0 {
			used = now
		} else if now.Sub(used) > lingerTime {
			stop()
			return
		}
	}
}

// FileVerbName is the name of the verb that sends a file.
const FileVerbName = "file"

// FileArgs are its arguments.
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
