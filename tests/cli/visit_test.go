package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/browser"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
)

// visited is a server with a client, and the runtime folder in which commands find it.
type visited struct {
	*mcptest.Client
	t       *testing.T
	runtime string
}

// visiting starts a server, with other settings for sessions than its own.
func visiting(t *testing.T, session map[string]any) *visited {
	t.Helper()
	server := undertest.Server(t)
	text := must.Get(os.ReadFile(filepath.Join(filepath.Dir(server), "..", "share", "nix-sandbox-mcp", "metadata.json")))(t)
	var metadata map[string]any
	must.Do(t, json.Unmarshal(text, &metadata))
	all := metadata["session"].(map[string]any)
	for name, value := range session {
		all[name] = value
	}
	v := &visited{t: t, runtime: "XDG_RUNTIME_DIR=" + t.TempDir()}
	cmd := command(t, "--stdio")
	cmd.Env = append(cmd.Env, v.runtime, "NIX_SANDBOX_METADATA="+string(must.Get(json.Marshal(metadata))(t)))
	v.Client = mcptest.Start(t, cmd)
	v.Initialize(mcptest.Newest)
	return v
}

// in runs code in a session.
func (v *visited) in(session, env, code string) mcptest.Answer {
	v.t.Helper()
	return v.Run(mcptest.Arguments{Session: session, Env: env, Code: code})
}

// command is one of the user's.
func (v *visited) command(args ...string) *exec.Cmd {
	cmd := command(v.t, args...)
	cmd.Env = append(cmd.Env, v.runtime)
	return cmd
}

// The user sees the files and the processes of the model's session, and the model is told of the
// files that the user changed, once.
func TestShell_JoinsTheModelsSession(t *testing.T) {
	t.Parallel()
	v := visiting(t, nil)
	v.in("work", "bash", "echo of the model >model.txt; sleep 1234 & echo $!")
	u := startOnTerminal(t, 40, 120, v.command("shell", "--session", "work"))
	u.sees("session work, env bash, which the model uses too")
	u.sees("sandbox:/workspace$")
	u.types("cat model.txt; cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -ao 'sleep 1234'; stty size\r")
	u.sees("of the model\n")
	u.sees("\nsleep 1234")
	u.sees("40 120")
	u.resize(30, 100)
	// A resize is a signal, which may come later than what is typed after it.
	u.types("until [ \"$(stty size)\" = '30 100' ]; do sleep 0.1; done; stty size; echo typed >user.txt; rm model.txt; echo do''ne\r")
	u.sees("\n30 100")
	u.sees("\ndone")
	// The shell is still there, and the model's next call is told.
	answer := v.in("work", "bash", "cat user.txt; echo mine >own.txt")
	if want := "typed\n[the user changed files in this session: model.txt, user.txt]"; answer.Text() != want {
		t.Errorf("answer %q, want %q", answer.Text(), want)
	}
	// What the model changes is not the user's, also while the user is there.
	if answer := v.in("work", "bash", "echo again >own.txt"); strings.Contains(answer.Text(), "changed") {
		t.Errorf("answer %q", answer.Text())
	}
	u.types("touch 'a\"b\\n'$'\\e'; mkdir many; touch many/{1..99}; exit 3\r")
	if status := u.awaitExit(); status != 3 {
		t.Errorf("status %d", status)
	}
	if changed := u.display.changed(); len(changed) > 0 {
		t.Errorf("the terminal is left with %q", changed)
	}
	answer = v.in("work", "python", "import os; sorted(os.listdir())")
	if text := answer.Text(); !regexp.MustCompile(`\[the user changed files in this session: "a.*, many/1, many/10, .* and 95 more\]$`).MatchString(text) || strings.Contains(text, "_history") || strings.ContainsAny(text, "\x1b") {
		t.Errorf("answer %q", text)
	}
	if answer := v.in("work", "bash", "jobs -p | wc -l"); answer.Text() != "1\n" && answer.Text() != "1" {
		t.Errorf("the model's process, and nothing else to tell: %q", answer.Text())
	}
}

// A shell works while a call runs, goes when its terminal does, and leaves the session as it is.
func TestShell_BesideARunningCall(t *testing.T) {
	t.Parallel()
	v := visiting(t, nil)
	v.in("busy", "bash", "x=1")
	id := v.SendRun(mcptest.Arguments{Session: "busy", Env: "bash", Code: "until [ -e go ]; do sleep 0.01; done; echo went $x"})
	u := startOnTerminal(t, 24, 80, v.command("shell", "--session", "busy", "--env", "bash"))
	u.sees("sandbox:/workspace$")
	u.types("trap '' HUP; touch go\r")
	if answer := v.AwaitRun(id); !strings.HasPrefix(answer.Text(), "went 1") {
		t.Errorf("answer %q", answer.Text())
	}
	u.close()
	select {
	case <-u.ended:
	case <-time.After(patience.Long):
		t.Fatal("the command does not end")
	}
	patience.Wait(t, patience.Long, func() string { return "the shell goes on" }, func() bool {
		return strings.TrimSpace(v.in("busy", "bash", "for p in /proc/[0-9]*; do readlink $p/fd/0; done 2>/dev/null | grep -c pts").Text()) == "0\n[exit status 1]"
	})
	if answer := v.in("busy", "bash", "echo $x"); strings.TrimSpace(answer.Text()) != "1" {
		t.Errorf("the session has %q", answer.Text())
	}
}

