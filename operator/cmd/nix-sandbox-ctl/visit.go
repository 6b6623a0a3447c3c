package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

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

// liveSessions returns the live sessions of all servers of this user. A server that gives no
// answer is left out.
func liveSessions() (all []liveSession) {
	for _, server := range desk.Find(config.DeskFolders(os.Getenv)) {
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
	if _, err := running(); err != nil {
		return nil, err
	}
	var found []liveSession
	for _, s := range liveSessions() {
		if (s.Name == name || s.Principal+"/"+s.Name == name) && (pid == 0 || pid == s.PID) {
			found = append(found, s)
		}
	}
	switch {
	case len(found) == 0:
		return nil, &config.Error{Problem: fmt.Sprintf("no session %q is live", name), Hint: "see " + program + " sessions"}
	case len(found) > 1:
		var flags []string
		for _, s := range found {
			flags = append(flags, fmt.Sprintf("--pid %d", s.PID))
		}
		return nil, command.Misuse(fmt.Sprintf("%d servers have a session %q", len(found), name), "use "+strings.Join(flags, " or "))
	}
	return &found[0], nil
}

// place has the flags that name a sandbox of a live session.
type place struct {
	session, env string
	pid          int
}

func (p *place) addTo(cmd *cobra.Command) {
	cmd.Flags().StringVar(&p.env, "env", "", "the sandbox of this `ENV`, if the session has several; else the one used last")
	cmd.Flags().IntVar(&p.pid, "pid", 0, "the session of the server with the process `PID`, if several servers have one")
}

func (p *place) in() visit.Place { return visit.Place{Session: p.session, Env: p.env} }

// completeLive completes the names of live sessions.
func completeLive(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var names []cobra.Completion
	if len(args) == 0 {
		for _, s := range liveSessions() {
			names = append(names, cobra.CompletionWithDesc(s.Name, strings.Join(s.Environments, "+")))
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// guest is a shell in a live session. It is a [terminalProgram].
type guest struct {
	client *desk.Client
	ended  chan struct{}
	status int
	err    error
}

// Type sends input to the shell.
func (g *guest) Type(data []byte) error {
	if len(data) == 0 {
		return nil
	}
	return g.client.Write(visit.ShellInput{Bytes: data})
}

func (g *guest) CloseInput() error { return nil } // the end of a terminal's input is a character

func (g *guest) Resize(t frame.Terminal) error { return g.client.Write(visit.ShellInput{Resize: &t}) }

func (g *guest) Kill() { g.client.Close() }

func (g *guest) Ended() <-chan struct{} { return g.ended }

func (g *guest) Wait() (int, error) {
	<-g.ended
	return g.status, g.err
}

// show writes the output until the shell ends.
func (g *guest) show(out io.Writer) {
	defer close(g.ended)
	for {
		var a visit.ShellOutput
		if err := g.client.Read(&a); err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("the server has ended")
			}
			g.err = err
			return
		}
		_, _ = out.Write(a.Bytes)
		if a.ExitCode != nil {
			g.status = *a.ExitCode & 0xff
			return
		}
	}
}

// joinSession connects a terminal to a shell in a live session until either ends.
func joinSession(p place, in, out *os.File, log io.Writer) (int, error) {
	live, err := findLive(p.session, p.pid)
	if err != nil {
		return 0, err
	}
	return onTerminal(in, out, log, func(size frame.Terminal, screen *screen) (terminalProgram, func(), error) {
		client, err := live.server.Dial(context.Background(), "shell", visit.ShellArgs{Place: p.in(), Terminal: size})
		if err != nil {
			return nil, nil, err
		}
		var first visit.ShellOutput
		if err := client.Read(&first); err != nil {
			client.Close()
			return nil, nil, err
		}
		screen.notify(fmt.Sprintf("%s: session %s, env %s, which the model uses too: its code can read what you type\r\n", program, plain(live.Name), plain(first.Env)))
		g := &guest{client: client, ended: make(chan struct{})}
		go g.show(screen)
		return g, func() { client.Close() }, nil
	})
}

// evaluate runs lines in the interpreter that the model uses. A line that ends with a colon, a brace
// or a backslash begins a block, which ends with an empty line.
func evaluate(p place, std streams) error {
	live, err := findLive(p.session, p.pid)
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt)
	defer signal.Stop(signals)
	ask := func(code string) (answer visit.Evaluated, err error) {
		client, err := live.server.Dial(context.Background(), "evaluate", visit.EvaluateArgs{Place: p.in(), Code: code})
		if err != nil {
			return answer, err
		}
		defer client.Close()
		answered := make(chan struct{})
		defer close(answered)
		go func() {
			select {
			case <-signals:
				_ = client.CloseWrite() // interrupts it
			case <-answered:
			}
		}()
		return answer, client.Read(&answer)
	}
	first, err := ask("")
	if err != nil {
		return err
	}
	p.env = first.Env // also if the model uses another one meanwhile
	isPerson := isTerminal(std.in)
	lines, failed := linesOf(std.in)
	for block := ""; ; {
		if isPerson {
			fmt.Fprint(std.out, p.env+"> ")
		}
		var line string
		var more bool
		select {
		case line, more = <-lines:
		case <-signals:
			if !isPerson {
				return exit(128+int(syscall.SIGINT), nil)
			}
			fmt.Fprintln(std.out)
			block = ""
			continue
		}
		if !more {
			return failed()
		}
		if line != "" && (block != "" || strings.HasSuffix(line, ":") || strings.HasSuffix(line, "{") || strings.HasSuffix(line, `\`)) {
			block += line + "\n"
			continue
		}
		code := block + line
		block = ""
		if strings.TrimSpace(code) == "" {
			continue
		}
		answer, err := ask(code)
		if err != nil {
			return err
		}
		fmt.Fprint(visible(std.out), ended(answer.Stdout))
		fmt.Fprint(visible(std.err), ended(answer.Stderr))
		if answer.Outcome != frame.OutcomeOK {
			fmt.Fprintf(std.err, "[%s]\n", plain(answer.Outcome))
		}
	}
}

// linesOf returns the lines of an input, and a function for the error that ended them.
func linesOf(in io.Reader) (<-chan string, func() error) {
	lines := make(chan string)
	scanner := bufio.NewScanner(in)
	scanner.Buffer(nil, maxLine)
	go func() {
		defer close(lines)
		for scanner.Scan() {
			lines <- scanner.Text()
		}
	}()
	return lines, scanner.Err
}

// maxLine bounds a line of evaluate, in bytes.
const maxLine = 512 << 10

// ended ends a text with a line feed, unless it is empty.
func ended(text string) string {
	if text == "" || strings.HasSuffix(text, "\n") {
		return text
	}
	return text + "\n"
}

func forwardCommand(std streams) *cobra.Command {
	var p place
	var listen uint16
	cmd := &cobra.Command{
		Use:   "forward SESSION PORT",
		Short: "Reach a port of a live session from this machine, while the command runs",
		Long: "Have the server listen at 127.0.0.1, and connect whoever comes to a port of the session's own loopback, while\n" +
			"the command runs: HTTP, WebSocket and everything else over TCP. The server must allow it, with\n" +
			"forward = true in [session]. Code of the sandbox answers: trust it as little as a web page that\n" +
			"you do not know. Every user of this machine can connect.",
		Example:           "  " + program + " forward analysis 8000\n  " + program + " forward analysis 8000 --listen 9000",
		Args:              needs(2, "a session and a port"),
		ValidArgsFunction: completeLive,
		RunE: func(_ *cobra.Command, args []string) error {
			var port uint16
			if _, err := fmt.Sscan(args[1], &port); err != nil || port == 0 || fmt.Sprint(port) != args[1] {
				return command.Misuse(fmt.Sprintf("%q is not a port", args[1]), "use a number from 1 to 65535")
			}
			p.session = args[0]
			return forward(std, p, port, listen)
		},
	}
	p.addTo(cmd)
	cmd.Flags().Uint16Var(&listen, "listen", 0, "listen at this `PORT` of 127.0.0.1; without, at one that is free")
	return cmd
}

// forward has the server connect clients to a port of a live session until a signal comes.
func forward(std streams, p place, port, listen uint16) error {
	live, err := findLive(p.session, p.pid)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	client, err := live.server.Dial(ctx, "forward", visit.ForwardArgs{Place: p.in(), Port: port, Listen: listen})
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
			fmt.Fprintf(visible(std.err), "%s: %s\n", program, at.Problem)
			continue
		}
		fmt.Fprintf(std.out, "http://%s leads to port %d of session %s, env %s, until Ctrl-C\n", plain(at.Address), port, plain(live.Name), plain(at.Env))
		if !at.Listens {
			fmt.Fprintln(std.err, "nothing listens at that port yet")
		}
	}
}
