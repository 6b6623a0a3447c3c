package sessions

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/cli"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/format"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/terminal"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk/visit"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/mountpoint"
)

const (
	// startWithin is the time for a server in the background until it can be asked.
	startWithin = time.Minute
	// graceTime is how long a command may go on after its time limit.
	graceTime = time.Second
	// maxServerLog bounds what is shown of a server that did not start, in bytes.
	maxServerLog = 4 << 10
)

// execution is what exec was asked for.
type execution struct {
	Place
	text, dir string
	timeout   time.Duration
	mark      bool
	named     bool // the user named the session, which may be of any server
}

// Exec runs a command in a session of a running server, which it starts if necessary.
func Exec(std cli.Streams) *cobra.Command {
	var e execution
	cmd := &cobra.Command{
		Use:   "exec [-c TEXT | -- COMMAND ARGUMENT...]",
		Short: "Run a command in a session's sandbox, as a shell does",
		Long: `Run a command in the sandbox of a session, with this command's input and output, and end
with its exit status. Working directory, variables and functions are those that the
last command of the session left. Signals go to the command.

The session is of the running server that shows this project, the folder above here
that has .git, at its own path. If there is none, one starts in the background, with the
project as an overlay: review what commands changed with ` + cli.Program + ` changes. It
ends ten minutes after its last session. A live session that you name may be of any server.

If the sandbox cannot be had, the status is 125. The command never runs outside.`,
		Example: "  " + cli.Program + " exec -- make test\n  " + cli.Program + " exec -c 'cd src && ls'",
		RunE: func(cmd *cobra.Command, args []string) error {
			switch given := cmd.Flags().Changed("command"); {
			case given && len(args) > 0:
				return command.Misuse("both -c and a command were given", "keep one of them")
			case given:
			case len(args) == 0:
				return command.Misuse("no command was given", "use "+cli.Program+" exec -- ls, or -c and a text")
			default:
				words := make([]string, len(args))
				for i, word := range args {
					words[i] = format.ShellQuote(word)
				}
				e.text = strings.Join(words, " ")
			}
			e.named = cmd.Flags().Changed("session") && !e.mark
			status, err := e.run(std)
			if err != nil {
				command.Report(terminal.Visible(std.Err), err)
				return command.Exit(command.NoSandbox)
			}
			return command.Exit(status)
		},
	}
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().StringVarP(&e.text, "command", "c", "", "run this `TEXT` with bash")
	cmd.Flags().StringVar(&e.Session, "session", "shell", "in the session `NAME`")
	cmd.Flags().StringVar(&e.env, "env", "", "in this `ENV`; else the project's own if its flake has one, or bash")
	cmd.Flags().StringVar(&e.dir, "cwd", "", "in the directory `DIR` of the sandbox")
	cmd.Flags().DurationVar(&e.timeout, "timeout", 0, "end the command after this `TIME`, such as 90s, with the status 124")
	cmd.Flags().BoolVar(&e.mark, "mark", false, "end with a line that names the sandbox, for agents")
	if err := cmd.RegisterFlagCompletionFunc("session", CompleteLive); err != nil {
		panic(err) // the flag has just been added
	}
	return cmd
}