// Files of a live session are copied, and nothing else is.
func TestGet_CopiesFilesOfALiveSession(t *testing.T) {
	t.Parallel()
	v := visiting(t, nil)
	v.in("work", "bash", "mkdir -p sub/deep; seq 200000 >sub/numbers; echo a,b >sub/deep/a.csv; echo x >sub/.envrc; ln -s /etc/passwd link; mkfifo pipe; chmod +x sub/numbers")
	id := v.SendRun(mcptest.Arguments{Session: "work", Env: "bash", Code: "sleep 900"})
	folder := t.TempDir()
	get := func(args ...string) (string, error) {
		cmd := v.command(append([]string{"get", "work", "--to", folder}, args...)...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := get("sub/numbers"); err != nil || !strings.HasSuffix(out, "/numbers (1288895 bytes)\n") {
		t.Errorf("%v, %s", err, out)
	}
	text := must.Get(os.ReadFile(filepath.Join(folder, "numbers")))(t)
	if info := must.Get(os.Stat(filepath.Join(folder, "numbers")))(t); info.Mode().Perm() != 0o600 || !strings.HasSuffix(string(text), "\n199999\n200000\n") {
		t.Errorf("%d bytes, mode %o", len(text), info.Mode())
	}
	for path, want := range map[string]string{
		"sub/numbers": "numbers exists", "link": "copy \"link\": ", "pipe": "copy \"pipe\": ",
		"../../etc/passwd": "copy \"../../etc/passwd\": ", "none": "copy \"none\": ",
	} {
		if out, err := get(path); err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v, %s", path, err, out)
		}
	}
	if entries := must.Get(os.ReadDir(folder))(t); len(entries) != 1 {
		t.Errorf("the folder has %v", entries)
	}
	// Without a path it lists them. Of a folder, what programs obey is left out unless it is named.
	if out, err := get(); err != nil || !regexp.MustCompile(`(?m)^PATH +BYTES\nsub/\.envrc +2\nsub/deep/a\.csv +4\nsub/numbers +1288895\n$`).MatchString(out) {
		t.Errorf("%v, %s", err, out)
	}
	out, err := get("sub")
	if err != nil || !strings.Contains(out, "left out: sub/.envrc: its path has a name that begins with a dot") || !strings.Contains(out, "/sub/deep/a.csv (4 bytes)\n") || !strings.Contains(out, "left out: sub/numbers: ") {
		t.Errorf("%v, %s", err, out)
	}
	if out, err := get("sub/.envrc"); err != nil || !strings.Contains(out, "/.envrc (2 bytes)\n") {
		t.Errorf("%v, %s", err, out)
	}
	v.Notify("notifications/cancelled", map[string]any{"requestId": id})
}

// The list has live sessions, and what it has cannot be entered by other names.
func TestSessions_ListsLiveOnes(t *testing.T) {
	t.Parallel()
	v := visiting(t, nil)
	v.in("one", "python", "data = bytearray(50_000_000)")
	v.in("one", "bash", "true")
	id := v.SendRun(mcptest.Arguments{Session: "two", Env: "bash", Code: "sleep 900"})
	row := regexp.MustCompile(`(?m)^one +bash\+python +\d+ s +\d+ s +(\d+) of \d+ MB +process \d+`)
	patience.Wait(t, patience.Long, func() string { return "the list is never complete" }, func() bool {
		out := must.Get(v.command("sessions").Output())(t)
		found := row.FindSubmatch(out)
		if found == nil || !regexp.MustCompile(`(?m)^two +bash +\d+ s +runs 1 call `).Match(out) {
			return false
		}
		var used int
		must.Get(fmt.Sscan(string(found[1]), &used))(t)
		return used >= 50
	})
	var all []struct {
		Name, Env string
		Live      *struct {
			PID, Calls int
			Memory     int64 `json:"memory_bytes"`
		}
	}
	must.Do(t, json.Unmarshal(must.Get(v.command("sessions", "--json").Output())(t), &all))
	if len(all) != 2 || all[0].Live == nil || all[0].Name != "one" || all[0].Live.Memory < 50_000_000 || all[1].Live.Calls != 1 {
		t.Errorf("%+v", all)
	}
	v.Notify("notifications/cancelled", map[string]any{"requestId": id})
	for _, test := range []struct{ args, want string }{
		{"shell --session one --interpreter", "--interpreter is for a new sandbox"},
		{"get one x --env node", `session "one" has no sandbox of env "node": it has bash+python`},
		{"get one x --pid 1", `error: no session "one" is live`},
		{"shell --session one", "hint: run commands without one: "},
		{"shell --session one bash", `both an environment, "bash", and --session were named`},
		{"forward one 0", `"0" is not a port`},
		{"forward one 8000x", `"8000x" is not a port`},
		{"forward one 8000", "this server lets nobody reach ports of sandboxes"},
	} {
		out, err := v.command(strings.Fields(test.args)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), test.want) {
			t.Errorf("%s: %v, %s", test.args, err, out)
		}
	}
}

