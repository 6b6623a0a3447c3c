package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/mcptest"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/must"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/procfs"
)

// asServer is the environment variable that makes the test binary the server.
const asServer = "TEST_AS_SERVER"

func TestMain(m *testing.M) {
	if os.Getenv(asServer) != "" {
		os.Unsetenv(asServer)
		main()
	}
	os.Exit(mcptest.Main(m))
}

// serverCommand returns the command with exactly these variables.
func serverCommand(t testing.TB, args []string, variables ...string) *exec.Cmd {
	t.Helper()
	exe := must.Get(os.Executable())(t)
	cmd := exec.Command(exe, args...)
	cmd.Env = append([]string{asServer + "=1", "GORACE=atexit_sleep_ms=0", "NIX_SANDBOX_DIR=" + t.TempDir()}, variables...)
	return cmd
}

// start starts a server of environments made from this machine's programs.
func start(t testing.TB, change func(map[string]map[string]any), variables ...string) *mcptest.Client {
	t.Helper()
	environments := mcptest.Artifacts(t)
	if change != nil {
		change(environments)
	}
	return mcptest.Start(t, serverCommand(t, []string{"--stdio"}, append(variables, "NIX_SANDBOX_METADATA="+mcptest.Metadata(t, environments))...))
}

func TestServer_RunsCode(t *testing.T) {
	c := start(t, nil)
	c.Initialize(mcptest.Newest)
	for env, code := range map[string]string{"python": "print(1+1)", "bash": "echo 2", "node": "console.log(1+1)", "cat": "2\n"} {
		answer := c.Run(mcptest.Arguments{Code: code, Env: env})
		if answer.IsError || answer.Text() != "2\n" {
			t.Errorf("%s: %+v", env, answer)
		}
	}
	c.CloseInput()
	if status := c.Wait(5 * time.Second); status != 0 {
		t.Errorf("status %d", status)
	}
}

// withoutGateway is the error of a server without the program that does what a setting asks for.
func withoutGateway(setting string) string {
	return "nix-sandbox-mcp: error: " + setting + ", and this server was built without [serve]\n" +
		"nix-sandbox-mcp: hint: add the line [serve] to the configuration that the server is built from, and build it again\n"
}

