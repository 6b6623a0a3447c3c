package sessions

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/cli"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/format"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/terminal"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/ask"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/call"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
)

// findEvery is how often servers are looked for that have started meanwhile.
const findEvery = 2 * time.Second

// Approve lets the user answer what servers ask.
func Approve(std cli.Streams) *cobra.Command {
	var whose ask.Whose
	cmd := &cobra.Command{
		Use:   "approve",
		Short: "Answer what code in a sandbox may do, as long as this command runs",
		Long: "Answer the questions of this user's servers: what their configuration marks with ask waits for the answer.\n" +
			"Answer with a choice's number. Over HTTP it answers for all principals. What nobody answers in time is refused. The command page shows the same\n" +
			"questions in a browser.",
		Example: "  " + cli.Program + " approve",
		Args:    cli.AtMost(0),
		RunE: func(*cobra.Command, []string) error {
			// A program that runs commands for a model has no terminal to give.
			if !terminal.Is(std.In) || !terminal.Is(std.Out) {
				return command.Misuse("approve asks a person at a terminal, and its input or output is not a terminal", "run it in a terminal of its own, beside the client")
			}
			if _, err := running(); err != nil {
				return err
			}
			if whose.Principal == "" {
				whose.Principal = ask.Everyone
			}
			a := approver{out: std.Out, whose: whose, changes: make(chan news), servers: map[string]*answering{}}
			return a.run(std.In)
		},
	}
	cmd.Flags().StringVar(&whose.Principal, "principal", "", "answer only for `NAME`, a principal of a server over HTTP")
	return cmd
}

// approver shows one question at a time.
type approver struct {
	out     io.Writer
	whose   ask.Whose
	changes chan news
	servers map[string]*answering // by socket
	shown   call.Question         // its ID is empty if none is
	before  int                   // choices of earlier questions: no number is of two
	at      *answering            // its server
	// announced says that the user knows that questions are shown: a server has sent its first list.
	announced bool
}

// answering is a server whose questions are followed.
type answering struct {
	open    []call.Question
	replies chan ask.Reply
}

// news are a server's new list. The server has ended if over is set.
type news struct {
	path string
	open []call.Question
	over bool
}

func (a *approver) run(in io.Reader) error {
	lines := linesOf(in)
	ticker := time.NewTicker(findEvery)
	defer ticker.Stop()
	for {
		for _, server := range desk.Find(config.DeskFolders(os.Getenv)) {
			if a.servers[server.Path] == nil {
				a.follow(server)
			}
		}
	wait:
		for {
			select {
			case <-ticker.C:
				break wait
			case line, open := <-lines:
				if !open {
					return nil
				}
				a.answer(strings.TrimSpace(line))
			case c := <-a.changes:
				a.announce()
				if c.over {
					delete(a.servers, c.path)
				} else {
					a.servers[c.path].open = c.open
				}
			}
			a.show()
		}
	}
}

// announce says that servers ask here from now on.
func (a *approver) announce() {
	if !a.announced {
		fmt.Fprintln(a.out, "Waiting for questions. Control-C ends this, and then nobody answers here.")
		a.announced = true
	}
}

func (a *approver) follow(server desk.Server) {
	one := &answering{replies: make(chan ask.Reply, 1)}
	a.servers[server.Path] = one
	go func() {
		// A server of another version, or that ends, has no questions.
		_ = ask.Follow(context.Background(), server, a.whose, func(list []call.Question) { a.changes <- news{server.Path, list, false} }, one.replies)
		a.changes <- news{path: server.Path, over: true}
	}()
}

// show shows the oldest question, unless it is shown already.
func (a *approver) show() {
	var next call.Question
	var at *answering
	for _, path := range slices.Sorted(maps.Keys(a.servers)) {
		for _, q := range a.servers[path].open {
			if q.ID == a.shown.ID {
				return
			}
			if at == nil || q.Asked.Before(next.Asked) {
				next, at = q, a.servers[path]
			}
		}
	}
	if a.shown.ID != "" {
		fmt.Fprintln(a.out, "\n(That question is over.)")
	}
	a.before += len(a.shown.Choices)
	a.shown, a.at = next, at
	if at == nil {
		return
	}
	who := ""
	if next.Principal != "" {
		who = format.Plain(next.Principal) + ": "
	}
	fmt.Fprintf(a.out, "\n%s%s\n", who, next.Text)
	for i, one := range next.Choices {
		fmt.Fprintf(a.out, "  %d  %s\n", a.before+i+1, one.Label)
	}
	fmt.Fprintf(a.out, "Until %s, %d to %d: ", next.Until.Local().Format(time.TimeOnly), a.before+1, a.before+len(next.Choices))
}

// answer takes a line of the user.
func (a *approver) answer(line string) {
	if a.shown.ID == "" || line == "" {
		return
	}
	n, err := strconv.Atoi(line)
	n -= a.before
	if err != nil || n < 1 || n > len(a.shown.Choices) {
		fmt.Fprintf(a.out, "Write a number from %d to %d: ", a.before+1, a.before+len(a.shown.Choices))
		return
	}
	choice := a.shown.Choices[n-1].Choice
	select {
	case a.at.replies <- ask.Reply{ID: a.shown.ID, Choice: choice}:
	default: // the server takes no more
	}
	if choice == call.Always && a.shown.Lines != "" {
		fmt.Fprintf(a.out, "To keep it, add this to the configuration:\n\n%s\n", a.shown.Lines)
	}
	id := a.shown.ID
	a.at.open = slices.DeleteFunc(slices.Clone(a.at.open), func(q call.Question) bool { return q.ID == id })
	a.shown.ID = ""
}

// linesOf returns the lines of an input.
func linesOf(in io.Reader) <-chan string {
	lines := make(chan string)
	scanner := bufio.NewScanner(in)
	go func() {
		defer close(lines)
		for scanner.Scan() {
			lines <- scanner.Text()
		}
	}()
	return lines
}