// web is a server in a session: files, and a WebSocket that sends back what it gets.
const web = `
import base64, hashlib, http.server, os, struct, threading
open('index.html', 'w').write('''<meta charset=utf-8><title>wait</title><script>
const s = new WebSocket('ws://' + location.host + '/echo')
s.onopen = () => s.send('grüße')
s.onmessage = m => { document.title = m.data; s.close() }
s.onclose = () => document.body.textContent += 'closed'
</script><body>page ''' + 'x' * 300000 + '</body>')
class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def log_message(self, *args): pass
    def do_POST(self):
        body = self.rfile.read(int(self.headers['Content-Length']))
        self.send_response(200); self.send_header('Content-Length', str(len(body))); self.end_headers(); self.wfile.write(body)
    def do_GET(self):
        if self.path != '/echo': return super().do_GET()
        key = self.headers['Sec-WebSocket-Key'] + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11'
        self.send_response(101); self.send_header('Upgrade', 'websocket'); self.send_header('Connection', 'Upgrade')
        self.send_header('Sec-WebSocket-Accept', base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()); self.end_headers()
        while True:
            kind, size = self.rfile.read(2)
            mask, data = self.rfile.read(4), self.rfile.read(size & 127)
            data = bytes(b ^ mask[i % 4] for i, b in enumerate(data))
            self.wfile.write(bytes([kind, len(data)]) + data)
            if kind & 15 == 8: break
        self.close_connection = True
server = http.server.ThreadingHTTPServer(('127.0.0.1', 8000), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
`

// forwarding runs forward until the test ends, and returns the address at which it listens.
func (v *visited) forwarding(args ...string) string {
	v.t.Helper()
	cmd, address := v.forward(os.Stderr, args...)
	v.t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil {
			v.t.Errorf("forward ended with %v", err)
		}
	})
	return address
}

// forward starts forward, and returns the address at which it listens.
func (v *visited) forward(stderr io.Writer, args ...string) (*exec.Cmd, string) {
	v.t.Helper()
	cmd := v.command(append([]string{"forward"}, args...)...)
	cmd.Stderr = stderr
	out := must.Get(cmd.StdoutPipe())(v.t)
	must.Do(v.t, cmd.Start())
	line := must.Get(bufio.NewReader(out).ReadString('\n'))(v.t)
	found := regexp.MustCompile(`^http://(127\.0\.0\.1:\d+) leads to port`).FindStringSubmatch(line)
	if found == nil {
		v.t.Fatalf("it says %q", line)
	}
	return cmd, found[1]
}

// A page and its WebSocket in a real browser, many requests, and the sentence by which the model
// tells the user.
func TestForward_ServesAPage(t *testing.T) {
	t.Parallel()
	v := visiting(t, map[string]any{"forward": true})
	if text := v.in("web", "python", web).Text(); text != "[listening: the user opens port 8000 with: nix-sandbox-mcp forward web 8000]" {
		t.Errorf("answer %q", text)
	}
	if text := v.in("web", "python", "1").Text(); text != "1\n" {
		t.Errorf("the next answer is %q", text)
	}
	address := v.forwarding("web", "8000")
	for _, keep := range []bool{true, false} {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: !keep}, Timeout: patience.Long}
		for i := range 500 {
			body := fmt.Sprintf("%d%s", i, strings.Repeat("y", i*7))
			response := must.Get(client.Post("http://"+address+"/", "text/plain", strings.NewReader(body)))(t)
			got := must.Get(io.ReadAll(response.Body))(t)
			if response.Body.Close(); string(got) != body {
				t.Fatalf("request %d came back as %.100q", i, got)
			}
		}
		client.CloseIdleConnections()
	}
	// Many at a time, and large ones.
	large := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	errs := make(chan error, 20)
	for range cap(errs) {
		go func() {
			response, err := http.Post("http://"+address+"/", "text/plain", bytes.NewReader(large))
			if err == nil {
				var got []byte
				if got, err = io.ReadAll(response.Body); err == nil && !bytes.Equal(got, large) {
					err = fmt.Errorf("%d bytes came back as %d", len(large), len(got))
				}
			}
			errs <- err
		}()
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	b := browser.Start(t)
	b.Open("http://" + address + "/")
	b.Await("document.title === 'grüße' && document.body.textContent.endsWith('closed')")
	if length := b.Eval("document.body.textContent.length"); length < "300000" {
		t.Errorf("the page has %s characters", length)
	}
}

