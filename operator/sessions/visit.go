package sessions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/cli"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/format"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/terminal"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk/visit"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// liveSession is a session of a running server.
type liveSession struct {
	visit.Session
	// PID is the server's process, and Client the program that started it.
	PID    int    `json:"pid"`
	Client string `json:"client,omitempty"`

	server desk.Server
}

// liveSessions returns the live sessions of these servers. A server that gives no answer is left out.
func liveSessions(servers []desk.Server) (all []liveSession) {
	for _, server := range servers {
		ctx, cancel := context.WithTimeout(context.Background(), topTimeout)
		var sessions []visit.Session
		err := server.Ask(ctx, "sessions", nil, &sessions)
		cancel()
		if err != nil {
			continue
		}
		for _, s := range sessions {
			all = append(all, liveSession{s, server.PID, parentOf(server.PID), server})
		}
	}
	return all
}

// parentOf returns the name of a process's parent, or "".
func parentOf(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// proc_pid_stat(5): pid (name) state parent …; a name may have any character.
	text := string(stat)
	var state string
	var parent int
	if _, err := fmt.Sscan(text[strings.LastIndex(text, ")")+1:], &state, &parent); err != nil {
		return ""
	}
	name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", parent))
	return strings.TrimSpace(string(name))
}

// findLive returns the live session with a name. If several servers have one, it is that of the
// server with the process pid, which may be 0.
func findLive(name string, pid int) (*liveSession, error) {
	servers, err := running()
	if err != nil {
		return nil, err
	}
	var found []liveSession
	for _, s := range liveSessions(servers) {
		if (s.Name == name || s.Principal+"/"+s.Name == name) && (pid == 0 || pid == s.PID) {
			found = append(found, s)
		}
	}
	switch {
	case len(found) == 0:
		return nil, &config.Error{Problem: fmt.Sprintf("no session %q is live", name), Hint: "see " + cli.Program + " sessions"}
	case len(found) > 1:
		var flags []string
		for _, s := range found {
			flags = append(flags, fmt.Sprintf("--pid %d", s.PID))
		}
		return nil, command.Misuse(fmt.Sprintf("%d servers have a session %q", len(found), name), "use "+strings.Join(flags, " or "))
	}
	return &found[0], nil
}

// Place has the flags that name a sandbox of a live session.
type Place struct {
	Session, env string
	pid          int
}

// AddTo adds the flags --env and --pid.
func (p *Place) AddTo(cmd *cobra.Command) {
	cmd.Flags().StringVar(&p.env, "env", "", "the sandbox of this `ENV`, if the session has several; else the one used last")
	cmd.Flags().IntVar(&p.pid, "pid", 0, "the session of the server with the process `PID`, if several servers have one")
}

func (p *Place) in() visit.Place { return visit.Place{Session: p.Session, Env: p.env} }

