package clients

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

// web is a server over HTTP.
type web struct {
	url   string
	token string // empty where the server takes everybody of this machine
	log   *mcptest.Log
}

var listening = regexp.MustCompile(`"msg":"listening","address":"([^"]+)"`)

// serveHTTP starts the server on a port of this machine, with a token for alice or
// with none.
func (s setup) serveHTTP(t *testing.T, withToken bool) web {
	t.Helper()
	w := web{log: &mcptest.Log{}}
	// The client's own folder marks what the client started.
	home := t.TempDir()
	cmd := exec.Command(s.server, "serve", "--http", "127.0.0.1:0", "--log-format", "json")
	cmd.Env = append(os.Environ(), "HOME="+home, "NIX_SANDBOX_DIR="+filepath.Join(home, "sandboxes"))
	if withToken {
		file := filepath.Join(home, "tokens")
		out := must.Get(exec.Command(s.server, "token", "new", "alice", "--file", file).Output())(t)
		w.token = strings.TrimSpace(string(out))
		cmd.Env = append(cmd.Env, "NIX_SANDBOX_TOKENS="+file)
	}
	cmd.Stderr = w.log
	must.Do(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		if t.Failed() {
			t.Logf("the server's log:\n%s", w.log)
		}
	})
	patience.Wait(t, patience.Long, func() string { return "the server does not listen:\n" + w.log.String() }, func() bool { return listening.MatchString(w.log.String()) })
	w.url = "http://" + listening.FindStringSubmatch(w.log.String())[1] + "/mcp"
	return w
}

// saw fails the test unless a client of this name and a version of the protocol has
// begun, as the principal alice.
func (w web) saw(t *testing.T, client, version string) {
	t.Helper()
	line := regexp.MustCompile(`"msg":"client","principal":"alice","client":"` + client + `","version":"` + version + `"`)
	if !line.MatchString(w.log.String()) {
		t.Errorf("the log lacks %s:\n%s", line, w.log)
	}
}

// Claude Code reaches the server with the one command of docs/serving.md, and tells a
// wrong token from a good one.
func TestClaudeCode_OverHTTP(t *testing.T) {
	s := prepare(t)
	w := s.serveHTTP(t, true)
	for name, token := range map[string]string{"sandbox": w.token, "stranger": "nsm_wrong"} {
		if out := s.run(t, s.Claude, "mcp", "add", "--transport", "http", name, w.url, "--header", "Authorization: Bearer "+token); out.status != 0 {
			t.Fatalf("mcp add: status %d: %s%s", out.status, out.stdout, out.stderr)
		}
	}
	out := s.run(t, s.Claude, "mcp", "list")
	for line := range strings.Lines(out.stdout) {
		isGood := strings.HasPrefix(line, "sandbox:")
		if (isGood || strings.HasPrefix(line, "stranger:")) && strings.Contains(line, "Connected") != isGood {
			t.Errorf("mcp list: %s", line)
		}
	}
	if !strings.Contains(out.stdout, "Connected") {
		t.Errorf("mcp list: %s%s", out.stdout, out.stderr)
	}
	w.saw(t, "claude-code", "2026-07-28")
}

// The Inspector lists, calls, draws and goes on in a session, in both eras.
func TestInspector_OverHTTP(t *testing.T) {
	given(t)
	for era, version := range map[string]string{"legacy": "2025-11-25", "modern": "2026-07-28"} {
		t.Run(era, func(t *testing.T) {
			s := prepare(t)
			w := s.serveHTTP(t, true)
			inspect := func(arguments ...string) output {
				program := s.file(t, "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js")
				command := []string{program, "--cli", w.url, "--transport", "http", "--header", "Authorization: Bearer " + w.token, "--protocol-era", era}
				return s.run(t, s.Node, append(command, arguments...)...)
			}
			call := func(args mcptest.Arguments) mcptest.Answer {
				t.Helper()
				out := inspect("--method", "tools/call", "--tool-name", "run", "--tool-args-json", string(must.Get(json.Marshal(args))(t)))
				var answer mcptest.Answer
				if err := json.Unmarshal([]byte(out.stdout), &answer); err != nil || out.status != inspectorOK {
					t.Fatalf("the Inspector printed %q and %q: %v", out.stdout, out.stderr, err)
				}
				return answer
			}
			if out := inspect("--method", "tools/list", "--strict"); out.status != inspectorOK || !strings.Contains(out.stdout, `"run"`) {
				t.Errorf("status %d: %s%s", out.status, out.stdout, out.stderr)
			}
			if answer := call(mcptest.Arguments{Env: "python", Session: "s", Code: drawing + "x = 6 * 7"}); len(answer.Content) == 0 || answer.Content[len(answer.Content)-1].MIMEType != "image/png" {
				t.Errorf("image: %+v", answer)
			}
			if answer := call(mcptest.Arguments{Env: "python", Session: "s", Code: "print(x)"}); answer.Text() != "42\n" {
				t.Errorf("session: %+v", answer)
			}
			w.saw(t, "[^\"]*", version)
		})
	}
}
