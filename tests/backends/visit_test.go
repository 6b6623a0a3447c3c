package backends

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/parts/desk/visit"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/undertest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/frame"
)

// The user looks into a session whose sandbox is a virtual machine, opens what its code serves, and has
// its files, as behind the other wall.
func TestVisits_ReachAMachine(t *testing.T) {
	text := must.Get(os.ReadFile(filepath.Join(filepath.Dir(undertest.Server(t)), "..", "share", "nix-sandbox-mcp", "metadata.json")))(t)
	var metadata map[string]any
	must.Do(t, json.Unmarshal(text, &metadata))
	metadata["session"].(map[string]any)["forward"] = true
	sandboxes, home, runtime, outputs := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	must.Do(t, os.Symlink(artifact(t, "python"), filepath.Join(sandboxes, "machine")))
	env := []string{
		"HOME=" + home, "TMPDIR=" + home, "XDG_CACHE_HOME=" + shared(t), "XDG_RUNTIME_DIR=" + runtime, "NIX_SANDBOX_DIR=" + sandboxes, "NIX_SANDBOX_START_SECONDS=60",
		"NIX_SANDBOX_OUTPUTS=" + outputs, "NIX_SANDBOX_METADATA=" + string(must.Get(json.Marshal(metadata))(t)),
	}
	cmd := exec.Command(undertest.Server(t), "--stdio")
	cmd.Env = env
	c := mcptest.Start(t, cmd)
	c.Initialize(mcptest.Newest)
	run := func(code string) string {
		t.Helper()
		return c.Run(mcptest.Arguments{Session: "web", Env: "machine-python", Code: code}).Text()
	}
	run("1") // an emulated machine begins slowly
	answer := run(`
import os, socket, threading
os.makedirs('outputs', exist_ok=True)
open('outputs/made.csv', 'w').write('1,2\n')
open('index.html', 'w').write('of the machine')
x = 41
server = socket.create_server(('127.0.0.1', 8000))
def serve():
    while True:
        with server.accept()[0] as client:
            client.recv(4096)
            client.sendall(b'HTTP/1.0 200 OK\r\n\r\nof the machine')
threading.Thread(target=serve, daemon=True).start()`)
	if !strings.Contains(answer, "the user opens port 8000 with: nix-sandbox-mcp forward web 8000") {
		t.Errorf("the answer is %q", answer)
	}
	if got := string(must.Get(exec.Command("find", outputs, "-name", "made.csv", "-exec", "cat", "{}", ";").Output())(t)); got != "1,2\n" {
		t.Errorf("the outputs have %q", got)
	}
	command := func(in string, args ...string) string {
		t.Helper()
		cmd := exec.Command(undertest.Server(t), args...)
		cmd.Env, cmd.Stdin, cmd.Stderr = env, strings.NewReader(in), os.Stderr
		return string(must.Get(cmd.Output())(t))
	}
	if list := command("", "sessions"); !strings.Contains(list, "\nweb ") {
		t.Errorf("the list is %s", list)
	}
	if got := command("in\n", "exec", "--session", "web", "-c", "cat; cat index.html"); got != "in\nof the machine" {
		t.Errorf("a command says %q", got)
	}
	command("", "get", "web", "index.html", "--to", home)
	if got := string(must.Get(os.ReadFile(filepath.Join(home, "index.html")))(t)); got != "of the machine" {
		t.Errorf("the file has %q", got)
	}
	servers := desk.Find([]string{filepath.Join(runtime, "nix-sandbox-mcp")})
	if len(servers) != 1 {
		t.Fatalf("%d servers", len(servers))
	}
	shell := must.Get(servers[0].Dial(t.Context(), "open", visit.OpenArgs{Place: visit.Place{Session: "web"}, Terminal: &frame.Terminal{Rows: 24, Columns: 80}}))(t)
	defer shell.Close()
	must.Do(t, shell.Write(visit.Input{Bytes: []byte("cat index.html; echo; echo u > mine.txt; exit 3\n")}))
	var shown strings.Builder
	for {
		var out visit.Output
		must.Do(t, shell.Read(&out))
		if shown.Write(out.Bytes); out.ExitCode != nil {
			if *out.ExitCode != 3 || !strings.Contains(shown.String(), "\nof the machine\r\n") {
				t.Errorf("status %d, %q", *out.ExitCode, &shown)
			}
			break
		}
	}
	forward := must.Get(servers[0].Dial(t.Context(), "forward", visit.ForwardArgs{Place: visit.Place{Session: "web"}, Port: 8000}))(t)
	defer forward.Close()
	var at visit.Forwarded
	must.Do(t, forward.Read(&at))
	client := &http.Client{Timeout: patience.For(patience.Long)}
	for i := range 20 {
		response := must.Get(client.Get(fmt.Sprintf("http://%s/?%d", at.Address, i)))(t)
		body := string(must.Get(io.ReadAll(response.Body))(t))
		if response.Body.Close(); body != "of the machine" {
			t.Fatalf("request %d: %q", i, body)
		}
	}
	if answer := run("x"); !strings.HasPrefix(answer, "41\n") || !strings.Contains(answer, "[the user changed files in this session: mine.txt]") {
		t.Errorf("the next answer is %q", answer)
	}
}
