package main

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
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/agent/bounded"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/desk/watch"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/command"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/config"
)

const (
	// topPause is the time between two snapshots, topTimeout the time for one, and maxSnapshot
	// bounds it, in bytes.
	topPause    = time.Second
	topTimeout  = 5 * time.Second
	maxSnapshot = 16 << 20
)

// topCommand shows the status of a server, again and again.
func topCommand(std streams) *cobra.Command {
	var url string
	var once bool
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the status of a running server: who calls, sessions, calls",
		Long: "Show the status of a running server once a second: who calls, sessions, calls and refusals.\n" +
			"Without --url it is a server of this user, the newest first. The key n shows the next one, q ends.",
		Example: "  " + program + " top\n  " + program + " top --url http://127.0.0.1:9464 --once",
		Args:    atMost(0),
		RunE: func(*cobra.Command, []string) error {
			find := func() ([]source, error) { return findServers(url) }
			servers, err := find()
			if err != nil {
				return err
			}
			in, isIn := std.in.(*os.File)
			out, isOut := std.out.(*os.File)
			if once || !isIn || !isOut || !isTerminal(in) || !isTerminal(out) {
				return showOnce(std.out, servers[0])
			}
			return showLive(in, out, servers, find)
		},
	}
	cmd.Flags().StringVar(&url, "url", "", "show the server whose metrics are at `URL`, or at unix:PATH")
	cmd.Flags().BoolVar(&once, "once", false, "print the status once, and end")
	return cmd
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

// showOnce prints one snapshot.
func showOnce(out io.Writer, from source) error {
	snapshot, err := from.read(context.Background())
	if err != nil {
		return &config.Error{Problem: err.Error(), Hint: "check that the server runs; --url names the address of its metrics (NIX_SANDBOX_METRICS or metrics_listen), which only this machine can reach"}
	}
	_, err = out.Write(describeServer(snapshot))
	return err
}

// describeServer returns a snapshot as lines. It makes every text of a client or a sandbox plain.
func describeServer(s watch.Snapshot) []byte {
	var out bytes.Buffer
	seconds := func(n float64) string { return age(time.Duration(n * float64(time.Second))) }
	fmt.Fprintf(&out, "nix-sandbox-mcp %s, process %d, runs for %s: %s, %s, %s\n", plain(s.Version), s.PID, seconds(s.Uptime),
		count(len(s.Sessions), "session"), count(len(s.Running), "running call"), count(len(s.Environments), "environment"))
	fmt.Fprintf(&out, "server %d MB, sandboxes %d MB in %d processes", s.Memory.Server>>20, s.Memory.Sandboxes>>20, s.Memory.Processes)
	switch {
	case s.Audit == nil:
		fmt.Fprint(&out, ", no audit log\n")
	case s.Audit.Failure != "":
		fmt.Fprintf(&out, ", the audit log CANNOT BE WRITTEN: %s\n", plain(s.Audit.Failure))
	default:
		fmt.Fprintf(&out, ", %s in the audit log, %d lost\n", count(int(s.Audit.Records), "record"), s.Audit.Lost)
	}
	table := func(head string, rows [][]any) {
		if len(rows) == 0 {
			return
		}
		var cells [][]string
		for _, row := range rows {
			var line []string
			for _, cell := range row {
				line = append(line, cmp.Or(plain(fmt.Sprint(cell)), "-"))
			}
			cells = append(cells, line)
		}
		fmt.Fprintln(&out)
		_ = writeTable(&out, strings.Fields(head), cells) // to memory
	}
	var principals, running, sessions, recent [][]any
	for _, p := range s.Principals {
		principals = append(principals, []any{cmp.Or(p.Name, "(the one client)"), p.Running, p.Calls, p.Failed, p.Refused, p.Sessions, fmt.Sprintf("%d MB", p.MemoryMB), seconds(p.Seconds)})
	}
	for _, c := range s.Running {
		running = append(running, []any{c.Number, c.Principal, c.Env, c.Session, age(c.Took), c.Waits})
	}
	for _, one := range s.Sessions {
		unused := seconds(one.Idle)
		if one.Waiting > 0 {
			unused = "in use"
		}
		sessions = append(sessions, []any{one.ID, one.Principal, one.Environments, one.Calls, seconds(one.Age), unused, fmt.Sprintf("%d MB", one.MemoryMB)})
	}
	for _, c := range s.Recent {
		recent = append(recent, []any{c.Number, c.Outcome, c.Principal, c.Env, c.Session, took(c.Took), cmp.Or(c.Reason, strings.Join(c.Remarks, "; "))})
	}
	table("PRINCIPAL RUNNING CALLS FAILED REFUSED SESSIONS ALLOWED TIME", principals)
	table("RUNNING PRINCIPAL ENV SESSION FOR WAITS-FOR", running)
	table("SESSION PRINCIPAL ENV CALLS AGE UNUSED ALLOWED", sessions)
	table("ENDED OUTCOME PRINCIPAL ENV SESSION TOOK REASON", recent)
	return out.Bytes()
}

// Sequences that draw on the alternate screen, without a cursor, and cut long lines.
const (
	openScreen  = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	closeScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	drawScreen  = "\x1b[H"
	clearLine   = "\x1b[K" // before its text: behind a line that was cut it would take the last character
	clearRest   = "\x1b[J"
)

// showLive draws a snapshot once a second, until the user or a signal ends it.
func showLive(in, out *os.File, servers []source, find func() ([]source, error)) error {
	before, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return fmt.Errorf("make the terminal raw: %w", err)
	}
	defer func() { _ = term.Restore(int(in.Fd()), before) }()
	_, _ = io.WriteString(out, openScreen)
	defer func() { _, _ = io.WriteString(out, closeScreen) }()
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGWINCH)
	defer signal.Stop(signals)
	keys := make(chan byte)
	go func() { // ends with the process
		defer close(keys)
		for key := make([]byte, 1); ; {
			if _, err := in.Read(key); err != nil {
				return
			}
			keys <- key[0]
		}
	}()
	ticker := time.NewTicker(topPause)
	defer ticker.Stop()
	shown := servers[0].name
	for {
		at := max(0, slices.IndexFunc(servers, func(s source) bool { return s.name == shown }))
		shown = servers[at].name
		var text []byte
		if snapshot, err := servers[at].read(context.Background()); err != nil {
			text = []byte(plain(err.Error()) + "\n")
		} else {
			text = describeServer(snapshot)
		}
		foot := "q: quit"
		if len(servers) > 1 {
			foot = fmt.Sprintf("server %d of %d · n: next · q: quit", at+1, len(servers))
		}
		draw(out, text, foot)
		select {
		case <-ticker.C:
		case s := <-signals:
			if s != syscall.SIGWINCH {
				return nil
			}
		case key, ok := <-keys:
			switch {
			case !ok, key == 'q', key == 3, key == 4: // Ctrl-C, Ctrl-D
				return nil
			case key == 'n':
				shown = servers[(at+1)%len(servers)].name
			}
		}
		if found, err := find(); err == nil {
			servers = found
		}
	}
}

// draw writes the first lines of a text over the screen, and a line at its foot.
func draw(out *os.File, text []byte, foot string) {
	size := sizeOf(out)
	var all strings.Builder
	all.WriteString(drawScreen)
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	for _, line := range lines[:min(len(lines), int(size.Rows)-1)] {
		all.WriteString(clearLine + line + "\r\n")
	}
	all.WriteString(clearRest)
	fmt.Fprintf(&all, "\x1b[%d;1H\x1b[7m%s\x1b[0m", size.Rows, foot)
	_, _ = io.WriteString(out, all.String())
}
