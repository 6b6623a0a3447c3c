package sessions

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/cli"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/operator/format"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk/watch"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"
)

const (
	// topPause is the time between two snapshots, topTimeout the time for one, and maxSnapshot
	// bounds it, in bytes.
	topPause    = time.Second
	topTimeout  = 5 * time.Second
	maxSnapshot = 16 << 20
)

// Top prints the status of servers.
func Top(std cli.Streams) *cobra.Command {
	var url string
	var watch bool
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Print the status of running servers: who calls, sessions, calls",
		Long: "Print the status of the running servers of this user, the newest first: who calls, sessions, calls and\n" +
			"refusals. With --watch it is printed again each second, until Ctrl-C.",
		Example: "  " + cli.Program + " top --watch\n  " + cli.Program + " top --url http://127.0.0.1:9464",
		Args:    cli.AtMost(0),
		RunE: func(*cobra.Command, []string) error {
			for {
				err := printServers(std.Out, url)
				if err != nil || !watch {
					return err
				}
				time.Sleep(topPause)
				fmt.Fprintln(std.Out)
			}
		},
	}
	cmd.Flags().StringVar(&url, "url", "", "the server whose metrics are at `URL`, or at unix:PATH")
	cmd.Flags().BoolVar(&watch, "watch", false, "print it again each second")
	return cmd
}

// printServers prints a snapshot of each server. A server that gives no answer has a line that says
// so, unless there is no other.
func printServers(out io.Writer, url string) error {
	servers, err := findServers(url)
	if err != nil {
		return err
	}
	for i, server := range servers {
		snapshot, err := server.read(context.Background())
		text := describeServer(snapshot)
		switch {
		case err != nil && len(servers) == 1:
			return &config.Error{Problem: err.Error(), Hint: "check that the server runs; --url names the address of its metrics (NIX_SANDBOX_METRICS or metrics_listen), which only this machine can reach"}
		case err != nil:
			text = fmt.Appendf(nil, "%s: %s\n", server.name, format.Plain(err.Error()))
		}
		if i > 0 {
			fmt.Fprintln(out)
		}
		if _, err := out.Write(text); err != nil {
			return err
		}
	}
	return nil
}

// source is a server that can be asked for its status.
type source struct {
	name string
	read func(context.Context) (watch.Snapshot, error)
}

// findServers returns the servers that can be shown, from the newest on. It returns an error if
// there are none.
func findServers(url string) (servers []source, err error) {
	if path, isUnix := strings.CutPrefix(url, "unix:"); isUnix {
		dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		}
		client := &http.Client{Timeout: topTimeout, Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
		return []source{overHTTP(path, "http://localhost", client)}, nil
	}
	if url != "" {
		if !strings.HasPrefix(url, "http://") && !strings.HasPrefix(url, "https://") {
			return nil, command.Misuse(fmt.Sprintf("--url is %q", url), "use a URL such as http://127.0.0.1:9464, or unix:PATH")
		}
		return []source{overHTTP(url, strings.TrimRight(url, "/"), &http.Client{Timeout: topTimeout})}, nil
	}
	found, err := running()
	for _, server := range found {
		servers = append(servers, source{server.Path, func(ctx context.Context) (snapshot watch.Snapshot, err error) {
			ctx, cancel := context.WithTimeout(ctx, topTimeout)
			defer cancel()
			err = server.Ask(ctx, "status", nil, &snapshot)
			return snapshot, err
		}})
	}
	return servers, err
}