// CompleteLive completes the names of live sessions.
func CompleteLive(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var names []cobra.Completion
	if len(args) == 0 {
		servers, _ := find()
		for _, s := range liveSessions(servers) {
			names = append(names, cobra.CompletionWithDesc(s.Name, strings.Join(s.Environments, "+")))
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// guest is a program in a live session. It is a [terminal.Program].
type guest struct {
	client *desk.Client
	first  visit.Output  // of the program
	taken  chan struct{} // a place in it is that of input which the program has not taken
	ended  chan struct{}
	// last and err are set once it has ended.
	last visit.Output
	err  error
}

// enter begins a program in a session of a server, which writes to out and err.
func enter(server desk.Server, args visit.OpenArgs, out, err io.Writer) (*guest, error) {
	client, problem := server.Dial(context.Background(), "open", args)
	if problem != nil {
		return nil, problem
	}
	g := &guest{client: client, taken: make(chan struct{}, 1), ended: make(chan struct{})}
	if problem := client.Read(&g.first); problem != nil {
		client.Close()
		return nil, problem
	}
	go g.show(out, err)
	return g, nil
}

// send sends what waits for the bytes before it.
func (g *guest) send(in visit.Input) error {
	select {
	case g.taken <- struct{}{}:
		return g.client.Write(in)
	case <-g.ended:
		return io.ErrClosedPipe
	}
}

// Type sends input to the program.
func (g *guest) Type(data []byte) error {
	if len(data) == 0 {
		return nil
	}
	return g.send(visit.Input{Bytes: data})
}

// CloseInput ends it. That of a terminal does not end but with a character.
func (g *guest) CloseInput() error { return g.send(visit.Input{Ended: true}) }

// Signal sends the program a signal.
func (g *guest) Signal(s syscall.Signal) { _ = g.client.Write(visit.Input{Signal: int(s)}) }

func (g *guest) Resize(t frame.Terminal) error { return g.client.Write(visit.Input{Resize: &t}) }

func (g *guest) Kill() { g.client.Close() }

func (g *guest) Ended() <-chan struct{} { return g.ended }

func (g *guest) Wait() (int, error) {
	<-g.ended
	return *cmp.Or(g.last.ExitCode, new(int)) & 0xff, g.err
}

// show writes the output until the program ends, or the reader of its output has gone.
func (g *guest) show(out, err io.Writer) {
	defer close(g.ended)
	for {
		var a visit.Output
		if err := g.client.Read(&a); err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("the server has ended")
			}
			g.err = err
			return
		}
		if a.Taken {
			<-g.taken
		}
		to := out
		if a.Stderr {
			to = err
		}
		if _, err := to.Write(a.Bytes); err != nil {
			status := 128 + int(syscall.SIGPIPE)
			a.ExitCode = &status
		}
		if a.ExitCode != nil {
			g.last = a
			return
		}
	}
}

// Join connects a terminal to a shell in a live session until either ends.
func Join(p Place, std cli.Streams) (int, error) {
	live, err := findLive(p.Session, p.pid)
	if err != nil {
		return 0, err
	}
	if !terminal.Is(std.In) || !terminal.Is(std.Out) {
		return 0, command.Misuse("shell needs a terminal", "run commands without one: "+cli.Program+" exec --session "+p.Session+" -- ls")
	}
	return terminal.Connect(std.In.(*os.File), std.Out.(*os.File), std.Err, func(size frame.Terminal, screen *terminal.Screen) (terminal.Program, func(), error) {
		g, err := enter(live.server, visit.OpenArgs{Place: p.in(), Terminal: &size}, screen, screen)
		if err != nil {
			return nil, nil, err
		}
		screen.Notify(fmt.Sprintf("%s: session %s, env %s, which the model uses too: its code can read what you type\r\n", cli.Program, format.Plain(live.Name), format.Plain(g.first.Env)))
		return g, func() { g.client.Close() }, nil
	})
}

// Forward has a server connect a port of this machine to a port of a live session.
func Forward(std cli.Streams) *cobra.Command {
	var p Place
	var listen uint16
	cmd := &cobra.Command{
		Use:   "forward SESSION PORT",
		Short: "Reach a port of a live session from this machine, while the command runs",
		Long: "Have the server listen at 127.0.0.1, and connect whoever comes to a port of the session's own loopback, while\n" +
			"the command runs: HTTP, WebSocket and everything else over TCP. The server must allow it, with\n" +
			"forward = true in [session]. Code of the sandbox answers: trust it as little as a web page that\n" +
			"you do not know. Every user of this machine can connect.",
		Example:           "  " + cli.Program + " forward analysis 8000\n  " + cli.Program + " forward analysis 8000 --listen 9000",
		Args:              cli.Needs(2, "a session and a port"),
		ValidArgsFunction: CompleteLive,
		RunE: func(_ *cobra.Command, args []string) error {
			var port uint16
			if _, err := fmt.Sscan(args[1], &port); err != nil || port == 0 || fmt.Sprint(port) != args[1] {
				return command.Misuse(fmt.Sprintf("%q is not a port", args[1]), "use a number from 1 to 65535")
			}
			p.Session = args[0]
			return forward(std, p, port, listen)
		},
	}
	p.AddTo(cmd)
	cmd.Flags().Uint16Var(&listen, "listen", 0, "listen at this `PORT` of 127.0.0.1; without, at one that is free")
	return cmd
}

// forward has the server connect clients to a port of a live session until a signal comes.
func forward(std cli.Streams, p Place, port, listen uint16) error {
	live, err := findLive(p.Session, p.pid)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	client, err := live.server.Dial(ctx, visit.ForwardVerbName, visit.ForwardArgs{Place: p.in(), Port: port, Listen: listen})
	if err != nil {
		return err
	}
	defer client.Close()
	defer context.AfterFunc(ctx, func() { client.Close() })()
	for {
		var at visit.Forwarded
		switch err := client.Read(&at); {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, io.EOF):
			return errors.New("the server has ended")
		case err != nil:
			return err
		case at.Problem != "":
			fmt.Fprintf(terminal.Visible(std.Err), "%s: %s\n", cli.Program, at.Problem)
			continue
		}
		fmt.Fprintf(std.Out, "http://%s leads to port %d of session %s, env %s, until Ctrl-C\n", format.Plain(at.Address), port, format.Plain(live.Name), format.Plain(at.Env))
		if !at.Listens {
			fmt.Fprintln(std.Err, "nothing listens at that port yet")
		}
	}
}