func TestProgram_ReportsMistakes(t *testing.T) {
	observed := "NIX_SANDBOX_METADATA=" + mcptest.MetadataWith(t, map[string]map[string]any{}, map[string]any{"serve": mcptest.Serve(map[string]any{"audit_file": "/audit"})})
	metadata := "NIX_SANDBOX_METADATA=" + mcptest.Metadata(t, map[string]map[string]any{})
	for name, test := range map[string]struct {
		args      []string
		variables []string
		status    int
		want      string // on either stream
	}{
		"unknown flag":      {[]string{"--http"}, nil, 2, "nix-sandbox-mcp: error: unknown flag: --http\nnix-sandbox-mcp: hint: see nix-sandbox-mcp --help\n"},
		"argument":          {[]string{"--stdio", "x"}, nil, 2, `nix-sandbox-mcp: error: unknown command "x"`},
		"log format":        {[]string{"--stdio", "--log-format=xml"}, nil, 2, `nix-sandbox-mcp: error: --log-format is "xml"`},
		"nothing":           {nil, nil, 1, "nix-sandbox-mcp: error: NIX_SANDBOX_METADATA is not set\nnix-sandbox-mcp: hint: "},
		"no metadata":       {[]string{"--stdio"}, nil, 1, "nix-sandbox-mcp: error: NIX_SANDBOX_METADATA is not set\nnix-sandbox-mcp: hint: "},
		"broken metadata":   {[]string{"--stdio"}, []string{`NIX_SANDBOX_METADATA={"schema":1,`}, 1, "nix-sandbox-mcp: error: NIX_SANDBOX_METADATA: not valid JSON\n"},
		"older metadata":    {[]string{"--stdio"}, []string{`NIX_SANDBOX_METADATA={"schema":1,"environments":{}}`}, 1, "nix-sandbox-mcp: error: NIX_SANDBOX_METADATA: session is missing\n"},
		"metadata nowhere":  {[]string{"--stdio"}, []string{"NIX_SANDBOX_METADATA=/nowhere.json"}, 1, "nix-sandbox-mcp: error: read metadata: open /nowhere.json: no such file or directory\n"},
		"project nowhere":   {[]string{"--stdio"}, []string{metadata, "PROJECT_DIR=/nowhere"}, 1, "nix-sandbox-mcp: error: PROJECT_DIR is /nowhere, which does not exist\nnix-sandbox-mcp: hint: "},
		"inbox nowhere":     {[]string{"--stdio"}, []string{metadata, "NIX_SANDBOX_INBOX=/nowhere"}, 1, "nix-sandbox-mcp: error: NIX_SANDBOX_INBOX is /nowhere, which does not exist\nnix-sandbox-mcp: hint: set NIX_SANDBOX_INBOX to an existing folder"},
		"project misplaced": {[]string{"--stdio"}, []string{metadata, "PROJECT_MOUNT=/nix/x"}, 1, `nix-sandbox-mcp: error: PROJECT_MOUNT is "/nix/x"`},
		"audit log":         {[]string{"--stdio"}, []string{metadata, "NIX_SANDBOX_AUDIT=/audit"}, 1, withoutGateway(`NIX_SANDBOX_AUDIT is "/audit"`)},
		"metrics":           {[]string{"--stdio"}, []string{metadata, "NIX_SANDBOX_METRICS=127.0.0.1:9464"}, 1, withoutGateway(`NIX_SANDBOX_METRICS is "127.0.0.1:9464"`)},
		"configured audit":  {[]string{"--stdio"}, []string{observed}, 1, withoutGateway(`the configuration's audit_file is "/audit"`)},
		"idle of words":     {[]string{"--stdio"}, []string{metadata, "SESSION_IDLE_TIMEOUT=soon"}, 1, `nix-sandbox-mcp: error: SESSION_IDLE_TIMEOUT is "soon"`},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := serverCommand(t, test.args, test.variables...)
			out, _ := cmd.CombinedOutput()
			if status := cmd.ProcessState.ExitCode(); status != test.status || !strings.Contains(string(out), test.want) {
				t.Errorf("status %d, wrote %q; want status %d and %q", status, out, test.status, test.want)
			}
		})
	}
}

// The code gets the variables that the operator names. They are in neither the
// arguments nor the environment of any process on the host.
func TestServer_PassesVariables(t *testing.T) {
	metadata := mcptest.MetadataWith(t, mcptest.Artifacts(t), map[string]any{
		"project": mcptest.Project(map[string]any{"inherit_env": map[string]any{"vars": []string{"TOKEN", "UNSET"}}}),
	})
	c := mcptest.Start(t, serverCommand(t, []string{"--stdio"}, "NIX_SANDBOX_METADATA="+metadata, "TOKEN=a secret", "OTHER=hidden"))
	c.Initialize(mcptest.Newest)
	const code = "echo \"$TOKEN:${UNSET-unset}:${OTHER-unset}\"; sleep 0.5"
	id := c.SendRun(mcptest.Arguments{Code: code, Env: "bash", Session: "s"})
	patience.Until(t, "a sandbox runs", func() bool { return len(procfs.Descendants(c.PID())) > 1 })
	own := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/environ", c.PID())))(t)
	for _, pid := range procfs.Descendants(c.PID()) {
		// Until a new process executes its program, the kernel shows its parent's variables.
		patience.Until(t, fmt.Sprintf("process %d has other variables than the server", pid), func() bool {
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
			return !bytes.Equal(text, own)
		})
		for _, file := range []string{"cmdline", "environ"} {
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
			// The interpreter and its children have it, for the code to use.
			inside := strings.Contains(string(text), "HOME=/workspace") && file == "environ"
			if strings.Contains(string(text), "a secret") && !inside {
				t.Errorf("it is in %s of %d: %q", file, pid, text)
			}
		}
	}
	if answer := c.AwaitRun(id); answer.Text() != "a secret:unset:unset\n" {
		t.Errorf("answer %+v", answer)
	}
}