// The sandbox gains no way out: it reaches neither the host's end of a forwarded connection, nor
// other sessions. Each attempt has its control.
func TestForward_IsNoWayOut(t *testing.T) {
	t.Parallel()
	v := visiting(t, map[string]any{"forward": true})
	v.in("web", "python", web)
	v.in("other", "python", "1")
	before := v.in("web", "bash", "cat /proc/net/tcp /proc/net/tcp6 | grep -c ' 0A '; cat /proc/net/unix | wc -l")
	address := v.forwarding("web", "8000")
	conn := must.Get(net.Dial("tcp", address))(t) // the control: the host reaches it
	defer conn.Close()
	must.Get(io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"))(t)
	if line := must.Get(bufio.NewReader(conn).ReadString('\n'))(t); !strings.Contains(line, "200") {
		t.Errorf("the control: %q", line)
	}
	_, port, _ := net.SplitHostPort(address)
	const try = `
import socket
def attempt(host, port):
    try:
        socket.create_connection((host, port), 2).close()
        return 'reached'
    except OSError as e:
        return type(e).__name__
`
	v.in("web", "python", try)
	v.in("other", "python", try)
	for _, test := range []struct{ session, code, want string }{
		{"web", "attempt('127.0.0.1', 8000)", "reached"}, // the control
		{"web", "attempt('127.0.0.1', " + port + ")", "ConnectionRefusedError"},
		{"web", "attempt('::1', " + port + ")", "OSError|ConnectionRefusedError"},
		{"other", "attempt('127.0.0.1', 8000)", "ConnectionRefusedError"},
		{"other", "attempt('127.0.0.1', " + port + ")", "ConnectionRefusedError"},
	} {
		if got := v.in(test.session, "python", test.code).Text(); !regexp.MustCompile("^'(" + test.want + ")'\n$").MatchString(got) {
			t.Errorf("%s in %s: %q", test.code, test.session, got)
		}
	}
	// No further listener or socket is in the sandbox while it is forwarded.
	if after := v.in("web", "bash", "cat /proc/net/tcp /proc/net/tcp6 | grep -c ' 0A '; cat /proc/net/unix | wc -l"); after.Text() != before.Text() {
		t.Errorf("sockets were %q, and are %q", before.Text(), after.Text())
	}
	if found := v.in("web", "bash", "find / -xdev -name '*.desk' 2>/dev/null; cat /proc/net/unix | grep desk; echo searched"); found.Text() != "searched\n" {
		t.Errorf("the sandbox sees %q", found.Text())
	}
	// A port on which the other session does not listen refuses the user too.
	elsewhere := must.Get(net.Dial("tcp", v.forwarding("other", "8000")))(t)
	defer elsewhere.Close()
	if got, _ := io.ReadAll(elsewhere); len(got) > 0 {
		t.Errorf("the other session answered %q", got)
	}
	// Many connections that say nothing keep neither the session nor further ones from working.
	for range 40 {
		idle := must.Get(net.Dial("tcp", address))(t)
		defer idle.Close()
	}
	if got := v.in("web", "python", "6 * 7").Text(); got != "42\n" {
		t.Errorf("the session says %q", got)
	}
}

// When the session ends, what was forwarded ends with it.
func TestForward_EndsWithTheSession(t *testing.T) {
	t.Parallel()
	v := visiting(t, map[string]any{"forward": true})
	v.in("web", "python", web)
	var stderr bytes.Buffer
	cmd, address := v.forward(&stderr, "web", "8000")
	conn := must.Get(net.Dial("tcp", address))(t)
	defer conn.Close()
	must.Get(io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"))(t)
	reader := bufio.NewReader(conn)
	must.Get(reader.ReadString('\n'))(t) // it is open
	v.Signal(9)
	must.Do(t, conn.SetReadDeadline(time.Now().Add(patience.Long)))
	_, _ = io.Copy(io.Discard, reader)
	if _, err := reader.ReadByte(); err == nil || os.IsTimeout(err) {
		t.Errorf("the connection goes on: %v", err)
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(stderr.String(), "error: the server has ended") {
		t.Errorf("forward ended with %v, %s", err, &stderr)
	}
}