// run runs the command, and returns its exit status.
func (e *execution) run(std cli.Streams) (int, error) {
	server, err := e.server()
	if err != nil {
		return 0, err
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	defer signal.Stop(signals)
	g, err := enter(server, visit.OpenArgs{Place: e.in(), Program: &frame.Program{Dir: e.dir}, Text: e.text}, std.Out, std.Err)
	if err != nil {
		return 0, err
	}
	defer g.client.Close()
	go g.feed(std.In)
	var limit, grace <-chan time.Time
	if e.timeout > 0 {
		limit = time.After(e.timeout)
	}
	for {
		select {
		case s := <-signals:
			g.Signal(s.(syscall.Signal))
			continue
		case <-limit:
			g.Signal(syscall.SIGTERM)
			grace = time.After(graceTime)
			continue
		case <-grace:
			g.Signal(syscall.SIGKILL)
			continue
		case <-g.ended:
		}
		break
	}
	status, err := g.Wait()
	if err != nil {
		return 0, err
	}
	drain(std.Out, drainTime)
	for _, remark := range g.last.Remarks {
		fmt.Fprintf(std.Err, "[%s]\n", format.Plain(remark))
	}
	switch at := format.Plain(g.first.Env + " " + g.first.Mark); {
	case grace != nil:
		fmt.Fprintf(std.Err, "%s: the command was ended after %v\n", cli.Program, e.timeout)
		return command.TooLong, nil
	case e.mark && g.first.Begun:
		fmt.Fprintf(std.Err, "[sandbox %s: the answer of each command that runs in it ends with its name]\n", at)
	case e.mark:
		fmt.Fprintf(std.Err, "[sandbox %s]\n", at)
	}
	return status, nil
}

// feed sends the input until it or the program ends.
func (g *guest) feed(in io.Reader) {
	buffer := make([]byte, frame.StreamPart)
	for {
		n, err := in.Read(buffer)
		if g.Type(buffer[:n]) != nil {
			return
		}
		if err != nil {
			_ = g.CloseInput()
			return
		}
	}
}

// server returns a server that shows this project, and starts one otherwise. One that has the
// session comes first.
func (e *execution) server() (desk.Server, error) {
	root, problem := projectHere()
	folders := config.DeskFolders(os.Getenv)
	if server, found := e.find(folders, root); found {
		return server, nil
	}
	if problem != nil {
		return desk.Server{}, problem
	}
	folder, err := desk.Usable(folders, []string{root})
	if err != nil {
		return desk.Server{}, &config.Error{Problem: "no server can be reached: " + err.Error(), Hint: "set XDG_RUNTIME_DIR to a folder of this user alone"}
	}
	// Of two commands at once, one starts the server.
	lock, err := os.OpenFile(filepath.Join(folder, "start.lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return desk.Server{}, err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return desk.Server{}, fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	if server, found := e.find(folders, root); found {
		return server, nil
	}
	return e.start(folder, root)
}

func (e *execution) find(folders []string, root string) (best desk.Server, found bool) {
	for _, server := range desk.Find(folders) {
		var p visit.Project
		ctx, cancel := context.WithTimeout(context.Background(), topTimeout)
		err := server.Ask(ctx, "project", visit.ProjectArgs{Session: e.Session}, &p)
		cancel()
		switch {
		case err != nil:
		case root != "" && p.Dir == root && (p.Mount == root || !isFree(root)):
			if p.Live {
				return server, true
			}
			best, found = server, true
		case p.Live && e.named && !found:
			best, found = server, true
		}
	}
	return best, found
}

// projectHere returns the folder of the project: the nearest one above here that git knows, or this one.
func projectHere() (string, error) {
	here, err := os.Getwd()
	if err == nil {
		here, err = filepath.EvalSymlinks(here)
	}
	if err != nil {
		return "", fmt.Errorf("find the folder of the project: %w", err)
	}
	root := here
	for folder := here; ; folder = filepath.Dir(folder) {
		if _, err := os.Lstat(filepath.Join(folder, ".git")); err == nil {
			root = folder
			break
		}
		if folder == "/" {
			break
		}
	}
	home, _ := os.UserHomeDir()
	if real, err := filepath.EvalSymlinks(home); root == "/" || err == nil && root == real {
		return "", &config.Error{Problem: root + " is no project: a sandbox would show all files in it", Hint: "go to the folder of a project"}
	}
	return root, nil
}

// isFree reports whether sandboxes can show a project at its own path: some paths are their own.
func isFree(root string) bool {
	_, base, err := config.Load()
	return err != nil || mountpoint.Problem(root, base.Project.Reserved) == ""
}

// first are the messages of a client: a server can be found after its first answer.
const first = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"nix-sandbox-mcp exec","version":"1"}}}` +
	"\n" + `{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n"

// start starts a server in the background. It keeps the other end of its own input, so that it does
// not end with this command.
func (e *execution) start(folder, root string) (server desk.Server, err error) {
	path, err := cli.Self()
	if err != nil {
		return server, err
	}
	in, keep, err := os.Pipe()
	if err != nil {
		return server, err
	}
	defer in.Close()
	defer keep.Close()
	if _, err := keep.WriteString(first); err != nil {
		return server, err
	}
	log, err := os.OpenFile(filepath.Join(folder, "exec.log"), os.O_CREATE|os.O_TRUNC|os.O_RDWR|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return server, err
	}
	defer log.Close()
	cmd := exec.Command(path, "--stdio")
	cmd.Dir, cmd.Stdin, cmd.Stderr, cmd.ExtraFiles = root, in, log, []*os.File{keep}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Env = append(os.Environ(), "PROJECT_DIR="+root)
	if isFree(root) {
		cmd.Env = append(cmd.Env, "PROJECT_MOUNT="+root)
	}
	for _, usual := range [][2]string{
		{"PROJECT_MODE", config.Overlay},
		{"SESSION_IDLE_TIMEOUT", "28800"}, // 8 hours and a week, in seconds
		{"SESSION_MAX_LIFETIME", "604800"},
		{"PROJECT_USE_FLAKE", hasFlake(root)},
	} {
		if os.Getenv(usual[0]) == "" && usual[1] != "" {
			cmd.Env = append(cmd.Env, usual[0]+"="+usual[1])
		}
	}
	if err := cmd.Start(); err != nil {
		return server, fmt.Errorf("start a server: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for end := time.Now().Add(startWithin); time.Now().Before(end); {
		select {
		case err := <-ended:
			return server, startError(log, err)
		case <-time.After(5 * time.Millisecond):
		}
		for _, server := range desk.Find([]string{folder}) {
			if server.PID == cmd.Process.Pid {
				ctx, cancel := context.WithTimeout(context.Background(), topTimeout)
				defer cancel()
				return server, server.Ask(ctx, "linger", nil, new(json.RawMessage))
			}
		}
	}
	_ = cmd.Process.Kill()
	return server, fmt.Errorf("the server did not start within %v: see %s", startWithin, log.Name())
}

// startError returns why a server did not start, which its log says.
func startError(log *os.File, err error) error {
	text := make([]byte, maxServerLog)
	n, _ := log.ReadAt(text, 0)
	wrong := &config.Error{Problem: fmt.Sprintf("the server did not start: %v", err), Hint: "see " + log.Name()}
	for line := range strings.Lines(string(text[:n])) {
		line = strings.TrimSpace(line)
		if problem, found := strings.CutPrefix(line, cli.Program+": error: "); found {
			wrong.Problem = "the server did not start: " + problem
		}
		if hint, found := strings.CutPrefix(line, cli.Program+": hint: "); found {
			wrong.Hint = hint
		}
	}
	return wrong
}

// hasFlake returns "1" if a project has a flake, whose development shell is then its environment.
func hasFlake(root string) string {
	if _, err := os.Stat(filepath.Join(root, "flake.nix")); err != nil {
		return ""
	}
	return "1"
}