// A broken environment has one line in the log, and a call of it is answered with
// an error; the other environments are served.
func TestServer_ServesBesideBrokenEnvironment(t *testing.T) {
	c := start(t, func(environments map[string]map[string]any) {
		environments["broken"] = map[string]any{"backend": "jail", "exec": "/nowhere/bin/run", "session_exec": "/nowhere/bin/session-run"}
	})
	c.Initialize(mcptest.Newest)
	answer := c.Run(mcptest.Arguments{Code: "1", Env: "broken"})
	if !answer.IsError || !strings.Contains(answer.Text(), `env "broken" could not be loaded`) || !strings.Contains(answer.Text(), "- bash: Test bash") {
		t.Errorf("answer %+v", answer)
	}
	if answer := c.Run(mcptest.Arguments{Code: "echo 1", Env: "bash"}); answer.IsError {
		t.Errorf("answer %+v", answer)
	}
	if got := strings.Count(c.Log(), "environments.broken.exec is /nowhere/bin/run, which does not exist"); got != 1 {
		t.Errorf("the log names it %d times:\n%s", got, c.Log())
	}
}

// The log has a line for each call, and never has the code.
func TestServer_LogsCalls(t *testing.T) {
	environments := mcptest.Artifacts(t)
	c := mcptest.Start(t, serverCommand(t, []string{"--stdio", "--log-format", "json"}, "NIX_SANDBOX_METADATA="+mcptest.Metadata(t, environments)))
	c.Initialize(mcptest.Newest)
	c.Run(mcptest.Arguments{Code: "echo secret-code; exit 3", Env: "bash", Session: "s1"})
	c.CloseInput()
	c.Wait(5 * time.Second)
	want := []string{`"msg":"call"`, `"env":"bash"`, `"session":"s1"`, `"outcome":"failed"`, `"exit_code":3`, `"duration_ms":`, `"output_bytes":12`}
	found := false
	for line := range strings.Lines(c.Log()) {
		all := true
		for _, part := range want {
			all = all && strings.Contains(line, part)
		}
		found = found || all
	}
	if !found {
		t.Errorf("no line has %v:\n%s", want, c.Log())
	}
	if strings.Contains(c.Log(), "secret") {
		t.Errorf("the log holds the code:\n%s", c.Log())
	}
}

func TestServer_EndsAfterSignal(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		c := start(t, nil)
		c.Initialize(mcptest.Newest)
		c.Run(mcptest.Arguments{Code: "echo 1", Env: "bash", Session: "kept"})
		c.SendRun(mcptest.Arguments{Code: "trap '' TERM INT; echo busy; sleep 999", Env: "bash"})
		patience.Until(t, "the call runs", func() bool {
			return len(procfs.Descendants(c.PID())) >= 5
		})
		children := procfs.Descendants(c.PID())
		c.Signal(signal)
		if status := c.Wait(3 * time.Second); status != 0 {
			t.Errorf("%v: status %d", signal, status)
		}
		patience.Gone(t, children...)
	}
}

// A client that closes its end of the pipe ends the server. SIGPIPE does not
// kill the server before it has ended its sandboxes.
func TestServer_EndsWithItsReader(t *testing.T) {
	cmd := serverCommand(t, []string{"--stdio"}, "NIX_SANDBOX_METADATA="+mcptest.Metadata(t, mcptest.Artifacts(t)))
	in := must.Get(cmd.StdinPipe())(t)
	out := must.Get(cmd.StdoutPipe())(t)
	log := &mcptest.Log{}
	cmd.Stderr = log
	must.Do(t, cmd.Start())
	const call = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run","arguments":{"env":"bash","code":"sleep 99","session":"s"}}}` + "\n"
	if _, err := io.WriteString(in, call); err != nil {
		t.Fatal(err)
	}
	var children []int
	patience.Until(t, "the call runs", func() bool {
		children = procfs.Descendants(cmd.Process.Pid)
		return len(children) >= 4
	})
	out.Close()
	if _, err := io.WriteString(in, `{"jsonrpc":"2.0","id":2,"method":"ping"}`+"\n"); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if status := cmd.ProcessState.ExitCode(); status != 1 || !strings.Contains(log.String(), "nix-sandbox-mcp: error: write to the client: ") {
		t.Errorf("status %d:\n%s", status, log)
	}
	patience.Gone(t, children...)
}