// overHTTP returns the server whose metrics are at a URL.
func overHTTP(name, url string, client *http.Client) source {
	return source{name, func(ctx context.Context) (snapshot watch.Snapshot, err error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+watch.Path, nil)
		if err != nil {
			return snapshot, err
		}
		response, err := client.Do(request)
		if err != nil {
			var problem *net.OpError
			if errors.As(err, &problem) {
				err = problem.Err
			}
			return snapshot, fmt.Errorf("the server at %s cannot be asked: %w", name, err)
		}
		defer response.Body.Close()
		text, err := bounded.Read(response.Body, maxSnapshot)
		switch {
		case err != nil:
			return snapshot, fmt.Errorf("the server at %s: %w", name, err)
		case response.StatusCode != http.StatusOK:
			return snapshot, fmt.Errorf("the server at %s answers %s: it does not show its status at that address", name, response.Status)
		}
		if err := json.Unmarshal(text, &snapshot); err != nil {
			return snapshot, fmt.Errorf("the server at %s answers with something else: %w", name, err)
		}
		return snapshot, nil
	}}
}

// describeServer returns a snapshot as lines. It makes every text of a client or a sandbox plain.
func describeServer(s watch.Snapshot) []byte {
	var out bytes.Buffer
	seconds := func(n float64) string { return format.Age(time.Duration(n * float64(time.Second))) }
	fmt.Fprintf(&out, "nix-sandbox-mcp %s, process %d, runs for %s: %s, %s, %s\n", format.Plain(s.Version), s.PID, seconds(s.Uptime),
		format.Count(len(s.Sessions), "session"), format.Count(len(s.Running), "running call"), format.Count(len(s.Environments), "environment"))
	fmt.Fprintf(&out, "server %d MB, sandboxes %d MB in %d processes", s.Memory.Server>>20, s.Memory.Sandboxes>>20, s.Memory.Processes)
	switch {
	case s.Audit == nil:
		fmt.Fprint(&out, ", no audit log\n")
	case s.Audit.Failure != "":
		fmt.Fprintf(&out, ", the audit log CANNOT BE WRITTEN: %s\n", format.Plain(s.Audit.Failure))
	default:
		fmt.Fprintf(&out, ", %s in the audit log, %d lost\n", format.Count(int(s.Audit.Records), "record"), s.Audit.Lost)
	}
	table := func(head string, rows [][]any) {
		if len(rows) == 0 {
			return
		}
		var cells [][]string
		for _, row := range rows {
			var line []string
			for _, cell := range row {
				line = append(line, cmp.Or(format.Plain(fmt.Sprint(cell)), "-"))
			}
			cells = append(cells, line)
		}
		fmt.Fprintln(&out)
		_ = format.Table(&out, strings.Fields(head), cells) // to memory
	}
	var principals, running, sessions, recent [][]any
	for _, p := range s.Principals {
		principals = append(principals, []any{cmp.Or(p.Name, "(the one client)"), p.Running, p.Calls, p.Failed, p.Refused, p.Sessions, fmt.Sprintf("%d MB", p.MemoryMB), seconds(p.Seconds)})
	}
	for _, c := range s.Running {
		running = append(running, []any{c.Number, c.Principal, c.Env, c.Session, format.Age(c.Took), c.Waits})
	}
	for _, one := range s.Sessions {
		unused := seconds(one.Idle)
		if one.Waiting > 0 {
			unused = "in use"
		}
		sessions = append(sessions, []any{one.ID, one.Principal, one.Environments, one.Calls, seconds(one.Age), unused, fmt.Sprintf("%d MB", one.MemoryMB)})
	}
	for _, c := range s.Recent {
		recent = append(recent, []any{c.Number, c.Outcome, c.Principal, c.Env, c.Session, format.Took(c.Took), cmp.Or(c.Reason, strings.Join(c.Remarks, "; "))})
	}
	table("PRINCIPAL RUNNING CALLS FAILED REFUSED SESSIONS ALLOWED TIME", principals)
	table("RUNNING PRINCIPAL ENV SESSION FOR WAITS-FOR", running)
	table("SESSION PRINCIPAL ENV CALLS AGE UNUSED ALLOWED", sessions)
	table("ENDED OUTCOME PRINCIPAL ENV SESSION TOOK REASON", recent)
	return out.Bytes()
}
